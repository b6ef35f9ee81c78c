//! How far files have been read, in their own bytes: a packed file of blank lines may hold no prompt for gigabytes.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;

/// What is called with the number of bytes read of a file, and says whether to go on.
#[derive(Clone)]
pub struct Watch(Arc<dyn Fn(usize) -> bool + Send + Sync>);

impl Watch {
    pub fn new(seen: impl Fn(usize) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(seen))
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// A reader that is watched.
pub(super) struct Watched<R> {
    pub(super) reader: R,
    pub(super) watch: Option<Watch>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        match &self.watch {
            Some(Watch(seen)) if !seen(read) => Err(io::Error::other("reading was stopped")),
            _ => Ok(read),
        }
    }
}
