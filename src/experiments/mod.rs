//! Measurements that answer a question about a model.

mod head_detector;
mod head_scores;
mod ioi;
mod prefix_store;
mod steering;
mod test_prompt;
mod trunk;

pub use head_detector::{HeadDetection, HeadError, HeadPattern};
#[cfg(feature = "cli")]
pub(crate) use head_scores::HeadSums;
pub use head_scores::{HeadScores, head_scores};
pub use ioi::{IoiPrompt, NAMES, ioi_prompts, ioi_text};
pub use prefix_store::PrefixStore;
pub use steering::SteeringVector;
pub use test_prompt::{AnswerToken, PromptReport};
pub use trunk::{Trunk, common_prefix};
