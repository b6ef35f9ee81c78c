//! Reading files whole: what waits for a writer or never ends is not read.

use std::fs::{self, Metadata};
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

/// The largest description that is read: no configuration, tokenizer or manifest comes near.
const LARGEST: u64 = 1 << 30;

/// The bytes of a file that describes something.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    read_up_to(path, LARGEST)
}

/// The bytes of a file of tensors.
pub(crate) fn read_tensors(path: &Path) -> Result<Vec<u8>> {
    read_up_to(path, u64::MAX)
}

/// Whether there is a file that ends.
pub(crate) fn check(path: &Path) -> Result<Metadata> {
    let metadata = fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if !metadata.is_file() {
        return Err(Error::other("it is a device or a pipe, not a file"));
    }
    Ok(metadata)
}

fn read_up_to(path: &Path, largest: u64) -> Result<Vec<u8>> {
    let metadata = check(path)?;
    if metadata.len() > largest {
        return Err(Error::other(format!("it is {} bytes long, and no such file is", metadata.len())));
    }
    fs::read(path)
}
