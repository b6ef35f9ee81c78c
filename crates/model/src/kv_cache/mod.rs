//! Key-value caches: keys and values of positions already computed.

mod buffer;
mod codes;
mod construct;
mod data;
mod disk;
mod entry;
mod fault;
mod file;
mod keys;
mod kind;
mod lane;
mod layers;
mod mask;
mod packed;
mod prefetch;
mod quantized;
mod ring;
mod rows;
mod run;
mod scope;
mod shape;
mod state;
mod store;
mod tokens;
mod truncate;

use std::fmt;
use std::sync::Arc;

use burn::tensor::Tensor;
use hooklens_hooks::ModelIdentity;

pub use data::{CacheData, LayerData};
pub use entry::Entry;
pub use file::CacheModel;
pub(crate) use keys::{KeyBlock, Keys, heads_first};
pub use kind::{CacheKind, Offload};
pub use quantized::Bits;
pub(crate) use run::{MadeBy, Transaction};
pub use scope::Scoped;
pub use shape::{CacheShape, MaskInfo};
pub use state::{RecurrentState, StateShape};

use crate::error::CacheError;

/// Keys and values of every layer, `[batch, position, kv_head, d_head]` each, with the mask of
/// the positions they stand at.
///
/// Runs append to the cache unless it is frozen. A frozen cache of one row serves a batch of any
/// size, and [`KeyValueCache::fork`] gives many rows that go on from the same positions: what
/// they share is stored once and never copied. A text that comes after what a cache holds gets no
/// beginning-of-sequence token.
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
/// let rows = ["king drum", "fox tea"];
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
    /// The mask given so far, one row per batch row, `true` at real positions. Positions after its end count as real.
    given_mask: Vec<Vec<bool>>,
    /// The first column of each row that attention may see.
    hidden_before: Vec<usize>,
    frozen: bool,
    /// Editing hooks that were active while it was filled.
    interventions: Vec<String>,
    /// The ids of those hooks that are of this process.
    noted_hooks: Vec<u64>,
    /// For each row, the tokens of its columns, as far as they are known.
    ids: Vec<Vec<u32>>,
    /// For each row, the longest text that keys were rotated for, where that depends on the length.
    rotated_for: Vec<usize>,
    /// The model that computed what is held.
    model: Option<Arc<ModelIdentity>>,
}

impl KeyValueCache {
    /// The kind of storage.
    pub fn kind(&self) -> CacheKind {
        self.kind
    }

    /// The shape it was made for.
    pub fn shape(&self) -> &CacheShape {
        &self.shape
    }

    /// Positions seen by every layer or covered by the mask, padding included: Hugging Face's
    /// `get_seq_length`.
    pub fn len(&self) -> usize {
        let held = self.entries.iter().map(Entry::len).min().unwrap_or(0);
        held.max(self.given_mask_len())
    }

    /// Whether the cache has seen no position.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Positions it has room for, if that is limited.
    pub fn max_len(&self) -> Option<usize> {
        self.entries.iter().filter_map(Entry::max_len).min()
    }

    /// Number of rows: as many as it is set up for, or fewer where fewer were given first.
    pub fn batch(&self) -> usize {
        if self.given_mask_len() > 0 {
            return self.given_mask.len();
        }
        self.entries.iter().find(|entry| !entry.is_empty()).map_or(self.shape.batch, Entry::batch)
    }

    /// Layers.
    pub fn n_layers(&self) -> usize {
        self.entries.len()
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
    /// is frozen. Runs do this by themselves; code that calls it directly calls it for every layer, and
    /// [`KeyValueCache::len`] moves with the last of them. The new positions are real unless
    /// [`KeyValueCache::append_attention_mask`] says otherwise.
    ///
    /// Returns the filled positions only; torchtune's `update` returns the whole buffer.
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

    /// Editing hooks that were active while the cache was filled: its keys and values are then not those of the model
    /// alone. Each hook is listed once, however many runs it was active in, with a number that no other hook of this
    /// or another cache has.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let clean = model.prefill("king drum sun star")?;
    /// let ablated = model.hooks([hook::z(0).edit(|z, _| z.zeros_like())]).prefill("king drum sun star")?;
    /// assert!(clean.interventions().is_empty());
    /// assert!(ablated.interventions()[0].contains("attn.hook_z"));
    ///
    /// let (mut cache, other) = (clean.clone(), hook::z(0).edit(|z, _| z.zeros_like()));
    /// let hooked = model.hooks([other]);
    /// for token in [51, 59, 9] {
    ///     hooked.forward_with([token], ForwardOptions::new().kv_cache(&mut cache))?;
    /// }
    /// assert_eq!(cache.interventions().len(), 1);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn interventions(&self) -> &[String] {
        &self.interventions
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
