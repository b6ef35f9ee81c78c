//! PyTorch checkpoints: `torch.save` of a state dict, or of a dictionary that contains one.

use std::fmt;
use std::path::{Path, PathBuf};

use hooklens_hooks::DType;
use pytorch_reader::{DType as Stored, PytorchError, PytorchReader};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Location, TensorInfo, pickle_memory};
use hooklens_model::error::{LoadError, load_errors};

/// Keys under which training code stores the state dict.
const HOLDERS: [&str; 3] = ["state_dict", "model_state_dict", "model"];
/// Prefixes added to every name by `torch.compile` and data-parallel training.
const WRAPPERS: [&str; 2] = ["_orig_mod.", "module."];

/// A tensor in a checkpoint, not yet read.
#[derive(Clone)]
pub struct TorchTensor {
    path: PathBuf,
    tensor: pytorch_reader::Tensor,
}

impl fmt::Debug for TorchTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor").field("path", &self.path).field("name", &self.tensor.name).finish()
    }
}

impl TorchTensor {
    /// Reads all bytes, row-major and little-endian.
    pub(crate) fn read(&self) -> Result<Vec<u8>, LoadError> {
        let bytes = self.tensor.read().map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof => {
                load_errors::rejected(&self.path, &format!("the tensor `{}` can't be read", self.tensor.name), error)
            }
            _ => load_errors::cant_read(&self.path)(error),
        })?;
        if bytes.len() == self.tensor.byte_len() {
            return Ok(bytes);
        }
        let reason =
            format!("the tensor `{}` has {} bytes; expected {}", self.tensor.name, bytes.len(), self.tensor.byte_len());
        Err(load_errors::corrupt(&self.path, reason))
    }
}

/// Lists the tensors in a checkpoint, without reading their data.
pub(crate) fn tensors(path: &Path) -> Result<Vec<(String, TensorInfo)>, LoadError> {
    pickle_memory::check(path)?;
    let held = HOLDERS.iter().map(|holder| PytorchReader::with_top_level_key(path, holder));
    let reader = match held.filter_map(Result::ok).find(|reader| !reader.is_empty()) {
        Some(reader) => reader,
        None => PytorchReader::new(path).map_err(|error| unreadable(path, error))?,
    };
    if reader.is_empty() {
        return Err(load_errors::corrupt(path, "it contains no tensors"));
    }
    let info = |(name, tensor): (String, pytorch_reader::Tensor)| {
        let bare = WRAPPERS.iter().find_map(|wrapper| name.strip_prefix(wrapper)).map(str::to_string);
        let float = match tensor.dtype() {
            Stored::F64 => Some(DType::F64),
            Stored::F32 => Some(DType::F32),
            Stored::F16 => Some(DType::F16),
            Stored::BF16 => Some(DType::BF16),
            _ => None,
        };
        let info = TensorInfo {
            shape: tensor.shape().to_vec(),
            dtype: format!("{:?}", tensor.dtype()).to_lowercase(),
            float,
            packed: None,
            bytes: tensor.byte_len(),
            place: Location::Torch(TorchTensor { path: path.to_path_buf(), tensor }),
        };
        (bare.unwrap_or(name), info)
    };
    Ok(reader.into_tensors().into_iter().map(info).collect())
}

/// Configuration stored in the checkpoint: `model_args`, as written by nanoGPT and llama2.c.
pub(crate) fn configuration(path: &Path) -> Result<Option<Value>, LoadError> {
    pickle_memory::check(path)?;
    let args = match PytorchReader::load_config::<Map<String, Value>, _>(path, Some("model_args")) {
        Ok(args) => args,
        Err(PytorchError::KeyNotFound(_)) => return Ok(None),
        Err(error) => return Err(unreadable(path, error)),
    };
    let architecture = if args.contains_key("n_embd") { "nanoGPT" } else { "llama2.c" };
    let mut fields = Map::from_iter([("architectures".to_string(), Value::from(vec![architecture]))]);
    fields.extend(args);
    Ok(Some(fields.into()))
}

/// Reads the plain data beside a checkpoint's tensors into the fields of `D`; other data is ignored.
pub fn described<D: DeserializeOwned>(path: &Path) -> Result<D, LoadError> {
    pickle_memory::check(path)?;
    PytorchReader::load_config(path, None).map_err(|error| unreadable(path, error))
}

fn unreadable(path: &Path, error: PytorchError) -> LoadError {
    match error {
        PytorchError::Io(error) if error.kind() == std::io::ErrorKind::NotFound => load_errors::cant_read(path)(error),
        error => load_errors::rejected(path, "it is not a valid PyTorch checkpoint", error),
    }
}
