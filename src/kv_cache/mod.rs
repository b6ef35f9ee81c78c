//! Keys and values of positions already computed, so that what follows them need not compute
//! them again.

mod buffer;
mod entry;

use std::fmt;
use std::ops::Index;

use burn::tensor::{DType, Device};

pub use entry::Entry;

use crate::config::TransformerConfig;
use crate::error::CacheError;

/// Keys and values of every layer, `[batch, position, kv_head, d_head]` each, with the mask of
/// the positions they stand at.
///
/// Semantics are TransformerLens's: keys are stored before rotation; runs append to the cache
/// unless it is frozen. A frozen cache of one row serves a batch of any size.
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
    entries: Vec<Entry>,
    /// Real positions, a row each.
    mask: Vec<Vec<bool>>,
    frozen: bool,
}

impl KeyValueCache {
    /// An empty cache for `batch` rows of a model of this configuration.
    pub fn new(config: &TransformerConfig, batch: usize) -> Self {
        let entry = || Entry::new(config.n_kv_heads, config.d_head);
        Self { entries: (0..config.n_layers).map(|_| entry()).collect(), mask: vec![Vec::new(); batch], frozen: false }
    }

    /// Positions held, padding included.
    pub fn len(&self) -> usize {
        self.mask.first().map_or(0, Vec::len)
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rows held.
    pub fn batch(&self) -> usize {
        self.mask.len()
    }

    /// Layers.
    pub fn n_layers(&self) -> usize {
        self.entries.len()
    }

    /// From here on runs use the cache without adding to it.
    pub fn freeze(&mut self) {
        self.set_frozen(true);
    }

    /// From here on runs add to the cache.
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

    /// The mask of all positions, those given appended: `[batch][position]`. They are kept unless
    /// the cache is frozen. Runs do this by themselves.
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

    /// Forgets the positions from `len` on.
    ///
    /// # Errors
    /// [`CacheError::Frozen`] if the cache is frozen.
    pub fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        if self.frozen {
            return Err(CacheError::Frozen);
        }
        self.mask.iter_mut().for_each(|row| row.truncate(len));
        self.entries.iter_mut().for_each(|entry| entry.truncate(len));
        Ok(())
    }

    /// Forgets everything; the memory stays for what comes next.
    ///
    /// # Errors
    /// [`CacheError::Frozen`] if the cache is frozen.
    pub fn reset(&mut self) -> Result<(), CacheError> {
        self.truncate(0)
    }

    /// Bytes held for each layer, room for growth included.
    pub fn memory(&self) -> Vec<usize> {
        self.entries.iter().map(Entry::bytes).collect()
    }

    /// Whether a run over `batch` rows on this model can use the cache.
    pub(crate) fn check(
        &self,
        config: &TransformerConfig,
        batch: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<(), CacheError> {
        if self.entries.len() != config.n_layers {
            return Err(CacheError::Layers { cache: self.entries.len(), model: config.n_layers });
        }
        self.check_batch(batch)?;
        for (layer, entry) in self.entries.iter().enumerate() {
            entry.check(layer, [config.n_kv_heads, config.d_head], self.len(), dtype, device)?;
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
        write!(
            f,
            "{} layers of {} rows by {} positions{state}, {bytes} bytes",
            self.n_layers(),
            self.batch(),
            self.len()
        )
    }
}
