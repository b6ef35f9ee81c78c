//! Constructing caches: by kind and shape, with an element type, on given devices, or from another cache.

use burn::tensor::Device;
use hooklens_hooks::DType;

use super::{CacheKind, CacheShape, Entry, KeyValueCache};
use crate::config::TransformerConfig;
use crate::error::CacheError;

impl KeyValueCache {
    /// Creates an empty, growing cache for `batch` rows of a model with this configuration.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = KeyValueCache::new(model.config(), 2);
    /// let rows = model.to_tokens(["king drum", "fox tea"])?;
    /// model.forward_with(rows, ForwardOptions::new().kv_cache(&mut cache))?;
    /// assert_eq!((cache.batch(), cache.len(), cache.n_layers()), (2, 3, 2));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn new(config: &TransformerConfig, batch: usize) -> Self {
        Self::made(CacheShape::unchecked(config, batch), CacheKind::GROWING)
    }

    /// Creates an empty cache of the given kind, for `batch` rows of a model with this configuration.
    ///
    /// # Errors
    /// [`CacheError::Size`] if a size is zero or too large, or [`CacheError::Unsupported`] if the kind is both
    /// quantized and stored on disk.
    ///
    /// ```
    /// use hooklens::{CacheKind, KeyValueCache, TransformerConfig};
    /// let config = TransformerConfig::new(12, 768, 12, 50_257, 1024);
    /// let cache = KeyValueCache::of_kind(&config, 8, CacheKind::EIGHT_BIT)?;
    /// assert_eq!(cache.kind().to_string(), "quantized");
    /// # Ok::<(), hooklens::CacheError>(())
    /// ```
    pub fn of_kind(config: &TransformerConfig, batch: usize, kind: CacheKind) -> Result<Self, CacheError> {
        Self::of_shape(CacheShape::of(config, batch)?, kind)
    }

    /// Creates an empty cache with the given shape and kind.
    ///
    /// ```
    /// use hooklens::{CacheKind, CacheShape, KeyValueCache};
    /// let shape = CacheShape::new(1, 2, 4, 16)?;
    /// let cache = KeyValueCache::of_shape(shape, CacheKind::GROWING.limited(128))?;
    /// assert_eq!((cache.n_layers(), cache.max_len()), (2, Some(128)));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`KeyValueCache::of_kind`].
    pub fn of_shape(shape: CacheShape, kind: CacheKind) -> Result<Self, CacheError> {
        kind.check()?;
        if shape.windows.iter().flatten().any(|window| window.width() == 0) {
            return Err(CacheError::Size { field: "windows", given: 0 });
        }
        shape.check_sizes()?;
        let expected = shape.windows.len();
        for (field, given) in [("layer_heads", shape.layer_heads.len()), ("states", shape.states.len())] {
            if given != 0 && given != expected {
                return Err(CacheError::Entries { field, given, expected });
            }
        }
        let bad = |(layer, [[heads, width], [value_heads, d_value]]): (usize, &[[usize; 2]; 2])| {
            let some_zero = *width == 0 || *d_value == 0 || (*heads == 0) != (*value_heads == 0);
            shape.state(layer).is_none() && some_zero
        };
        if shape.layer_heads.iter().enumerate().any(bad) {
            return Err(CacheError::Size { field: "layer_heads", given: 0 });
        }
        Ok(Self::made(shape, kind))
    }

    pub(super) fn made(shape: CacheShape, kind: CacheKind) -> Self {
        let entries = (0..shape.windows.len()).map(|layer| Entry::made(&shape, layer, kind)).collect();
        let (given_mask, hidden_before) = (vec![Vec::new(); shape.batch], vec![0; shape.batch]);
        let (interventions, ids) = (Vec::new(), Vec::new());
        Self {
            kind,
            given_mask,
            hidden_before,
            shape,
            entries,
            frozen: false,
            interventions,
            noted_hooks: Vec::new(),
            ids,
            rotated_for: Vec::new(),
            model: None,
        }
    }

    /// Sets the element type in which keys and values are stored; attention still reads them in the model's type. The
    /// cache must be empty. If the device is set too, a preallocated cache is allocated immediately.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut half = KeyValueCache::new(model.config(), 1).with_dtype(DType::BF16)?;
    /// model.forward_with("king drum sun star", ForwardOptions::new().kv_cache(&mut half))?;
    /// assert_eq!(half[0].keys()?.dtype(), DType::BF16.burn());
    /// assert_eq!(2 * half.memory()[0], model.prefill("king drum sun star")?.memory()[0]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::NotEmpty`] if the cache is not empty.
    pub fn with_dtype(self, dtype: DType) -> Result<Self, CacheError> {
        self.fixed(Some(dtype), None)
    }

    /// Requires everything appended to be on this device. The cache must be empty.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// use hooklens::{CacheKind, CacheShape};
    /// let shape = CacheShape::new(2, 1, 4, 16)?;
    /// let cache = KeyValueCache::of_shape(shape, CacheKind::GROWING.limited(8))?
    ///     .with_dtype(DType::F32)?
    ///     .with_device(&Device::flex())?;
    /// assert_eq!(cache.memory(), [2 * 2 * 8 * 4 * 16 * 4]); // keys and values, allocated immediately
    /// # Ok::<(), hooklens::CacheError>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::NotEmpty`] if the cache is not empty.
    pub fn with_device(self, device: &Device) -> Result<Self, CacheError> {
        self.fixed(None, Some(device))
    }

    fn fixed(mut self, dtype: Option<DType>, device: Option<&Device>) -> Result<Self, CacheError> {
        self.check_empty()?;
        self.entries.iter_mut().for_each(|entry| entry.fix(dtype.map(DType::burn), device));
        Ok(self)
    }

    /// Spreads the heads of every layer as evenly as possible over these devices; attention copies them to the layer's
    /// device. The cache must be empty. (If the model itself is spread over several devices, each layer's keys and
    /// values are on that layer's device anyway.)
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let (one, other) = (Device::flex(), Device::flex()); // two GPUs, say
    /// let mut cache = KeyValueCache::new(model.config(), 1).with_heads_on(&[one, other])?;
    /// let behind = model.forward_with("king drum sun star", ForwardOptions::new().kv_cache(&mut cache))?;
    /// assert_eq!(cache[0].keys()?.dims(), [1, 5, 4, 16]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::NotEmpty`] if the cache is not empty, [`CacheError::State`] if a layer has a recurrent state, or
    /// [`CacheError::Size`] if there are no devices or more devices than heads.
    pub fn with_heads_on(mut self, devices: &[Device]) -> Result<Self, CacheError> {
        self.check_empty()?;
        self.check_without_states("spreading heads over devices")?;
        let holding = self.entries.iter().filter(|entry| entry.holds());
        let fewest = holding.flat_map(|entry| entry.heads().map(|[heads, _]| heads)).min().unwrap_or(0);
        if devices.is_empty() || devices.len() > fewest {
            return Err(CacheError::Size { field: "devices", given: devices.len() });
        }
        self.entries.iter_mut().for_each(|entry| entry.spread_heads(devices));
        Ok(self)
    }

    pub(super) fn check_empty(&self) -> Result<(), CacheError> {
        let held = self.entries.iter().map(Entry::len).max().unwrap_or(0).max(self.len());
        if held == 0 { Ok(()) } else { Err(CacheError::NotEmpty { held }) }
    }

    /// Copies the cache to a different kind of storage, for example from growing to preallocated.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// use hooklens::CacheKind;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let cache = model.prefill("king drum sun star")?;
    /// let fixed = cache.to_kind(CacheKind::GROWING.limited(64))?;
    /// assert_eq!((fixed.len(), fixed.max_len()), (5, Some(64)));
    /// assert_eq!(fixed[1].keys()?.to_data(), cache[1].keys()?.to_data());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Full`], [`CacheError::Size`], or [`CacheError::Unsupported`] if the kind can't hold the contents,
    /// [`CacheError::Dropped`] if a window has dropped positions that the new kind must hold, or [`CacheError::Length`]
    /// if layers hold different numbers of positions.
    pub fn to_kind(&self, kind: CacheKind) -> Result<Self, CacheError> {
        self.check_whole()?;
        let mut made = Self::of_shape(self.shape.clone(), kind)?;
        for (layer, (new, entry)) in made.entries.iter_mut().zip(&self.entries).enumerate() {
            new.place_like(entry);
            let wanted = if kind.is_sliding() || !entry.holds() { self.first_needed(layer) } else { 0 };
            // Some rows may lack columns that others hold, so the columns held by every row may start later.
            let first = if kind.is_sliding() { entry.first() } else { entry.first_of_all() };
            if first > wanted {
                return Err(CacheError::Dropped { layer, first, wanted });
            }
            match entry.joined()? {
                Some((keys, values)) => new.fill(keys, values, entry.first())?,
                None => new.fill_with_nothing(entry.len(), entry.batch()),
            }
            if let Some(state) = entry.state() {
                new.set_state(state.clone(), entry.len());
            }
            new.set_held_from(entry.held_from().to_vec());
        }
        (made.given_mask, made.hidden_before) = (self.given_mask.clone(), self.hidden_before.clone());
        made.interventions.clone_from(&self.interventions);
        made.noted_hooks.clone_from(&self.noted_hooks);
        (made.ids, made.model) = (self.ids.clone(), self.model.clone());
        made.rotated_for.clone_from(&self.rotated_for);
        made.set_frozen(self.frozen);
        Ok(made)
    }
}
