//! Pages of mapped files that weights lie in, to be let go of.

use std::ops::Range;
use std::sync::Arc;

use memmap2::Mmap;

/// Parts of mapped files.
#[derive(Debug, Clone, Default)]
pub struct Pages(Vec<(Arc<Mmap>, Range<usize>)>);

impl Pages {
    pub fn add(&mut self, map: Arc<Mmap>, bytes: Range<usize>) {
        self.0.push((map, bytes));
    }

    /// Adds these too.
    pub fn extend(&mut self, more: Pages) {
        self.0.extend(more.0);
    }

    /// Bytes of all.
    pub fn size(&self) -> usize {
        self.0.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    /// Lets go of them: they count to this process no longer, and the system may use their memory. Touched again, they are
    /// read again.
    pub(crate) fn let_go(&self) {
        #[cfg(unix)]
        for (map, bytes) in &self.0 {
            // SAFETY: the mapping is of a file, shared and never written to: pages that are dropped are read from the
            // file again, with the same bytes. Measured: 8.5 GB of weights run under a limit of 2.6 GB, and without it fill what
            // there is.
            #[allow(unsafe_code)]
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, bytes.start, bytes.len()) };
        }
    }
}
