//! Tensors of a model's files: safetensors, PyTorch or GGUF, in one file or in shards.

mod convert;
pub(crate) mod gguf_file;
mod layout;
pub(crate) mod llama2c_file;
mod npz_file;
mod parts;
mod pickle_memory;
mod quantized;
mod raw;
mod tensor_file;
pub mod torch_file;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use burn::tensor::{Bytes, TensorData};
use hooklens_hooks::DType;
use hooklens_kernels::packed::{Format, Order, Packed};
use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensorError, SafeTensors};

use hooklens_io::regular;
use hooklens_model::cpu::packed_matrix::PackedMatrix;
use hooklens_model::error::{LoadError, load_errors};
use hooklens_model::model::Pages;
use hooklens_model::tokens::read_json;

use convert::Converted;
use tensor_file::TensorFile;

pub(crate) use layout::{CROSS_ATTENTION, Layout, Source, StoredTensor, WeightTable};
pub use quantized::Joined;
pub(crate) use quantized::Quantized;
pub use raw::{RawTensors, embedded_file, float_type, location, object_file, open_files};
pub use tensor_file::read_at;

/// Shape, element type and location of a tensor in a file.
///
/// ```
/// let weights = hooklens::inspect("embedded:ioi")?.weights;
/// let files = weights.map(|stored| stored.files);
/// let unembed = files.as_ref().and_then(|files| files.info("unembed.W_U"));
/// assert_eq!(unembed.map(|info| info.shape.clone()), Some(vec![64, 61]));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// Size of each axis.
    pub shape: Vec<usize>,
    /// Name of the element type in the file.
    pub dtype: String,
    /// Element type, if it is a floating-point type that a model can compute in.
    pub(crate) float: Option<DType>,
    /// Block format, if the tensor is block-quantized.
    pub(crate) packed: Option<Format>,
    pub(crate) bytes: usize,
    /// Location of the elements.
    pub(crate) place: Location,
}

impl TensorInfo {
    /// Whether the tensor is quantized.
    pub(crate) fn is_quantized(&self) -> bool {
        self.packed.is_some() || matches!(self.place, Location::Joined(_))
    }
}

/// Location of a tensor's elements.
#[derive(Debug, Clone)]
pub enum Location {
    /// Range of bytes in an opened file.
    File {
        /// Index of the file.
        file: usize,
        /// Range of bytes in the file.
        bytes: Range<usize>,
    },
    /// Tensor in a PyTorch file; always read whole.
    Torch(torch_file::TorchTensor),
    /// Compressed array in a NumPy archive.
    Npz(npz_file::NpzArray),
    /// Several tensors of a quantized checkpoint that together form one matrix.
    Joined(Box<Joined>),
}

impl Location {
    /// Reads all bytes of a tensor that is always read whole.
    fn read_whole(&self) -> Result<Vec<u8>, LoadError> {
        match self {
            Location::Torch(tensor) => tensor.read(),
            Location::Npz(array) => array.read(),
            Location::File { .. } | Location::Joined(_) => Ok(Vec::new()),
        }
    }
}

/// Tensors of a model's files: headers are read and checked, and data stays on disk.
///
/// A safetensors header is rejected unless its tensors fill the file exactly, without gaps or overlaps. PyTorch files
/// are read by a parser that supports only tensors and plain data and runs no code from the file.
///
/// ```
/// use hooklens::WeightFiles;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// model.save_pretrained(folder)?;
/// let files = WeightFiles::open(&[folder.to_path_buf()])?;
/// assert!(files.tensors().any(|(name, info)| name == "embed.W_E" && info.shape == [61, 64]));
/// let embed = files.read("embed.W_E", DType::F32)?;
/// assert_eq!(embed.num_elements(), 61 * 64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct WeightFiles {
    files: Vec<TensorFile>,
    tensors: BTreeMap<String, TensorInfo>,
    /// Metadata entries in safetensors headers.
    metadata: BTreeMap<String, String>,
}

/// Elements of a tensor: `count` runs of `len` elements, each starting `stride` after the previous one, the first at
/// `offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runs {
    /// Index of the first element.
    pub offset: usize,
    /// Number of elements per run.
    pub len: usize,
    /// Number of elements from the start of one run to the start of the next.
    pub stride: usize,
    /// Number of runs.
    pub count: usize,
}

impl Runs {
    /// All `len` elements.
    pub fn all(len: usize) -> Self {
        Self { offset: 0, len, stride: len, count: 1 }
    }
}

/// How a tensor's elements are encoded.
#[derive(Debug, Clone, Copy)]
enum Elements {
    /// Individual floats.
    Float(DType),
    /// Quantized blocks.
    Packed(Format),
}

/// Names of the weight file and shard index in a model's folder, in order of precedence.
pub(crate) const NAMES: [(&str, &str); 2] =
    [("model.safetensors", "model.safetensors.index.json"), ("pytorch_model.bin", "pytorch_model.bin.index.json")];

impl WeightFiles {
    /// Opens the weights in a folder: `model.safetensors` or the shards named in its index, else `pytorch_model.bin` or
    /// the shards named in its index, else the only `.pt` or `.pth` file.
    pub(crate) fn open_folder(folder: &Path, mmap: bool) -> Result<Self, LoadError> {
        for (single, index) in NAMES {
            let (single, index) = (folder.join(single), folder.join(index));
            if single.is_file() {
                return Self::open_with(&[single], mmap);
            }
            if index.is_file() {
                let paths = shard_names(&index)?.into_iter().map(|shard| {
                    let path = folder.join(&shard);
                    if path.is_file() { Ok(path) } else { Err(LoadError::MissingShard { shard, index: index.clone() }) }
                });
                return Self::open_with(&paths.collect::<Result<Vec<_>, _>>()?, mmap);
            }
        }
        let entries = std::fs::read_dir(folder)
            .map_err(load_errors::cant_read(folder))?
            .filter_map(|entry| Some(entry.ok()?.path()));
        let mut checkpoints: Vec<PathBuf> =
            entries.filter(|path| matches!(path.extension().and_then(|e| e.to_str()), Some("pt" | "pth"))).collect();
        if checkpoints.len() == 1 {
            return Self::open_with(&checkpoints, mmap);
        }
        checkpoints.sort();
        let reason = if checkpoints.is_empty() {
            "the folder has no model.safetensors or pytorch_model.bin, no index of either, and no .pt or .pth file"
                .to_string()
        } else {
            let names = checkpoints.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy());
            format!(
                "the folder contains several checkpoints; pass the path of one: {}",
                names.collect::<Vec<_>>().join(", ")
            )
        };
        Err(load_errors::not_found(folder.display().to_string(), reason))
    }

    /// Opens a model's folder, or several files together. The extension selects PyTorch (`.bin`, `.pt`, `.pth`,
    /// `.ckpt`), NumPy (`.npz`) or GGUF; any other file is read as safetensors. In a folder, opens `model.safetensors`
    /// or the shards named in its index, else `pytorch_model.bin` or the shards named in its index, else the only `.pt`
    /// or `.pth` file.
    ///
    /// # Errors
    /// [`LoadError::NotFound`] for a folder without weights, [`LoadError::MissingShard`] if a shard named in the index
    /// is missing, [`LoadError::File`] if a file cannot be read, and [`LoadError::Corrupt`] if a file is invalid or two
    /// files contain a tensor of the same name.
    pub fn open(paths: &[PathBuf]) -> Result<Self, LoadError> {
        match paths {
            [folder] if folder.is_dir() => Self::open_folder(folder, true),
            _ => Self::open_with(paths, true),
        }
    }

    /// Like [`WeightFiles::open`]; for `mmap`, see [`LoadOptions::mmap`](crate::loading::LoadOptions::mmap).
    pub(crate) fn open_with(paths: &[PathBuf], mmap: bool) -> Result<Self, LoadError> {
        let mut opened = Self::default();
        for path in paths {
            match path.extension().and_then(|e| e.to_str()) {
                Some("bin") if llama2c_file::is_one(path) => {
                    let file = TensorFile::open(path, mmap)?;
                    let tensors = llama2c_file::tensors(&file, opened.files.len())?;
                    opened.add(path, tensors)?;
                    opened.files.push(file);
                }
                Some("gguf") => {
                    let file = TensorFile::open(path, mmap)?;
                    let tensors = gguf_file::tensors(&file, opened.files.len())?;
                    opened.add(path, tensors)?;
                    opened.files.push(file);
                }
                Some("npz") => {
                    let file = TensorFile::open(path, mmap)?;
                    opened.add(path, npz_file::tensors(path, opened.files.len())?)?;
                    opened.files.push(file);
                }
                Some("bin" | "pt" | "pth" | "ckpt") => opened.add(path, torch_file::tensors(path)?)?,
                _ => opened.add_safetensors(TensorFile::open(path, mmap)?)?,
            }
        }
        Ok(opened)
    }

    fn add(&mut self, path: &Path, tensors: impl IntoIterator<Item = (String, TensorInfo)>) -> Result<(), LoadError> {
        for (name, tensor) in tensors {
            let reason = format!("the tensor `{name}` is also in another file");
            if self.tensors.insert(name, tensor).is_some() {
                return Err(load_errors::corrupt(path, reason));
            }
        }
        Ok(())
    }

    fn add_safetensors(&mut self, file: TensorFile) -> Result<(), LoadError> {
        let (data, metadata) = safetensors_header(&file)?;
        let number = self.files.len();
        let tensors = metadata.tensors().into_iter().map(|(name, info)| {
            let (start, end) = info.data_offsets;
            let float = match info.dtype {
                Dtype::F64 => Some(DType::F64),
                Dtype::F32 => Some(DType::F32),
                Dtype::F16 => Some(DType::F16),
                Dtype::BF16 => Some(DType::BF16),
                _ => None,
            };
            let place = Location::File { file: number, bytes: data + start..data + end };
            let dtype = format!("{:?}", info.dtype).to_lowercase();
            (name, TensorInfo { shape: info.shape.clone(), dtype, float, packed: None, bytes: end - start, place })
        });
        self.add(&file.path, tensors)?;
        self.metadata.extend(metadata.metadata().clone().unwrap_or_default());
        self.files.push(file);
        Ok(())
    }

    /// Iterates over all tensors, in name order.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorInfo)> {
        self.tensors.iter().map(|(name, info)| (name.as_str(), info))
    }

    /// Shape, element type and location of a tensor.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// Reads a tensor in the element type `compute`. Memory holds one copy and a small buffer, or, for a PyTorch file
    /// with a different element type, the tensor in both types.
    ///
    /// # Errors
    /// [`LoadError::MissingTensor`] if there is no such tensor, [`LoadError::DType`] if its elements are not floats,
    /// [`LoadError::File`] if the file cannot be read, and [`LoadError::Corrupt`] if its contents are invalid.
    pub fn read(&self, name: &str, compute: DType) -> Result<TensorData, LoadError> {
        let (info, _) = self.stored(name)?;
        self.read_runs(name, compute, Runs::all(info.shape.iter().product()), info.shape.clone())
    }

    /// Pages of a tensor in a mapped file; empty for any other tensor.
    pub(crate) fn pages(&self, name: &str) -> Pages {
        let mut pages = Pages::default();
        if let Some(Location::File { file, bytes }) = self.tensors.get(name).map(|info| &info.place)
            && let Some(map) = self.files[*file].map()
        {
            pages.add(map, bytes.clone());
        }
        pages
    }

    fn stored(&self, name: &str) -> Result<(&TensorInfo, Elements), LoadError> {
        let Some(info) = self.tensors.get(name) else {
            return Err(LoadError::MissingTensor { name: name.to_string(), nearest: self.nearest(name) });
        };
        match (info.float, info.packed) {
            (Some(stored), _) => Ok((info, Elements::Float(stored))),
            (None, Some(format)) => Ok((info, Elements::Packed(format))),
            (None, None) => Err(LoadError::DType { name: name.to_string(), given: info.dtype.clone() }),
        }
    }

    /// Rows of a block-quantized matrix in the file's block format; `None` if the tensor is not block-quantized.
    ///
    /// # Errors
    /// Same as [`WeightFiles::read`].
    pub(crate) fn packed(
        &self,
        name: &str,
        rows: Range<usize>,
        order: Order,
    ) -> Result<Option<PackedMatrix>, LoadError> {
        let (info, Elements::Packed(format)) = self.stored(name)? else { return Ok(None) };
        if let Location::Joined(joined) = &info.place {
            return self.packed_codes(joined, format, rows, order).map(Some);
        }
        let Location::File { file, bytes } = &info.place else { return Ok(None) };
        let width = info.shape.last().copied().unwrap_or(1);
        let Some(row) = format.bytes_of(width) else { return Ok(None) };
        let bytes = bytes.start + rows.start * row..bytes.start + rows.end * row;
        Ok(Some(PackedMatrix::new(self.files[*file].bytes(bytes)?, format, width, order)))
    }

    /// Dequantizes a subset of a block-quantized tensor's elements, row by row.
    fn decoded(&self, info: &TensorInfo, format: Format, compute: DType, runs: Runs) -> Result<Bytes, LoadError> {
        if let Location::Joined(joined) = &info.place {
            return self.decoded_codes(joined, compute, runs);
        }
        let mut out = Converted::with_capacity(compute, runs.len * runs.count);
        let width = info.shape.last().copied().unwrap_or(1);
        if let (Location::File { file, bytes }, Some(size)) = (&info.place, format.bytes_of(width)) {
            let mut row = vec![0.0; width];
            for run in 0..runs.count {
                let (mut at, end) = (runs.offset + run * runs.stride, runs.offset + run * runs.stride + runs.len);
                while at < end {
                    let start = bytes.start + at / width * size;
                    let packed = self.files[*file].bytes(start..start + size)?;
                    Packed::new(&packed, format, width, Order::AsIs).decode_column(0, &mut row);
                    let first = at % width;
                    let taken = &row[first..width.min(first + end - at)];
                    out.extend_floats(taken);
                    at += taken.len();
                }
            }
        }
        Ok(out.into_bytes())
    }

    /// Whether two tensors have the same values.
    pub(crate) fn same(&self, one: &str, other: &str) -> Result<bool, LoadError> {
        const PIECE: usize = 1 << 20;
        let [(a, _), (b, _)] = [self.stored(one)?, self.stored(other)?];
        if a.shape != b.shape {
            return Ok(false);
        }
        // These are read whole, not in pieces.
        let whole = |info: &TensorInfo| matches!(info.place, Location::Torch(_) | Location::Npz(_));
        if whole(a) && whole(b) && a.dtype == b.dtype {
            return Ok(a.place.read_whole()? == b.place.read_whole()?);
        }
        let len: usize = a.shape.iter().product();
        for offset in (0..len).step_by(PIECE) {
            let len = PIECE.min(len - offset);
            let piece = |name| self.read_runs(name, DType::F64, Runs { offset, len, stride: len, count: 1 }, vec![len]);
            if piece(one)?.as_bytes() != piece(other)?.as_bytes() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Data offset and parsed header of a safetensors file. Checks that the tensors fill the file.
fn safetensors_header(file: &TensorFile) -> Result<(usize, Metadata), LoadError> {
    let unsound = "its header is invalid or does not match the length of the file";
    let corrupt = |error: SafeTensorError| load_errors::rejected(&file.path, unsound, error);
    let start = match file.in_memory() {
        Some(all) => Cow::Borrowed(&all[..]),
        None => {
            let length = file.start(8)?.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            // The parser rejects an invalid length.
            file.start(if length <= regular::LONGEST_HEADER { length as usize + 8 } else { 8 })?
        }
    };
    regular::check_header(&start, file.len()).map_err(|reason| load_errors::corrupt(&file.path, reason.to_string()))?;
    let (header, metadata) = match SafeTensors::read_metadata(&start) {
        // The header itself is valid; the length that it implies is compared with the length of the file below.
        Err(SafeTensorError::MetadataIncompleteBuffer) if file.in_memory().is_none() => {
            let parsed: Metadata = serde_json::from_slice(&start[8..]).map_err(|e| corrupt(e.into()))?;
            (start.len() - 8, parsed)
        }
        read => read.map_err(corrupt)?,
    };
    let (end, len) = ((header + 8) as u64 + metadata.data_len() as u64, file.len());
    if end == len { Ok((header + 8, metadata)) } else { Err(corrupt(SafeTensorError::MetadataIncompleteBuffer)) }
}

/// Converts elements to a smaller type in place, so that memory never holds a large tensor in both types.
fn narrowed_in_place(mut bytes: Vec<u8>, stored: DType, compute: DType) -> Vec<u8> {
    const PIECE: usize = 1 << 16;
    let (from, to) = (stored.size(), compute.size());
    let count = bytes.len() / from;
    for start in (0..count).step_by(PIECE) {
        let len = PIECE.min(count - start);
        let mut piece = Converted::with_capacity(compute, len);
        piece.extend(&bytes[start * from..(start + len) * from], stored);
        bytes[start * to..(start + len) * to].copy_from_slice(&piece.into_bytes());
    }
    bytes.truncate(count * to);
    bytes.shrink_to_fit();
    bytes
}

/// Unique file names in a shard index, in order. Names that point outside the folder are rejected.
pub(crate) fn shard_names(index: &Path) -> Result<Vec<String>, LoadError> {
    let json = read_json(index.to_path_buf())?;
    let bad = |reason: &str| load_errors::corrupt(index, reason);
    let map = json.get("weight_map").and_then(|m| m.as_object()).ok_or_else(|| bad("it has no `weight_map`"))?;
    let mut names = Vec::new();
    for shard in map.values() {
        let name = shard.as_str().ok_or_else(|| bad("a shard's file name in `weight_map` is not a string"))?;
        if Path::new(name).file_name().and_then(|n| n.to_str()) != Some(name) {
            return Err(bad("a shard's file name in `weight_map` points outside the folder"));
        }
        names.push(name.to_string());
    }
    names.sort_unstable();
    names.dedup();
    if names.is_empty() { Err(bad("its `weight_map` is empty")) } else { Ok(names) }
}
