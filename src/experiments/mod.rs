//! Measurements that answer a question about a model.

mod head_scores;
mod trunk;

#[cfg(feature = "cli")]
pub(crate) use head_scores::HeadSums;
pub use head_scores::{HeadScores, head_scores};
pub use trunk::{Trunk, common_prefix};
