//! Keys and values of positions already computed, so that what follows them need not compute
//! them again.

mod buffer;
mod data;
mod entry;
mod file;
mod keys;
mod kind;
mod quantized;
mod ring;
mod rows;
mod scope;
mod store;

use std::fmt;
use std::ops::Index;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::tensor::{DType, Device, Tensor};
use hooklens_hooks::Hook;

pub use data::{CacheData, LayerData};
pub use entry::Entry;
pub(crate) use keys::{Keys, Part};
pub use kind::{CacheKind, CacheShape, MaskInfo};
pub use quantized::Bits;
pub use scope::Scoped;

use crate::config::{TransformerConfig, Window};
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
/// let whole = model.forward("king drum sun star king drum", ())?;
///
/// // The first part once, ...
/// let mut prefix = model.prefill("king drum sun star")?;
/// prefix.freeze();
/// // ... then any batch of what may follow.
/// let next = |text: &str| model.tokenizer().and_then(|t| Ok(t.encode(text)?));
/// let rows = vec![next("king drum")?, next("fox tea")?];
/// let logits = model.forward(rows, ForwardOptions::new().kv_cache(&mut prefix))?;
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
    /// Real positions, a row each.
    mask: Vec<Vec<bool>>,
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
    /// model.forward(rows, ForwardOptions::new().kv_cache(&mut cache))?;
    /// assert_eq!((cache.batch(), cache.len(), cache.n_layers()), (2, 3, 2));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn new(config: &TransformerConfig, batch: usize) -> Self {
        let windows = (0..config.n_layers).map(|layer| config.window(layer)).collect();
        let shape = CacheShape { batch, kv_heads: config.n_kv_heads, d_head: config.d_head, windows };
        Self::made(shape, CacheKind::Growing)
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
    /// let cache = KeyValueCache::of_shape(shape.clone(), CacheKind::Preallocated { max_len: 128 })?;
    /// assert_eq!((cache.shape(), cache.max_len()), (&shape, Some(128)));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Size`].
    pub fn of_shape(shape: CacheShape, kind: CacheKind) -> Result<Self, CacheError> {
        let positive = |field, given| if given == 0 { Err(CacheError::Size { field, given }) } else { Ok(()) };
        match kind {
            CacheKind::Preallocated { max_len } => positive("max_len", max_len)?,
            CacheKind::Quantized { group, .. } => positive("group", group)?,
            CacheKind::Growing | CacheKind::Sliding => {}
        }
        shape.windows.iter().flatten().try_for_each(|window| positive("windows", window.width()))?;
        Ok(Self::made(shape, kind))
    }

    fn made(shape: CacheShape, kind: CacheKind) -> Self {
        let entry = |window: &Option<Window>| Entry::new(kind, *window, shape.batch, [shape.kv_heads, shape.d_head]);
        let entries = shape.windows.iter().map(entry).collect();
        let mask = vec![Vec::new(); shape.batch];
        Self { kind, mask, shape, entries, frozen: false, interventions: Vec::new() }
    }

    /// How it stores what it is given.
    pub fn kind(&self) -> CacheKind {
        self.kind
    }

    /// What it is made for.
    pub fn shape(&self) -> &CacheShape {
        &self.shape
    }

    /// Positions seen, padding included: as many as Hugging Face's `get_seq_length` tells.
    pub fn len(&self) -> usize {
        self.mask.first().map_or(0, Vec::len)
    }

    /// Whether no position was seen.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Positions it has room for, if that is limited.
    pub fn max_len(&self) -> Option<usize> {
        match self.kind {
            CacheKind::Preallocated { max_len } => Some(max_len),
            _ => None,
        }
    }

    /// Rows held.
    pub fn batch(&self) -> usize {
        self.mask.len()
    }

    /// Layers.
    pub fn n_layers(&self) -> usize {
        self.entries.len()
    }

    /// Real positions of each row: the position its next token stands at.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let rows = Tokens::padded(&[vec![0, 51, 59], vec![0, 51]], 0, PaddingSide::Left)?;
    /// let cache = model.prefill(&rows)?;
    /// assert_eq!((cache.len(), cache.lengths(), cache.starts()), (3, vec![3, 2], vec![0, 1]));
    /// assert_eq!(cache.attention_mask()[1], [false, true, true]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn lengths(&self) -> Vec<usize> {
        self.mask.iter().map(|row| row.iter().filter(|real| **real).count()).collect()
    }

    /// Column of each row's first real position (the number of columns if it has none).
    pub fn starts(&self) -> Vec<usize> {
        self.mask.iter().map(|row| row.iter().position(|real| *real).unwrap_or(row.len())).collect()
    }

    /// The mask of all positions, `[batch][position]`.
    pub fn attention_mask(&self) -> &[Vec<bool>] {
        &self.mask
    }

    /// What attention needs to know of a layer's columns; `None` if there is no such layer.
    pub fn mask_info(&self, layer: usize) -> Option<MaskInfo> {
        let window = *self.shape.windows.get(layer)?;
        let first_column = self.entries[layer].first();
        Some(MaskInfo { starts: self.starts(), lengths: self.lengths(), window, first_column })
    }

    /// From here on runs use the cache without adding to it.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut prefix = model.prefill("king drum sun star")?;
    /// prefix.freeze();
    /// let rows = vec![vec![51], vec![9], vec![50]]; // one held row serves them all
    /// let logits = model.forward(rows, ForwardOptions::new().kv_cache(&mut prefix))?;
    /// assert_eq!((logits.dims()[0], prefix.len(), prefix.is_frozen()), (3, 5, true));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn freeze(&mut self) {
        self.set_frozen(true);
    }

    /// From here on runs add to the cache.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// cache.freeze();
    /// cache.unfreeze();
    /// model.forward([51], ForwardOptions::new().kv_cache(&mut cache))?;
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

    /// Whether runs leave the cache as it is.
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Keys and values of a layer with those given behind them, which are kept unless the cache
    /// is frozen. Runs do this by themselves; whoever does it by hand does it for every layer,
    /// then calls [`KeyValueCache::append_attention_mask`].
    ///
    /// # Shapes
    /// - given: `[batch, new, kv_head, d_head]`
    /// - back: `[batch, past + new, kv_head, d_head]`
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens::{CacheKind, CacheShape, KeyValueCache};
    /// let mut cache = KeyValueCache::of_shape(CacheShape::new(1, 1, 2, 4)?, CacheKind::Growing)?;
    /// let new = || Tensor::<4>::ones([1, 3, 2, 4], &Device::flex());
    /// let (keys, values) = cache.update(new(), new(), 0)?; // layer 0
    /// cache.append_attention_mask(&[vec![true; 3]])?;
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
        let layers = self.entries.len();
        let entry = self.entries.get_mut(layer).ok_or(CacheError::Layer { layer, layers })?;
        entry.append(keys, values)
    }

    /// The mask of all positions, those given appended: `[batch][position]`. They are kept unless
    /// the cache is frozen. Runs do this by themselves.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum")?;
    /// cache.freeze();
    /// let all = cache.append_attention_mask(&[vec![true, false]])?; // seen, not kept
    /// assert_eq!((all[0].clone(), cache.len()), (vec![true, true, true, true, false], 3));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Batch`] if there are more or fewer rows than the cache has (one row of a
    /// frozen cache serves any number), [`CacheError::Ragged`] if rows differ in length.
    pub fn append_attention_mask(&mut self, new: &[Vec<bool>]) -> Result<Vec<Vec<bool>>, CacheError> {
        self.check_batch(new.len())?;
        let len = new.first().map_or(0, Vec::len);
        if new.iter().any(|row| row.len() != len) {
            return Err(CacheError::Ragged);
        }
        let past = |row: usize| &self.mask[if self.batch() == 1 { 0 } else { row }];
        let whole: Vec<_> = new.iter().enumerate().map(|(row, new)| [&past(row)[..], new].concat()).collect();
        if !self.frozen {
            self.mask.clone_from(&whole);
        }
        Ok(whole)
    }

    /// Keeps what a run over `len` columns of `batch` rows has brought: they are real where `new` says so, or all.
    pub(crate) fn settle(&mut self, [batch, len]: [usize; 2], new: Option<&[bool]>) -> Result<(), CacheError> {
        let new = new.map_or(vec![vec![true; len]; batch], |new| new.chunks(len).map(<[bool]>::to_vec).collect());
        self.append_attention_mask(&new)?;
        for layer in 0..self.entries.len() {
            let keep = needed(&self.mask, self.shape.windows[layer]);
            self.entries[layer].settle(keep)?;
        }
        Ok(())
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

    /// Notes that these hooks have edited what the cache holds.
    pub(crate) fn note_interventions(&mut self, hooks: &[Hook<'_>]) {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        for hook in hooks.iter().filter(|hook| hook.edits()) {
            // Two closures may do different things at the same point.
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            self.interventions.push(format!("{hook:?} #{number}"));
        }
    }

    /// Forgets what a failed run has brought.
    pub(crate) fn unsettle(&mut self) {
        let len = self.len();
        self.entries.iter_mut().for_each(|entry| entry.unsettle(len));
    }

    /// Forgets the positions from `len` on.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// cache.truncate(2)?;
    /// let sun = model.to_single_token("sun")?;
    /// let behind = model.forward([sun], ForwardOptions::new().kv_cache(&mut cache))?;
    /// let whole = model.forward("king sun", ())?.narrow(1, 2, 1);
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
        let mask: Vec<_> = self.mask.iter().map(|row| row[..len.min(row.len())].to_vec()).collect();
        let len = len.min(self.len());
        for (layer, entry) in self.entries.iter().enumerate() {
            let (first, wanted) = (entry.first(), len - needed(&mask, self.shape.windows[layer]));
            if first > wanted && len > 0 {
                return Err(CacheError::Dropped { layer, first, wanted });
            }
        }
        self.mask = mask;
        self.entries.iter_mut().for_each(|entry| entry.truncate(len));
        if len == 0 {
            self.interventions.clear();
        }
        Ok(())
    }

    /// Forgets the last `count` positions.
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

    /// Forgets everything; the memory stays for what comes next.
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

    /// Whether a run over `count` columns of `batch` rows on this model can use the cache.
    pub(crate) fn check(
        &self,
        config: &TransformerConfig,
        [batch, count]: [usize; 2],
        dtype: DType,
        device: impl Fn(usize) -> Device,
    ) -> Result<(), CacheError> {
        if self.entries.len() != config.n_layers {
            return Err(CacheError::Layers { cache: self.entries.len(), model: config.n_layers });
        }
        self.check_batch(batch)?;
        for (layer, entry) in self.entries.iter().enumerate() {
            let (cache, model) = (self.shape.windows[layer], config.window(layer));
            if cache != model && entry.first() > 0 {
                return Err(CacheError::Window { layer, cache, model });
            }
            entry.check(layer, [config.n_kv_heads, config.d_head], self.len(), count, (dtype, &device(layer)))?;
        }
        Ok(())
    }

    fn check_batch(&self, batch: usize) -> Result<(), CacheError> {
        if batch == self.batch() || (self.frozen && self.batch() == 1) {
            return Ok(());
        }
        Err(CacheError::Batch { cache: self.batch(), run: batch })
    }

    pub(crate) fn entry_mut(&mut self, layer: usize) -> &mut Entry {
        &mut self.entries[layer]
    }

    /// The mask of the positions held, for `batch` rows; `None` when all are real.
    pub(crate) fn past_mask(&self, batch: usize) -> Option<Vec<Vec<bool>>> {
        let padded = self.mask.iter().any(|row| row.contains(&false));
        padded.then(|| (0..batch).map(|row| self.mask[if self.batch() == 1 { 0 } else { row }].clone()).collect())
    }
}

/// How many of the last columns the next query of some row sees.
fn needed(mask: &[Vec<bool>], window: Option<Window>) -> usize {
    let of_row = |row: &Vec<bool>| {
        let Some(window) = window else { return row.len() };
        let real = row.iter().filter(|real| **real).count();
        let mut hidden = window.oldest(real);
        let first = row.iter().position(|real| {
            if *real && hidden > 0 {
                hidden -= 1;
                return false;
            }
            *real
        });
        first.map_or(0, |first| row.len() - first)
    };
    mask.iter().map(of_row).max().unwrap_or(0)
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
