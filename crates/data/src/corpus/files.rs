//! Names and patterns of names as files, and files opened.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::error::DumpError;
use hooklens_io::object_stores::{Object, is_url};
use hooklens_io::regular;

/// The files of all names, patterns replaced by what they fit, in order.
pub(super) fn expand(names: &[PathBuf]) -> Result<Vec<PathBuf>, DumpError> {
    let mut files = Vec::new();
    for name in names {
        let pattern = name.to_str().filter(|text| text.contains(['*', '?', '[']));
        // A file of that very name is meant.
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
        true => Err(failed(none("no file fits the pattern"))),
        false => Ok(files),
    }
}

/// The objects of a store that fit, or the one of that very name.
fn fitting_objects(name: &Path) -> Result<Vec<PathBuf>, DumpError> {
    let failed = |source: io::Error| DumpError::File { path: name.to_path_buf(), source };
    let Some(object) = Object::at(name).map_err(failed)? else { return Ok(Vec::new()) };
    let objects = object.fitting().map_err(failed)?;
    if objects.is_empty() {
        return match object.is_there().map_err(failed)? {
            true => Ok(vec![name.to_path_buf()]),
            false => Err(failed(none("no object fits the pattern"))),
        };
    }
    Ok(objects)
}

fn none(told: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, told)
}

/// A file or an object, to be read from its beginning.
pub(super) fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    if let Some(object) = Object::at(path)? {
        return Ok(Box::new(object.open()?));
    }
    Ok(Box::new(regular::open_stream(path)?))
}
