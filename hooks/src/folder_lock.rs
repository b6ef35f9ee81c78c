//! Lock files that allow one writer per folder.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use same_file::Handle;
use thiserror::Error;

use crate::leftovers::leftovers;

/// Name of the lock file.
const NAME: &str = ".hooklens-lock";
/// Prefix of the lock file's text.
const HOLDER: &str = "process ";
/// Maximum length of the lock file's text, in bytes.
const LONGEST: u64 = 64;

/// Lock on a folder that is written by one process at a time: a dump, a training run, a store of graph rows, a
/// download.
///
/// The file `.hooklens-lock` in the folder is locked and names the process. It is removed when the lock is dropped or
/// when a signal ends the process ([`Unfinished::abandon_all`](crate::Unfinished::abandon_all)). If the process is
/// killed, the operating system unlocks the file, and the next process takes it over.
///
/// On file systems without locks, the folder is not guarded.
///
/// ```
/// use hooklens_hooks::{FolderLock, FolderLockError};
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// let lock = FolderLock::take(folder)?;
/// assert!(matches!(FolderLock::take(folder), Err(FolderLockError::Held { .. })));
/// drop(lock);
/// assert_eq!(std::fs::read_dir(folder)?.count(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FolderLock {
    path: PathBuf,
    file: File,
}

/// An error from locking a folder.
///
/// ```
/// # use hooklens_hooks::{FolderLock, FolderLockError};
/// # let folder = tempfile::tempdir()?;
/// let _lock = FolderLock::take(folder.path())?;
/// let error = FolderLock::take(folder.path()).unwrap_err().to_string();
/// assert!(error.ends_with(&format!("is being written by another run (process {})", std::process::id())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Error)]
pub enum FolderLockError {
    /// Another run is writing the folder or file.
    #[error("{} is being written by another run ({holder})", folder.display())]
    Held {
        /// The folder or file.
        folder: PathBuf,
        /// The process that holds the lock.
        holder: String,
    },
    /// A file with the lock's name is not a lock file.
    #[error("{} is not a hooklens lock file; move it away", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The lock could not be created or locked.
    #[error("can't lock {}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// The error from the operating system.
        source: io::Error,
    },
}

impl FolderLock {
    /// Locks an existing folder.
    ///
    /// # Errors
    /// [`FolderLockError::Held`] if the lock is held by another process or elsewhere in this one,
    /// [`FolderLockError::Foreign`] if a file with the lock's name is not a lock file, or [`FolderLockError::Io`] if
    /// the lock can't be created.
    pub fn take(folder: &Path) -> Result<Self, FolderLockError> {
        Self::take_at(&folder.join(NAME), folder)
    }

    /// Locks `path`, which guards `guarded`.
    fn take_at(path: &Path, guarded: &Path) -> Result<Self, FolderLockError> {
        // Make the path absolute now: the process may change its working directory later.
        let path = std::path::absolute(path).map_err(|source| io_error(path, source))?;
        // Hold the registry's mutex while locking, so that a signal finds the lock either not yet created or already
        // registered.
        let mut leftovers = leftovers();
        let file = loop {
            let file = open(&path)?;
            if let Some(locked) = lock(file, guarded, &path)? {
                break locked;
            }
        };
        leftovers.locks.insert(path.clone());
        Ok(Self { path, file })
    }

    /// Locks a single file in a folder where several processes write one file each.
    ///
    /// ```
    /// use hooklens_hooks::{FolderLock, FolderLockError};
    /// # let folder = tempfile::tempdir()?;
    /// let [one, other] = ["1.json", "2.json"].map(|name| folder.path().join(name));
    /// let lock = FolderLock::take_for(&one)?;
    /// assert!(FolderLock::take_for(&other).is_ok());
    /// let error = FolderLock::take_for(&one).unwrap_err().to_string();
    /// assert!(error.contains("1.json is being written by another run"));
    /// # drop(lock);
    /// # assert_eq!(std::fs::read_dir(folder.path())?.count(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`FolderLock::take`].
    pub fn take_for(file: &Path) -> Result<Self, FolderLockError> {
        let mut name = OsString::from(NAME);
        name.push("-");
        name.push(file.file_name().unwrap_or_default());
        Self::take_at(&file.with_file_name(name), file)
    }

    /// Whether a file name belongs to a lock file.
    #[must_use]
    pub fn is_lock(name: &OsStr) -> bool {
        name.as_encoded_bytes().starts_with(NAME.as_bytes())
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        let mut leftovers = leftovers();
        // Remove the file while it is still locked, and only if no one has put another file there.
        if is_at(&self.file, &self.path).unwrap_or(false) {
            fs::remove_file(&self.path).ok();
        }
        leftovers.locks.remove(&self.path);
    }
}

/// Opens or creates the lock file. Rejects links and foreign files.
fn open(path: &Path) -> Result<File, FolderLockError> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() || found.len() > LONGEST => {
            return Err(FolderLockError::Foreign { path: path.to_path_buf() });
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io_error(path, error)),
    }
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    file.map_err(|error| io_error(path, error))
}

/// Locks the opened file. Returns `None` if it is no longer the file at `path`, because its holder has removed it.
fn lock(mut file: File, guarded: &Path, path: &Path) -> Result<Option<File>, FolderLockError> {
    let failed = |error| io_error(path, error);
    let mut text = String::new();
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            // The holder may not have written its process id yet, and some systems don't let others read a locked file.
            file.read_to_string(&mut text).ok();
            let holder = if text.trim().is_empty() { "process unknown" } else { text.trim() };
            return Err(FolderLockError::Held { folder: guarded.to_path_buf(), holder: holder.to_string() });
        }
        // Some cluster file systems do not support locks.
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    if !is_at(&file, path).map_err(failed)? {
        return Ok(None);
    }
    let read = (&mut file).take(LONGEST + 1).read_to_string(&mut text);
    match read {
        Err(error) if error.kind() != io::ErrorKind::InvalidData => return Err(failed(error)),
        Ok(_) if text.len() as u64 <= LONGEST && (text.is_empty() || text.starts_with(HOLDER)) => {}
        _ => return Err(FolderLockError::Foreign { path: path.to_path_buf() }),
    }
    if let Err(error) = write_holder(&mut file) {
        // The lock file was stale or empty, so removing it loses nothing.
        fs::remove_file(path).ok();
        return Err(failed(error));
    }
    Ok(Some(file))
}

/// Writes the id of the process that holds the lock, in one write, so that readers see all of it or nothing.
fn write_holder(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(format!("{HOLDER}{}\n", std::process::id()).as_bytes())
}

/// Whether the file at `path` is this open file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    let there = match Handle::from_path(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        there => there?,
    };
    Ok(Handle::from_file(file.try_clone()?)? == there)
}

fn io_error(path: &Path, source: io::Error) -> FolderLockError {
    FolderLockError::Io { path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(taken: Result<FolderLock, FolderLockError>) -> bool {
        matches!(taken, Err(FolderLockError::Held { .. }))
    }

    /// The second process opens the lock file; the first removes it and ends; a third creates a new one; only then does
    /// the second lock the file it opened.
    #[test]
    fn a_removed_lock_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let (folder, path) = (folder.path(), folder.path().join(NAME));
        let first = FolderLock::take(folder).unwrap();
        let [second, fourth] = [0; 2].map(|_| open(&path).unwrap());
        drop(first);
        let third = FolderLock::take(folder).unwrap();
        assert!(lock(second, folder, &path).unwrap().is_none());
        assert!(held(FolderLock::take(folder)));
        drop(third);
        // The same holds for a lock file that was removed and not created again.
        assert!(lock(fourth, folder, &path).unwrap().is_none());
        assert!(!path.exists());
    }

    #[test]
    fn a_lock_put_there_by_others_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (folder, path) = (folder.path(), folder.path().join(NAME));
        let first = FolderLock::take(folder).unwrap();
        fs::remove_file(&path).unwrap();
        let second = FolderLock::take(folder).unwrap();
        drop(first);
        assert!(path.exists() && held(FolderLock::take(folder)));
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn foreign_files_stay_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let long = format!("{HOLDER}{}", "9".repeat(100));
        for text in ["years of work", &long] {
            fs::write(&path, text).unwrap();
            assert!(matches!(FolderLock::take(folder.path()), Err(FolderLockError::Foreign { .. })));
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        // A lock left by a killed process is taken over.
        fs::write(&path, "process 1\n").unwrap();
        drop(FolderLock::take(folder.path()).unwrap());
        assert!(!path.exists());
    }
}
