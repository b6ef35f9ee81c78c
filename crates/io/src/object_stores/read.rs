//! Reads an object in blocks, of which only a few are kept in memory.

use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::Object;
use super::fault;
use super::opened::Opened;
use super::stores::Coming;

/// Block size in bytes.
const BLOCK: u64 = 8 << 20;
/// Number of blocks kept in memory, besides one being fetched.
const HELD: usize = 2;

/// Reads an object. Clones share the fetched blocks, but each has its own position.
#[derive(Clone)]
pub struct Reader {
    blocks: Arc<Blocks>,
    at: u64,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

/// Blocks of an object.
struct Blocks {
    object: Opened,
    held: Mutex<Held>,
}

struct Held {
    blocks: VecDeque<(u64, Bytes)>,
    /// The block after the last one read, which is being prefetched.
    coming: Option<(u64, Coming<Bytes>)>,
    /// Why the last block could not be read.
    fault: Option<Arc<object_store::Error>>,
}

impl Reader {
    pub(super) fn open(object: Object) -> io::Result<Self> {
        let object = Opened::new(object)?;
        let held = Mutex::new(Held { blocks: VecDeque::new(), coming: None, fault: None });
        Ok(Self { blocks: Arc::new(Blocks { object, held }), at: 0 })
    }

    /// Length of the object in bytes.
    #[cfg(feature = "arrow")]
    pub(crate) fn len(&self) -> u64 {
        self.blocks.object.len()
    }

    /// Why the object could not be read. Needed because table readers keep only the text of an error.
    #[cfg(feature = "arrow")]
    pub fn fault(&self) -> Option<io::Error> {
        self.blocks.held.lock().unwrap_or_else(PoisonError::into_inner).fault.clone().map(fault::io)
    }

    /// Bytes in memory from the current position on; empty at the end.
    fn ahead(&self) -> io::Result<Bytes> {
        if self.at >= self.blocks.object.len() {
            return Ok(Bytes::new());
        }
        let block = self.blocks.block(self.at / BLOCK)?;
        let from = (self.at % BLOCK) as usize;
        if from >= block.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(block.slice(from..))
    }
}

impl Blocks {
    fn begin(&self, number: u64) -> io::Result<Coming<Bytes>> {
        self.object.part(number * BLOCK..((number + 1) * BLOCK).min(self.object.len()))
    }

    fn block(&self, number: u64) -> io::Result<Bytes> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let found = held.blocks.iter().find(|(own, _)| *own == number).map(|(_, block)| block.clone());
        let block = match (found, held.coming.take()) {
            (Some(block), coming) => {
                held.coming = coming;
                block
            }
            (None, coming) => {
                let coming = match coming {
                    Some((own, coming)) if own == number => coming,
                    _ => self.begin(number)?,
                };
                let block = coming.wait().map_err(|error| {
                    let error = Arc::new(error);
                    held.fault = Some(error.clone());
                    fault::io(error)
                })?;
                if held.blocks.len() == HELD {
                    held.blocks.pop_front();
                }
                held.blocks.push_back((number, block.clone()));
                block
            }
        };
        // Prefetch the next block if blocks are read sequentially.
        let (next, last) = (number + 1, held.blocks.back().map(|(own, _)| *own));
        if held.coming.is_none() && last == Some(number) && next * BLOCK < self.object.len() {
            held.coming = Some((next, self.begin(next)?));
        }
        Ok(block)
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let ahead = self.ahead()?;
        let count = ahead.len().min(buffer.len());
        buffer[..count].copy_from_slice(&ahead[..count]);
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (from, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::End(by) => (self.blocks.object.len(), by),
            SeekFrom::Current(by) => (self.at, by),
        };
        self.at = from.checked_add_signed(by).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
