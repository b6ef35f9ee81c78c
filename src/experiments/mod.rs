//! Ready-made experiments: head scores, steering vectors, top examples, IOI prompts, shared prefixes.
//!
//! ```
//! use hooklens::experiments::{SteeringVector, common_prefix, ioi_prompts};
//! use hooklens::prelude::*;
//! let model = HookedTransformer::from_pretrained("embedded:ioi")?;
//! let prompt = &ioi_prompts(1, 0)[0];
//! let report = model.test_prompt(&prompt.text, prompt.answer, 3)?;
//! assert_eq!((report.answer[0].rank, report.answer[0].top.len()), (0, 3));
//! # Ok::<(), hooklens::Error>(())
//! ```

mod head_detector;
mod head_scores;
mod ioi;
#[cfg(feature = "plot")]
mod notebook;
mod prefix_store;
mod shared_prefix;
mod steering;
mod test_prompt;
mod top_examples;

pub use head_detector::{HeadDetection, HeadError, HeadPattern};
#[cfg(feature = "cli")]
pub(crate) use head_scores::HeadSums;
pub use head_scores::{HeadScores, head_scores};
pub use ioi::{IoiPrompt, NAMES, ioi_prompts, ioi_text};
pub use prefix_store::PrefixStore;
pub use shared_prefix::{SharedPrefix, common_prefix};
pub use steering::SteeringVector;
pub use test_prompt::{AnswerToken, PromptReport};
pub use top_examples::{FoundExample, FoundExamples, TopExamples};
