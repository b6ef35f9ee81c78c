//! The file in which a folder keeps rows of effects, so that an interrupted graph goes on.
//!
//! A head with the identity of the graph, then for each row an entry and its effects. Head, entries and effects carry XXH3
//! hashes: what a killed process, a power loss or a failing disk left is recognized, and what follows it is computed again.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use hooklens_hooks::{FolderLock, Unfinished, append};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::rows::{RowOf, read_at};
use crate::error::GraphError;
use hooklens_model::error::Result;

/// The file's name in its folder.
const NAME: &str = "graph_rows.bin";
/// Files of earlier versions, without hashes.
const EARLIER: [&str; 2] = ["graph_rows.f32", "graph_rows.index"];
/// A file of this kind, of this version.
const MAGIC: &[u8; 16] = b"hooklens graph 2";
/// Magic, identity, and their hash.
const HEAD: usize = 40;
/// What a row is of, its batch, constant and size, the hash of its effects, and the hash of all these.
const ENTRY: usize = 48;

/// What is known of a row beside its effects.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Entry {
    pub(super) of: RowOf,
    /// The batch that it was computed in: in another its last bits may differ.
    pub(super) batch: u64,
    pub(super) constant: f64,
    /// The sum of magnitudes.
    pub(super) size: f64,
}

impl Entry {
    fn bytes(self, effects: &[u8], seed: u64) -> [u8; ENTRY] {
        let of = match self.of {
            RowOf::Feature(feature) => feature as u64,
            RowOf::Goal(goal) => u64::MAX - goal as u64,
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

    /// An entry and the hash of its effects; nothing if it is damaged.
    fn of_bytes(bytes: &[u8; ENTRY], seed: u64) -> Option<(Self, u64)> {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| u64::from_le_bytes(words[at]);
        if word(5) != xxh3_64_with_seed(&bytes[..ENTRY - 8], seed) {
            return None;
        }
        let of = word(0);
        let of = if of > u64::MAX / 2 { RowOf::Goal((u64::MAX - of) as usize) } else { RowOf::Feature(of as usize) };
        let entry = Self { of, batch: word(1), constant: f64::from_bits(word(2)), size: f64::from_bits(word(3)) };
        Some((entry, word(4)))
    }
}

/// A row that the file holds.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) entry: Entry,
    /// Its columns.
    pub(super) columns: Vec<Range<usize>>,
    /// Where its effects begin in the file.
    pub(super) place: u64,
}

/// An open file of rows. One process at a time has it.
#[derive(Debug)]
pub(super) struct RowFile {
    folder: PathBuf,
    file: File,
    seed: u64,
    end: u64,
    /// Bytes of damaged rows and of those after them, which were dropped.
    damaged: u64,
    _lock: FolderLock,
}

impl RowFile {
    /// Opens the file of a folder, which is made if need be, and reads the rows in it. `columns` says which columns a row
    /// has, and nothing of a row that the graph can't have.
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
                let told = format!(
                    "an earlier version of hooklens, or another program, wrote its {name}; remove that or choose another \
                     folder"
                );
                return Err(wrong(told).into());
            }
        }
        let mut head = MAGIC.to_vec();
        head.extend(identity.to_le_bytes());
        head.extend(xxh3_64(&head).to_le_bytes());
        let path = folder.join(NAME);
        // A link is not followed, and a pipe is not waited for: neither is made here.
        let file = match std::fs::symlink_metadata(&path) {
            Ok(there) if !there.is_file() => {
                return Err(wrong(format!("its {NAME} is a link, a folder or a device, not a file")).into());
            }
            Ok(_) => OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // With its head or not at all, so that a file without one is not this program's.
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
            return Err(wrong(format!("its {NAME} is of another kind")).into());
        }
        if there[..] != head[..] {
            let (said, hash) = there.split_at(HEAD - 8);
            let reason = if xxh3_64(said).to_le_bytes() == *hash {
                "the rows in it are of another graph: of another model, prompt, target or dictionary".into()
            } else {
                format!("its {NAME} is damaged at its beginning; remove it to start again")
            };
            return Err(wrong(reason).into());
        }
        let found = own.found(columns).map_err(failed)?;
        Ok((own, found))
    }

    /// Reads rows up to the first that is not whole, and cuts the file there.
    fn found(&mut self, columns: impl Fn(RowOf) -> Option<Vec<Range<usize>>>) -> std::io::Result<Vec<Found>> {
        let len = self.file.metadata()?.len();
        let mut reader = BufReader::with_capacity(1 << 20, &self.file);
        let mut found = Vec::new();
        let (mut head, mut effects) = ([0; ENTRY], Vec::new());
        // A row that a killed process began is no damage.
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

    /// Bytes that were damaged, or came after what was.
    pub(super) fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Adds a row, and gives the place of its effects.
    pub(super) fn add(&mut self, entry: Entry, effects: &[u8]) -> Result<u64> {
        let mut bytes = entry.bytes(effects, self.seed).to_vec();
        bytes.extend_from_slice(effects);
        let written = self.file.seek(SeekFrom::Start(self.end)).and_then(|_| append(&mut self.file, &bytes));
        written.map_err(|source| io(&self.folder, source))?;
        let place = self.end + ENTRY as u64;
        self.end += bytes.len() as u64;
        Ok(place)
    }

    /// Puts all rows on the disk.
    pub(super) fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|source| io(&self.folder, source))
    }

    /// Reads effects from their place.
    pub(super) fn read(&mut self, place: u64, count: usize) -> Result<Vec<f32>> {
        read_at(&mut self.file, place, count).map_err(|source| io(&self.folder, source))
    }
}

pub(super) fn io(folder: &Path, source: std::io::Error) -> hooklens_model::error::Error {
    GraphError::Io { path: folder.into(), doing: "keep rows of a graph", source }.into()
}
