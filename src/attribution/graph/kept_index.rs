//! What is known of the rows that a folder keeps, so that an interrupted graph goes on.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::rows::RowOf;
use crate::error::{GraphError, Result};

/// The effects themselves, and what each row is of.
const ROWS: &str = "graph_rows.f32";
const INDEX: &str = "graph_rows.index";
/// A file of this kind, of this version.
const MAGIC: &[u8; 16] = b"hooklens graph 1";
const HEAD: usize = 32;
const RECORD: usize = 24;

/// A row's entry: written behind the row itself, so that a row with an entry is whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) of: RowOf,
    pub(super) constant: f64,
    /// The sum of magnitudes.
    pub(super) size: f64,
}

impl Record {
    fn bytes(self) -> [u8; RECORD] {
        let of = match self.of {
            RowOf::Feature(feature) => feature as u64,
            RowOf::Goal(goal) => u64::MAX - goal as u64,
        };
        let mut bytes = [0; RECORD];
        bytes[..8].copy_from_slice(&of.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.constant.to_le_bytes());
        bytes[16..].copy_from_slice(&self.size.to_le_bytes());
        bytes
    }

    fn of_bytes(bytes: &[u8]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            word
        };
        let of = u64::from_le_bytes(word(0));
        let of = if of > u64::MAX / 2 { RowOf::Goal((u64::MAX - of) as usize) } else { RowOf::Feature(of as usize) };
        Self { of, constant: f64::from_le_bytes(word(8)), size: f64::from_le_bytes(word(16)) }
    }
}

/// The index of rows in a folder. One process at a time has it.
#[derive(Debug)]
pub(super) struct KeptIndex {
    folder: PathBuf,
    file: File,
}

impl KeptIndex {
    /// Opens a folder, or makes it: its index, its file of rows, and the entries there.
    pub(super) fn open(folder: &Path, identity: u128) -> Result<(Self, File, Vec<Record>)> {
        let failed = |source| io(folder, source);
        std::fs::create_dir_all(folder).map_err(failed)?;
        let open = |name: &str| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(folder.join(name))
                .map_err(failed)
        };
        let (mut file, rows) = (open(INDEX)?, open(ROWS)?);
        let wrong = |reason: &str| GraphError::Kept { folder: folder.into(), reason: reason.into() };
        if file.try_lock().is_err() {
            return Err(wrong("another process is at work in it").into());
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let mut head = MAGIC.to_vec();
        head.extend(identity.to_le_bytes());
        if bytes.len() < HEAD && MAGIC.starts_with(&bytes[..bytes.len().min(MAGIC.len())]) {
            // New, or killed before the first row.
            bytes.clear();
            file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(&head)).map_err(failed)?;
        } else if !bytes.starts_with(MAGIC) {
            return Err(wrong("its graph_rows.index is of another kind").into());
        } else if bytes[..HEAD] != head {
            return Err(
                wrong("the rows in it are of another graph: of another model, prompt, target or dictionary").into()
            );
        }
        let records = bytes.get(HEAD..).unwrap_or_default().chunks_exact(RECORD).map(Record::of_bytes).collect();
        Ok((Self { folder: folder.into(), file }, rows, records))
    }

    /// Keeps the first entries alone.
    pub(super) fn cut(&mut self, count: usize) -> Result<()> {
        let end = (HEAD + count * RECORD) as u64;
        self.file
            .set_len(end)
            .and_then(|()| self.file.seek(SeekFrom::Start(end)))
            .map_err(|source| io(&self.folder, source))?;
        Ok(())
    }

    pub(super) fn add(&mut self, record: Record) -> Result<()> {
        self.file.write_all(&record.bytes()).map_err(|source| io(&self.folder, source))
    }
}

pub(super) fn io(folder: &Path, source: std::io::Error) -> crate::error::Error {
    GraphError::Io { path: folder.into(), doing: "keep rows of a graph", source }.into()
}
