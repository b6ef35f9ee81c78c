//! Expands file name patterns and opens files.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::frames::ReadAt;
use crate::error::DumpError;
use hooklens_io::object_stores::{Object, Ranges, is_url};
use hooklens_io::regular;
use hooklens_loading::weight_files::read_at;

/// Expands patterns to the files they match, in order.
pub(super) fn expand(names: &[PathBuf]) -> Result<Vec<PathBuf>, DumpError> {
    let mut files = Vec::new();
    for name in names {
        let pattern = name.to_str().filter(|text| text.contains(['*', '?', '[']));
        // An existing file with exactly this name takes precedence over a pattern.
        match pattern {
            Some(_) if is_url(name) => files.extend(fitting_objects(name)?),
            Some(pattern) if !name.exists() => files.extend(fitting(name, pattern)?),
            _ => files.push(name.clone()),
        }
    }
    Ok(files)
}

fn fitting(name: &Path, pattern: &str) -> Result<Vec<PathBuf>, DumpError> {
    let failed = |source: io::Error| DumpError::File { path: name.to_path_buf(), source };
    let paths = glob::glob(pattern).map_err(|error| failed(io::Error::other(error)))?;
    let all: Vec<PathBuf> = paths.collect::<Result<_, _>>().map_err(|error| failed(error.into()))?;
    let files: Vec<PathBuf> = all.into_iter().filter(|path| path.is_file()).collect();
    match files.is_empty() {
        true => Err(failed(none("no file matches the pattern"))),
        false => Ok(files),
    }
}

/// Objects in a store that match a pattern, or the object with exactly this name.
fn fitting_objects(name: &Path) -> Result<Vec<PathBuf>, DumpError> {
    let failed = |source: io::Error| DumpError::File { path: name.to_path_buf(), source };
    let Some(object) = Object::at(name).map_err(failed)? else { return Ok(Vec::new()) };
    let objects = object.fitting().map_err(failed)?;
    if objects.is_empty() {
        return match object.is_there().map_err(failed)? {
            true => Ok(vec![name.to_path_buf()]),
            false => Err(failed(none("no object matches the pattern"))),
        };
    }
    Ok(objects)
}

fn none(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, message)
}

/// Opens a regular file or an object for reading, starting at a byte offset.
pub(super) fn open_at(path: &Path, start: u64) -> io::Result<Box<dyn Read>> {
    if let Some(object) = Object::at(path)? {
        let mut reader = object.open()?;
        reader.seek(SeekFrom::Start(start))?;
        return Ok(Box::new(reader));
    }
    let mut file = regular::open(path)?;
    file.seek(SeekFrom::Start(start))?;
    Ok(Box::new(file))
}

/// A regular file or an object, opened for random access.
pub(super) enum AtRandom {
    File(File),
    Object(Ranges),
}

/// Opens a regular file or an object for random access.
pub(super) fn at_random(path: &Path) -> io::Result<AtRandom> {
    match Object::at(path)? {
        Some(object) => Ok(AtRandom::Object(object.ranges()?)),
        None => Ok(AtRandom::File(regular::open(path)?)),
    }
}

impl ReadAt for AtRandom {
    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        match self {
            Self::File(file) => read_at(file, at, bytes),
            Self::Object(object) => object.read_at(at, bytes),
        }
    }

    fn is_local(&self) -> bool {
        matches!(self, Self::File(_))
    }
}

/// Length of a regular file or an object; `None` for a stream, whose length is not known.
pub(super) fn length(path: &Path) -> io::Result<Option<u64>> {
    if let Some(object) = Object::at(path)? {
        return Ok(Some(object.ranges()?.size()));
    }
    let file = std::fs::metadata(path)?;
    Ok(file.is_file().then_some(file.len()))
}

/// Opens a file or object for reading from the start.
pub(super) fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    if let Some(object) = Object::at(path)? {
        return Ok(Box::new(object.open()?));
    }
    Ok(Box::new(regular::open_stream(path)?))
}
