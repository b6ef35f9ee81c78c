//! Output targets: a regular file that may be replaced or created, or a pipe or character device that is written
//! directly.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// Maximum number of symbolic links to follow, as in Linux.
const MOST_LINKS: usize = 40;

/// The target of an output path after resolving symbolic links.
#[derive(Debug)]
pub(crate) enum Destination {
    /// A regular file to replace, or a path where nothing exists yet.
    File { path: PathBuf, replaced: Option<Metadata> },
    /// A pipe, a character device, or an open file descriptor of this process, such as `/dev/stdout`.
    Stream(Stream),
}

impl Destination {
    /// Resolves `path` and checks what it points to.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        if path.as_os_str().as_encoded_bytes().last().is_some_and(|last| std::path::is_separator(char::from(*last))) {
            return Err(refused("the name ends with a path separator; name a file"));
        }
        // Make the path absolute now: the process may change its working directory later.
        let mut path = std::path::absolute(path)?;
        for _ in 0..MOST_LINKS {
            if let Some(stream) = Stream::of_descriptor(&path) {
                return Ok(Self::Stream(stream));
            }
            match fs::symlink_metadata(&path) {
                Ok(found) if found.is_symlink() => {
                    let to = fs::read_link(&path)?;
                    path = path.parent().unwrap_or(Path::new("/")).join(to);
                }
                Ok(found) => return Self::there(path, found),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok(Self::File { path, replaced: None });
                }
                Err(error) => return Err(error),
            }
        }
        Err(refused("it is a symbolic link to itself, or the start of a chain of more than 40 links"))
    }

    fn there(path: PathBuf, found: Metadata) -> io::Result<Self> {
        if found.is_file() {
            check_replaceable(&found)?;
            // Opening for writing changes nothing, and is the most reliable permission check.
            OpenOptions::new().write(true).open(&path)?;
            return Ok(Self::File { path, replaced: Some(found) });
        }
        if found.is_dir() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder; name a file"));
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::FileTypeExt;
            let kind = found.file_type();
            if kind.is_fifo() || kind.is_char_device() {
                return Ok(Self::Stream(Stream { path, descriptor: None }));
            }
        }
        Err(refused("it is a block device, a socket or another special file; name a regular file"))
    }
}

/// An output that is written sequentially and cannot be replaced.
#[derive(Debug)]
pub(crate) struct Stream {
    path: PathBuf,
    /// File descriptor number, if it is already open in this process. Windows has no such paths.
    #[cfg_attr(not(unix), expect(dead_code))]
    descriptor: Option<u32>,
}

impl Stream {
    /// An open file descriptor, such as `/proc/self/fd/1`, which `/dev/stdout` links to. It may refer to a regular file
    /// that other processes also write to.
    fn of_descriptor(path: &Path) -> Option<Self> {
        let number = path.file_name()?.to_str()?.parse().ok()?;
        let folder = path.parent()?.canonicalize().ok()?;
        let is_descriptor = folder == Path::new("/dev/fd") || (folder.starts_with("/proc") && folder.ends_with("fd"));
        let own = folder == Path::new("/dev/fd") || folder.starts_with(format!("/proc/{}", std::process::id()));
        is_descriptor.then(|| Self { path: path.to_path_buf(), descriptor: own.then_some(number) })
    }

    /// Opens the stream. A pipe without a reader blocks until it has one.
    pub(crate) fn open(&self) -> io::Result<File> {
        #[cfg(unix)]
        {
            use std::io::Write;
            use std::os::fd::AsFd;
            // Reopening would write from the start of the file and overwrite earlier output.
            match self.descriptor {
                Some(1) => {
                    io::stdout().flush()?;
                    return Ok(io::stdout().as_fd().try_clone_to_owned()?.into());
                }
                Some(2) => return Ok(io::stderr().as_fd().try_clone_to_owned()?.into()),
                _ => {}
            }
        }
        OpenOptions::new().append(true).open(&self.path)
    }
}

/// Returns an error unless a file may be replaced. The operating system itself only checks the folder's permissions.
pub(crate) fn check_replaceable(found: &Metadata) -> io::Result<()> {
    if !found.is_file() {
        return Err(refused("it is no longer a regular file"));
    }
    if found.permissions().readonly() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the existing file is read-only"));
    }
    Ok(())
}

/// Gives a new file the permissions of the file it replaces and, if permitted, its owner and group.
#[cfg(unix)]
pub(crate) fn keep_permissions(replaced: &Metadata, file: &File) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    let new = file.metadata()?;
    let mut mode = replaced.mode() & 0o777;
    let (owner, group) = (replaced.uid(), replaced.gid());
    if (owner, group) != (new.uid(), new.gid())
        && fchown(file, Some(owner), Some(group)).is_err()
        && fchown(file, None, Some(group)).is_err()
    {
        // The old group could not be kept, so the new group gets no more permissions than everyone else.
        mode = mode & !0o070 | (mode & 0o007) << 3;
    }
    if file.metadata()?.mode() & 0o777 == mode { Ok(()) } else { file.set_permissions(PermissionsExt::from_mode(mode)) }
}

#[cfg(not(unix))]
pub(crate) fn keep_permissions(_: &Metadata, _: &File) -> io::Result<()> {
    Ok(())
}

fn refused(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}
