//! Writes activations of many prompts to disk as they are computed.

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
mod packed_file;
mod packed_folder;
mod place;
mod place_in_row;
mod placing;
mod report;
mod run;
mod shard;
mod shards;
mod sparse;
mod stored;
mod stored_tensor;
mod stream;
mod stream_summary;
#[cfg(feature = "arrow")]
mod table;
mod watch;
mod writer;

pub use activation_store::{ActivationBatch, ActivationStore, Batches, DescribeStore, vectors_an_epoch};
pub use builder::{Dump, DumpJob};
pub use dumped_model::{DumpedModel, processing_of};
pub use job::shard_of_job;
pub use manifest::{hash_of_rows, is_whole};
pub use merge::{merge, merge_unverified};
pub use model::DumpModel;
pub use place::folders;
pub use report::DumpReport;
pub use shard::{Shard, SplitByShard};
pub use shards::{ForeignShard, Shards, UnfinishedShard, shards_in};
use stored_tensor::StoredTensor;
pub use stream::{SeenInStream, StreamWatcher};
pub use watch::{Seen, Watcher};
