//! One writer a folder.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use crate::error::DumpError;

/// The file that is locked.
pub(super) const NAME: &str = ".hooklens-lock";
/// What it begins with.
const HOLDER: &str = "process ";
/// It is no longer than this.
const LONGEST: u64 = 64;

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
            // A link of that name, or a file of another's, is not written to.
            match fs::symlink_metadata(&path) {
                Ok(there) if !there.is_file() || there.len() > LONGEST || !is_own(&path) => {
                    let reason = "it is no lock of a dump; take it away".to_string();
                    return Err(DumpError::Refused { path, reason });
                }
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
            }
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
        writeln!(file, "{HOLDER}{}", std::process::id()).map_err(failed)?;
        Ok(Self { path, _file: file })
    }
}

/// Whether a file is empty or says which process locks it.
fn is_own(path: &Path) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.is_empty() || text.starts_with(HOLDER))
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A folder that is done holds nothing but the dump.
        fs::remove_file(&self.path).ok();
    }
}
