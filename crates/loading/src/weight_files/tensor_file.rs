//! A tensor file that is memory-mapped, or read tensor by tensor from disk or an object store.

use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Bytes;
use bytes::Bytes as SharedBytes;
use hooklens_hooks::DType;
use memmap2::Mmap;

use super::Runs;
use super::convert::Converted;
use hooklens_io::object_stores::Ranges;
use hooklens_io::regular;
use hooklens_model::error::{LoadError, load_errors};

/// A file, an object in a store, or bytes embedded in the binary.
#[derive(Debug)]
pub(crate) struct TensorFile {
    pub(crate) path: PathBuf,
    content: Content,
    len: u64,
}

/// Location of the bytes.
#[derive(Debug)]
enum Content {
    /// In a mapped file, whose pages are read on first access.
    Mapped(File, Arc<Mmap>, SharedBytes),
    /// In a file that is not mapped.
    File(File),
    /// Embedded in the binary.
    Static(SharedBytes),
    /// In an object store.
    Object(Ranges),
}

impl TensorFile {
    /// Opens a file, and maps it if `mmap` is set.
    ///
    /// # Errors
    /// [`LoadError::File`] if the file cannot be opened, [`LoadError::Corrupt`] if it is empty.
    pub(crate) fn open(path: &Path, mmap: bool) -> Result<Self, LoadError> {
        let failed = load_errors::cant_read(path);
        let file = regular::open(path).map_err(&failed)?;
        let len = file.metadata().map_err(&failed)?.len();
        if len == 0 {
            return Err(load_errors::corrupt(path, "the file is empty"));
        }
        let content = if mmap {
            let map = Arc::new(map(&file).map_err(&failed)?);
            let bytes = SharedBytes::from_owner(Owner(Arc::clone(&map)));
            Content::Mapped(file, map, bytes)
        } else {
            Content::File(file)
        };
        Ok(Self { path: path.to_path_buf(), content, len })
    }

    /// Wraps bytes embedded in the binary.
    pub(crate) fn of_static(name: &str, bytes: &'static [u8]) -> Self {
        Self { path: name.into(), content: Content::Static(SharedBytes::from_static(bytes)), len: bytes.len() as u64 }
    }

    /// Wraps an object in a store.
    pub(crate) fn of_object(path: &Path, object: Ranges) -> Self {
        Self { path: path.to_path_buf(), len: object.size(), content: Content::Object(object) }
    }

    /// Length of the file when it was opened, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Borrows a range of bytes if the file is in memory.
    pub(crate) fn lend(&self, bytes: Range<usize>) -> Option<SharedBytes> {
        Some(self.in_memory()?.slice(bytes))
    }

    /// Returns a range of bytes, borrowed if the file is in memory.
    pub(crate) fn bytes(&self, bytes: Range<usize>) -> Result<SharedBytes, LoadError> {
        if let Some(lent) = self.lend(bytes.clone()) {
            return Ok(lent);
        }
        let mut read = vec![0; bytes.len()];
        self.read_at(bytes.start, &mut read)?;
        Ok(read.into())
    }

    /// The mapping, if the file is mapped.
    pub(super) fn map(&self) -> Option<Arc<Mmap>> {
        match &self.content {
            Content::Mapped(_, map, _) => Some(Arc::clone(map)),
            _ => None,
        }
    }

    /// The whole content, if it is in memory.
    pub(crate) fn in_memory(&self) -> Option<&SharedBytes> {
        match &self.content {
            Content::Mapped(_, _, bytes) | Content::Static(bytes) => Some(bytes),
            Content::File(_) | Content::Object(_) => None,
        }
    }

    /// Reads up to `len` bytes from the start of the file.
    pub(crate) fn start(&self, len: usize) -> Result<Cow<'_, [u8]>, LoadError> {
        let len = self.len.min(len as u64) as usize;
        if let Some(map) = self.in_memory() {
            return Ok(Cow::Borrowed(map.get(..len).unwrap_or_default()));
        }
        let mut start = vec![0; len];
        self.read_at(0, &mut start)?;
        Ok(Cow::Owned(start))
    }

    /// Reads and converts runs of the tensor at `bytes` in pieces, so that memory holds one copy and a small buffer,
    /// and no pages of the file.
    pub(crate) fn read(
        &self,
        bytes: Range<usize>,
        stored: DType,
        compute: DType,
        runs: Runs,
    ) -> Result<Bytes, LoadError> {
        const PIECE: usize = 1 << 20;
        let size = stored.size();
        let mut out = Converted::with_capacity(compute, runs.len * runs.count);
        let mut piece = vec![0; PIECE.min(runs.len * size)];
        for run in 0..runs.count {
            let mut at = bytes.start + (runs.offset + run * runs.stride) * size;
            let end = at + runs.len * size;
            while at < end {
                let len = PIECE.min(end - at);
                self.read_at(at, &mut piece[..len])?;
                out.extend(&piece[..len], stored);
                at += len;
            }
        }
        Ok(out.into_bytes())
    }

    fn read_at(&self, at: usize, bytes: &mut [u8]) -> Result<(), LoadError> {
        match &self.content {
            Content::Mapped(file, ..) | Content::File(file) => {
                read_at(file, at as u64, bytes).map_err(load_errors::cant_read(&self.path))
            }
            Content::Object(object) => object.read_at(at as u64, bytes).map_err(load_errors::cant_read(&self.path)),
            Content::Static(all) => {
                bytes.copy_from_slice(&all[at..at + bytes.len()]);
                Ok(())
            }
        }
    }
}

/// Keeps the mapping alive while its bytes are borrowed.
struct Owner(Arc<Mmap>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the mapping is read-only, so Rust code cannot write through it. `Mmap::map` also requires that nobody
    // changes the file in the meantime. No program can ensure that; like all readers that map model files, including
    // safetensors, hooklens requires it of users. Users who cannot guarantee it can turn mapping off with
    // `LoadOptions::mmap`. Measured: without mapping, loading copies all weights and takes seconds instead of
    // microseconds.
    #[allow(unsafe_code)]
    unsafe {
        Mmap::map(file)
    }
}

/// Reads `bytes.len()` bytes at an offset. Threads may read from the same file at once.
#[cfg(unix)]
pub fn read_at(file: &File, at: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

/// Reads `bytes.len()` bytes at an offset. Threads may read from the same file at once.
#[cfg(windows)]
pub fn read_at(file: &File, mut at: u64, mut bytes: &mut [u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, at) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => (bytes, at) = (&mut bytes[read..], at + read as u64),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
