//! Reading an object at any place, by a request for each part that is read.

use std::io;

use bytes::Bytes;

use super::Object;
use super::fault;
use super::opened::Opened;

/// What is read first, and held: what a file says of itself, and of a dump its tokens.
const BEGINNING: u64 = 256 << 10;

/// An object that is read here and there.
#[derive(Debug, Clone)]
pub struct Ranges {
    object: Opened,
    beginning: Bytes,
}

impl Ranges {
    pub(super) fn open(object: Object) -> io::Result<Self> {
        let mut opened = Self { object: Opened::new(object)?, beginning: Bytes::new() };
        opened.beginning = opened.part(0, opened.len().min(BEGINNING))?;
        Ok(opened)
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> u64 {
        self.object.len()
    }

    /// Holds nothing of it any more.
    pub(crate) fn let_go(&mut self) {
        self.beginning = Bytes::new();
    }

    /// Reads as many bytes as are wanted.
    pub(crate) fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let len = bytes.len() as u64;
        if at.checked_add(len).is_none_or(|end| end > self.len()) {
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
