//! One safetensors file, written batch by batch.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use hooklens_hooks::{beside, remove_stale};
use serde_json::{Map, Value, json};
use tempfile::NamedTempFile;

use super::DumpReport;
use super::batch::Batch;
use super::placing::{FileTensor, Widths};
use super::writer::Sink;
use crate::error::DumpError;

/// A file whose header is known after the first batch: every batch has the same shape but for
/// its number of rows, so each tensor's place can be told in advance.
pub(super) struct FileSink {
    path: PathBuf,
    beside: NamedTempFile,
    total_rows: usize,
    widths: Widths,
    written_rows: usize,
    tensors: Vec<TensorRegion>,
    data_start: u64,
}

/// Where one tensor lies.
struct TensorRegion {
    name: String,
    /// From the start of the data.
    start: u64,
    bytes_a_row: u64,
}

impl FileSink {
    pub(super) fn new(path: &Path, total_rows: usize, widths: Widths) -> Result<Self, DumpError> {
        let failed = |source: std::io::Error| DumpError::File { path: path.to_path_buf(), source };
        if path.is_dir() {
            return Err(DumpError::Refused { path: path.to_path_buf(), reason: "it is a folder".into() });
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        remove_stale(folder.unwrap_or(Path::new(".")));
        let beside = beside(path).map_err(failed)?;
        // Held while it is written, so that no other run takes it for what a killed one left.
        beside.as_file().try_lock().ok();
        let path = path.to_path_buf();
        Ok(Self { path, beside, total_rows, widths, written_rows: 0, tensors: Vec::new(), data_start: 0 })
    }

    fn failed(&self, source: std::io::Error) -> DumpError {
        DumpError::File { path: self.path.clone(), source }
    }

    fn refused(&self, reason: String) -> DumpError {
        DumpError::Refused { path: self.path.clone(), reason }
    }

    /// Writes the header, from the shapes of the first batch.
    fn begin(&mut self, tensors: &[FileTensor], rows: usize) -> Result<(), DumpError> {
        let mut header = Map::new();
        header.insert("__metadata__".into(), json!({"format": "pt", "written_by": "hooklens"}));
        let mut at = 0;
        // Large elements first: each tensor then begins at a multiple of its element's size.
        let mut order: Vec<&FileTensor> = tensors.iter().collect();
        order.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.bitsize()));
        for FileTensor { name, dtype, shape, .. } in order {
            let mut shape = shape.clone();
            // Rows of the tensor for one row of the batch: one, or as many as it has positions.
            shape[0] = shape[0] / rows * self.total_rows;
            let bytes = (shape.iter().product::<usize>() * dtype.bitsize() / 8) as u64;
            let entry = json!({"dtype": format!("{dtype:?}"), "shape": shape, "data_offsets": [at, at + bytes]});
            header.insert(name.clone(), entry);
            let bytes_a_row = bytes / self.total_rows as u64;
            self.tensors.push(TensorRegion { name: name.clone(), start: at, bytes_a_row });
            at += bytes;
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        // Data begins at a multiple of eight bytes, so that readers can map it.
        header.resize(header.len().next_multiple_of(8), b' ');
        self.data_start = 8 + header.len() as u64;
        let file = self.beside.as_file_mut();
        let written = file
            .write_all(&(header.len() as u64).to_le_bytes())
            .and_then(|()| file.write_all(&header))
            .and_then(|()| file.set_len(self.data_start + at));
        written.map_err(|e| self.failed(e))
    }
}

impl Sink for FileSink {
    fn write(&mut self, batch: Batch) -> Result<(), DumpError> {
        let (rows, first_row) = (batch.placing.rows(), batch.first_row);
        let tensors = batch.place(self.widths, &self.path)?;
        if self.tensors.is_empty() {
            self.begin(&tensors, rows)?;
        }
        for slot in &self.tensors {
            let Some(tensor) = tensors.iter().find(|tensor| tensor.name == slot.name) else {
                return Err(self.refused(format!("`{}` fired in some batches only; dump to a folder", slot.name)));
            };
            if tensor.bytes.len() as u64 != slot.bytes_a_row * rows as u64 {
                return Err(self.refused(format!("`{}` has a varying number of rows; dump to a folder", slot.name)));
            }
            let at = self.data_start + slot.start + slot.bytes_a_row * first_row as u64;
            write_at(self.beside.as_file(), at, &tensor.bytes).map_err(|e| self.failed(e))?;
        }
        self.written_rows += rows;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<DumpReport, DumpError> {
        let Self { path, beside, total_rows, written_rows, data_start, .. } = *self;
        if written_rows != total_rows {
            // The run failed elsewhere; what is incomplete does not get the file's name.
            return Ok(DumpReport::default());
        }
        let failed = |source: std::io::Error| DumpError::File { path: path.clone(), source };
        beside.as_file().sync_all().map_err(failed)?;
        let bytes = beside.as_file().metadata().map_err(failed)?.len() - data_start;
        beside.persist(&path).map_err(|e| failed(e.error))?;
        Ok(DumpReport { bytes, files: vec![path], ..DumpReport::default() })
    }
}

fn write_at(mut file: &File, at: u64, bytes: &[u8]) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    file.write_all(bytes)
}
