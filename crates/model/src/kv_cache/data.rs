//! Caches as plain data.

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};
use hooklens_hooks::ModelIdentity;
use serde::{Deserialize, Serialize};

use super::kind::CacheKind;
use super::shape::CacheShape;
use super::state::{RecurrentState, StateShape};
use super::{Entry, KeyValueCache};
use crate::error::CacheError;

/// A cache's contents in host memory, as plain numbers, even if the cache itself quantizes its contents or shares them
/// with other caches.
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let cache = model.prefill("king drum sun star")?;
/// let data = cache.to_data()?; // plain data, which serde writes and reads
/// let text = serde_json::to_string(&data)?;
/// let again = KeyValueCache::from_data(&serde_json::from_str(&text)?, &model.device())?;
/// assert_eq!(again.to_data()?, data);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CacheData {
    /// The kind of storage.
    pub(super) kind: CacheKind,
    /// The shape of the cache.
    pub(super) shape: CacheShape,
    /// Mask of each row, `true` at unmasked positions.
    pub(super) mask: Vec<Vec<bool>>,
    /// First column of each row that is visible to attention; earlier columns are hidden.
    pub(super) hidden_before: Vec<usize>,
    /// Whether the cache was frozen.
    pub(super) frozen: bool,
    /// Descriptions of the hooks that edited activations while the cache was filled.
    pub(super) interventions: Vec<String>,
    /// Keys and values, first layer to last.
    pub(super) layers: Vec<LayerData>,
    /// Token of each column per row, if known.
    #[serde(default)]
    pub(super) tokens: Vec<Vec<Option<u32>>>,
    /// For each row, the length of the longest text that keys were rotated for, if the rotation depends on the length.
    #[serde(default)]
    pub(super) rotated_for: Vec<usize>,
    /// Element type in which keys and values are stored, if it was set.
    #[serde(default)]
    pub(super) stored_as: Option<DType>,
    /// Hash of the weights that computed the keys and values, if known.
    #[serde(default)]
    pub(super) model: Option<String>,
}

/// Keys and values of one layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct LayerData {
    /// First position that the layer holds.
    pub(super) first: usize,
    /// First position that each row holds, if rows differ; otherwise empty.
    pub(super) held_from: Vec<usize>,
    /// Keys, `[batch, position, kv_head, d_head]`; `None` if nothing is held.
    pub(super) keys: Option<TensorData>,
    /// Values, `[batch, position, kv_head, d_head]`; `None` if nothing is held.
    pub(super) values: Option<TensorData>,
    /// Recurrent state of a layer that also has keys and values: convolution inputs, `[batch, position, 1, channel]`,
    /// and memory. A layer that has only a recurrent state stores it in `keys` and `values`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<[TensorData; 2]>,
}

impl KeyValueCache {
    /// Element type in which keys and values are stored, if it was set.
    pub(super) fn stored_as(&self) -> Option<DType> {
        self.entries.first().and_then(Entry::dtype)
    }

    /// Copies the cache to plain data.
    ///
    /// # Errors
    /// [`CacheError::Unreadable`] if reading from a device fails, or [`CacheError::Length`] if the cache was filled
    /// manually and not in every layer.
    pub fn to_data(&self) -> Result<CacheData, CacheError> {
        self.check_whole()?;
        let read =
            |tensor: Tensor<4>| hooklens_hooks::read(tensor).map_err(|e| CacheError::Unreadable { source: e.into() });
        let layer = |entry: &Entry| {
            let (keys, values) = entry.stored_tensors()?.unzip();
            let (keys, values) = (keys.map(read).transpose()?, values.map(read).transpose()?);
            let state = match entry.stored_state() {
                Some((before, memory)) => Some([read(before)?, read(memory)?]),
                None => None,
            };
            Ok(LayerData { first: entry.first(), held_from: entry.held_from().to_vec(), keys, values, state })
        };
        Ok(CacheData {
            kind: self.kind,
            shape: self.shape.clone(),
            mask: self.real_rows(),
            hidden_before: self.hidden_rows(),
            frozen: self.frozen,
            interventions: self.interventions.clone(),
            layers: self.entries.iter().map(layer).collect::<Result<_, CacheError>>()?,
            tokens: self.token_columns(),
            rotated_for: self.rotated_for.clone(),
            stored_as: self.stored_as(),
            model: self.model.as_ref().and_then(|model| model.content().map(str::to_string)),
        })
    }

    /// Creates a cache on a device from plain data.
    ///
    /// # Errors
    /// [`CacheError::Data`] with the reason if the data is inconsistent.
    pub fn from_data(data: &CacheData, device: &Device) -> Result<Self, CacheError> {
        Self::from_data_on(data, |_| device.clone())
    }

    /// Like [`KeyValueCache::from_data`], with a separate device for each layer's entry.
    pub(super) fn from_data_on(data: &CacheData, device: impl Fn(usize) -> Device) -> Result<Self, CacheError> {
        let CacheData { shape, mask, .. } = data;
        let wrong = |reason: String| CacheError::Data { reason };
        let len = mask.first().map_or(0, Vec::len);
        let batch = mask.len();
        if batch == 0 || batch > shape.batch || mask.iter().any(|row| row.len() != len) {
            return Err(wrong(format!("the mask must have 1 to {} rows of equal length", shape.batch)));
        }
        if data.layers.len() != shape.windows.len() {
            return Err(wrong(format!(
                "it has {} layers, but its shape has {} layers",
                data.layers.len(),
                shape.windows.len()
            )));
        }
        if data.hidden_before.len() != batch || data.hidden_before.iter().any(|before| *before > len) {
            return Err(wrong(format!(
                "the numbers of hidden columns are {:?}; expected {batch} numbers of at most {len}",
                data.hidden_before
            )));
        }
        if let Some(dtype) = data.stored_as.filter(|dtype| !dtype.is_float()) {
            return Err(wrong(format!("keys and values cannot be stored as {dtype:?}; expected a float type")));
        }
        let mut cache = Self::of_shape(shape.clone(), data.kind)?;
        cache.entries.iter_mut().for_each(|entry| entry.fix(data.stored_as, None));
        for (layer, held) in data.layers.iter().enumerate() {
            let from = &held.held_from;
            if !from.is_empty() && (from.len() != batch || from.iter().any(|first| *first > len)) {
                return Err(wrong(format!(
                    "the first positions of layer {layer} are {from:?}; expected {batch} numbers of at most {len}"
                )));
            }
            let (Some(keys), Some(values)) = (&held.keys, &held.values) else {
                if held.first != len {
                    return Err(wrong(format!("layer {layer} has no keys and values for {len} positions")));
                }
                cache.entries[layer].fill_with_nothing(len, batch);
                continue;
            };
            let (state, has_keys) = (shape.state(layer), cache.entries[layer].has_keys());
            if state.is_some() && !has_keys && held.first > 0 {
                return Err(wrong(format!(
                    "layer {layer} has a recurrent state, so it must begin at position 0, not {}",
                    held.first
                )));
            }
            let Some(positions) = len.checked_sub(held.first) else {
                return Err(wrong(format!(
                    "layer {layer} begins at position {}, but there are only {len} positions",
                    held.first
                )));
            };
            let kept = match (state, &held.state) {
                (Some(state), Some([before, memory])) if has_keys => Some((state, before, memory)),
                (Some(state), None) if !has_keys => Some((state, keys, values)),
                (None, None) => None,
                (None, Some(_)) | (Some(_), Some(_)) => {
                    return Err(wrong(format!("layer {layer} has more recurrent states than its shape allows")));
                }
                (Some(_), None) => return Err(wrong(format!("layer {layer} lacks its recurrent state"))),
            };
            let of_keys = shape.heads(layer).map(|[heads, width]| [batch, positions, heads, width]);
            let of_keys = has_keys.then(|| [("keys", keys), ("values", values)].into_iter().zip(of_keys));
            let of_state = kept.map(|(StateShape { before, memory: [heads, d_key, d_value] }, inputs, memory)| {
                let [positions, channels] = before;
                let shapes = [[batch, positions, 1, channels], [batch, heads, d_key, d_value]];
                [("convolution inputs", inputs), ("memory", memory)].into_iter().zip(shapes)
            });
            for ((what, data), expected) in of_keys.into_iter().flatten().chain(of_state.into_iter().flatten()) {
                let (dtype, given) = (data.dtype(), data.shape().to_vec());
                let whole = data.as_bytes().len() == given.iter().product::<usize>() * dtype.size();
                if !dtype.is_float() || !whole || given != expected {
                    let reason = format!(
                        "{what} of layer {layer} have shape {given:?} and type {dtype:?}; expected floats of shape \
                         {expected:?}"
                    );
                    return Err(wrong(reason));
                }
            }
            let device = device(layer);
            let tensor = |data: &TensorData| Tensor::from_data(data.clone(), (&device, data.dtype()));
            if has_keys {
                cache.entries[layer].fill(tensor(keys), tensor(values), held.first)?;
                cache.entries[layer].set_held_from(from.clone());
            }
            if let Some((StateShape { before: [positions, channels], .. }, inputs, memory)) = kept {
                let inputs: Tensor<4> = tensor(inputs);
                let state = RecurrentState::new(inputs.reshape([batch, positions, channels]), tensor(memory));
                cache.entries[layer].set_state(state, len);
            }
        }
        if len > 0 {
            cache.given_mask.clone_from(mask);
            cache.hidden_before.clone_from(&data.hidden_before);
        }
        for (layer, entry) in cache.entries.iter().enumerate() {
            let wanted = cache.first_needed(layer);
            if entry.first() > wanted {
                return Err(CacheError::Dropped { layer, first: entry.first(), wanted });
            }
        }
        cache.interventions.clone_from(&data.interventions);
        // If the caller removed rows or positions, `tokens` may still have them.
        cache.set_token_columns(&data.tokens[..data.tokens.len().min(batch)], len);
        cache.rotated_for.clone_from(&data.rotated_for);
        cache.model = data.model.as_ref().map(|content| {
            let label = format!("fingerprint {}", content.get(..8).unwrap_or(content));
            Arc::new(ModelIdentity::new(label, Some(content.clone())))
        });
        cache.set_frozen(data.frozen);
        Ok(cache)
    }
}
