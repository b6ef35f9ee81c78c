//! One writer a folder.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use crate::error::DumpError;

/// The file that is locked.
pub(super) const NAME: &str = ".hooklens-lock";

/// A folder that no other process writes to. The system lets go of it when the process ends, however it ends; the file
/// that a killed one left is taken over.
pub(super) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Locks a folder, or says which process holds it.
    pub(super) fn take(folder: &Path) -> Result<Self, DumpError> {
        let path = folder.join(NAME);
        let failed = |source: std::io::Error| DumpError::File { path: path.clone(), source };
        let mut file = loop {
            let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            let mut file = options.map_err(failed)?;
            match file.try_lock() {
                // Whoever held it may have removed it meanwhile; then it is no one's lock.
                Ok(()) if path.exists() => break file,
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let mut holder = String::new();
                    // Who it is may not be written yet.
                    file.read_to_string(&mut holder).ok();
                    return Err(DumpError::Locked { path: folder.to_path_buf(), holder: holder.trim().to_string() });
                }
                // Some file systems of clusters know no locks.
                Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => break file,
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        };
        file.set_len(0).map_err(failed)?;
        writeln!(file, "process {}", std::process::id()).map_err(failed)?;
        Ok(Self { path, _file: file })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A folder that is done holds nothing but the dump.
        fs::remove_file(&self.path).ok();
    }
}
