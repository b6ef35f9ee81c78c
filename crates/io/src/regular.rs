//! Rules for opening files. Regular files are always accepted; pipes and character devices only where a stream makes
//! sense, and the reader then limits its own input. Anything else is rejected, because reading it might block or never
//! end.

use std::fs::{self, File, FileType, Metadata};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Maximum size of a metadata file in bytes. No configuration, tokenizer or manifest comes close.
pub(crate) const LARGEST: u64 = 1 << 30;
/// Maximum length of a safetensors header in bytes. This allows for a hundred thousand tensors; parsing takes about
/// fifteen times as much memory.
pub const LONGEST_HEADER: u64 = 12 << 20;
/// How long to wait for a program to open the other end of a pipe.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Reads a metadata file.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    read_up_to(path, LARGEST)
}

/// Reads a tensor file.
pub fn read_tensors(path: &Path) -> Result<Vec<u8>> {
    let bytes = read_up_to(path, u64::MAX)?;
    check_header(&bytes, bytes.len() as u64)?;
    Ok(bytes)
}

/// Fails if a safetensors header is longer than [`LONGEST_HEADER`], given the start of its file and the file's length.
pub fn check_header(start: &[u8], file: u64) -> Result<()> {
    let len = start.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    // The parser rejects a header that is longer than its file.
    if len > LONGEST_HEADER && len < file {
        return Err(Error::other(format!("its header is {len} bytes long; the limit is {LONGEST_HEADER}")));
    }
    Ok(())
}

/// Opens a regular file.
pub fn open(path: &Path) -> Result<File> {
    check(path)?;
    let file = File::open(path)?;
    // The name may refer to a different file by now.
    checked(&file.metadata()?)?;
    Ok(file)
}

/// Opens a regular file, or a pipe or character device as a stream: `/dev/stdin`, a process substitution. A stream may
/// never end, so the caller must limit how much of it is kept.
pub fn open_stream(path: &Path) -> Result<File> {
    let kind = fs::metadata(path)?.file_type();
    if !is_stream(kind) {
        return open(path);
    }
    // Opening a pipe blocks until a program writes to it, perhaps forever.
    let (sender, opened) = channel();
    let own = path.to_path_buf();
    std::thread::Builder::new().spawn(move || sender.send(File::open(own)))?;
    opened.recv_timeout(LONGEST_WAIT).unwrap_or_else(|error| match error {
        RecvTimeoutError::Timeout => Err(Error::new(ErrorKind::TimedOut, "no program writes to this pipe")),
        RecvTimeoutError::Disconnected => Err(Error::other("it cannot be opened")),
    })
}

/// Metadata of a regular file; fails for anything else.
pub fn check(path: &Path) -> Result<Metadata> {
    let metadata = fs::metadata(path)?;
    checked(&metadata)?;
    Ok(metadata)
}

fn checked(metadata: &Metadata) -> Result<()> {
    if metadata.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if !metadata.is_file() {
        return Err(Error::other("it is a device or a pipe, not a file"));
    }
    Ok(())
}

#[cfg(unix)]
fn is_stream(kind: FileType) -> bool {
    use std::os::unix::fs::FileTypeExt;
    kind.is_fifo() || kind.is_char_device()
}

#[cfg(not(unix))]
fn is_stream(_: FileType) -> bool {
    false
}

/// Fails for more bytes than are read at once.
pub(crate) fn check_length(len: u64, largest: u64) -> Result<()> {
    if len > largest {
        return Err(Error::other(format!("it is {len} bytes long; the limit is {largest}")));
    }
    Ok(())
}

fn read_up_to(path: &Path, largest: u64) -> Result<Vec<u8>> {
    let file = open(path)?;
    let len = file.metadata()?.len();
    check_length(len, largest)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len as usize)?;
    // Files in `/proc` report no length, and another program may be writing to this file.
    file.take(largest.saturating_add(1)).read_to_end(&mut bytes)?;
    check_length(bytes.len() as u64, largest)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_bounded() {
        let start = |len: u64| len.to_le_bytes();
        assert!(check_header(&start(LONGEST_HEADER), u64::MAX).is_ok());
        let message = check_header(&start(LONGEST_HEADER + 1), LONGEST_HEADER + 9).unwrap_err().to_string();
        assert!(message.starts_with("its header is 12582913 bytes long"), "{message}");
        // These invalid headers pass, because the parser reports what is wrong with them.
        assert!(check_header(&start(u64::MAX), 100).is_ok() && check_header(b"", 0).is_ok());
    }
}
