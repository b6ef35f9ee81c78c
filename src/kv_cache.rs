//! Key-value caches with the functions of other libraries.

/// Functions of other libraries' key-value caches, under their names: one trait per library whose functions are not
/// those of [`KeyValueCache`](crate::KeyValueCache) under another name.
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
