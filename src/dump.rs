//! Writes activations of many prompts to disk as they are computed.
//!
//! A run proceeds batch by batch. A second thread writes one batch while the next one is computed, and one more batch
//! may wait to be written. Only the prompts' token ids stay in memory.
//!
//! ```
//! use hooklens::dump::Dump;
//! use hooklens::prelude::*;
//! let model = HookedTransformer::from_pretrained("embedded:induction")?;
//! # let folder = tempfile::tempdir()?;
//! # let out = folder.path().join("resid.safetensors");
//! let rows = vec![vec![0, 51, 59], vec![0, 9]];
//! Dump::new("resid_post1").positions(-1).run(&model, &rows, &out)?;
//! let files = hooklens::WeightFiles::open(&[out])?;
//! let shape = |name| files.info(name).map(|info| info.shape.clone());
//! assert_eq!(shape("blocks.1.hook_resid_post"), Some(vec![2, 1, 64])); // [row, pos, d_model]
//! assert_eq!(shape("tokens"), Some(vec![2, 1])); // tokens at the kept positions
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use hooklens_data::dump::{
    ActivationBatch, ActivationStore, Batches, Dump, DumpReport, DumpedModel, Seen, Shard, merge,
};
pub use hooklens_data::error::ShardError;
