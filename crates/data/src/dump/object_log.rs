//! The log of a dump in a store, where nothing can be added to an object.

use std::path::{Path, PathBuf};

use super::manifest::{BatchFile, LOG, line};
use super::place::{self, Own};
use crate::error::DumpError;

/// Finished files that an object of the log lists, so that a dump of many files does not put them all again and again.
const LISTED: usize = 500;

/// Objects of lines, of which the last is put again with each finished file.
pub(super) struct ObjectLog {
    folder: PathBuf,
    number: usize,
    last: Own,
    lines: Vec<u8>,
    listed: usize,
}

/// The first is called as the file of a folder.
fn name(number: usize) -> String {
    match number {
        0 => LOG.to_string(),
        number => format!("shards-{number:05}.jsonl"),
    }
}

/// Whether an object is of a log.
pub(super) fn is_own(name: &str) -> bool {
    let number = name.strip_prefix("shards-").and_then(|rest| rest.strip_suffix(".jsonl"));
    name == LOG || number.is_some_and(|number| number.len() >= 5 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

impl ObjectLog {
    /// Replaces the folder's log by one of these files: what another run goes on to write is refused from now on.
    pub(super) fn begin(folder: &Path, files: &[BatchFile]) -> Result<Self, DumpError> {
        let mut number = 0;
        let mut parts = files.chunks(LISTED);
        let mut log = Self::put(folder, number, parts.next().unwrap_or_default())?;
        for part in parts {
            number += 1;
            log = Self::put(folder, number, part)?;
        }
        // Of a log that was longer.
        loop {
            number += 1;
            let path = folder.join(name(number));
            if !place::is_there(&path)? {
                return Ok(log);
            }
            Own::taken(path).remove()?;
        }
    }

    fn put(folder: &Path, number: usize, files: &[BatchFile]) -> Result<Self, DumpError> {
        let path = folder.join(name(number));
        let mut lines = Vec::new();
        for entry in files {
            lines.extend(line(entry).map_err(place::failed(&path))?);
        }
        let mut last = Own::taken(path);
        last.put(lines.clone())?;
        Ok(Self { folder: folder.to_path_buf(), number, last, lines, listed: files.len() })
    }

    /// Adds a file that is in the store.
    pub(super) fn add(&mut self, entry: &BatchFile) -> Result<(), DumpError> {
        if self.listed == LISTED {
            self.number += 1;
            self.last = Own::new(self.folder.join(name(self.number)));
            (self.lines, self.listed) = (Vec::new(), 0);
        }
        self.lines.extend(line(entry).map_err(place::failed(&self.folder.join(name(self.number))))?);
        self.listed += 1;
        self.last.put(self.lines.clone())
    }

    /// The lines of all its objects.
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

    /// Removes it, the last first: a part of it is never taken for the whole.
    pub(super) fn remove(self) -> Result<(), DumpError> {
        (0..=self.number).rev().try_for_each(|number| Own::taken(self.folder.join(name(number))).remove())
    }
}
