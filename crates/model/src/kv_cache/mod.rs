//! Key-value caches, which store the keys and values of positions already computed.

mod buffer;
mod codes;
pub mod compat;
mod construct;
mod data;
mod disk;
mod entry;
mod fault;
mod file;
mod head_shard;
mod keys;
mod kind;
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

pub use data::CacheData;
pub use entry::Entry;
pub use file::CacheModel;
pub(crate) use keys::{KeyBlock, Keys, heads_first, select_heads, select_rows};
pub use kind::{CacheKind, Offload};
pub use mask::hides;
pub use quantized::Bits;
pub(crate) use run::{MadeBy, Transaction};
pub use scope::Scoped;
pub use shape::{CacheShape, windows};
pub(crate) use state::{RecurrentState, StateShape};
pub use tokens::check_model;

use crate::error::CacheError;

/// Keys and values of every layer, `[batch, position, kv_head, d_head]` each, and the mask of their positions.
///
/// Runs append to the cache unless it is frozen. A frozen cache with one row can be used with a batch of any size, and
/// [`KeyValueCache::fork`] creates several rows that continue from the same positions; what they share is stored once
/// and never copied. No beginning-of-sequence token is prepended to text that continues a cache.
///
/// ```
/// use hooklens::prelude::*;
///
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let whole = model.forward("king drum sun star king drum")?;
///
/// // Run the prefix once ...
/// let mut prefix = model.prefill("king drum sun star")?;
/// prefix.freeze();
/// // ... and then any batch of continuations.
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
    /// The mask given so far, one row per batch row, `true` at unmasked positions. Positions beyond its end count as
    /// unmasked.
    given_mask: Vec<Vec<bool>>,
    /// First column of each row that is visible to attention.
    hidden_before: Vec<usize>,
    frozen: bool,
    /// Descriptions of the editing hooks that were active while the cache was filled.
    interventions: Vec<String>,
    /// Ids of the hooks in `interventions` that were created in this process.
    noted_hooks: Vec<u64>,
    /// Tokens of each row's columns, if known.
    ids: Vec<Vec<u32>>,
    /// For each row, the length of the longest text that keys were rotated for, if the rotation depends on the length.
    rotated_for: Vec<usize>,
    /// The model that computed the contents.
    model: Option<Arc<ModelIdentity>>,
}

impl KeyValueCache {
    /// The storage kind.
    pub fn kind(&self) -> CacheKind {
        self.kind
    }

    /// Number of positions, including padding, that every layer has seen or that the mask covers, whichever is larger.
    /// Same as Hugging Face's `get_seq_length`.
    pub fn len(&self) -> usize {
        let held = self.entries.iter().map(Entry::len).min().unwrap_or(0);
        held.max(self.given_mask_len())
    }

    /// Whether the cache has seen no positions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Maximum number of positions, if limited.
    pub fn max_len(&self) -> Option<usize> {
        self.entries.iter().filter_map(Entry::max_len).min()
    }

    /// Number of rows: the number the cache was created for, or fewer if the first run had fewer.
    pub fn batch(&self) -> usize {
        if self.given_mask_len() > 0 {
            return self.given_mask.len();
        }
        self.entries.iter().find(|entry| !entry.is_empty()).map_or(self.shape.batch, Entry::batch)
    }

    /// Number of layers.
    pub fn n_layers(&self) -> usize {
        self.entries.len()
    }

    /// Freezes the cache: runs read it without appending to it.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut prefix = model.prefill("king drum sun star")?;
    /// prefix.freeze();
    /// let rows = vec![vec![51], vec![9], vec![50]]; // all of them continue the one cached row
    /// let logits = model.forward_with(rows, ForwardOptions::new().kv_cache(&mut prefix))?;
    /// assert_eq!((logits.dims()[0], prefix.len(), prefix.is_frozen()), (3, 5, true));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn freeze(&mut self) {
        self.set_frozen(true);
    }

    /// Unfreezes the cache: runs append to it.
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

    /// Returns a layer's keys and values followed by the new ones, which are stored unless the cache is frozen. Runs do
    /// this automatically. If you call it yourself, call it for every layer; [`KeyValueCache::len`] advances after the
    /// last one. The new positions are unmasked unless [`KeyValueCache::append_attention_mask`] says otherwise.
    ///
    /// # Shapes
    /// - input: `[batch, new, kv_head, d_head]`; the first input may have fewer rows than the cache was created for
    /// - output: `[batch, past + new, kv_head, d_head]`
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use hooklens::{CacheKind, CacheShape, KeyValueCache};
    /// let mut cache = KeyValueCache::of_shape(CacheShape::new(1, 1, 2, 4)?, CacheKind::GROWING)?;
    /// let new = || Tensor::<4>::ones([1, 3, 2, 4], &Device::flex());
    /// let (keys, values) = cache.append(new(), new(), 0)?; // layer 0
    /// assert_eq!((keys.dims(), values.dims(), cache.len()), ([1, 3, 2, 4], [1, 3, 2, 4], 3));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CacheError::Layer`] if the cache has no such layer, and the errors of [`Entry::append`].
    pub fn append(
        &mut self,
        keys: Tensor<4>,
        values: Tensor<4>,
        layer: usize,
    ) -> Result<(Tensor<4>, Tensor<4>), CacheError> {
        let (layers, batch, rows) = (self.entries.len(), self.batch(), keys.dims()[0]);
        // All layers must have the same number of rows as the first update.
        let begun = self.entries.iter().any(|entry| !entry.is_empty());
        let entry = self.entries.get_mut(layer).ok_or(CacheError::Layer { layer, layers })?;
        if begun && entry.is_empty() && rows != batch && !(self.frozen && batch == 1) {
            return Err(CacheError::Batch { cache: batch, run: rows });
        }
        entry.append(keys, values)
    }

    /// Descriptions of the hooks and spliced parts that changed the model while the cache was filled. They make the
    /// cached keys and values differ from the unmodified model's. Each hook is listed once, however many runs it was
    /// active in, with a number that is unique across caches.
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

    /// Memory used by each layer in bytes, including unused capacity. Contents shared between caches are counted in
    /// each of them.
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
        write!(f, "{} cache, {layers} layers of {rows} rows by {columns} positions{state}, {bytes} bytes", self.kind)
    }
}
