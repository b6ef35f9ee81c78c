//! Scoped changes: a guard that restores a cache when it is dropped.

use std::ops::{Deref, DerefMut};

use super::{Entry, KeyValueCache};

/// Guard that restores a cache when it is dropped. See [`KeyValueCache::scoped`].
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let mut cache = model.prefill("king drum sun star")?;
/// let mut scope = cache.scoped(); // can be used like the cache itself
/// model.forward_with([51], ForwardOptions::new().kv_cache(&mut scope))?;
/// assert_eq!(scope.len(), 6);
/// drop(scope);
/// assert_eq!(cache.len(), 5);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug)]
pub struct Scoped<'c> {
    cache: &'c mut KeyValueCache,
    before: Option<KeyValueCache>,
}

impl KeyValueCache {
    /// Returns a guard through which the cache can be changed. All changes are undone when the guard is dropped,
    /// including by a panic. Creating the guard does not copy the contents.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// use hooklens::TokenizeOptions;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun star")?;
    /// {
    ///     let mut scope = cache.scoped();
    ///     let next = model.to_tokens_with("king drum", TokenizeOptions { prepend_bos: Some(false), ..Default::default() })?;
    ///     model.forward_with(&next, ForwardOptions::new().kv_cache(&mut scope))?;
    ///     assert_eq!(scope.len(), 7);
    /// }
    /// assert_eq!(cache.len(), 5);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn scoped(&mut self) -> Scoped<'_> {
        self.entries.iter_mut().for_each(Entry::seal);
        Scoped { before: Some(self.clone()), cache: self }
    }
}

impl Deref for Scoped<'_> {
    type Target = KeyValueCache;

    fn deref(&self) -> &KeyValueCache {
        self.cache
    }
}

impl DerefMut for Scoped<'_> {
    fn deref_mut(&mut self) -> &mut KeyValueCache {
        self.cache
    }
}

impl Drop for Scoped<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            *self.cache = before;
        }
    }
}
