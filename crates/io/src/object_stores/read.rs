//! Reading an object in blocks, of which few are held.

use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::Object;
use super::fault;
use super::opened::Opened;
use super::stores::Coming;

/// What is read together.
const BLOCK: u64 = 8 << 20;
/// Blocks that are held, beside one that is on its way.
const HELD: usize = 2;

/// An object that is read; copies share its blocks, each with a place of its own.
#[derive(Clone)]
pub(crate) struct Reader {
    blocks: Arc<Blocks>,
    at: u64,
}

/// The blocks of an object.
struct Blocks {
    object: Opened,
    held: Mutex<Held>,
}

struct Held {
    blocks: VecDeque<(u64, Bytes)>,
    /// The one behind the last that was read.
    coming: Option<(u64, Coming<Bytes>)>,
    /// Why the last one could not be read.
    fault: Option<Arc<object_store::Error>>,
}

impl Reader {
    pub(super) fn open(object: Object) -> io::Result<Self> {
        let object = Opened::new(object)?;
        let held = Mutex::new(Held { blocks: VecDeque::new(), coming: None, fault: None });
        Ok(Self { blocks: Arc::new(Blocks { object, held }), at: 0 })
    }

    /// Bytes of the object.
    #[cfg(feature = "arrow")]
    pub(crate) fn len(&self) -> u64 {
        self.blocks.object.len()
    }

    /// Why it could not be read, where it could not: for whom a reader of tables, which keeps words only, has come between.
    #[cfg(feature = "arrow")]
    pub(crate) fn fault(&self) -> Option<io::Error> {
        self.blocks.held.lock().unwrap_or_else(PoisonError::into_inner).fault.clone().map(fault::io)
    }

    /// What is held from its place on, nothing at the end.
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
        // Whoever reads one block behind the other finds the next one there.
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
