//! Progress of reading files. It is counted in compressed bytes rather than prompts, because a compressed file may
//! contain gigabytes of blank lines without a prompt.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;

/// Callback with the number of bytes read from a file; returns whether to continue.
#[derive(Clone)]
pub struct Watch(Arc<dyn Fn(usize) -> bool + Send + Sync>);

impl Watch {
    /// Creates a watch that calls `seen` with the number of bytes read, and stops reading when it returns `false`.
    pub fn new(seen: impl Fn(usize) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(seen))
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// A reader that reports progress.
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
