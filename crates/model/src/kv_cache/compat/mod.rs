//! Methods of other libraries' key-value caches, under their original names.
//!
//! There is one trait per library whose cache has methods that are not just renamed methods of
//! [`KeyValueCache`](super::KeyValueCache). Import it when you port code from that library:
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
