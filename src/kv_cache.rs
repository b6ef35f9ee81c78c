//! Functions of other libraries' key-value caches.

/// Functions of other libraries' key-value caches, under their original names, with one trait per library. A library
/// has no trait if all its functions are methods of [`KeyValueCache`](crate::KeyValueCache) under other names.
///
/// ```
/// use hooklens::kv_cache::compat::HuggingFaceCache;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let mut cache = model.prefill("king drum sun star")?;
/// cache.crop(-2)?;
/// assert_eq!(cache.len(), 3);
/// # Ok::<(), hooklens::Error>(())
/// ```
pub mod compat {
    pub use hooklens_model::kv_cache::compat::{EasyDelCache, HuggingFaceCache};
}
