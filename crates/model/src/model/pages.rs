//! Pages of mapped files that contain weights and can be released.

use std::ops::Range;
use std::sync::Arc;

use memmap2::Mmap;

/// Byte ranges of memory-mapped files.
#[derive(Debug, Clone, Default)]
pub struct Pages(Vec<(Arc<Mmap>, Range<usize>)>);

impl Pages {
    /// Adds a range of a mapped file.
    pub fn add(&mut self, map: Arc<Mmap>, bytes: Range<usize>) {
        self.0.push((map, bytes));
    }

    /// Appends the pages of `more`.
    pub fn extend(&mut self, more: Pages) {
        self.0.extend(more.0);
    }

    /// Total size in bytes.
    pub fn size(&self) -> usize {
        self.0.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    /// Releases the pages: they no longer count towards this process's memory, and are read from the file again on the
    /// next access.
    pub(crate) fn let_go(&self) {
        #[cfg(unix)]
        for (map, bytes) in &self.0 {
            // SAFETY: the file mapping is shared and never written to, so reading dropped pages again returns the same
            // bytes. Measured: 8.5 GB of weights run under a limit of 2.6 GB; without this call they fill all available
            // memory.
            #[allow(unsafe_code)]
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, bytes.start, bytes.len()) };
        }
    }
}
