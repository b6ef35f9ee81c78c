//! Key-value caches: keys and values of positions already computed.

mod ahead;
mod buffer;
mod data;
mod disk;
mod entry;
mod file;
mod keys;
mod kind;
mod lane;
mod mask;
mod quantized;
mod ring;
mod rows;
mod run;
mod scope;
mod shape;
mod store;

use std::fmt;
use std::ops::{Index, IndexMut};

use burn::tensor::{Device, Tensor};
use hooklens_hooks::DType;

pub use data::{CacheData, LayerData};
pub use entry::Entry;
pub use file::CacheModel;
pub(crate) use keys::{Keys, Part};
pub use kind::{CacheKind, Offload};
pub use quantized::Bits;
pub(crate) use run::Growth;
pub use scope::Scoped;
pub use shape::{CacheShape, MaskInfo};

use crate::config::TransformerConfig;
use crate::error::CacheError;

/// Keys and values of every layer, `[batch, position, kv_head, d_head]` each, with the mask of
/// the positions they stand at.
///
/// Runs append to the cache unless it is frozen. A frozen cache of one row serves a batch of any
/// size, and [`KeyValueCache::fork`] gives many rows that go on from the same positions: what
/// they share is stored once and read where it lies.
///
/// ```
/// use hooklens::prelude::*;
///
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let whole = model.forward("king drum sun star king drum")?;
///
/// // The first part once, ...
/// let mut prefix = model.prefill("king drum sun star")?;
/// prefix.freeze();
/// // ... then any batch of what may follow.
/// let next = |text: &str| model.tokenizer().and_then(|t| Ok(t.encode(text)?));
/// let rows = vec![next("king drum")?, next("fox tea")?];
/// let logits = model.forward_with(rows, ForwardOptions::new().kv_cache(&mut prefix))?;
/// assert_eq!(logits.dims()[..2], [2, 2]);
/// let same = (logits.narrow(0, 0, 1) - whole.narrow(1, 5, 2)).abs().max().into_scalar::<f32>();
/// assert!(same < 1e-4);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct KeyValueCache {
    kind: CacheKind,
    shape: CacheShape,
    entries: Vec<Entry>,
    /// Real positions that were told of, a row each; positions behind them are real.
    told: Vec<Vec<bool>>,
    /// The first column of each row that attention may see.
    hidden_before: Vec<usize>,
    frozen: bool,
    /// Hooks that edited while it was filled.
    interventions: Vec<String>,
}

impl KeyValueCache {
    /// An empty, growing cache for `batch` rows of a model of this configuration.
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
        let windows = (0..config.n_layers).map(|layer| config.window(layer)).collect();
        let (kv_heads, d_head) = (config.n_kv_heads, config.d_head);
        let (value_heads, d_value, pad_token_id) = (kv_heads, d_head, None);
        let shape = CacheShape { batch, kv_heads, d_head, value_heads, d_value, windows, pad_token_id };
        Self::made(shape, CacheKind::GROWING)
    }

    /// An empty cache of a kind, for `batch` rows of a model of this configuration.
    ///
    /// # Errors
    /// [`CacheError::Size`].
    ///
    /// ```
    /// use hooklens::{CacheKind, KeyValueCache, TransformerConfig};
    /// let config = TransformerConfig::gpt2_small();
    /// let cache = KeyValueCache::of_kind(&config, 8, CacheKind::EIGHT_BIT)?;
    /// assert_eq!(cache.kind().name(), "quantized");
    /// # Ok::<(), hooklens::CacheError>(())
    /// ```
    pub fn of_kind(config: &TransformerConfig, batch: usize, kind: CacheKind) -> Result<Self, CacheError> {
        Self::of_shape(CacheShape::of(config, batch)?, kind)
    }

    /// An empty cache of a kind and a shape.
    ///
    /// ```
    /// use hooklens::{CacheKind, CacheShape, KeyValueCache};
    /// let shape = CacheShape::new(1, 2, 4, 16)?;
    /// let cache = KeyValueCache::of_shape(shape.clone(), CacheKind::preallocated(128))?;
    /// assert_eq!((cache.shape(), cache.max_len()), (&shape, Some(128)));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Size`].
    pub fn of_shape(shape: CacheShape, kind: CacheKind) -> Result<Self, CacheError> {
        kind.check()?;
        if shape.windows.iter().flatten().any(|window| window.width() == 0) {
            return Err(CacheError::Size { field: "windows", given: 0 });
        }
        Ok(Self::made(shape, kind))
    }

    fn made(shape: CacheShape, kind: CacheKind) -> Self {
        let entries = shape.windows.iter().map(|window| Entry::made(&shape, *window, kind)).collect();
        let (told, hidden_before) = (vec![Vec::new(); shape.batch], vec![0; shape.batch]);
        Self { kind, told, hidden_before, shape, entries, frozen: false, interventions: Vec::new() }
    }

    /// The empty cache with an element type that everything it is given is cast to. Attention reads it in the
    /// model's own. Room that is limited is made at once when the device is known too.
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
    /// [`CacheError::NotEmpty`].
    pub fn with_dtype(self, dtype: DType) -> Result<Self, CacheError> {
        self.fixed(Some(dtype), None)
    }

    /// The empty cache with a device that everything it is given has to be on.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// use hooklens::{CacheKind, CacheShape};
    /// let shape = CacheShape::new(2, 1, 4, 16)?;
    /// let cache = KeyValueCache::of_shape(shape, CacheKind::preallocated(8))?
    ///     .with_dtype(DType::F32)?
    ///     .with_device(&Device::flex())?;
    /// assert_eq!(cache.memory(), [2 * 2 * 8 * 4 * 16 * 4]); // keys and values, made at once
    /// # Ok::<(), hooklens::CacheError>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::NotEmpty`].
    pub fn with_device(self, device: &Device) -> Result<Self, CacheError> {
        self.fixed(None, Some(device))
    }

    fn fixed(mut self, dtype: Option<DType>, device: Option<&Device>) -> Result<Self, CacheError> {
        self.check_empty()?;
        self.entries.iter_mut().for_each(|entry| entry.fix(dtype.map(DType::burn), device));
        Ok(self)
    }

    /// The empty cache with the heads of every layer spread over these devices, as evenly as they can be; attention
    /// reads them where the layer is. (A model that is spread over devices has its layers' caches beside them without
    /// this.)
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
    /// [`CacheError::NotEmpty`], or [`CacheError::Size`] for no device or more devices than heads.
    pub fn with_heads_on(mut self, devices: &[Device]) -> Result<Self, CacheError> {
        self.check_empty()?;
        if devices.is_empty() || devices.len() > self.shape.kv_heads.min(self.shape.value_heads) {
            return Err(CacheError::Size { field: "devices", given: devices.len() });
        }
        self.entries.iter_mut().for_each(|entry| entry.spread_heads(devices));
        Ok(self)
    }

    fn check_empty(&self) -> Result<(), CacheError> {
        let held = self.entries.iter().map(Entry::len).max().unwrap_or(0).max(self.len());
        if held == 0 { Ok(()) } else { Err(CacheError::NotEmpty { held }) }
    }

    /// The same cache stored in another way: a static cache of one that grows, say.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// use hooklens::CacheKind;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let cache = model.prefill("king drum sun star")?;
    /// let fixed = cache.to_kind(CacheKind::preallocated(64))?;
    /// assert_eq!((fixed.len(), fixed.max_len()), (5, Some(64)));
    /// assert_eq!(fixed[1].keys()?.to_data(), cache[1].keys()?.to_data());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Full`], [`CacheError::Size`] or [`CacheError::Unsupported`] for a kind that can't hold it,
    /// [`CacheError::Dropped`] if a window has dropped what the kind would have to hold, [`CacheError::Length`] if
    /// layers hold different numbers of positions.
    pub fn to_kind(&self, kind: CacheKind) -> Result<Self, CacheError> {
        self.check_whole()?;
        let mut made = Self::of_shape(self.shape.clone(), kind)?;
        for (layer, (new, entry)) in made.entries.iter_mut().zip(&self.entries).enumerate() {
            let wanted = if kind.is_sliding() { self.first_needed(layer) } else { 0 };
            // What is kept of all rows may be less than what some row lacks.
            let first = if kind.is_sliding() { entry.first() } else { entry.first_of_all() };
            if first > wanted {
                return Err(CacheError::Dropped { layer, first, wanted });
            }
            match entry.joined()? {
                Some((keys, values)) => new.fill(keys, values, entry.first())?,
                None => new.fill_with_nothing(entry.len(), entry.batch()),
            }
            new.set_held_from(entry.held_from().to_vec());
        }
        (made.told, made.hidden_before) = (self.told.clone(), self.hidden_before.clone());
        made.interventions.clone_from(&self.interventions);
        made.set_frozen(self.frozen);
        Ok(made)
    }

    /// The kind of storage.
    pub fn kind(&self) -> CacheKind {
        self.kind
    }

    /// The shape it is set up for.
    pub fn shape(&self) -> &CacheShape {
        &self.shape
    }

    /// Positions that every layer holds or was told of, padding included: as many as Hugging Face's
    /// `get_seq_length` tells.
    pub fn len(&self) -> usize {
        let held = self.entries.iter().map(Entry::len).min().unwrap_or(0);
        held.max(self.told_len())
    }

    /// Whether no position was seen.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Positions it has room for, if that is limited.
    pub fn max_len(&self) -> Option<usize> {
        self.entries.iter().filter_map(Entry::max_len).min()
    }

    /// Number of rows: as many as it is set up for, or fewer where fewer were given first.
    pub fn batch(&self) -> usize {
        if self.told_len() > 0 {
            return self.told.len();
        }
        self.entries.iter().find(|entry| !entry.is_empty()).map_or(self.shape.batch, Entry::batch)
    }

    /// Layers.
    pub fn n_layers(&self) -> usize {
        self.entries.len()
    }

    /// A layer's entry once it holds something; `None` until then, or if there is no such layer.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = KeyValueCache::new(model.config(), 1);
    /// assert!(cache.view(0).is_none());
    /// model.forward_with("king drum", ForwardOptions::new().kv_cache(&mut cache))?;
    /// assert_eq!(cache.view(0).map(|entry| entry.len()), Some(3));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn view(&self, layer: usize) -> Option<&Entry> {
        self.entries.get(layer).filter(|entry| !entry.is_empty())
    }

    /// The entries, first layer to last.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let cache = model.prefill("king drum")?;
    /// assert!(cache.iter().all(|entry| entry.len() == 3));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn iter(&self) -> std::slice::Iter<'_, Entry> {
        self.entries.iter()
    }

    /// The entries, first layer to last, to be changed.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum")?;
    /// for entry in cache.iter_mut() {
    ///     entry.set(entry.keys()?, entry.values()? * 0.0)?; // nothing of the prefix is passed on
    /// }
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Entry> {
        self.entries.iter_mut()
    }

    /// Freezes the cache: runs read it without adding to it.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut prefix = model.prefill("king drum sun star")?;
    /// prefix.freeze();
    /// let rows = vec![vec![51], vec![9], vec![50]]; // one held row serves them all
    /// let logits = model.forward_with(rows, ForwardOptions::new().kv_cache(&mut prefix))?;
    /// assert_eq!((logits.dims()[0], prefix.len(), prefix.is_frozen()), (3, 5, true));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn freeze(&mut self) {
        self.set_frozen(true);
    }

    /// Unfreezes the cache: runs add to it.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// cache.freeze();
    /// cache.unfreeze();
    /// model.forward_with([51], ForwardOptions::new().kv_cache(&mut cache))?;
    /// assert_eq!(cache.len(), 6);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn unfreeze(&mut self) {
        self.set_frozen(false);
    }

    fn set_frozen(&mut self, frozen: bool) {
        self.frozen = frozen;
        self.entries.iter_mut().for_each(|entry| entry.set_frozen(frozen));
    }

    /// Whether the cache is frozen.
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Keys and values of a layer with those given behind them, which are kept unless the cache
    /// is frozen. Runs do this by themselves; whoever does it by hand does it for every layer, and
    /// [`KeyValueCache::len`] moves with the last of them. The new positions are real unless
    /// [`KeyValueCache::append_attention_mask`] says otherwise.
    ///
    /// What comes back are the positions that are filled, where torchtune gives all that there is room for.
    ///
    /// # Shapes
    /// - given: `[batch, new, kv_head, d_head]`; the first may have fewer rows than the cache is set up for
    /// - back: `[batch, past + new, kv_head, d_head]`
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens::{CacheKind, CacheShape, KeyValueCache};
    /// let mut cache = KeyValueCache::of_shape(CacheShape::new(1, 1, 2, 4)?, CacheKind::GROWING)?;
    /// let new = || Tensor::<4>::ones([1, 3, 2, 4], &Device::flex());
    /// let (keys, values) = cache.update(new(), new(), 0)?; // layer 0
    /// assert_eq!((keys.dims(), values.dims(), cache.len()), ([1, 3, 2, 4], [1, 3, 2, 4], 3));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Layer`] and those of [`Entry::append`].
    pub fn update(
        &mut self,
        keys: Tensor<4>,
        values: Tensor<4>,
        layer: usize,
    ) -> Result<(Tensor<4>, Tensor<4>), CacheError> {
        let (layers, batch, rows) = (self.entries.len(), self.batch(), keys.dims()[0]);
        // All layers have the rows that the first of them was given.
        let begun = self.entries.iter().any(|entry| !entry.is_empty());
        let entry = self.entries.get_mut(layer).ok_or(CacheError::Layer { layer, layers })?;
        if begun && entry.is_empty() && rows != batch && !(self.frozen && batch == 1) {
            return Err(CacheError::Batch { cache: batch, run: rows });
        }
        entry.append(keys, values)
    }

    /// Hooks that edited while the cache was filled, each with a number of its own: what it holds
    /// is then not what the model by itself gives.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let clean = model.prefill("king drum sun star")?;
    /// let ablated = model.hooks([hook::z(0).edit(|z, _| z.zeros_like())]).prefill("king drum sun star")?;
    /// assert!(clean.interventions().is_empty());
    /// assert!(ablated.interventions()[0].contains("attn.hook_z"));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn interventions(&self) -> &[String] {
        &self.interventions
    }

    /// Drops the positions from `len` on.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// cache.truncate(2)?;
    /// let sun = model.to_single_token("sun")?;
    /// let behind = model.forward_with([sun], ForwardOptions::new().kv_cache(&mut cache))?;
    /// let whole = model.forward("king sun")?.narrow(1, 2, 1);
    /// assert!((behind - whole).abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Frozen`], or [`CacheError::Dropped`] if a window has dropped positions that
    /// would come into its sight again.
    pub fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        if self.frozen {
            return Err(CacheError::Frozen);
        }
        let len = len.min(self.len());
        let told: Vec<_> = self.told.iter().map(|row| row[..len.min(row.len())].to_vec()).collect();
        for (layer, entry) in self.entries.iter().enumerate() {
            for (row, told) in told.iter().enumerate().take(self.batch()) {
                let needed = mask::needed(std::slice::from_ref(told), len, self.shape.windows[layer]);
                let (first, wanted) = (entry.first_of(row), len - needed);
                if first > wanted && len > 0 {
                    return Err(CacheError::Dropped { layer, first, wanted });
                }
            }
        }
        self.told = told;
        self.hidden_before.iter_mut().for_each(|before| *before = (*before).min(len));
        self.entries.iter_mut().for_each(|entry| entry.truncate(len));
        if len == 0 {
            self.entries.iter_mut().for_each(Entry::refit);
            self.interventions.clear();
            (self.told, self.hidden_before) = (vec![Vec::new(); self.shape.batch], vec![0; self.shape.batch]);
        }
        Ok(())
    }

    /// Drops the last `count` positions.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// cache.drop_last(2)?;
    /// assert_eq!(cache.len(), 3);
    /// assert_eq!(
    ///     cache.drop_last(9).unwrap_err().to_string(),
    ///     "9 positions were asked for, and 3 are held",
    /// );
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`KeyValueCache::truncate`]; also [`CacheError::TooFew`].
    pub fn drop_last(&mut self, count: usize) -> Result<(), CacheError> {
        let left = self.len().checked_sub(count).ok_or(CacheError::TooFew { held: self.len(), asked: count })?;
        self.truncate(left)
    }

    /// Drops all positions; the memory stays allocated.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// let bytes = cache.memory();
    /// cache.reset()?;
    /// assert!(cache.is_empty() && cache.memory() == bytes);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Frozen`] if the cache is frozen.
    pub fn reset(&mut self) -> Result<(), CacheError> {
        self.truncate(0)
    }

    /// Bytes held for each layer, room for growth included. What caches share is counted in each
    /// of them.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let cache = model.prefill("king drum sun star")?;
    /// // Keys and values of 5 positions, 4 heads of 16, in f32, in each of two layers.
    /// assert_eq!(cache.memory(), [2 * 5 * 4 * 16 * 4; 2]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn memory(&self) -> Vec<usize> {
        self.entries.iter().map(Entry::bytes).collect()
    }
}

impl Index<usize> for KeyValueCache {
    type Output = Entry;

    /// The entry of a layer.
    ///
    /// # Panics
    /// If there is no such layer.
    fn index(&self, layer: usize) -> &Entry {
        &self.entries[layer]
    }
}

impl IndexMut<usize> for KeyValueCache {
    /// The entry of a layer, to be changed or exchanged for another.
    ///
    /// # Panics
    /// If there is no such layer.
    fn index_mut(&mut self, layer: usize) -> &mut Entry {
        &mut self.entries[layer]
    }
}

impl<'c> IntoIterator for &'c KeyValueCache {
    type Item = &'c Entry;
    type IntoIter = std::slice::Iter<'c, Entry>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'c> IntoIterator for &'c mut KeyValueCache {
    type Item = &'c mut Entry;
    type IntoIter = std::slice::IterMut<'c, Entry>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl fmt::Display for KeyValueCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.frozen { ", frozen" } else { "" };
        let bytes: usize = self.memory().iter().sum();
        let (layers, rows, columns) = (self.n_layers(), self.batch(), self.len());
        write!(
            f,
            "{} cache, {layers} layers of {rows} rows by {columns} positions{state}, {bytes} bytes",
            self.kind.name()
        )
    }
}
