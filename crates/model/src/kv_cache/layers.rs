//! Access to the layers' entries.

use std::ops::{Index, IndexMut};

use super::{Entry, KeyValueCache};

impl KeyValueCache {
    /// The entry of a layer; `None` if the entry is empty or there is no such layer.
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

    /// Iterates over the entries, first layer to last.
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

    /// Iterates mutably over the entries, first layer to last.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum")?;
    /// for entry in cache.iter_mut() {
    ///     entry.set(entry.keys()?, entry.values()? * 0.0)?; // zeroes the prefix's values
    /// }
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Entry> {
        self.entries.iter_mut()
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
    /// The entry of a layer, mutably.
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
