//! The file that stores rows of effects in a folder, so that an interrupted graph can be resumed.
//!
//! The file holds a header with the identity of the graph, then an entry and the effects for each row. Header, entries
//! and effects have XXH3 hashes, so that damage from a killed process, a power loss or a failing disk is detected. The
//! first damaged row and all later ones are computed again.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use hooklens_hooks::{FolderLock, Unfinished, append};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::row_of::RowOf;
use crate::error::GraphError;
use hooklens_model::error::Result;

/// The file's name in its folder.
const NAME: &str = "graph_rows.bin";
/// Files of earlier versions, which have no hashes.
const EARLIER: [&str; 2] = ["graph_rows.f32", "graph_rows.index"];
/// Identifies the file type and version.
const MAGIC: &[u8; 16] = b"hooklens graph 2";
/// Size of the header: magic, identity, and a hash of both.
const HEAD: usize = 40;
/// Size of an entry: target, batch, constant, size, hash of the effects, and a hash of all these.
const ENTRY: usize = 48;

/// Metadata of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Entry {
    pub(super) of: RowOf,
    /// The batch that the row was computed in. In another batch, the last bits of the effects may differ.
    pub(super) batch: u64,
    pub(super) constant: f64,
    /// The sum of the magnitudes of the effects.
    pub(super) size: f64,
}

impl Entry {
    fn bytes(self, effects: &[u8], seed: u64) -> [u8; ENTRY] {
        let of = match self.of {
            RowOf::Feature(feature) => feature as u64,
            RowOf::Target(target) => u64::MAX - target as u64,
        };
        let mut bytes = [0; ENTRY];
        let words = [of, self.batch, self.constant.to_bits(), self.size.to_bits(), xxh3_64(effects)];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let hash = xxh3_64_with_seed(&bytes[..ENTRY - 8], seed);
        bytes[ENTRY - 8..].copy_from_slice(&hash.to_le_bytes());
        bytes
    }

    /// Parses an entry and the hash of its effects; `None` if the entry is damaged.
    fn of_bytes(bytes: &[u8; ENTRY], seed: u64) -> Option<(Self, u64)> {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(words[at]);
        if word(5) != xxh3_64_with_seed(&bytes[..ENTRY - 8], seed) {
            return None;
        }
        let of = word(0);
        let of = if of > u64::MAX / 2 { RowOf::Target((u64::MAX - of) as usize) } else { RowOf::Feature(of as usize) };
        let entry = Self { of, batch: word(1), constant: f64::from_bits(word(2)), size: f64::from_bits(word(3)) };
        Some((entry, word(4)))
    }
}

/// A row found in the file.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) entry: Entry,
    /// Column ranges of the row.
    pub(super) columns: Vec<Range<usize>>,
    /// Byte offset of the row's effects in the file.
    pub(super) place: u64,
}

/// An open row file, locked to one process at a time.
#[derive(Debug)]
pub(super) struct RowFile {
    folder: PathBuf,
    file: File,
    seed: u64,
    end: u64,
    /// Number of bytes dropped because of damage, including undamaged rows after it.
    damaged: u64,
    _lock: FolderLock,
}

impl RowFile {
    /// Opens the row file of a folder and reads its rows, creating both if needed. `columns` returns the columns of a
    /// row, or `None` if the graph cannot have such a row.
    pub(super) fn open(
        folder: &Path,
        identity: u128,
        columns: impl Fn(RowOf) -> Option<Vec<Range<usize>>>,
    ) -> Result<(Self, Vec<Found>)> {
        let failed = |source| io(folder, source);
        std::fs::create_dir_all(folder).map_err(failed)?;
        let lock = FolderLock::take(folder).map_err(GraphError::Locked)?;
        let wrong = |reason: String| GraphError::Kept { folder: folder.into(), reason };
        for name in EARLIER {
            if std::fs::symlink_metadata(folder.join(name)).is_ok() {
                let message = format!(
                    "its {name} was written by an earlier version of hooklens or by another program; remove it or \
                     choose another folder"
                );
                return Err(wrong(message).into());
            }
        }
        let mut head = MAGIC.to_vec();
        head.extend(identity.to_le_bytes());
        head.extend(xxh3_64(&head).to_le_bytes());
        let path = folder.join(NAME);
        // Symlinks are not followed, and pipes are not opened, because hooklens creates neither.
        let file = match std::fs::symlink_metadata(&path) {
            Ok(there) if !there.is_file() => {
                return Err(wrong(format!("its {NAME} is a link, a folder or a device, not a file")).into());
            }
            Ok(_) => OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // The file and its header are created in one step, so hooklens never leaves a file without a header.
                let mut unfinished = Unfinished::beside(&path).map_err(failed)?;
                unfinished.write_all(&head).and_then(|()| unfinished.finish()).map_err(failed)?
            }
            Err(error) => return Err(failed(error)),
        };
        let mut own =
            Self { folder: folder.into(), file, seed: identity as u64, end: HEAD as u64, damaged: 0, _lock: lock };
        own.file.rewind().map_err(failed)?;
        let mut there = [0; HEAD];
        let whole = own.file.read_exact(&mut there).is_ok();
        if !whole || !there.starts_with(MAGIC) {
            return Err(wrong(format!("its {NAME} was not written by hooklens")).into());
        }
        if there[..] != head[..] {
            let (said, hash) = there.split_at(HEAD - 8);
            let reason = if xxh3_64(said).to_le_bytes() == *hash {
                "its rows belong to another graph; the model, prompt, target or dictionary differs".into()
            } else {
                format!("the header of its {NAME} is damaged; remove it to start over")
            };
            return Err(wrong(reason).into());
        }
        let found = own.found(columns).map_err(failed)?;
        Ok((own, found))
    }

    /// Reads rows up to the first incomplete or damaged one, and truncates the file there.
    fn found(&mut self, columns: impl Fn(RowOf) -> Option<Vec<Range<usize>>>) -> std::io::Result<Vec<Found>> {
        let len = self.file.metadata()?.len();
        let mut reader = BufReader::with_capacity(1 << 20, &self.file);
        let mut found = Vec::new();
        let (mut head, mut effects) = ([0; ENTRY], Vec::new());
        // A killed process leaves an incomplete last row, which does not count as damage.
        let mut damaged = false;
        while len - self.end >= ENTRY as u64 {
            reader.read_exact(&mut head)?;
            let known =
                Entry::of_bytes(&head, self.seed).and_then(|(entry, hash)| Some((entry, hash, columns(entry.of)?)));
            let Some((entry, hash, columns)) = known else {
                damaged = true;
                break;
            };
            let (place, count) = (self.end + ENTRY as u64, columns.iter().map(Range::len).sum::<usize>());
            if len - place < 4 * count as u64 {
                break;
            }
            effects.resize(4 * count, 0);
            reader.read_exact(&mut effects)?;
            if xxh3_64(&effects) != hash {
                damaged = true;
                break;
            }
            found.push(Found { entry, columns, place });
            self.end = place + 4 * count as u64;
        }
        if damaged {
            self.damaged = len - self.end;
        }
        self.file.set_len(self.end)?;
        Ok(found)
    }

    /// Number of bytes that were damaged or came after damage.
    pub(super) fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Appends a row and returns the byte offset of its effects.
    pub(super) fn add(&mut self, entry: Entry, effects: &[u8]) -> Result<u64> {
        let mut bytes = entry.bytes(effects, self.seed).to_vec();
        bytes.extend_from_slice(effects);
        let written = self.file.seek(SeekFrom::Start(self.end)).and_then(|_| append(&mut self.file, &bytes));
        written.map_err(|source| io(&self.folder, source))?;
        let place = self.end + ENTRY as u64;
        self.end += bytes.len() as u64;
        Ok(place)
    }

    /// Syncs all rows to disk.
    pub(super) fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|source| io(&self.folder, source))
    }

    /// Reads effects at a byte offset.
    pub(super) fn read(&mut self, place: u64, count: usize) -> Result<Vec<f32>> {
        read_at(&mut self.file, place, count).map_err(|source| io(&self.folder, source))
    }
}

/// Reads `count` numbers at a byte offset.
pub(super) fn read_at(file: &mut File, place: u64, count: usize) -> std::io::Result<Vec<f32>> {
    let mut raw = vec![0; 4 * count];
    file.seek(SeekFrom::Start(place))?;
    file.read_exact(&mut raw)?;
    let (numbers, _) = raw.as_chunks::<4>();
    Ok(numbers.iter().map(|x| f32::from_le_bytes(*x)).collect())
}

pub(super) fn io(folder: &Path, source: std::io::Error) -> hooklens_model::error::Error {
    GraphError::Io { path: folder.into(), doing: "read or write the rows of the graph", source }.into()
}
