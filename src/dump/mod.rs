//! Activations of many prompts, written to disk as they are made.
//!
//! A run goes batch by batch; a second thread writes one batch while the next is computed, and
//! one more may wait. Of the prompts only their token ids stay in memory.
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
//! assert_eq!(shape("tokens"), Some(vec![2, 1])); // those of the positions kept
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod activation_store;
mod batch;
mod builder;
mod check;
mod compute;
mod dumped_model;
mod file;
mod finite;
mod folder;
mod job;
mod manifest;
mod merge;
mod model;
mod object_log;
mod place;
mod placing;
mod report;
mod run;
mod shard;
mod shards;
mod sparse;
mod stored;
#[cfg(feature = "arrow")]
mod table;
mod watch;
mod writer;

pub use crate::corpus::{Prompt, read_prompts};
pub use activation_store::{ActivationBatch, ActivationStore, Batches};
pub use builder::Dump;
pub use dumped_model::DumpedModel;
#[cfg(feature = "cli")]
pub(crate) use manifest::{hash_of_rows, is_whole};
pub use merge::{merge, merge_unverified};
pub use model::DumpModel;
#[cfg(feature = "cli")]
pub(crate) use place::folders;
pub use report::DumpReport;
pub use shard::Shard;
pub use shards::{ForeignShard, Shards, UnfinishedShard, shards_in};
pub use watch::{Seen, Watcher};
