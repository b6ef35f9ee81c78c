//! Random access to an object, with one request per part.

use std::io;

use bytes::Bytes;

use super::Object;
use super::fault;
use super::opened::Opened;

/// Number of bytes read and kept on opening: enough for a file's header and, usually, a dump's tokens.
const BEGINNING: u64 = 256 << 10;

/// An object opened for random access.
#[derive(Debug, Clone)]
pub struct Ranges {
    object: Opened,
    beginning: Bytes,
}

impl Ranges {
    pub(super) fn open(object: Object) -> io::Result<Self> {
        let mut opened = Self { object: Opened::new(object)?, beginning: Bytes::new() };
        opened.beginning = opened.part(0, opened.size().min(BEGINNING))?;
        Ok(opened)
    }

    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.object.len()
    }

    /// Releases the bytes that were kept on opening.
    pub fn let_go(&mut self) {
        self.beginning = Bytes::new();
    }

    /// Fills the buffer, starting at an offset.
    pub fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let len = bytes.len() as u64;
        if at.checked_add(len).is_none_or(|end| end > self.size()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match self.beginning.get(at as usize..(at + len) as usize) {
            Some(held) => bytes.copy_from_slice(held),
            None => bytes.copy_from_slice(&self.part(at, len)?),
        }
        Ok(())
    }

    fn part(&self, at: u64, len: u64) -> io::Result<Bytes> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        let part = self.object.part(at..at + len)?.wait().map_err(fault::io)?;
        match part.len() as u64 == len {
            true => Ok(part),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
