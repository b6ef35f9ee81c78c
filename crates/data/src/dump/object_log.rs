//! Log of a dump in an object store, where objects cannot be appended to.

use std::path::{Path, PathBuf};

use super::manifest::{BatchFile, LOG, line};
use super::place::{self, VersionedFile};
use crate::error::DumpError;

/// Maximum number of files listed per log object, so that a dump of many files does not rewrite the whole list for each
/// one.
const LISTED: usize = 500;

/// Log objects, the last of which is rewritten with each finished file.
pub(super) struct ObjectLog {
    folder: PathBuf,
    number: usize,
    last: VersionedFile,
    lines: Vec<u8>,
    listed: usize,
}

/// Name of a log object. The first is named like a folder's log file.
fn name(number: usize) -> String {
    match number {
        0 => LOG.to_string(),
        number => format!("shards-{number:05}.jsonl"),
    }
}

/// Whether an object belongs to a log.
pub(super) fn is_own(name: &str) -> bool {
    let number = name.strip_prefix("shards-").and_then(|rest| rest.strip_suffix(".jsonl"));
    name == LOG || number.is_some_and(|number| number.len() >= 5 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

impl ObjectLog {
    /// Replaces the folder's log with one that lists these files. From then on, another run's writes to the log are
    /// rejected.
    pub(super) fn begin(folder: &Path, files: &[BatchFile]) -> Result<Self, DumpError> {
        let mut number = 0;
        let mut parts = files.chunks(LISTED);
        let mut log = Self::put(folder, number, parts.next().unwrap_or_default())?;
        for part in parts {
            number += 1;
            log = Self::put(folder, number, part)?;
        }
        // Remove further objects of a longer log.
        loop {
            number += 1;
            let path = folder.join(name(number));
            if !place::is_there(&path)? {
                return Ok(log);
            }
            VersionedFile::taken(path).remove()?;
        }
    }

    fn put(folder: &Path, number: usize, files: &[BatchFile]) -> Result<Self, DumpError> {
        let path = folder.join(name(number));
        let mut lines = Vec::new();
        for entry in files {
            lines.extend(line(entry).map_err(place::failed(&path))?);
        }
        let mut last = VersionedFile::taken(path);
        last.put(lines.clone())?;
        Ok(Self { folder: folder.to_path_buf(), number, last, lines, listed: files.len() })
    }

    /// Appends an entry for a file that is already in the store.
    pub(super) fn add(&mut self, entry: &BatchFile) -> Result<(), DumpError> {
        if self.listed == LISTED {
            self.number += 1;
            self.last = VersionedFile::new(self.folder.join(name(self.number)));
            (self.lines, self.listed) = (Vec::new(), 0);
        }
        self.lines.extend(line(entry).map_err(place::failed(&self.folder.join(name(self.number))))?);
        self.listed += 1;
        self.last.put(self.lines.clone())
    }

    /// Reads the lines of all log objects.
    pub(super) fn read(folder: &Path) -> Result<Vec<u8>, DumpError> {
        let mut all = Vec::new();
        for number in 0.. {
            match place::read(&folder.join(name(number)))? {
                Some(lines) => all.extend(lines),
                None => break,
            }
        }
        Ok(all)
    }

    /// Removes the log objects, last first, so that a partial log is never taken for a complete one.
    pub(super) fn remove(self) -> Result<(), DumpError> {
        (0..=self.number).rev().try_for_each(|number| VersionedFile::taken(self.folder.join(name(number))).remove())
    }
}
