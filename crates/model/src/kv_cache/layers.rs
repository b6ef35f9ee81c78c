//! Access to the layers' entries.

use std::ops::{Index, IndexMut};

use super::{Entry, KeyValueCache};

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

    /// Iterates over the entries, first layer to last.
    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter()
    }
}

impl<'c> IntoIterator for &'c mut KeyValueCache {
    type Item = &'c mut Entry;
    type IntoIter = std::slice::IterMut<'c, Entry>;

    /// Iterates mutably over the entries, first layer to last.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum")?;
    /// for entry in &mut cache {
    ///     entry.set(entry.keys()?, entry.values()? * 0.0)?; // zeroes the prefix's values
    /// }
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter_mut()
    }
}
