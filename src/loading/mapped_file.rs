//! A file of tensors, mapped into memory.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use burn::tensor::Bytes;
use bytes::Bytes as SharedBytes;
use hooklens_hooks::DType;
use memmap2::Mmap;

use super::convert::Converted;
use super::weight_files::Runs;
use crate::error::LoadError;

/// A file, or bytes that are part of the program.
#[derive(Debug)]
pub(super) struct MappedFile {
    pub(super) path: PathBuf,
    /// The file itself; none for one that is part of the program.
    file: Option<File>,
    /// The whole file. Pages are read when they are first touched.
    pub(super) map: SharedBytes,
}

impl MappedFile {
    /// Maps a file.
    ///
    /// # Errors
    /// [`LoadError::File`]; [`LoadError::Corrupt`] if it is empty.
    pub(super) fn open(path: &Path) -> Result<Self, LoadError> {
        let (file, map) = map(path)?;
        Ok(Self { path: path.to_path_buf(), file: Some(file), map })
    }

    /// Bytes that are part of the program.
    pub(super) fn of_static(name: &str, bytes: &'static [u8]) -> Self {
        Self { path: name.into(), file: None, map: SharedBytes::from_static(bytes) }
    }

    /// Reads runs of the tensor at `bytes` in pieces and converts each, so that memory holds one copy and
    /// a piece, and none of the file's pages.
    pub(super) fn read(
        &self,
        bytes: Range<usize>,
        stored: DType,
        compute: DType,
        runs: Runs,
    ) -> Result<Bytes, LoadError> {
        const PIECE: usize = 1 << 20;
        let failed = |e: std::io::Error| LoadError::File { path: self.path.clone(), reason: e.to_string() };
        let size = stored.size();
        let mut out = Converted::with_capacity(compute, runs.len * runs.count);
        let mut piece = vec![0; PIECE.min(runs.len * size)];
        for run in 0..runs.count {
            let mut at = bytes.start + (runs.offset + run * runs.stride) * size;
            let end = at + runs.len * size;
            while at < end {
                let len = PIECE.min(end - at);
                match &self.file {
                    Some(file) => read_at(file, at as u64, &mut piece[..len]).map_err(failed)?,
                    None => piece[..len].copy_from_slice(&self.map[at..at + len]),
                }
                out.extend(&piece[..len], stored);
                at += len;
            }
        }
        Ok(out.into_bytes())
    }
}

fn map(path: &Path) -> Result<(File, SharedBytes), LoadError> {
    let failed = |e: std::io::Error| LoadError::File { path: path.to_path_buf(), reason: e.to_string() };
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.len() == 0 {
        return Err(LoadError::Corrupt { path: path.to_path_buf(), reason: "the file is empty".into() });
    }
    // SAFETY: the mapping is read-only and private to us as far as Rust can tell; what `Mmap::map`
    // asks beyond that is that nobody shortens the file meanwhile, which no program can ensure,
    // and which every reader of model files (safetensors itself included) asks of its user.
    // Measured: without it loading copies all weights, and takes seconds instead of microseconds.
    #[allow(unsafe_code)]
    let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
    Ok((file, SharedBytes::from_owner(map)))
}

#[cfg(unix)]
fn read_at(file: &File, at: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(not(unix))]
fn read_at(mut file: &File, at: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(bytes)
}
