//! Files that appear whole or not at all: written under a hidden name beside their place, and renamed.
//!
//! A hidden file is locked while it is written. When its process is killed, the system lets go of the lock, and the next
//! process that writes in the folder removes the file. A program can also remove its own when a signal ends it
//! ([`Unfinished::abandon_all`]).

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::{Builder, NamedTempFile};

/// How the names of unfinished files begin.
const UNFINISHED: &str = ".hooklens-unfinished-";
/// Where files can't be locked, those older than this are no one's.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// This process's unfinished files, and the folders it has looked through for those of others.
struct Process {
    files: BTreeSet<PathBuf>,
    swept: BTreeSet<PathBuf>,
}

static PROCESS: Mutex<Process> = Mutex::new(Process { files: BTreeSet::new(), swept: BTreeSet::new() });

fn process() -> MutexGuard<'static, Process> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that is being written, under a hidden name: it is removed when it is dropped, unless it was finished.
///
/// ```
/// use std::io::Write;
/// use hooklens_hooks::Unfinished;
/// # let folder = tempfile::tempdir()?;
/// let path = folder.path().join("notes.txt");
/// let mut unfinished = Unfinished::beside(&path)?;
/// unfinished.write_all(b"whole")?;
/// assert!(!path.exists());
/// unfinished.finish()?;
/// assert_eq!(std::fs::read(&path)?, b"whole");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Unfinished {
    /// `None` once it has its name.
    file: Option<NamedTempFile>,
    hidden: PathBuf,
    path: PathBuf,
}

impl Unfinished {
    /// A new file in the folder of `path`, which will have that name. What killed processes left unfinished in the folder
    /// is removed.
    ///
    /// # Errors
    /// If the folder can't be written to.
    pub fn beside(path: &Path) -> io::Result<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // As it is now: the process may change its working folder.
        let (folder, path) = (std::path::absolute(folder)?, std::path::absolute(path)?);
        let mut process = process();
        if process.swept.insert(folder.clone()) {
            remove_stale(&folder);
        }
        let mut builder = Builder::new();
        builder.prefix(UNFINISHED);
        // As any file of the user's: readable by whom their mask allows, not by them alone.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = loop {
            let file = builder.tempfile_in(&folder).map_err(without_path)?;
            // Some file systems know no locks.
            file.as_file().lock().ok();
            // Another process may have found it before it was locked, and removed it.
            if file.path().exists() {
                break file;
            }
        };
        let hidden = file.path().to_path_buf();
        process.files.insert(hidden.clone());
        Ok(Self { file: Some(file), hidden, path })
    }

    /// The file.
    ///
    /// # Errors
    /// None while it is unfinished.
    pub fn as_file(&self) -> io::Result<&File> {
        Ok(self.file.as_ref().ok_or(io::ErrorKind::NotFound)?.as_file())
    }

    /// Gives the file its name, in the place of another of that name; it is on the disk before. Returns it, open at the
    /// place where it was written last.
    ///
    /// # Errors
    /// If the disk is full, or the folder can't be written to any more.
    pub fn finish(mut self) -> io::Result<File> {
        // A machine that stops leaves no empty file behind.
        self.as_file()?.sync_all()?;
        let mut process = process();
        let file = self.file.take().ok_or(io::ErrorKind::NotFound)?;
        let file = file.persist(&self.path).map_err(|e| without_path(e.error));
        process.files.remove(&self.hidden);
        let file = file?;
        file.unlock().ok();
        Ok(file)
    }

    /// Removes all unfinished files of this process and then does `then`, which ends the process: meanwhile none is
    /// begun or finished.
    pub fn abandon_all(then: impl FnOnce()) {
        let mut process = process();
        for file in std::mem::take(&mut process.files) {
            fs::remove_file(file).ok();
        }
        then();
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            let mut process = process();
            drop(file);
            process.files.remove(&self.hidden);
        }
    }
}

impl Write for Unfinished {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.as_file()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.as_file()?.flush()
    }
}

impl Seek for Unfinished {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.as_file()?.seek(to)
    }
}

/// What went wrong alone: the hidden name, which tempfile adds, says nothing to a user.
fn without_path(error: io::Error) -> io::Error {
    if error.raw_os_error().is_some() { error } else { error.kind().into() }
}

/// Writes a file atomically: it appears whole or not at all.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// let path = folder.path().join("notes.txt");
/// hooklens_hooks::write_file(&path, b"whole")?;
/// assert_eq!(std::fs::read(&path)?, b"whole");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// If the folder can't be written to.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut unfinished = Unfinished::beside(path)?;
    unfinished.write_all(bytes)?;
    unfinished.finish()?;
    Ok(())
}

/// Removes all unfinished files of a folder that belongs to the caller alone.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// // What a killed run leaves: a file that was never given its name.
/// std::fs::write(folder.join(".hooklens-unfinished-XYZ"), "half a shard")?;
/// hooklens_hooks::remove_unfinished(folder)?;
/// assert_eq!(std::fs::read_dir(folder)?.count(), 0);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// If the folder can't be listed or a file in it not removed.
pub fn remove_unfinished(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // The safetensors library writes through a file of its own.
        let of_safetensors = name.starts_with(".tmp") && name.len() == ".tmpXXXXXX".len();
        if name.starts_with(UNFINISHED) || of_safetensors {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Removes what killed processes left unfinished in a folder where others may be writing. A folder that can't be listed
/// is left alone.
fn remove_stale(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            continue;
        }
        // Some file systems lock only files that are open for writing.
        let Ok(file) = OpenOptions::new().read(true).write(true).open(entry.path()) else { continue };
        let abandoned = match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(_)) => {
                let age = entry.metadata().and_then(|metadata| metadata.modified()).ok();
                age.and_then(|modified| modified.elapsed().ok()).is_some_and(|age| age >= ABANDONED)
            }
        };
        if abandoned {
            fs::remove_file(entry.path()).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn what_others_are_writing_stays() {
        let folder = tempfile::tempdir().unwrap();
        let held = Unfinished::beside(&folder.path().join("a")).unwrap();
        fs::write(folder.path().join(".hooklens-unfinished-abc"), "of a killed process").unwrap();
        fs::write(folder.path().join("notes.txt"), "the user's").unwrap();
        remove_stale(folder.path());
        assert_eq!(count(folder.path()), 2);
        drop(held);
        assert_eq!(count(folder.path()), 1);
    }

    #[test]
    fn errors_leave_out_the_hidden_name() {
        let folder = tempfile::tempdir().unwrap();
        let error = Unfinished::beside(&folder.path().join("no/such/folder/x")).unwrap_err();
        assert!(error.kind() == io::ErrorKind::NotFound && !error.to_string().contains("unfinished"), "{error}");
    }
}
