//! Registry of unfinished files and folder locks to clean up when a signal ends the process.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Files to remove before the process ends, and the folders already searched for leftovers of other processes.
pub(crate) struct Leftovers {
    pub(crate) files: BTreeSet<PathBuf>,
    pub(crate) locks: BTreeSet<PathBuf>,
    pub(crate) swept: BTreeSet<PathBuf>,
}

static LEFTOVERS: Mutex<Leftovers> =
    Mutex::new(Leftovers { files: BTreeSet::new(), locks: BTreeSet::new(), swept: BTreeSet::new() });

/// Locks the registry. While the guard is held, no file is created, replaced, or appended to.
pub(crate) fn leftovers() -> MutexGuard<'static, Leftovers> {
    LEFTOVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all unfinished files and folder locks of this process, then calls `then`, which ends the process. Until the
/// process ends, no other thread can begin or finish a file, or extend one by [`append`].
pub(crate) fn abandon_all(then: impl FnOnce()) {
    let mut leftovers = leftovers();
    // Remove locks last: another process may write to the folder as soon as its lock is gone.
    for file in std::mem::take(&mut leftovers.files).into_iter().chain(std::mem::take(&mut leftovers.locks)) {
        fs::remove_file(file).ok();
    }
    then();
}

/// Appends to a file in a locked folder. Blocks once a signal has released the lock, so nothing more is written.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("log");
/// let mut log = std::fs::File::create(&path)?;
/// hooklens_hooks::append(&mut log, b"one\n")?;
/// hooklens_hooks::append(&mut log, b"two\n")?;
/// assert_eq!(std::fs::read(&path)?, b"one\ntwo\n");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// An I/O error, such as a full disk.
pub fn append(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    let _held = leftovers();
    file.write_all(bytes)
}
