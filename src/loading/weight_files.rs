//! Memory-mapped safetensors: one file, or shards with an index.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes as SharedBytes;
use half::{bf16, f16};
use hooklens_hooks::{DType, nearest};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};

use burn::tensor::{AllocationProperty, Bytes, TensorData};

use crate::error::LoadError;
use crate::tokens::read_json;

/// What a file says of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Length of each axis.
    pub shape: Vec<usize>,
    /// Element type in the file.
    pub dtype: String,
    stored: Dtype,
    file: usize,
    bytes: Range<usize>,
}

/// The tensors of a model's safetensors files: headers read and checked, data still on disk.
///
/// A header is refused unless its tensors fill the file exactly, without gaps or overlaps.
#[derive(Debug)]
pub struct WeightFiles {
    files: Vec<Mapped>,
    tensors: BTreeMap<String, TensorInfo>,
}

#[derive(Debug)]
struct Mapped {
    path: PathBuf,
    /// The file itself; none for one that is part of the program.
    file: Option<File>,
    /// The whole file. Pages are read when they are first touched.
    map: SharedBytes,
}

/// Elements of a tensor: `count` runs of `len`, each `stride` behind the one before, the first
/// at `offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Runs {
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) stride: usize,
    pub(crate) count: usize,
}

impl Runs {
    /// All of `len` elements.
    pub(crate) fn all(len: usize) -> Self {
        Self { offset: 0, len, stride: len, count: 1 }
    }
}

impl WeightFiles {
    /// Opens `model.safetensors` of a folder, or the shards its index names.
    ///
    /// # Errors
    /// [`LoadError`]: no weights, a missing shard, an unsound file or index.
    pub fn open_folder(folder: &Path) -> Result<Self, LoadError> {
        let index = folder.join("model.safetensors.index.json");
        let single = folder.join("model.safetensors");
        if index.is_file() && !single.is_file() {
            let shards = shard_names(&index)?;
            let paths = shards.into_iter().map(|shard| {
                let path = folder.join(&shard);
                if path.is_file() { Ok(path) } else { Err(LoadError::MissingShard { shard, index: index.clone() }) }
            });
            return Self::open(&paths.collect::<Result<Vec<_>, _>>()?);
        }
        if !single.is_file() {
            let other = folder.join("pytorch_model.bin").is_file();
            let reason = if other {
                "it has pytorch_model.bin but no model.safetensors; save it as safetensors first"
            } else {
                "the folder has neither model.safetensors nor model.safetensors.index.json"
            };
            return Err(LoadError::NotFound { name: folder.display().to_string(), reason: reason.to_string() });
        }
        Self::open(&[single])
    }

    /// Opens these files together.
    ///
    /// # Errors
    /// [`LoadError::File`] or [`LoadError::Corrupt`]; also if two files hold a tensor of one name.
    pub fn open(paths: &[PathBuf]) -> Result<Self, LoadError> {
        let mut opened = Self { files: Vec::new(), tensors: BTreeMap::new() };
        for path in paths {
            let (file, map) = map(path)?;
            opened.add(path, Some(file), map)?;
        }
        Ok(opened)
    }

    /// The tensors of a file that is part of the program.
    ///
    /// # Errors
    /// [`LoadError::Corrupt`].
    pub(crate) fn from_static(name: &str, bytes: &'static [u8]) -> Result<Self, LoadError> {
        let mut opened = Self { files: Vec::new(), tensors: BTreeMap::new() };
        opened.add(Path::new(name), None, SharedBytes::from_static(bytes))?;
        Ok(opened)
    }

    fn add(&mut self, path: &Path, on_disk: Option<File>, map: SharedBytes) -> Result<(), LoadError> {
        let corrupt = |reason: String| LoadError::Corrupt { path: path.to_path_buf(), reason };
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|e| corrupt(e.to_string()))?;
        let data = header + 8;
        let file = self.files.len();
        for (name, info) in metadata.tensors() {
            let (start, end) = info.data_offsets;
            let tensor = TensorInfo {
                shape: info.shape.clone(),
                dtype: format!("{:?}", info.dtype).to_lowercase(),
                stored: info.dtype,
                file,
                bytes: data + start..data + end,
            };
            if self.tensors.insert(name.clone(), tensor).is_some() {
                return Err(corrupt(format!("the tensor `{name}` is in another file too")));
            }
        }
        self.files.push(Mapped { path: path.to_path_buf(), file: on_disk, map });
        Ok(())
    }

    /// Every tensor, by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorInfo)> {
        self.tensors.iter().map(|(name, info)| (name.as_str(), info))
    }

    /// What the files say of a tensor.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// Bytes of all tensors as stored.
    pub fn stored_bytes(&self) -> usize {
        self.tensors.values().map(|t| t.bytes.len()).sum()
    }

    /// A tensor, not copied: its data stays on disk until it is used, and in the page cache after.
    /// `None` if it is not stored in the element type `compute`, or not aligned for it.
    ///
    /// # Errors
    /// As [`WeightFiles::read`].
    pub(crate) fn borrow(&self, name: &str, compute: DType) -> Result<Option<TensorData>, LoadError> {
        let (info, stored) = self.stored(name)?;
        let map = &self.files[info.file].map;
        let aligned = (map[info.bytes.clone()].as_ptr() as usize).is_multiple_of(compute.size());
        Ok((stored == compute && aligned).then(|| {
            let bytes = Bytes::from_shared(map.slice(info.bytes.clone()), AllocationProperty::File);
            TensorData::from_bytes(bytes, info.shape.clone(), compute.burn())
        }))
    }

    /// A tensor's elements in the element type `compute`: read and converted piece by piece, so
    /// that memory holds one copy and a piece, and none of the file's pages.
    ///
    /// # Errors
    /// [`LoadError::MissingTensor`], [`LoadError::DType`] or [`LoadError::File`].
    pub fn read(&self, name: &str, compute: DType) -> Result<TensorData, LoadError> {
        let (info, _) = self.stored(name)?;
        self.read_runs(name, compute, Runs::all(info.shape.iter().product()), info.shape.clone())
    }

    /// [`WeightFiles::read`] for some of the elements, which make a tensor of this shape.
    pub(crate) fn read_runs(
        &self,
        name: &str,
        compute: DType,
        runs: Runs,
        shape: Vec<usize>,
    ) -> Result<TensorData, LoadError> {
        let (info, stored) = self.stored(name)?;
        let bytes = convert(&self.files[info.file], info, stored, compute, runs)?;
        Ok(TensorData::from_bytes(bytes, shape, compute.burn()))
    }

    fn stored(&self, name: &str) -> Result<(&TensorInfo, DType), LoadError> {
        let Some(info) = self.tensors.get(name) else {
            return Err(LoadError::MissingTensor { name: name.to_string(), nearest: self.nearest(name) });
        };
        let stored = match info.stored {
            Dtype::F64 => DType::F64,
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            _ => return Err(LoadError::DType { name: name.to_string(), given: info.dtype.clone() }),
        };
        Ok((info, stored))
    }

    /// Nearest names in the files.
    pub(crate) fn nearest(&self, name: &str) -> Vec<String> {
        nearest(name, self.tensors.keys().map(String::as_str))
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

/// File names in an index, each once, in order. A name may not lead out of the folder.
pub(super) fn shard_names(index: &Path) -> Result<Vec<String>, LoadError> {
    let json = read_json(index.to_path_buf())?;
    let bad = |reason: &str| LoadError::Corrupt { path: index.to_path_buf(), reason: reason.to_string() };
    let map = json.get("weight_map").and_then(|m| m.as_object()).ok_or_else(|| bad("it has no `weight_map`"))?;
    let mut names = Vec::new();
    for shard in map.values() {
        let name = shard.as_str().ok_or_else(|| bad("a shard's name is not text"))?;
        if Path::new(name).file_name().and_then(|n| n.to_str()) != Some(name) {
            return Err(bad("a shard lies outside the folder"));
        }
        names.push(name.to_string());
    }
    names.sort_unstable();
    names.dedup();
    if names.is_empty() { Err(bad("it names no shard")) } else { Ok(names) }
}

/// Reads runs of a tensor in pieces and converts each.
fn convert(file: &Mapped, info: &TensorInfo, stored: DType, compute: DType, runs: Runs) -> Result<Bytes, LoadError> {
    const PIECE: usize = 1 << 20;
    let failed = |e: std::io::Error| LoadError::File { path: file.path.clone(), reason: e.to_string() };
    let size = stored.size();
    let mut out = Converted::with_capacity(compute, runs.len * runs.count);
    let mut piece = vec![0; PIECE.min(runs.len * size)];
    for run in 0..runs.count {
        let mut at = info.bytes.start + (runs.offset + run * runs.stride) * size;
        let end = at + runs.len * size;
        while at < end {
            let len = PIECE.min(end - at);
            match &file.file {
                Some(file) => read_at(file, at as u64, &mut piece[..len]).map_err(failed)?,
                None => piece[..len].copy_from_slice(&file.map[at..at + len]),
            }
            out.extend(&piece[..len], stored);
            at += len;
        }
    }
    Ok(out.into_bytes())
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

enum Converted {
    F64(Vec<f64>),
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

impl Converted {
    fn with_capacity(dtype: DType, elements: usize) -> Self {
        match dtype {
            DType::F64 => Self::F64(Vec::with_capacity(elements)),
            DType::F16 => Self::F16(Vec::with_capacity(elements)),
            DType::BF16 => Self::BF16(Vec::with_capacity(elements)),
            _ => Self::F32(Vec::with_capacity(elements)),
        }
    }

    fn extend(&mut self, bytes: &[u8], stored: DType) {
        match (self, stored) {
            (Self::F64(out), _) => each(bytes, stored, |x| out.push(x)),
            (Self::F32(out), DType::F32) => out.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))),
            (Self::F32(out), _) => each(bytes, stored, |x| out.push(x as f32)),
            (Self::F16(out), _) => each(bytes, stored, |x| out.push(f16::from_f64(x))),
            (Self::BF16(out), _) => each(bytes, stored, |x| out.push(bf16::from_f64(x))),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::F64(v) => Bytes::from_elems(v),
            Self::F32(v) => Bytes::from_elems(v),
            Self::F16(v) => Bytes::from_elems(v),
            Self::BF16(v) => Bytes::from_elems(v),
        }
    }
}

/// Every element as `f64`, which holds the others exactly.
fn each(bytes: &[u8], stored: DType, mut f: impl FnMut(f64)) {
    match stored {
        DType::F64 => bytes.as_chunks::<8>().0.iter().for_each(|b| f(f64::from_le_bytes(*b))),
        DType::F16 => bytes.as_chunks::<2>().0.iter().for_each(|b| f(f16::from_le_bytes(*b).to_f64())),
        DType::BF16 => bytes.as_chunks::<2>().0.iter().for_each(|b| f(bf16::from_le_bytes(*b).to_f64())),
        _ => bytes.as_chunks::<4>().0.iter().for_each(|b| f(f64::from(f32::from_le_bytes(*b)))),
    }
}
