//! Reading of reference files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use hooklens_hooks::Axis;
use ndarray::{ArrayD, IxDyn};
use safetensors::{Dtype, SafeTensors};

use super::{Comparison, distance};
use hooklens_io::regular;
use hooklens_model::error::{LoadError, Result, load_errors};
use hooklens_model::tokens::Tokens;

/// Names of tensors that are not hook points.
const INPUTS: [&str; 6] =
    ["tokens", "attention_mask", "token_types", "decoder_tokens", "decoder_attention_mask", "logits"];

/// A reference file's tensors.
#[derive(Debug)]
pub(super) struct Reference {
    pub(super) path: PathBuf,
    tensors: BTreeMap<String, ArrayD<f32>>,
}

impl Reference {
    pub(super) fn read(path: &Path) -> Result<Self, LoadError> {
        let bytes = regular::read_tensors(path).map_err(load_errors::cant_read(path))?;
        let unsound = "its header is invalid, or does not match the length of the file";
        let stored = SafeTensors::deserialize(&bytes).map_err(|e| load_errors::rejected(path, unsound, e))?;
        let mut tensors = BTreeMap::new();
        for (name, view) in stored.tensors() {
            let values = floats(view.dtype(), view.data())
                .ok_or_else(|| LoadError::DType { name: name.clone(), given: format!("{:?}", view.dtype()) })?;
            let array = ArrayD::from_shape_vec(IxDyn(view.shape()), values).map_err(|e| {
                load_errors::rejected(path, &format!("the data of `{name}` does not match its shape"), e)
            })?;
            tensors.insert(name, array);
        }
        Ok(Self { path: path.to_path_buf(), tensors })
    }

    fn wrong(&self, reason: String) -> LoadError {
        LoadError::Reference { path: self.path.clone(), reason }
    }

    /// Whether the file contains this tensor.
    pub(super) fn holds(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Names of the hook points in the file.
    pub(super) fn points(&self) -> Vec<String> {
        self.tensors.keys().filter(|name| !INPUTS.contains(&name.as_str())).cloned().collect()
    }

    /// Rows of an integer table, or `None` if it is missing.
    pub(super) fn ids(&self, name: &str) -> Result<Option<Vec<Vec<u32>>>, LoadError> {
        let Some(table) = self.tensors.get(name) else { return Ok(None) };
        let whole = |x: &f32| *x >= 0.0 && x.fract() == 0.0 && *x < 16_777_216.0;
        if table.ndim() != 2 || table.is_empty() || !table.iter().all(whole) {
            return Err(self.wrong(format!("`{name}` must be a [batch, pos] table of non-negative integers")));
        }
        Ok(Some(table.rows().into_iter().map(|row| row.iter().map(|id| *id as u32).collect()).collect()))
    }

    /// Tokens with their attention mask.
    pub(super) fn tokens(&self, name: &str, mask: &str) -> Result<Tokens> {
        let ids = self.ids(name)?.ok_or_else(|| self.wrong(format!("`{name}` is missing")))?;
        let tokens = Tokens::new(ids)?;
        match self.ids(mask)? {
            Some(mask) => {
                if mask.iter().flatten().all(|real| *real == 0) {
                    return Err(self.wrong("its attention mask excludes every token".to_string()).into());
                }
                Ok(tokens.with_mask(mask.iter().map(|row| row.iter().map(|real| *real != 0).collect()).collect())?)
            }
            None => Ok(tokens),
        }
    }

    /// Compares a tensor with the reference's, ignoring padding.
    pub(super) fn compare(&self, name: &str, given: &ArrayD<f32>, axes: &[Axis]) -> Result<Comparison, LoadError> {
        let expected =
            self.tensors.get(name).ok_or_else(|| LoadError::MissingTensor { name: name.into(), nearest: vec![] })?;
        if given.shape() != expected.shape() {
            let (expected, given) = (expected.shape().to_vec(), given.shape().to_vec());
            return Err(
                self.wrong(format!("`{name}` has shape {expected:?}, but the model's tensor has shape {given:?}"))
            );
        }
        // Decoder points are indexed by the decoder's tokens, and so are the logits of a model with a decoder.
        let decoded = name.starts_with("decoder") || (name == "logits" && self.holds("decoder_tokens"));
        let mask = self.tensors.get(if decoded { "decoder_attention_mask" } else { "attention_mask" });
        let position = axes.iter().position(|axis| matches!(axis, Axis::Pos | Axis::Query));
        let counts = |place: &[usize]| match (mask, position) {
            (Some(mask), Some(axis)) => mask.get(IxDyn(&[place[0], place[axis]])).is_none_or(|real| *real != 0.0),
            _ => true,
        };
        let (difference, largest) = distance(given, expected, counts);
        Ok(Comparison { name: name.to_string(), shape: given.shape().to_vec(), largest, difference })
    }
}

fn floats(dtype: Dtype, data: &[u8]) -> Option<Vec<f32>> {
    Some(match dtype {
        Dtype::F64 => data.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
        Dtype::F32 => data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::F16 => data.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::BF16 => data.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::I64 => data.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as f32).collect(),
        Dtype::I32 => data.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b) as f32).collect(),
        Dtype::U32 => data.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b) as f32).collect(),
        Dtype::U8 | Dtype::BOOL => data.iter().map(|b| f32::from(*b)).collect(),
        _ => return None,
    })
}
