//! Blocks that do not fit into memory: read from the mapped file as each is run, and let go after.
//!
//! The next block is not asked for ahead: the system reads ahead by itself, and two threads that touch pages read a third
//! more in a second than one that asks for them beside the work (8.5 GB under 4 GB, two cores).

use super::pages::Pages;
use crate::error::LoadError;

/// Where the weights of a model lie that is kept under a limit of memory.
#[derive(Debug)]
pub struct Paging {
    blocks: Vec<Pages>,
    /// Blocks that stay, the first ones.
    kept: usize,
}

/// The process without weights.
const PROCESS: usize = 64 << 20;

impl Paging {
    /// For blocks that lie in these pages, beside weights of so many bytes that stay; nothing if all fit.
    ///
    /// # Errors
    /// [`LoadError::Memory`] if what has to stay and two blocks are more than the limit.
    pub fn under(limit: u64, blocks: Vec<Pages>, staying: usize) -> Result<Option<Self>, LoadError> {
        let largest = blocks.iter().map(Pages::size).max().unwrap_or(0);
        // One block is run, and the system reads ahead.
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

    /// After a block was run.
    pub(crate) fn after(&self, layer: usize) {
        if layer >= self.kept {
            self.blocks[layer].let_go();
        }
    }

    /// Blocks that are read each time.
    pub fn read_each_time(&self) -> usize {
        self.blocks.len() - self.kept
    }
}
