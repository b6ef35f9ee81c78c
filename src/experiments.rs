//! Ready-made experiments: head scores, steering vectors, top examples, IOI prompts, shared prefixes.
//!
//! ```
//! use hooklens::experiments::ioi_prompts;
//! use hooklens::prelude::*;
//! let model = HookedTransformer::from_pretrained("embedded:ioi")?;
//! let prompt = &ioi_prompts(1, 0)[0];
//! let report = model.test_prompt(&prompt.text, prompt.answer, 3)?;
//! assert_eq!((report.answer[0].rank, report.answer[0].top.len()), (0, 3));
//! # Ok::<(), hooklens::Error>(())
//! ```

pub use hooklens_analysis::experiments::{
    AnswerToken, Experiments, FoundExample, FoundExamples, HeadDetection, HeadError, HeadPattern, HeadScores,
    IoiPrompt, PrefixStore, PromptReport, SharedPrefix, SteeringVector, TopExamples, head_scores, ioi_prompts,
    ioi_text,
};
