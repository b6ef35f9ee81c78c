//! Rows of direct effects, in memory or in a file.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::active::Active;
use super::kept_index::{KeptIndex, Record, io};
use crate::error::Result;

/// What can have an effect on a target: features and errors of sites below its own, at positions up to its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cone {
    /// Sites below.
    pub(super) sites: usize,
    /// The target's position.
    pub(super) pos: usize,
}

impl Cone {
    /// The columns that are not zero for sure.
    pub(super) fn columns(self, active: &Active, places: usize, learned: bool) -> Vec<Range<usize>> {
        let mut columns = Vec::new();
        for site in 0..self.sites {
            columns.push(active.range(site, 0).start..active.range(site, self.pos).end);
        }
        let first = active.count();
        for place in 0..self.sites {
            let first = first + place * active.len;
            columns.push(first..first + self.pos + 1);
        }
        let first = first + places * active.len;
        columns.push(first..first + self.pos + 1);
        if learned {
            columns.push(first + active.len..first + active.len + self.pos + 1);
        }
        columns
    }
}

/// What a row is of; features first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum RowOf {
    Feature(usize),
    Goal(usize),
}

/// Rows one behind the other, without the columns that are zero; in a file once they are too many, or where they shall
/// outlive the process.
#[derive(Debug)]
pub(super) struct RowStore {
    memory: Vec<Vec<f32>>,
    /// Elements that may lie in memory.
    most: u64,
    file: Option<File>,
    kept: Option<KeptIndex>,
    /// The folder of the file.
    place: PathBuf,
    rows: Vec<Stored>,
    len: u64,
}

#[derive(Debug, Clone)]
struct Stored {
    of: RowOf,
    columns: Vec<Range<usize>>,
    first: u64,
    /// The sum of magnitudes.
    size: f64,
    constant: f64,
}

impl RowStore {
    /// One that may hold so many bytes in memory.
    pub(super) fn new(most: usize) -> Self {
        let place = std::env::temp_dir();
        Self { memory: Vec::new(), most: most as u64 / 4, file: None, kept: None, place, rows: Vec::new(), len: 0 }
    }

    /// One in a folder, with the rows of the same graph that are there.
    pub(super) fn in_folder(
        folder: &Path,
        identity: u128,
        columns: impl Fn(RowOf) -> Option<Vec<Range<usize>>>,
    ) -> Result<Self> {
        let (kept, file, records) = KeptIndex::open(folder, identity)?;
        let mut store = Self { file: Some(file), kept: Some(kept), place: folder.into(), ..Self::new(0) };
        let held = store.file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |data| data.len() / 4);
        for Record { of, constant, size } in records {
            let Some(columns) = columns(of) else { break };
            let count: usize = columns.iter().map(Range::len).sum();
            if store.len + count as u64 > held {
                break;
            }
            store.rows.push(Stored { of, columns, first: store.len, size, constant });
            store.len += count as u64;
        }
        // What a killed run left half written goes.
        if let (Some(kept), Some(file)) = (&mut store.kept, &mut store.file) {
            kept.cut(store.rows.len())?;
            let end = 4 * store.len;
            file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(|source| io(folder, source))?;
        }
        Ok(store)
    }

    /// Adds the row of a target.
    pub(super) fn add(&mut self, of: RowOf, row: &[f32], columns: Vec<Range<usize>>, constant: f64) -> Result<()> {
        let size = columns.iter().flat_map(|range| &row[range.clone()]).map(|x| f64::from(x.abs())).sum();
        let count: usize = columns.iter().map(Range::len).sum();
        if self.file.is_none() && self.len + count as u64 > self.most {
            let mut file = tempfile::tempfile().map_err(|source| io(&self.place, source))?;
            // One after the other, so that none is there twice.
            let mut rows = std::mem::take(&mut self.memory).into_iter();
            rows.try_for_each(|row| file.write_all(&bytes(&row))).map_err(|source| io(&self.place, source))?;
            self.file = Some(file);
        }
        let mut packed = Vec::with_capacity(count);
        columns.iter().for_each(|range| packed.extend_from_slice(&row[range.clone()]));
        match &mut self.file {
            None => self.memory.push(packed),
            Some(file) => {
                let written = file.seek(SeekFrom::End(0)).and_then(|_| file.write_all(&bytes(&packed)));
                written.map_err(|source| io(&self.place, source))?;
            }
        }
        if let Some(kept) = &mut self.kept {
            kept.add(Record { of, constant, size })?;
        }
        self.rows.push(Stored { of, columns, first: self.len, size, constant });
        self.len += count as u64;
        Ok(())
    }

    /// What a row is of.
    pub(super) fn of(&self, row: usize) -> RowOf {
        self.rows[row].of
    }

    pub(super) fn constant(&self, row: usize) -> f64 {
        self.rows[row].constant
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The sum of a row's magnitudes.
    pub(super) fn size(&self, row: usize) -> f64 {
        self.rows[row].size
    }

    /// Shows a row's entries, by runs of columns.
    pub(super) fn each(&mut self, row: usize, mut show: impl FnMut(Range<usize>, &[f32])) -> Result<()> {
        let stored = self.rows[row].clone();
        let count: usize = stored.columns.iter().map(Range::len).sum();
        let read;
        let entries = match &mut self.file {
            None => &self.memory[row][..],
            Some(file) => {
                let mut raw = vec![0; 4 * count];
                file.seek(SeekFrom::Start(4 * stored.first))
                    .and_then(|_| file.read_exact(&mut raw))
                    .map_err(|source| io(&self.place, source))?;
                read = raw.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect::<Vec<_>>();
                &read[..]
            }
        };
        let mut at = 0;
        for columns in stored.columns {
            let count = columns.len();
            show(columns, &entries[at..at + count]);
            at += count;
        }
        Ok(())
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}
