//! Paging for models that do not fit into memory: each block is read from the mapped file when it runs, and released
//! afterwards.
//!
//! Blocks are not prefetched: the operating system reads ahead by itself, and two threads that touch pages as they
//! compute read a third more per second than one thread that prefetches alongside the computation (measured with 8.5 GB
//! of weights under a limit of 4 GB, on two cores).

use super::pages::Pages;
use crate::error::LoadError;

/// Pages of a model's blocks, for a model loaded under a memory limit.
#[derive(Debug)]
pub struct Paging {
    blocks: Vec<Pages>,
    /// Number of leading blocks that stay in memory.
    kept: usize,
}

/// Memory that the process needs besides weights, in bytes.
const PROCESS: usize = 64 << 20;

impl Paging {
    /// Plans paging for blocks stored in these pages. `staying` is the size in bytes of the other weights, which stay
    /// in memory. Returns `None` if everything fits.
    ///
    /// # Errors
    /// [`LoadError::Memory`] if the weights that stay in memory and two blocks exceed the limit.
    pub fn under(limit: u64, blocks: Vec<Pages>, staying: usize) -> Result<Option<Self>, LoadError> {
        let largest = blocks.iter().map(Pages::size).max().unwrap_or(0);
        // While one block runs, the system reads the next one ahead.
        let needed = PROCESS + staying + 2 * largest;
        let limit_here = usize::try_from(limit).unwrap_or(usize::MAX);
        let Some(mut room) = limit_here.checked_sub(needed) else {
            return Err(LoadError::Memory { limit, needed: needed as u64 });
        };
        let total: usize = blocks.iter().map(Pages::size).sum();
        if total <= room + 2 * largest {
            return Ok(None);
        }
        let fits = |pages: &&Pages| {
            let left = room.checked_sub(pages.size());
            room = left.unwrap_or(room);
            left.is_some()
        };
        let kept = blocks.iter().take_while(fits).count();
        Ok(Some(Self { blocks, kept }))
    }

    /// Releases a block after it has run, unless it stays in memory.
    pub(crate) fn after(&self, layer: usize) {
        if layer >= self.kept {
            self.blocks[layer].let_go();
        }
    }

    /// Number of blocks that are read from the file on every run.
    pub fn read_each_time(&self) -> usize {
        self.blocks.len() - self.kept
    }
}
