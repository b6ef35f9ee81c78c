//! Names and patterns of names as files.

use std::path::{Path, PathBuf};

use crate::error::DumpError;

/// The files of all names, patterns replaced by what they fit, in order.
pub(super) fn expand(names: &[PathBuf]) -> Result<Vec<PathBuf>, DumpError> {
    let mut files = Vec::new();
    for name in names {
        // A file of that very name is meant.
        let pattern = name.to_str().filter(|text| text.contains(['*', '?', '[']) && !name.exists());
        match pattern {
            None => files.push(name.clone()),
            Some(pattern) => files.extend(fitting(name, pattern)?),
        }
    }
    Ok(files)
}

fn fitting(name: &Path, pattern: &str) -> Result<Vec<PathBuf>, DumpError> {
    let failed = |source: std::io::Error| DumpError::File { path: name.to_path_buf(), source };
    let paths = glob::glob(pattern).map_err(|error| failed(std::io::Error::other(error)))?;
    let all: Vec<PathBuf> = paths.collect::<Result<_, _>>().map_err(|error| failed(error.into()))?;
    let files: Vec<PathBuf> = all.into_iter().filter(|path| path.is_file()).collect();
    match files.is_empty() {
        true => Err(failed(std::io::Error::new(std::io::ErrorKind::NotFound, "no file fits the pattern"))),
        false => Ok(files),
    }
}
