//! Files of a dump folder, on a local disk or in an object store.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use hooklens_hooks::check_own_file;
use xxhash_rust::xxh3::Xxh3;

use super::manifest::{BatchFile, hex};
use crate::error::DumpError;
use hooklens_io::object_stores::{Object, Version, is_url};
use hooklens_io::regular;

/// The object at a URL; `None` for a local path.
pub(super) fn object(path: &Path) -> Result<Option<Object>, DumpError> {
    Object::at(path).map_err(failed(path))
}

/// The error for a file or object.
pub(super) fn failed(path: &Path) -> impl Fn(io::Error) -> DumpError + use<> {
    let path = path.to_path_buf();
    move |source| DumpError::File { path: path.clone(), source }
}

/// Reads a metadata file; `None` if it does not exist.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, DumpError> {
    let bytes = match object(path)? {
        None => regular::read(path),
        Some(object) => object.bytes(),
    };
    match bytes {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(path)(error)),
    }
}

/// Whether a file or object exists.
pub(super) fn is_there(path: &Path) -> Result<bool, DumpError> {
    match object(path)? {
        // A dangling symbolic link counts as existing.
        None => Ok(fs::symlink_metadata(path).is_ok()),
        Some(object) => object.is_there().map_err(failed(path)),
    }
}

/// Fails if a file in a dump's folder is a symbolic link, whose target may belong to someone else. Outputs named by the
/// user may be links.
pub(super) fn check_no_link(path: &Path) -> Result<(), DumpError> {
    if is_url(path) { Ok(()) } else { check_own_file(path).map_err(failed(path)) }
}

/// Lists the subfolders of a folder.
pub fn folders(folder: &Path) -> Result<Vec<PathBuf>, DumpError> {
    if let Some(object) = object(folder)? {
        return object.folders().map_err(failed(folder));
    }
    let entries = fs::read_dir(folder).map_err(failed(folder))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<PathBuf>>>();
    Ok(paths.map_err(failed(folder))?.into_iter().filter(|path| path.is_dir()).collect())
}

/// A metadata file owned by this run. In a store that supports conditional writes, it is replaced only if no other run
/// has written it since.
pub(super) struct VersionedFile {
    path: PathBuf,
    known: Version,
}

impl VersionedFile {
    /// A file that does not exist yet.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, known: Version::Absent }
    }

    /// A file taken over from an earlier run.
    pub(super) fn taken(path: PathBuf) -> Self {
        Self { path, known: Version::Any }
    }

    /// The error for a failed write of this file.
    pub(super) fn failed(&self, source: io::Error) -> DumpError {
        failed(&self.path)(source)
    }

    /// Replaces the whole file.
    pub(super) fn put(&mut self, bytes: Vec<u8>) -> Result<(), DumpError> {
        check_no_link(&self.path)?;
        match object(&self.path)? {
            None => hooklens_hooks::write_file(&self.path, &bytes).map_err(failed(&self.path)),
            Some(object) => {
                let taken = |error: io::Error| match error.kind() {
                    io::ErrorKind::AlreadyExists => {
                        let holder = "it has modified this file in the meantime".to_string();
                        DumpError::Locked { path: self.path.clone(), holder }
                    }
                    _ => failed(&self.path)(error),
                };
                self.known = object.put(bytes, &self.known).map_err(taken)?;
                Ok(())
            }
        }
    }

    /// Removes the file.
    pub(super) fn discard(&self) -> Result<(), DumpError> {
        match object(&self.path)? {
            None => fs::remove_file(&self.path).map_err(failed(&self.path)),
            Some(object) => object.remove().map_err(failed(&self.path)),
        }
    }

    /// Removes the file if it is in a store.
    pub(super) fn remove(&self) -> Result<(), DumpError> {
        let Some(object) = object(&self.path)? else { return Ok(()) };
        object.remove().map_err(failed(&self.path))
    }
}

/// Files of a folder, for comparison with the manifest.
pub(super) struct Files {
    folder: PathBuf,
    /// Lengths of all objects in a store, listed at once.
    listed: Option<HashMap<String, u64>>,
}

impl Files {
    pub(super) fn of(folder: &Path) -> Result<Self, DumpError> {
        let listed = match object(folder)? {
            None => None,
            Some(object) => Some(object.lengths().map_err(failed(folder))?.into_iter().collect()),
        };
        Ok(Self { folder: folder.to_path_buf(), listed })
    }

    /// Whether a file is intact. Checks its length and, if `verify`, its contents.
    pub(super) fn is_sound(&self, entry: &BatchFile, verify: bool) -> bool {
        let path = self.folder.join(&entry.file);
        let whole = match &self.listed {
            None => fs::metadata(&path).is_ok_and(|m| m.is_file() && m.len() == entry.bytes),
            Some(lengths) => lengths.get(&entry.file) == Some(&entry.bytes),
        };
        whole && (!verify || hash(&path).is_ok_and(|hash| hash == entry.checksum))
    }

    /// Names of the objects in a store; empty for a local folder.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.listed.iter().flat_map(|lengths| lengths.keys().map(String::as_str))
    }
}

fn hash(path: &Path) -> io::Result<String> {
    let mut file: Box<dyn Read> = match Object::at(path)? {
        None => Box::new(regular::open(path)?),
        Some(object) => Box::new(object.open()?),
    };
    let (mut hash, mut block) = (Xxh3::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut block)? {
            0 => return Ok(hex(hash.digest128())),
            read => hash.update(&block[..read]),
        }
    }
}
