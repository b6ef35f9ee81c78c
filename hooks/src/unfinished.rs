//! Atomic file writes: files are written under a hidden name in the target folder and renamed.
//!
//! A hidden file is locked while it is written. If its process is killed, the operating system releases the lock, and
//! the next process that writes to the folder removes the file. A program can also remove its own unfinished files when
//! a signal ends it ([`Unfinished::abandon_all`]).
//!
//! A replaced file keeps its permissions and, if permitted, its owner and group. Symbolic links are followed and kept.
//! Read-only files, folders, block devices, and sockets are not replaced.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::{Builder, NamedTempFile};

use crate::destination::{Destination, check_replaceable, keep_permissions};
use crate::leftovers::{self, Leftovers, leftovers};

/// Name prefix of unfinished files.
pub(crate) const UNFINISHED: &str = ".hooklens-unfinished-";
/// Where files can't be locked, unfinished files older than this are considered abandoned.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// A file being written under a hidden name. Dropping it without finishing removes the file.
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
    place: Place,
}

/// Where the bytes are written until the file is finished.
#[derive(Debug)]
enum Place {
    /// A hidden file that will be renamed to `path`.
    Hidden { file: NamedTempFile, hidden: PathBuf, path: PathBuf },
    /// A pipe or a device.
    Stream(File),
    /// The file is finished.
    Finished,
}

impl Unfinished {
    /// Creates a hidden file in the folder of `path`, to be renamed to `path`. Removes files that killed processes left
    /// unfinished in the folder.
    ///
    /// # Errors
    /// If the folder is not writable, or `path` can't be replaced, because it is read-only, a folder, or a special
    /// file. (Pipes and devices can't be written out of order.)
    pub fn beside(path: &Path) -> io::Result<Self> {
        match Destination::of(path)? {
            Destination::File { path, replaced } => Self::hidden(path, replaced.as_ref()),
            Destination::Stream(_) => {
                let reason =
                    "it is a pipe or a device, but this output can't be written sequentially; name a regular file";
                Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
            }
        }
    }

    /// Like [`Unfinished::beside`], for sequential output: a pipe or character device, such as `/dev/stdout`, is opened
    /// and written directly.
    ///
    /// # Errors
    /// Same as [`Unfinished::beside`], except that pipes and character devices are accepted.
    pub fn in_order(path: &Path) -> io::Result<Self> {
        match Destination::of(path)? {
            Destination::File { path, replaced } => Self::hidden(path, replaced.as_ref()),
            Destination::Stream(stream) => Ok(Self { place: Place::Stream(stream.open()?) }),
        }
    }

    fn hidden(path: PathBuf, replaced: Option<&Metadata>) -> io::Result<Self> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let mut leftovers = leftovers();
        if leftovers.swept.insert(folder.to_path_buf()) {
            remove_stale(folder);
        }
        let mut builder = Builder::new();
        builder.prefix(UNFINISHED);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // The hidden file's permissions follow the umask, as for any file that the user creates, but never exceed
            // the permissions of the file it replaces.
            let mode = replaced.map_or(0o666, |replaced| replaced.permissions().mode() & 0o777 | 0o600);
            builder.permissions(PermissionsExt::from_mode(mode));
        }
        #[cfg(not(unix))]
        let _ = replaced; // The hidden file inherits the folder's permissions.
        let file = loop {
            let file = builder.tempfile_in(folder).map_err(without_path)?;
            // Some file systems do not support locks.
            file.as_file().lock().ok();
            // Another process may have found the file before it was locked, and removed it.
            if file.path().exists() {
                break file;
            }
        };
        let hidden = file.path().to_path_buf();
        leftovers.files.insert(hidden.clone());
        Ok(Self { place: Place::Hidden { file, hidden, path } })
    }

    /// The open file.
    ///
    /// # Errors
    /// An error if the file is already finished.
    pub fn as_file(&self) -> io::Result<&File> {
        match &self.place {
            Place::Hidden { file, .. } => Ok(file.as_file()),
            Place::Stream(file) => Ok(file),
            Place::Finished => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Sets the final length of the file. Has no effect on a pipe or device.
    ///
    /// # Errors
    /// If the file can't have that length.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        match &self.place {
            Place::Hidden { file, .. } => file.as_file().set_len(len),
            Place::Stream(_) | Place::Finished => Ok(()),
        }
    }

    /// Syncs the file to disk and renames it into place, replacing any existing file. Returns the new file, still
    /// open at the last write position.
    ///
    /// # Errors
    /// If the disk is full, the folder is no longer writable, or the existing file has become read-only.
    pub fn finish(self) -> io::Result<File> {
        // Sync before renaming, so that a power failure does not leave an empty file.
        if let Place::Hidden { file, .. } = &self.place {
            file.as_file().sync_all()?;
        }
        self.named(&mut leftovers())
    }

    /// Renames the file into place. Holding the registry's lock makes a terminating signal wait.
    pub(crate) fn named(mut self, leftovers: &mut Leftovers) -> io::Result<File> {
        match std::mem::replace(&mut self.place, Place::Finished) {
            Place::Hidden { file, hidden, path } => {
                let file = renamed(file, &path);
                leftovers.files.remove(&hidden);
                let file = file?;
                file.unlock().ok();
                Ok(file)
            }
            Place::Stream(file) => Ok(file),
            Place::Finished => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Copies the permissions of the file to be replaced, if there is one.
    pub(crate) fn keep_permissions(&self) -> io::Result<()> {
        match &self.place {
            Place::Hidden { file, path, .. } => permitted(file, path),
            Place::Stream(_) | Place::Finished => Ok(()),
        }
    }

    /// Removes all unfinished files and folder locks ([`FolderLock`](crate::FolderLock)) of this process, then calls
    /// `then`, which ends the process. Meanwhile no file is started, finished, or appended to
    /// ([`append`](crate::append)).
    pub fn abandon_all(then: impl FnOnce()) {
        leftovers::abandon_all(then);
    }
}

/// Renames a hidden file to `path`, with the permissions of the file that it replaces.
fn renamed(file: NamedTempFile, path: &Path) -> io::Result<File> {
    permitted(&file, path)?;
    file.persist(path).map_err(|e| without_path(e.error))
}

/// Copies the permissions of the file at `path`, if there is one, to `file`. Fails if the file at `path` can't be
/// replaced.
fn permitted(file: &NamedTempFile, path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(replaced) => {
            check_replaceable(&replaced)?;
            keep_permissions(&replaced, file.as_file())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Place::Hidden { file, hidden, .. } = std::mem::replace(&mut self.place, Place::Finished) {
            let mut leftovers = leftovers();
            drop(file);
            leftovers.files.remove(&hidden);
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

/// Strips the path from an error: tempfile adds the hidden name, which means nothing to users.
pub(crate) fn without_path(error: io::Error) -> io::Error {
    if error.raw_os_error().is_some() { error } else { error.kind().into() }
}

/// Writes a file atomically. A replaced file keeps its permissions, and a symbolic link to it is kept. A pipe or
/// character device, such as `/dev/stdout`, is written directly.
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
/// If the folder is not writable, or `path` can't be replaced, because it is read-only, a folder, a block device or a
/// socket.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut unfinished = Unfinished::in_order(path)?;
    unfinished.write_all(bytes)?;
    unfinished.finish()?;
    Ok(())
}

/// Checks that [`write_file`] could currently write to `path`. Useful for programs that compute for a long time before
/// they write.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// assert!(hooklens_hooks::check_output(folder.path()).is_err()); // a folder
/// hooklens_hooks::check_output(&folder.path().join("new.txt"))?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Same as [`write_file`], except for errors that only occur while writing, such as a full disk.
pub fn check_output(path: &Path) -> io::Result<()> {
    Destination::of(path).map(drop)
}

/// Rejects a symbolic link at a path whose file name hooklens chooses itself, because the link's target belongs to
/// someone else.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// hooklens_hooks::check_own_file(&folder.join("checkpoint"))?; // nothing there yet
/// # #[cfg(unix)]
/// std::os::unix::fs::symlink("../precious", folder.join("checkpoint"))?;
/// # #[cfg(unix)]
/// assert!(hooklens_hooks::check_own_file(&folder.join("checkpoint")).is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// If the path is a symbolic link, including a dangling one.
pub fn check_own_file(path: &Path) -> io::Result<()> {
    if path.is_symlink() {
        let reason = "it is a symbolic link, but hooklens needs a file of its own here; remove it";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    Ok(())
}

/// Removes all unfinished files in a folder that no one else writes to.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// // A file left by a killed run, which was never renamed into place.
/// std::fs::write(folder.join(".hooklens-unfinished-XYZ"), "half a shard")?;
/// hooklens_hooks::remove_unfinished(folder)?;
/// assert_eq!(std::fs::read_dir(folder)?.count(), 0);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// If the folder can't be listed, or a file in it can't be removed.
pub fn remove_unfinished(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // The safetensors library writes through temporary files of its own.
        let of_safetensors = name.starts_with(".tmp") && name.len() == ".tmpXXXXXX".len();
        if name.starts_with(UNFINISHED) || of_safetensors {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Removes files that killed processes left unfinished in a folder where others may be writing. Ignores a folder that
/// can't be listed.
fn remove_stale(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            continue;
        }
        // Some file systems can only lock files that are open for writing.
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

    #[cfg(unix)]
    fn mode(path: &Path) -> u32 {
        std::os::unix::fs::PermissionsExt::mode(&fs::symlink_metadata(path).unwrap().permissions()) & 0o777
    }

    #[cfg(unix)]
    #[test]
    fn a_replaced_file_keeps_its_permissions() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("private");
        for permissions in [0o600, 0o640, 0o666, 0o755, 0o200] {
            fs::write(&path, "before").unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(permissions)).unwrap();
            let unfinished = Unfinished::beside(&path).unwrap();
            let Place::Hidden { hidden, .. } = &unfinished.place else { panic!("no hidden file") };
            assert_eq!(mode(hidden) & 0o077 & !permissions, 0, "{permissions:o}");
            drop(unfinished);
            write_file(&path, b"after").unwrap();
            assert_eq!(mode(&path), permissions, "{permissions:o}");
            assert_eq!(count(folder.path()), 1);
        }
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
    }

    #[test]
    fn a_read_only_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        fs::write(&path, "before").unwrap();
        // Made read-only either before the write starts or during it.
        let begun = Unfinished::beside(&path).unwrap();
        let mut permissions = fs::metadata(&path).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&path, permissions).unwrap();
        for error in [begun.finish().map(drop), write_file(&path, b"after"), check_output(&path)] {
            assert_eq!(error.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
        assert_eq!((fs::read(&path).unwrap(), count(folder.path())), (b"before".to_vec(), 1));
    }

    /// Links to a file, to a missing file, and to each other, with names relative to their own folders.
    #[cfg(unix)]
    #[test]
    fn links_stay_and_are_followed() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["links", "files"] {
            fs::create_dir(path(name)).unwrap();
        }
        fs::write(path("files/old"), "before").unwrap();
        symlink("../files/old", path("links/old")).unwrap();
        symlink("../files/new", path("links/new")).unwrap();
        symlink(path("links/old"), path("links/twice")).unwrap();
        for (link, file) in [("old", "old"), ("new", "new"), ("twice", "old")] {
            write_file(&path("links").join(link), link.as_bytes()).unwrap();
            assert_eq!(fs::read(path("files").join(file)).unwrap(), link.as_bytes());
            assert!(fs::symlink_metadata(path("links").join(link)).unwrap().is_symlink());
        }
        assert_eq!((count(&path("links")), count(&path("files"))), (3, 2));
        symlink("round", path("round")).unwrap();
        assert!(write_file(&path("round"), b"").is_err());
    }

    #[test]
    fn folders_are_no_files() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(write_file(folder.path(), b"").unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert!(write_file(&folder.path().join("new/"), b"").is_err());
        assert_eq!(count(folder.path()), 0);
    }

    /// Sequential output to a pipe goes into the pipe, instead of replacing it with a regular file.
    #[cfg(unix)]
    #[test]
    fn pipes_are_written_to() {
        use std::os::unix::fs::{FileTypeExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        symlink("pipe", &link).unwrap();
        assert!(Unfinished::beside(&link).unwrap_err().to_string().contains("can't be written sequentially"));
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        write_file(&link, b"whole").unwrap();
        assert_eq!(reader.join().unwrap(), b"whole");
        assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
        assert_eq!(count(folder.path()), 2);
    }

    /// Character devices are written to and block devices are rejected; neither becomes a regular file.
    #[cfg(target_os = "linux")]
    #[test]
    fn devices_stay_devices() {
        use std::os::unix::fs::FileTypeExt;
        let folder = tempfile::tempdir().unwrap();
        let node = |name: &str, kind: &str, numbers: [&str; 2]| {
            let path = folder.path().join(name);
            let made = std::process::Command::new("mknod").arg(&path).arg(kind).args(numbers).output();
            made.is_ok_and(|made| made.status.success()).then_some(path)
        };
        // The device numbers of /dev/null, and of a block device that does not exist.
        let nodes = (node("null", "c", ["1", "3"]), node("block", "b", ["240", "77"]));
        let (Some(null), Some(block)) = nodes else {
            eprintln!("skipped: only root can create device nodes");
            return;
        };
        // Some mounts don't allow devices: then there is an error, and no file.
        write_file(&null, b"whole").ok();
        assert!(fs::symlink_metadata(&null).unwrap().file_type().is_char_device());
        assert!(write_file(&block, b"whole").unwrap_err().to_string().contains("block device"));
        assert!(fs::symlink_metadata(&block).unwrap().file_type().is_block_device());
        assert_eq!(count(folder.path()), 2);
    }
}
