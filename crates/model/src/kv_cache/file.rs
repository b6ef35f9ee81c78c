//! Saving caches to files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::{DType as BurnDType, Device, TensorData};
use hooklens_hooks::{Activation, ModelIdentity, write_safetensors};
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::{Deserialize, Serialize};

use super::data::{CacheData, LayerData};
use super::kind::CacheKind;
use super::shape::CacheShape;
use super::{Entry, KeyValueCache};
use crate::error::{BoxError, CacheError, Result};
use hooklens_io::regular;

/// A model whose key-value caches can be saved and loaded.
pub trait CacheModel {
    /// Hash of configuration and weights, which identifies the model.
    ///
    /// # Errors
    /// If reading the weights from the device fails.
    fn weights_hash(&self) -> Result<String>;

    /// The device of a layer's weights.
    fn layer_device(&self, layer: usize) -> Device;

    #[doc(hidden)]
    fn model_identity(&self) -> Option<Arc<ModelIdentity>> {
        None
    }
}

/// The metadata of a saved cache.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
    model: String,
    kind: CacheKind,
    shape: CacheShape,
    mask: Vec<Vec<bool>>,
    hidden_before: Vec<usize>,
    frozen: bool,
    interventions: Vec<String>,
    first: Vec<usize>,
    held_from: Vec<Vec<usize>>,
    #[serde(default)]
    tokens: Vec<Vec<Option<u32>>>,
    #[serde(default)]
    rotated_for: Vec<usize>,
    #[serde(default)]
    stored_as: Option<BurnDType>,
}

/// The fields common to all versions of the metadata.
#[derive(Debug, Deserialize)]
struct Format {
    format: String,
    version: u32,
}

const FORMAT: &str = "hooklens-kv-cache";
/// Version of the file format. Since version 3, the model's hash covers all bytes of the weights.
const VERSION: u32 = 3;

impl KeyValueCache {
    /// Saves the cache to a safetensors file: keys and values, with the mask, the kind, and the model's hash.
    ///
    /// # Errors
    /// [`CacheError::Length`] if the cache was filled manually but not in every layer, or [`CacheError::OtherWeights`] if a
    /// different model computed the cache. Also fails if the file can't be written.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let cache = model.prefill("king drum sun star")?;
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("prefix.safetensors");
    /// cache.save(&path, &model)?;
    /// let again = KeyValueCache::load(&path, &model)?;
    /// assert_eq!(again.to_data()?, cache.to_data()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn save(&self, path: impl AsRef<Path>, model: &impl CacheModel) -> Result<()> {
        self.check_whole()?;
        if let Some(identity) = model.model_identity() {
            self.check_model(&identity)?;
        }
        let header = Header {
            format: FORMAT.into(),
            version: VERSION,
            model: model.weights_hash()?,
            kind: self.kind,
            shape: self.shape.clone(),
            mask: self.real_rows(),
            hidden_before: self.hidden_rows(),
            frozen: self.frozen,
            interventions: self.interventions.clone(),
            first: self.entries.iter().map(Entry::first).collect(),
            held_from: self.entries.iter().map(|entry| entry.held_from().to_vec()).collect(),
            tokens: self.token_columns(),
            rotated_for: self.rotated_for().to_vec(),
            stored_as: self.stored_as(),
        };
        let header = serde_json::to_string(&header).map_err(|e| CacheError::File {
            path: path.as_ref().to_path_buf(),
            reason: "its header can't be written as JSON".into(),
            source: Some(e.into()),
        })?;
        let mut tensors: Vec<(String, Activation)> = Vec::new();
        for (layer, entry) in self.entries.iter().enumerate() {
            if let Some((keys, values)) = entry.stored_tensors()? {
                tensors.push((format!("layers.{layer}.keys"), keys.into()));
                tensors.push((format!("layers.{layer}.values"), values.into()));
            }
            if let Some((before, memory)) = entry.stored_state() {
                tensors.push((format!("layers.{layer}.state.before"), before.into()));
                tensors.push((format!("layers.{layer}.state.memory"), memory.into()));
            }
        }
        let named = tensors.iter().map(|(name, tensor)| (name.clone(), tensor));
        write_safetensors(path.as_ref(), named, HashMap::from([(FORMAT.to_string(), header)]))?;
        Ok(())
    }

    /// Loads a file written by [`KeyValueCache::save`] for the same model.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("prefix.safetensors");
    /// model.prefill("king drum sun star")?.save(&path, &model)?;
    /// let other = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let message = KeyValueCache::load(&path, &other).unwrap_err().to_string();
    /// assert!(message.contains("was computed by a different model"), "{message}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::File`] if the file can't be read or is damaged, or [`CacheError::OtherModel`] if a different model
    /// computed the cache.
    pub fn load(path: impl AsRef<Path>, model: &impl CacheModel) -> Result<Self> {
        let path = path.as_ref();
        let bad = |reason: String| CacheError::File { path: path.to_path_buf(), reason, source: None };
        let because = |reason: &str, source: BoxError| {
            let (path, reason) = (path.to_path_buf(), reason.to_string());
            CacheError::File { path, reason, source: Some(source) }
        };
        let unsound = |e: SafeTensorError| because("it is not a valid safetensors file", e.into());
        let foreign = |e: serde_json::Error| because("its header is not the header of a saved cache", e.into());
        let bytes = regular::read_tensors(path).map_err(|e| because("it can't be read", e.into()))?;
        let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(unsound)?;
        let header = metadata.metadata().as_ref().and_then(|fields| fields.get(FORMAT));
        let header = header.ok_or_else(|| bad("it is not a saved cache".into()))?;
        // Check the version first: other versions have different fields.
        let format: Format = serde_json::from_str(header).map_err(foreign)?;
        if (format.format.as_str(), format.version) != (FORMAT, VERSION) {
            let reason = format!(
                "its format is {} {}, not {FORMAT} {VERSION}; save the cache again",
                format.format, format.version
            );
            return Err(bad(reason).into());
        }
        let header: Header = serde_json::from_str(header).map_err(foreign)?;
        let fingerprint = model.weights_hash()?;
        if header.model != fingerprint {
            let path = PathBuf::from(path);
            return Err(CacheError::OtherModel { path, saved: header.model, model: fingerprint }.into());
        }
        let file = SafeTensors::deserialize(&bytes).map_err(unsound)?;
        let read = |name: String| -> Result<Option<TensorData>, CacheError> {
            let Ok(view) = file.tensor(&name) else { return Ok(None) };
            let dtype = match view.dtype() {
                Dtype::F64 => BurnDType::F64,
                Dtype::F32 => BurnDType::F32,
                Dtype::F16 => BurnDType::F16,
                Dtype::BF16 => BurnDType::BF16,
                other => return Err(bad(format!("`{name}` has the unsupported element type {other:?}"))),
            };
            Ok(Some(TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), dtype)))
        };
        let mut layers = Vec::new();
        for (layer, first) in header.first.iter().enumerate() {
            let keys = read(format!("layers.{layer}.keys"))?;
            let held_from = header.held_from.get(layer).cloned().unwrap_or_default();
            let values = read(format!("layers.{layer}.values"))?;
            let state =
                read(format!("layers.{layer}.state.before"))?.zip(read(format!("layers.{layer}.state.memory"))?);
            let state = state.map(|(before, memory)| [before, memory]);
            layers.push(LayerData { first: *first, held_from, keys, values, state });
        }
        let Header { kind, shape, mask, hidden_before, frozen, interventions, tokens, rotated_for, stored_as, .. } =
            header;
        let data = CacheData {
            kind,
            shape,
            mask,
            hidden_before,
            frozen,
            interventions,
            layers,
            tokens,
            rotated_for,
            stored_as,
            model: None,
        };
        let device = |layer: usize| model.layer_device(layer);
        let loaded = Self::from_data_on(&data, device).map_err(|error| match error {
            CacheError::Data { reason } => bad(reason),
            other => other,
        })?;
        Ok(Self { model: model.model_identity(), ..loaded })
    }
}
