//! Functions of other libraries' key-value caches, under their names.
//!
//! One trait per library whose functions are not those of [`KeyValueCache`](super::KeyValueCache) under another name,
//! to be imported by programs that are ported from it:
//!
//! ```
//! use hooklens::kv_cache::compat::HuggingFaceCache;
//! use hooklens::prelude::*;
//! let model = HookedTransformer::from_pretrained("embedded:induction")?;
//! let mut cache = model.prefill("king drum sun star")?;
//! cache.crop(-2)?;
//! assert_eq!(cache.len(), 3);
//! # Ok::<(), hooklens::Error>(())
//! ```

mod easydel;
mod hugging_face;

pub use easydel::EasyDelCache;
pub use hugging_face::HuggingFaceCache;
