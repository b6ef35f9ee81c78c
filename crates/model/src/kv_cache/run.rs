//! How a run uses a cache: check, extend each layer, then commit or roll back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::tensor::{DType, Device, Tensor};
use hooklens_hooks::{Hook, HookDetails, ModelIdentity};

use super::keys::Keys;
use super::shape::heads_of;
use super::state::StateShape;
use super::{Entry, KeyValueCache};
use crate::config::TransformerConfig;
use crate::error::CacheError;
use crate::tokens::Tokens;

/// A run's additions to a cache. If it is dropped before [`Transaction::commit`], by an error, an early return, or a
/// panic, it rolls the cache back.
#[derive(Debug)]
pub(crate) struct Transaction<'c> {
    cache: &'c mut KeyValueCache,
    past: usize,
    /// Rows and columns of the mask before the run.
    mask: [usize; 2],
    /// Whether there is anything to roll back.
    pending: bool,
}

/// What computed a run's keys and values.
pub(crate) struct MadeBy<'r, 'h, P> {
    pub(crate) model: Arc<ModelIdentity>,
    pub(crate) hooks: &'r [Hook<'h>],
    /// Descriptions of the parts spliced into the model.
    pub(crate) parts: P,
    /// Whether the rotation of keys depends on the length of the text.
    pub(crate) by_length: bool,
}

impl Transaction<'_> {
    /// The cache that the run extends.
    pub(crate) fn cache(&mut self) -> &mut KeyValueCache {
        self.cache
    }

    /// Whether the run's additions will be kept, that is, the cache is not frozen.
    pub(crate) fn keeps(&self) -> bool {
        self.pending
    }

    /// Commits the new columns; `shape` is `[batch, len]`. `new` is their mask, `None` if all are unmasked. Also
    /// records the run's editing hooks.
    pub(crate) fn commit(
        mut self,
        shape: [usize; 2],
        new: Option<&[bool]>,
        tokens: Option<&Tokens>,
        made: MadeBy<'_, '_, impl Iterator<Item = String>>,
    ) -> Result<(), CacheError> {
        if self.pending {
            let past = self.past;
            self.cache.prepare(shape, new)?;
            // Nothing can fail from here on.
            self.cache.entries.iter_mut().for_each(Entry::commit);
            self.cache.note_tokens(past, shape, tokens);
            self.cache.note_interventions(made.hooks);
            self.cache.note_parts(made.parts);
            self.cache.model = Some(made.model);
            if made.by_length {
                self.cache.note_lengths();
            }
            self.pending = false;
        }
        Ok(())
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.pending {
            self.cache.entries.iter_mut().for_each(|entry| entry.roll_back(self.past));
            self.cache.restore_mask(self.mask);
        }
    }
}

impl KeyValueCache {
    /// Checks that a run over `count` columns of `batch` rows on this model can use the cache.
    pub(crate) fn check(
        &self,
        config: &TransformerConfig,
        [batch, count]: [usize; 2],
        dtype: DType,
        device: impl Fn(usize) -> Device,
    ) -> Result<(), CacheError> {
        if self.entries.len() != config.n_layers() {
            return Err(CacheError::Layers { cache: self.entries.len(), model: config.n_layers() });
        }
        self.check_batch(batch)?;
        let len = self.len();
        for (layer, entry) in self.entries.iter().enumerate() {
            let (cache, model) = (entry.window(), config.window(layer));
            if cache != model && entry.first() > 0 {
                return Err(CacheError::Window { layer, cache, model });
            }
            if entry.frozen != self.frozen {
                return Err(CacheError::Mixed { layer, frozen: entry.frozen });
            }
            entry.check(
                layer,
                (heads_of(config, layer), StateShape::of(config, layer)),
                len,
                count,
                (dtype, &device(layer)),
            )?;
            if entry.first() > 0 && entry.first() > self.first_needed(layer) {
                return Err(CacheError::Dropped { layer, first: entry.first(), wanted: self.first_needed(layer) });
            }
        }
        Ok(())
    }

    pub(super) fn check_batch(&self, batch: usize) -> Result<(), CacheError> {
        let held = self.batch();
        // An empty cache also accepts fewer rows than it was created for.
        let fewer = batch > 0 && batch < held && self.is_empty() && self.entries.iter().all(Entry::is_empty);
        if batch == held || (self.frozen && held == 1) || fewer {
            return Ok(());
        }
        Err(CacheError::Batch { cache: held, run: batch })
    }

    /// Returns the keys and values that a layer's attention reads: the cached ones followed by the new ones. Starts
    /// prefetching the next layer if it is offloaded.
    pub(crate) fn extend(&mut self, layer: usize, keys: Tensor<4>, values: Tensor<4>) -> Result<Keys, CacheError> {
        if let Some(next) = self.entries.get_mut(layer + 1) {
            next.start_prefetch();
        }
        self.entries[layer].extend(keys, values)
    }

    /// Like [`KeyValueCache::extend`], for a layer without its own keys: only the number of rows and columns is
    /// recorded.
    pub(crate) fn pass_over(&mut self, layer: usize, shape: [usize; 2]) -> Result<(), CacheError> {
        if let Some(next) = self.entries.get_mut(layer + 1) {
            next.start_prefetch();
        }
        self.entries[layer].pass_over(shape)
    }

    /// Starts a transaction, which is rolled back unless it is committed.
    pub(crate) fn begin(&mut self) -> Transaction<'_> {
        let mask = [self.given_mask.len(), self.given_mask_len()];
        Transaction { past: self.len(), mask, pending: !self.frozen, cache: self }
    }

    /// Performs all fallible steps of storing `len` new columns of `batch` rows. `new` is their mask, `None` if all are
    /// unmasked.
    fn prepare(&mut self, [batch, len]: [usize; 2], new: Option<&[bool]>) -> Result<(), CacheError> {
        let past = self.len() - len;
        if self.given_mask_len() == 0 {
            self.given_mask = vec![Vec::new(); batch];
            self.hidden_before.resize(batch, 0);
        }
        for (row, given_mask) in self.given_mask.iter_mut().enumerate() {
            given_mask.resize(past, true);
            match new {
                Some(new) => given_mask.extend_from_slice(&new[row * len..(row + 1) * len]),
                None => given_mask.resize(past + len, true),
            }
        }
        for layer in 0..self.entries.len() {
            let keep = self.len() - self.first_needed(layer);
            self.entries[layer].prepare(keep)?;
        }
        Ok(())
    }

    /// Records the editing hooks, each once.
    fn note_interventions(&mut self, hooks: &[Hook<'_>]) {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        for hook in hooks.iter().filter(|hook| hook.edits() && !hook.is_neutral()) {
            if self.noted_hooks.contains(&hook.id()) {
                continue;
            }
            self.noted_hooks.push(hook.id());
            // Two closures may have different effects at the same point.
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            self.interventions.push(format!("{hook:?} #{number}"));
        }
    }

    /// Records descriptions of the parts, each once.
    pub(super) fn note_parts(&mut self, parts: impl Iterator<Item = String>) {
        for part in parts {
            if !self.interventions.contains(&part) {
                self.interventions.push(part);
            }
        }
    }

    /// Checks that every layer holds the positions of the mask.
    pub(super) fn check_whole(&self) -> Result<(), CacheError> {
        let (len, batch) = (self.len(), self.batch());
        for (layer, entry) in self.entries.iter().enumerate() {
            if entry.len() != len {
                return Err(CacheError::Length { layer, entry: entry.len(), mask: len });
            }
            if len > 0 && entry.batch() != batch {
                return Err(CacheError::Batch { cache: batch, run: entry.batch() });
            }
            let mut heads = self.shape.heads(layer).into_iter().zip(entry.heads());
            if let Some((cache, model)) = heads.find(|(cache, entry)| cache != entry) {
                return Err(CacheError::Model { layer, cache, model });
            }
        }
        Ok(())
    }
}
