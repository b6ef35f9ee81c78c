//! Ready-made experiments: head scores, steering vectors, top examples, IOI prompts, shared prefixes.

mod head_detector;
mod head_scores;
mod ioi;
mod of_model;
mod prefix_store;
mod shared_prefix;
mod steering;
mod test_prompt;
mod top_examples;

pub use head_detector::{HeadDetection, HeadError, HeadPattern};
pub use head_scores::HeadSums;
pub use head_scores::{HeadScores, head_scores, head_scores_by_prompt};
pub use ioi::{IoiPrompt, ioi_prompts, ioi_text};
pub use of_model::Experiments;
pub use prefix_store::PrefixStore;
pub use shared_prefix::{SharedPrefix, common_prefix, run_sharing};
pub use steering::SteeringVector;
pub use test_prompt::{AnswerToken, PromptReport};
pub use top_examples::{FoundExample, FoundExamples, TopExamples, number};
