//! The one rule for files that are read. A regular file is read. A pipe or a character device is read only where a stream
//! makes sense, which its reader bounds itself. Anything else is refused: a reader would wait for a writer, or never end.

use std::fs::{self, File, FileType, Metadata};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The largest description that is read: no configuration, tokenizer or manifest comes near.
const LARGEST: u64 = 1 << 30;
/// The longest header of safetensors, in bytes, which takes some fifteen times as much when it is read: that of a hundred
/// thousand tensors.
pub const LONGEST_HEADER: u64 = 12 << 20;
/// How long a pipe may wait for a program that writes to it.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The bytes of a file that describes something.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    read_up_to(path, LARGEST)
}

/// The bytes of a file of tensors.
pub fn read_tensors(path: &Path) -> Result<Vec<u8>> {
    let bytes = read_up_to(path, u64::MAX)?;
    check_header(&bytes, bytes.len() as u64)?;
    Ok(bytes)
}

/// Fails for a file of safetensors, of this start and length, whose header is longer than any model's.
pub fn check_header(start: &[u8], file: u64) -> Result<()> {
    let len = start.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    // A header that is longer than its file is for the parser to refuse.
    if len > LONGEST_HEADER && len < file {
        return Err(Error::other(format!("its header is {len} bytes long; at most {LONGEST_HEADER} are read")));
    }
    Ok(())
}

/// Opens a regular file.
pub fn open(path: &Path) -> Result<File> {
    check(path)?;
    let file = File::open(path)?;
    // The name may be another file's by now.
    checked(&file.metadata()?)?;
    Ok(file)
}

/// Opens a regular file, or a pipe or character device as a stream: `/dev/stdin`, a process substitution. It may have no
/// end, so the caller must bound what it holds of it.
pub fn open_stream(path: &Path) -> Result<File> {
    let kind = fs::metadata(path)?.file_type();
    if !is_stream(kind) {
        return open(path);
    }
    // Opening a pipe waits until a program writes to it, perhaps forever.
    let (sender, opened) = channel();
    let own = path.to_path_buf();
    std::thread::Builder::new().spawn(move || sender.send(File::open(own)))?;
    opened.recv_timeout(LONGEST_WAIT).unwrap_or_else(|error| match error {
        RecvTimeoutError::Timeout => Err(Error::new(ErrorKind::TimedOut, "no program writes to this pipe")),
        RecvTimeoutError::Disconnected => Err(Error::other("it cannot be opened")),
    })
}

/// The metadata of a regular file.
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

fn read_up_to(path: &Path, largest: u64) -> Result<Vec<u8>> {
    let file = open(path)?;
    let len = file.metadata()?.len();
    let too_long = |len: u64| Error::other(format!("it is {len} bytes long; at most {largest} are read"));
    if len > largest {
        return Err(too_long(len));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len as usize)?;
    // Files of `/proc` and the like have no length, and another program may be writing to this one.
    file.take(largest.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > largest {
        return Err(too_long(bytes.len() as u64));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_bounded() {
        let start = |len: u64| len.to_le_bytes();
        assert!(check_header(&start(LONGEST_HEADER), u64::MAX).is_ok());
        let told = check_header(&start(LONGEST_HEADER + 1), LONGEST_HEADER + 9).unwrap_err().to_string();
        assert!(told.starts_with("its header is 12582913 bytes long"), "{told}");
        // What is wrong with these the parser says.
        assert!(check_header(&start(u64::MAX), 100).is_ok() && check_header(b"", 0).is_ok());
    }
}
