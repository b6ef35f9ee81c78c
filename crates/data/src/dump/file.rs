//! A single safetensors file, written batch by batch.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use hooklens_hooks::{SafetensorsHeader, Unfinished};

use super::DumpReport;
use super::batch::Batch;
use super::manifest::{KEY, Manifest};
use super::placing::{FileTensor, Widths};
use super::writer::Sink;
use crate::error::DumpError;

/// A file whose header is written with the first batch: batches differ only in their number of rows, so each tensor's
/// location can be computed in advance.
pub(super) struct FileSink {
    path: PathBuf,
    unfinished: Unfinished,
    total_rows: usize,
    widths: Widths,
    manifest: Manifest,
    written_rows: usize,
    tensors: Vec<TensorRegion>,
    data_start: u64,
}

/// Location of a tensor in the file.
struct TensorRegion {
    name: String,
    /// Offset from the start of the data.
    start: u64,
    bytes_a_row: u64,
}

impl FileSink {
    pub(super) fn new(path: &Path, manifest: Manifest, widths: Widths) -> Result<Self, DumpError> {
        let failed = |source: std::io::Error| DumpError::File { path: path.to_path_buf(), source };
        if path.is_dir() {
            return Err(DumpError::Refused { path: path.to_path_buf(), reason: "it is a folder; name a file".into() });
        }
        let unfinished = Unfinished::beside(path).map_err(failed)?;
        let (path, total_rows) = (path.to_path_buf(), manifest.rows);
        let manifest = Manifest { complete: true, ..manifest };
        Ok(Self { path, unfinished, total_rows, widths, manifest, written_rows: 0, tensors: Vec::new(), data_start: 0 })
    }

    fn failed(&self, source: std::io::Error) -> DumpError {
        DumpError::File { path: self.path.clone(), source }
    }

    fn refused(&self, reason: String) -> DumpError {
        DumpError::Refused { path: self.path.clone(), reason }
    }

    /// Writes the header, based on the shapes of the first batch.
    fn begin(&mut self, tensors: &[FileTensor], rows: usize) -> Result<(), DumpError> {
        let whole = tensors.iter().map(|FileTensor { name, dtype, shape, .. }| {
            let mut shape = shape.clone();
            // Rows of the tensor per row of the batch: one, or one per position.
            shape[0] = shape[0] / rows * self.total_rows;
            (name.clone(), *dtype, shape)
        });
        let manifest = serde_json::to_string(&self.manifest).map_err(|e| self.failed(e.into()))?;
        let metadata = [("format", "pt"), ("written_by", "hooklens"), (KEY, &*manifest)];
        let metadata = metadata.map(|(key, value)| (key.into(), value.into()));
        let header = SafetensorsHeader::new(whole, metadata).map_err(|e| self.failed(std::io::Error::other(e)))?;
        for FileTensor { name, .. } in tensors {
            let Some((start, end)) = header.place(name) else { continue };
            let bytes_a_row = (end - start) / self.total_rows as u64;
            self.tensors.push(TensorRegion { name: name.clone(), start, bytes_a_row });
        }
        self.data_start = header.bytes().len() as u64;
        let len = self.data_start + header.data_len();
        let written = self.unfinished.write_all(header.bytes()).and_then(|()| self.unfinished.as_file()?.set_len(len));
        written.map_err(|e| self.failed(e))
    }
}

impl Sink for FileSink {
    fn write(&mut self, batch: Batch) -> Result<(), DumpError> {
        let (rows, first_row) = (batch.placing.rows(), batch.first_row);
        let tensors = batch.place(self.widths, &self.path)?;
        if self.tensors.is_empty() {
            batch.describe((self.total_rows, self.widths), false, &mut self.manifest.tensors);
            self.begin(&tensors, rows)?;
        }
        for slot in &self.tensors {
            let Some(tensor) = tensors.iter().find(|tensor| tensor.name == slot.name) else {
                return Err(self.refused(format!(
                    "`{}` fired only in some batches, and a file stores a point of all batches; dump to a folder",
                    slot.name
                )));
            };
            if tensor.bytes.len() as u64 != slot.bytes_a_row * rows as u64 {
                return Err(self.refused(format!("`{}` has a varying number of rows; dump to a folder", slot.name)));
            }
            let at = self.data_start + slot.start + slot.bytes_a_row * first_row as u64;
            self.unfinished.as_file().and_then(|file| write_at(file, at, &tensor.bytes)).map_err(|e| self.failed(e))?;
        }
        self.written_rows += rows;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<DumpReport, DumpError> {
        let Self { path, unfinished, total_rows, written_rows, data_start, .. } = *self;
        if written_rows != total_rows {
            // The run failed elsewhere; an incomplete file does not get the final name.
            return Ok(DumpReport::default());
        }
        let failed = |source: std::io::Error| DumpError::File { path: path.clone(), source };
        let file = unfinished.finish().map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len() - data_start;
        Ok(DumpReport { files: vec![path], bytes, ..DumpReport::default() })
    }
}

fn write_at(mut file: &File, at: u64, bytes: &[u8]) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    file.write_all(bytes)
}
