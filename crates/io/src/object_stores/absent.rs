//! What a build without stores says of URLs.

use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// An object, of which there is none.
pub enum Object {}

/// How an object is known; there is none.
pub enum Version {
    Absent,
    Any,
}

/// What writes an object; there is none. (Were it an empty type, what is done with it would be unreachable.)
#[allow(dead_code, reason = "nothing makes one")]
pub struct Writer;

/// What reads an object here and there; there is none.
#[derive(Debug, Clone)]
#[allow(dead_code, reason = "nothing makes one")]
pub struct Ranges;

impl Object {
    /// Nothing for a path that is no URL.
    pub fn at(path: &Path) -> io::Result<Option<Self>> {
        match super::is_url(path) {
            false => Ok(None),
            true => {
                let told = "this build knows no stores of objects; build it with --features object-stores";
                Err(io::Error::new(io::ErrorKind::Unsupported, told))
            }
        }
    }

    pub fn bytes(&self) -> io::Result<Vec<u8>> {
        match *self {}
    }

    pub fn is_there(&self) -> io::Result<bool> {
        match *self {}
    }

    pub fn open(&self) -> io::Result<impl Read + Seek + use<>> {
        match *self {}
        #[expect(unreachable_code)]
        Ok(io::empty())
    }

    pub fn ranges(&self) -> io::Result<Ranges> {
        match *self {}
    }

    pub fn put(&self, _bytes: Vec<u8>, _known: &Version) -> io::Result<Version> {
        match *self {}
    }

    pub fn remove(&self) -> io::Result<()> {
        match *self {}
    }

    pub fn folders(&self) -> io::Result<Vec<PathBuf>> {
        match *self {}
    }

    pub fn lengths(&self) -> io::Result<Vec<(String, u64)>> {
        match *self {}
    }

    pub fn fitting(&self) -> io::Result<Vec<PathBuf>> {
        match *self {}
    }

    pub fn writer(&self) -> Writer {
        match *self {}
    }
}

#[allow(clippy::unused_self, reason = "as of that which is there")]
impl Ranges {
    pub fn len(&self) -> u64 {
        0
    }

    pub fn let_go(&mut self) {}

    pub fn read_at(&self, _at: u64, _bytes: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Writer {
    #[allow(clippy::unused_self, reason = "as of that which is there")]
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
