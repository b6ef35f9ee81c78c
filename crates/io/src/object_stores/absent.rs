//! Stubs for builds without object stores.

use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// An object; cannot exist in this build.
#[derive(Debug)]
pub enum Object {}

/// Version of an object.
#[derive(Debug)]
pub enum Version {
    /// The object does not exist.
    Absent,
    /// Any version.
    Any,
}

/// Writer of an object; never created. (With an empty type, code that uses it would be unreachable.)
#[allow(dead_code, reason = "never constructed")]
#[derive(Debug)]
pub struct Writer;

/// Reader of parts of an object; never created.
#[derive(Debug, Clone)]
#[allow(dead_code, reason = "never constructed")]
pub struct Ranges;

impl Object {
    /// Returns `None` for a path that is not a URL, and an error for a URL.
    pub fn at(path: &Path) -> io::Result<Option<Self>> {
        match super::is_url(path) {
            false => Ok(None),
            true => {
                let message = "this build does not support object stores; rebuild with --features object-stores";
                Err(io::Error::new(io::ErrorKind::Unsupported, message))
            }
        }
    }

    /// Reads the whole object.
    pub fn bytes(&self) -> io::Result<Vec<u8>> {
        match *self {}
    }

    /// Whether the object exists.
    pub fn is_there(&self) -> io::Result<bool> {
        match *self {}
    }

    /// Opens the object for reading.
    pub fn open(&self) -> io::Result<impl Read + Seek + use<>> {
        match *self {}
        #[expect(unreachable_code)]
        Ok(io::empty())
    }

    /// Opens the object for random access.
    pub fn ranges(&self) -> io::Result<Ranges> {
        match *self {}
    }

    /// Writes the object if it still has the known version.
    pub fn put(&self, _bytes: Vec<u8>, _known: &Version) -> io::Result<Version> {
        match *self {}
    }

    /// Deletes the object.
    pub fn remove(&self) -> io::Result<()> {
        match *self {}
    }

    /// Folders below this prefix.
    pub fn folders(&self) -> io::Result<Vec<PathBuf>> {
        match *self {}
    }

    /// Names and sizes of the objects below this prefix.
    pub fn lengths(&self) -> io::Result<Vec<(String, u64)>> {
        match *self {}
    }

    /// Objects whose names match this pattern.
    pub fn fitting(&self) -> io::Result<Vec<PathBuf>> {
        match *self {}
    }

    /// A writer of the object.
    pub fn writer(&self) -> Writer {
        match *self {}
    }
}

#[allow(clippy::unused_self, reason = "same signature as the real type")]
impl Ranges {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        0
    }

    /// Releases the bytes kept in memory.
    pub fn let_go(&mut self) {}

    /// Reads bytes at an offset.
    pub fn read_at(&self, _at: u64, _bytes: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Writer {
    #[allow(clippy::unused_self, reason = "same signature as the real type")]
    pub fn finish(self) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Write for Writer {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
