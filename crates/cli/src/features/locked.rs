//! Exclusive access to output folders.

use std::path::{Path, PathBuf};

use hooklens_hooks::FolderLock;

use crate::Failure;
use crate::out::unwritten;

/// Locks on output folders against other processes. On drop, removes folders that [`Locked::take`] created and that are
/// still empty.
pub(super) struct Locked {
    locks: Vec<FolderLock>,
    made: Vec<PathBuf>,
}

impl Locked {
    /// Creates the folders and locks them.
    ///
    /// # Errors
    /// Fails if a folder can't be created, or if another process holds its lock.
    pub(super) fn take<'p>(folders: impl IntoIterator<Item = &'p Path>) -> Result<Self, Failure> {
        let mut folders: Vec<&Path> = folders.into_iter().collect();
        folders.sort_unstable();
        folders.dedup();
        let mut own = Self { locks: Vec::new(), made: Vec::new() };
        for folder in folders {
            let missing = folder.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
            own.made.extend(missing.map(Path::to_path_buf).collect::<Vec<_>>().into_iter().rev());
            std::fs::create_dir_all(folder).map_err(|e| unwritten(folder, &e))?;
            own.locks.push(FolderLock::take(folder).map_err(|e| Failure::Failed(e.into()))?);
        }
        Ok(own)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.locks.clear();
        for folder in self.made.iter().rev() {
            // Fails on a folder that is not empty, which is then kept.
            std::fs::remove_dir(folder).ok();
        }
    }
}
