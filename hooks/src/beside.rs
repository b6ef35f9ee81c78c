//! Atomic file writes: a temporary file is renamed into place.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use tempfile::{Builder, NamedTempFile};

/// How the names of unfinished files begin.
const UNFINISHED: &str = ".hooklens-unfinished-";
/// A file younger than this may not be locked yet.
const JUST_MADE: Duration = Duration::from_secs(60);

/// A new file in the folder of `path`, to be written and then renamed to it.
///
/// ```
/// use std::io::Write;
/// # let folder = tempfile::tempdir()?;
/// let path = folder.path().join("notes.txt");
/// let mut unfinished = hooklens_hooks::beside(&path)?;
/// unfinished.write_all(b"whole")?;
/// assert!(!path.exists());
/// unfinished.persist(&path)?;
/// assert_eq!(std::fs::read(&path)?, b"whole");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// If the folder can't be written to.
pub fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = Builder::new();
    builder.prefix(UNFINISHED);
    // As any file of the user's: readable by whom their mask allows, not by them alone.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
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
    let mut unfinished = beside(path)?;
    unfinished.write_all(bytes)?;
    unfinished.persist(path).map_err(|e| e.error)?;
    Ok(())
}

/// Removes what a run that was killed left unfinished in a folder.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// // What a killed run leaves: a file that was never given its name.
/// hooklens_hooks::beside(&folder.join("shard-0"))?.keep()?;
/// assert_eq!(std::fs::read_dir(folder)?.count(), 1);
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
        // Safetensors writes through a file of its own.
        let of_safetensors = name.starts_with(".tmp") && name.len() == ".tmpXXXXXX".len();
        if name.starts_with(UNFINISHED) || of_safetensors {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Removes what killed runs left in a folder where others may be writing: unfinished files that no process holds, a
/// minute old or more. A folder that can't be listed is left alone.
pub fn remove_stale(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let unfinished = entry.file_name().to_string_lossy().starts_with(UNFINISHED);
        let age = || entry.metadata().and_then(|metadata| metadata.modified()).ok()?.elapsed().ok();
        if unfinished
            && age().is_some_and(|age| age >= JUST_MADE)
            && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok())
        {
            fs::remove_file(entry.path()).ok();
        }
    }
}
