//! A layer's keys and values in a temporary file.
//!
//! New columns are written to the end of the file, and a list of extents states which parts of the file are in use. A
//! clone shares the file but has its own list, so it does not see what the original drops or adds, and vice versa.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{DType, Device, Float, Tensor, TensorData};
use hooklens_hooks::{read, upload};

use super::fault;
use super::kind::Form;
use crate::error::CacheError;

/// Unused bytes up to which a file is not compacted.
const LEAST_WASTE: u64 = 1 << 16;

/// Columns stored contiguously in the file, column by column and row by row.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Extent {
    offset: u64,
    columns: usize,
}

/// Keys or values, `[rows, len, head, width]`.
#[derive(Debug, Clone)]
struct DiskTensor {
    file: Arc<Mutex<File>>,
    /// Shape of one column, `[rows, head, width]`.
    cell: [usize; 3],
    dtype: DType,
    extents: Vec<Extent>,
}

fn failed(source: std::io::Error) -> CacheError {
    CacheError::Disk { source }
}

impl DiskTensor {
    /// Creates an empty tensor in an unnamed temporary file, which disappears with its last clone or with the process.
    fn new(like: &Tensor<4>) -> Result<Self, CacheError> {
        let [rows, _, heads, width] = like.dims();
        let file = Arc::new(Mutex::new(tempfile::tempfile().map_err(failed)?));
        Ok(Self { file, cell: [rows, heads, width], dtype: like.dtype(), extents: Vec::new() })
    }

    /// Number of columns.
    fn columns(&self) -> usize {
        self.extents.iter().map(|extent| extent.columns).sum()
    }

    fn column_bytes(&self) -> usize {
        self.cell.iter().product::<usize>() * self.dtype.size()
    }

    /// Writes columns to the end of the file.
    fn write(&self, new: Tensor<4>) -> Result<Extent, CacheError> {
        fault::point()?;
        let columns = new.dims()[1];
        let data = read(new.swap_dims(0, 1)).map_err(|e| CacheError::Unreadable { source: e.into() })?;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = file.seek(SeekFrom::End(0)).map_err(failed)?;
        if let Err(error) = file.write_all(data.as_bytes()) {
            let _ = file.set_len(offset); // partially written data is never read
            return Err(failed(error));
        }
        Ok(Extent { offset, columns })
    }

    fn add(&mut self, new: Extent) {
        let end = self.end();
        match self.extents.last_mut() {
            Some(last) if end == new.offset => last.columns += new.columns,
            _ => self.extents.push(new),
        }
    }

    fn read(&self, device: &Device) -> Result<Tensor<4>, CacheError> {
        let [rows, heads, width] = self.cell;
        let data = TensorData::from_bytes_vec(self.bytes()?, [self.columns(), rows, heads, width], self.dtype);
        Ok(upload::<4, Float>(data, (device, self.dtype)).swap_dims(0, 1))
    }

    /// The bytes of all columns.
    fn bytes(&self) -> Result<Vec<u8>, CacheError> {
        let mut bytes = vec![0u8; self.columns() * self.column_bytes()];
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut filled = 0;
        for extent in &self.extents {
            let end = filled + extent.columns * self.column_bytes();
            file.seek(SeekFrom::Start(extent.offset)).map_err(failed)?;
            file.read_exact(&mut bytes[filled..end]).map_err(failed)?;
            filled = end;
        }
        Ok(bytes)
    }

    /// Drops the columns starting at `len`, which no clone has seen, and truncates the file by their size.
    fn abandon(&mut self, len: usize) {
        let end = self.end();
        let columns = self.columns();
        self.keep(len, false);
        let dropped = (columns.saturating_sub(len) * self.column_bytes()) as u64;
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if dropped > 0 && file.metadata().is_ok_and(|file| file.len() == end) {
            let _ = file.set_len(end - dropped); // a longer file does no harm
        }
    }

    /// Moves the columns to a new file if less than half of this one is in use, which happens with a sliding window. A
    /// file that a clone reads is kept.
    fn compact(&mut self) -> Result<(), CacheError> {
        let columns = self.columns();
        let used = (columns * self.column_bytes()) as u64;
        if self.end() < 2 * used + LEAST_WASTE || Arc::strong_count(&self.file) > 1 {
            return Ok(());
        }
        let bytes = self.bytes()?;
        let mut file = tempfile::tempfile().map_err(failed)?;
        file.write_all(&bytes).map_err(failed)?;
        self.file = Arc::new(Mutex::new(file));
        self.extents = vec![Extent { offset: 0, columns }];
        Ok(())
    }

    /// Offset of the end of the last column.
    fn end(&self) -> u64 {
        self.extents.last().map_or(0, |last| last.offset + (last.columns * self.column_bytes()) as u64)
    }

    /// Keeps `len` columns, the last ones if `last` is true and the first ones otherwise.
    fn keep(&mut self, len: usize, last: bool) {
        let bytes = self.column_bytes() as u64;
        let mut left = len;
        let mut kept = Vec::new();
        let shorten = |extent: &Extent, left: &mut usize| {
            let columns = extent.columns.min(*left);
            *left -= columns;
            let skipped = if last { extent.columns - columns } else { 0 };
            (columns > 0).then_some(Extent { offset: extent.offset + skipped as u64 * bytes, columns })
        };
        if last {
            kept.extend(self.extents.iter().rev().filter_map(|extent| shorten(extent, &mut left)));
            kept.reverse();
        } else {
            kept.extend(self.extents.iter().filter_map(|extent| shorten(extent, &mut left)));
        }
        self.extents = kept;
    }
}

/// Keys and values on disk.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    tracks: Option<[DiskTensor; 2]>,
    /// Device that tensors are read to.
    device: Option<Device>,
    len: usize,
}

impl Disk {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn form(&self) -> Option<Form> {
        let [keys, _] = self.tracks.as_ref()?;
        self.device.clone().map(|device| (keys.dtype, device))
    }

    /// Appends keys and values.
    pub(super) fn push(&mut self, new: [Tensor<4>; 2]) -> Result<(), CacheError> {
        let count = new[0].dims()[1];
        if self.len == 0 {
            self.device = Some(new[0].device());
            self.tracks = Some([DiskTensor::new(&new[0])?, DiskTensor::new(&new[1])?]);
        }
        let Some([keys, values]) = &mut self.tracks else { return Ok(()) };
        for (track, new) in [keys, values].into_iter().zip(new) {
            let new = track.write(new)?;
            track.add(new);
            track.compact()?;
        }
        self.len += count;
        Ok(())
    }

    /// Reads the keys and values.
    pub(super) fn read(&self) -> Result<Option<[Tensor<4>; 2]>, CacheError> {
        let (Some([keys, values]), Some(device)) = (&self.tracks, &self.device) else { return Ok(None) };
        if self.len == 0 {
            return Ok(None);
        }
        Ok(Some([keys.read(device)?, values.read(device)?]))
    }

    /// Keeps the first `len` columns.
    pub(super) fn truncate(&mut self, len: usize) {
        self.keep(len, false);
    }

    /// Drops the columns starting at `len` and shrinks the files. After a failed write, keys or values may have more
    /// columns than `self.len`.
    pub(super) fn abandon(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.tracks.iter_mut().flatten().for_each(|track| track.abandon(len));
    }

    /// Keeps the last `len` columns.
    pub(super) fn keep_last(&mut self, len: usize) {
        self.keep(len, true);
    }

    fn keep(&mut self, len: usize, last: bool) {
        self.len = self.len.min(len);
        let len = self.len;
        self.tracks.iter_mut().flatten().for_each(|track| track.keep(len, last));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(from: usize, count: usize) -> [Tensor<4>; 2] {
        let of = |sign: f32| {
            let values: Vec<f32> =
                (0..2).flat_map(|row| (from..from + count).map(move |c| sign * (100 * row + c) as f32)).collect();
            Tensor::from_data(TensorData::new(values, [2, count, 1, 1]), &Device::flex())
        };
        [of(1.0), of(-1.0)]
    }

    fn held(disk: &Disk) -> Vec<f32> {
        let [keys, values] = disk.read().unwrap().unwrap();
        assert_eq!((keys.clone() + values).abs().max().into_scalar::<f32>(), 0.0);
        keys.into_data().try_into_vec::<f32>().unwrap()
    }

    /// The file of a window grows with the window, not with the text.
    #[test]
    fn dropped_columns_free_their_space() {
        let wide = |at: usize| {
            let of = |sign: f32| Tensor::full([1, 1, 1, 4096], sign * at as f32, &Device::flex());
            [of(1.0), of(-1.0)]
        };
        let mut disk = Disk::default();
        let mut early = None;
        for at in 0..200 {
            disk.push(wide(at)).unwrap();
            disk.keep_last(3);
            if at == 50 {
                early = Some(disk.clone());
            }
            if at == 100 {
                let clone = early.take().unwrap();
                let [keys, _] = clone.read().unwrap().unwrap();
                assert_eq!(keys.max().into_scalar::<f32>(), 50.0, "a clone's columns stay");
            }
            if !(51..=101).contains(&at) {
                let [keys, _] = disk.tracks.as_ref().unwrap();
                let len = keys.file.lock().unwrap().metadata().unwrap().len();
                assert!(len < (2 * 4 * 4096 * 4) as u64 + 2 * LEAST_WASTE, "{len} bytes after {at} columns");
            }
        }
        let [keys, values] = disk.read().unwrap().unwrap();
        let first = keys.narrow(3, 0, 1).into_data().try_into_vec::<f32>().unwrap();
        assert_eq!((first, values.min().into_scalar::<f32>()), (vec![197.0, 198.0, 199.0], -199.0));
    }

    #[test]
    fn a_clone_sees_nothing_of_what_follows() {
        let mut disk = Disk::default();
        disk.push(columns(0, 3)).unwrap();
        let mut clone = disk.clone();
        disk.push(columns(3, 1)).unwrap();
        clone.truncate(2);
        clone.push(columns(7, 2)).unwrap();
        assert_eq!(held(&disk), [0.0, 1.0, 2.0, 3.0, 100.0, 101.0, 102.0, 103.0]);
        assert_eq!(held(&clone), [0.0, 1.0, 7.0, 8.0, 100.0, 101.0, 107.0, 108.0]);
        clone.keep_last(3);
        assert_eq!(held(&clone), [1.0, 7.0, 8.0, 101.0, 107.0, 108.0]);
        clone.truncate(0);
        clone.push(columns(5, 1)).unwrap();
        assert_eq!(held(&clone), [5.0, 105.0]);
    }

    #[test]
    fn adjacent_columns_are_one_extent() {
        let mut disk = Disk::default();
        (0..5).for_each(|column| disk.push(columns(column, 1)).unwrap());
        assert!(disk.tracks.iter().flatten().all(|track| track.extents == [Extent { offset: 0, columns: 5 }]));
    }
}
