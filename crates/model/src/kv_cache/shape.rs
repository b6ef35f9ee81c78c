//! The shape of a cache.

use serde::{Deserialize, Serialize};

use super::KeyValueCache;
use super::state::StateShape;
use crate::config::{Layers, MOST_LAYERS, TransformerConfig, Window};
use crate::error::CacheError;

/// The shape of a key-value cache: checked sizes, and one window per layer.
///
/// ```
/// use hooklens::{CacheKind, CacheShape, KeyValueCache};
/// let shape = CacheShape::new(4, 2, 8, 64)?; // rows, layers, key/value heads, width of a head
/// let cache = KeyValueCache::of_shape(shape, CacheKind::GROWING.limited(1024))?;
/// assert_eq!((cache.batch(), cache.n_layers(), cache.len()), (4, 2, 0));
/// assert!(CacheShape::new(4, 2, 0, 64).unwrap_err().to_string().contains("kv_heads"));
/// # Ok::<(), hooklens::CacheError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheShape {
    /// Number of rows.
    pub(super) batch: usize,
    /// Number of key heads.
    pub(super) kv_heads: usize,
    /// Width of a key head.
    pub(super) d_head: usize,
    /// Number of value heads.
    pub(super) value_heads: usize,
    /// Width of a value head.
    pub(super) d_value: usize,
    /// `[heads, width]` of each layer's keys and values; empty if all layers have the sizes above. A layer that
    /// reuses the keys and values of an earlier one has 0 heads: its entry counts positions and stores nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) layer_heads: Vec<[[usize; 2]; 2]>,
    /// Shape of each layer's recurrent state, if it has one; empty if no layer has one. A layer with a recurrent state
    /// has keys and values only if `layer_heads` includes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) states: Vec<Option<StateShape>>,
    /// Attention window of each layer.
    pub(super) windows: Vec<Option<Window>>,
    /// The token that [`append_tokens`](crate::kv_cache::compat::EasyDelCache::append_tokens) treats as
    /// padding.
    pub(super) pad_token_id: Option<u32>,
}

/// Attention window of each layer of a cache.
pub fn windows(cache: &KeyValueCache) -> &[Option<Window>] {
    &cache.shape.windows
}

/// Maximum of every size.
pub(super) const LARGEST: usize = 1 << 28;

pub(super) fn checked(field: &'static str, given: usize, most: usize) -> Result<usize, CacheError> {
    if given == 0 || given > most { Err(CacheError::Size { field, given }) } else { Ok(given) }
}

impl CacheShape {
    /// Fails if a size is too large, as in a damaged file.
    pub(super) fn check_sizes(&self) -> Result<(), CacheError> {
        let sizes = [
            ("batch", self.batch),
            ("kv_heads", self.kv_heads),
            ("d_head", self.d_head),
            ("value_heads", self.value_heads),
            ("d_value", self.d_value),
        ];
        let heads = self.layer_heads.iter().flatten().flatten().map(|size| ("layer_heads", *size));
        let states = self.states.iter().flatten().flat_map(|state| state.before.into_iter().chain(state.memory));
        let all = sizes.into_iter().chain(heads).chain(states.map(|size| ("states", size)));
        match all.into_iter().find(|(_, given)| *given > LARGEST) {
            Some((field, given)) => Err(CacheError::Size { field, given }),
            None => Ok(()),
        }
    }

    /// Creates a shape with these sizes, without windows.
    ///
    /// # Errors
    /// [`CacheError::Size`] naming the size that is zero or too large.
    pub fn new(batch: usize, layers: usize, kv_heads: usize, d_head: usize) -> Result<Self, CacheError> {
        Ok(Self {
            batch: checked("batch", batch, LARGEST)?,
            kv_heads: checked("kv_heads", kv_heads, LARGEST)?,
            d_head: checked("d_head", d_head, LARGEST)?,
            value_heads: kv_heads,
            d_value: d_head,
            layer_heads: Vec::new(),
            states: Vec::new(),
            windows: vec![None; checked("layers", layers, MOST_LAYERS)?],
            pad_token_id: None,
        })
    }

    /// Sets the number and width of value heads, if these differ from the number and width of key heads, as in latent
    /// attention.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens::{CacheKind, CacheShape, KeyValueCache};
    /// let shape = CacheShape::new(1, 1, 1, 576)?.values(1, 512)?;
    /// let mut cache = KeyValueCache::of_shape(shape, CacheKind::GROWING)?;
    /// let of = |width| Tensor::<4>::ones([1, 3, 1, width], &Device::flex());
    /// let (keys, values) = cache.append(of(576), of(512), 0)?;
    /// assert_eq!((keys.dims(), values.dims()), ([1, 3, 1, 576], [1, 3, 1, 512]));
    /// # Ok::<(), hooklens::CacheError>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Size`] naming the size that is zero or too large.
    pub fn values(self, heads: usize, width: usize) -> Result<Self, CacheError> {
        let (value_heads, d_value) = (checked("value_heads", heads, LARGEST)?, checked("d_value", width, LARGEST)?);
        Ok(Self { value_heads, d_value, ..self })
    }

    /// Sets the attention window of each layer; `None` for a layer that attends to everything.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens::{CacheKind, CacheShape, KeyValueCache, Window};
    /// let shape = CacheShape::new(1, 2, 2, 4)?.windows([Some(Window::Sliding(4)), None])?;
    /// let mut cache = KeyValueCache::of_shape(shape, CacheKind::GROWING.sliding())?;
    /// for layer in 0..2 {
    ///     let new = || Tensor::<4>::ones([1, 9, 2, 4], &Device::flex());
    ///     cache.append(new(), new(), layer)?;
    /// }
    /// assert_eq!((cache[0].first(), cache[1].first()), (6, 0)); // the next token sees three positions before it
    /// # Ok::<(), hooklens::CacheError>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Entries`] if there is not one window per layer, or [`CacheError::Size`] if a window has no
    /// positions.
    pub fn windows(self, windows: impl IntoIterator<Item = Option<Window>>) -> Result<Self, CacheError> {
        let windows: Vec<Option<Window>> = windows.into_iter().collect();
        if windows.len() != self.windows.len() {
            let (given, expected) = (windows.len(), self.windows.len());
            return Err(CacheError::Entries { field: "windows", given, expected });
        }
        for window in windows.iter().flatten() {
            checked("windows", window.width(), LARGEST)?;
        }
        Ok(Self { windows, ..self })
    }

    /// Sets the padding token, which
    /// [`append_tokens`](crate::kv_cache::compat::EasyDelCache::append_tokens) masks.
    #[must_use]
    pub fn pad_token(self, id: u32) -> Self {
        Self { pad_token_id: Some(id), ..self }
    }

    /// The shape that a model with this configuration needs for `batch` rows.
    ///
    /// # Errors
    /// Same as [`CacheShape::new`].
    pub(super) fn of(config: &TransformerConfig, batch: usize) -> Result<Self, CacheError> {
        let shape = Self::unchecked(config, batch);
        let at_least = |size: usize| if config.attending().next().is_none() { size.max(1) } else { size };
        let [kv_heads, d_head] = [shape.kv_heads, shape.d_head].map(at_least);
        Self::new(batch, config.n_layers(), kv_heads, d_head)?
            .values(at_least(shape.value_heads), at_least(shape.d_value))?;
        Ok(shape)
    }

    /// Like [`CacheShape::of`], for a valid configuration and number of rows.
    pub(super) fn unchecked(config: &TransformerConfig, batch: usize) -> Self {
        let heads = |layer| heads_of(config, layer);
        let [[kv_heads, d_head], [value_heads, d_value]] = heads(config.attending().next().unwrap_or(0));
        let state = |layer| StateShape::of(config, layer);
        // Layers with only a recurrent state are described by `states` instead.
        let keyless = (0..config.n_layers()).any(|layer| !config.mixes(layer));
        let both = config.attending().any(|layer| state(layer).is_some());
        let differ = keyless
            || both
            || config.attending().any(|layer| heads(layer) != [[kv_heads, d_head], [value_heads, d_value]]);
        let layer_heads = if differ { (0..config.n_layers()).map(heads).collect() } else { Vec::new() };
        let states = if config.has_states() { (0..config.n_layers()).map(state).collect() } else { Vec::new() };
        let windows = (0..config.n_layers()).map(|layer| config.window(layer)).collect();
        Self { batch, kv_heads, d_head, value_heads, d_value, layer_heads, states, windows, pad_token_id: None }
    }

    /// `[head, width]` of a layer's keys and values.
    pub(super) fn heads(&self, layer: usize) -> [[usize; 2]; 2] {
        let all = [[self.kv_heads, self.d_head], [self.value_heads, self.d_value]];
        let otherwise = if self.state(layer).is_some() { [[0; 2]; 2] } else { all };
        self.layer_heads.get(layer).copied().unwrap_or(otherwise)
    }

    /// Shape of a layer's recurrent state, if it has one.
    pub(super) fn state(&self, layer: usize) -> Option<StateShape> {
        self.states.get(layer).copied().flatten()
    }
}

/// `[head, width]` of the cached keys and values of a model's layer; zero heads if the layer reuses the keys and values
/// of an earlier layer or has no token mixer.
pub(super) fn heads_of(config: &TransformerConfig, layer: usize) -> [[usize; 2]; 2] {
    if !config.mixes(layer) {
        return [[0, config.d_head().max(1)]; 2];
    }
    let kv_heads = if config.reads_keys_of(layer).is_some() { 0 } else { config.n_kv_heads_of(layer) };
    [[kv_heads, config.d_head_of(layer)], [kv_heads, config.d_value_of(layer)]]
}
