//! Pairs of clean and corrupted prompts for patching: sets from the literature, and templates for your own.
//!
//! Pairs are checked against the model's tokenizer: both prompts have the same number of tokens, and the right and
//! wrong answers are different single tokens after either prompt. Words that are not single tokens are dropped and
//! reported.
//!
//! ```
//! use hooklens::prelude::*;
//! use hooklens::prompt_sets::PromptSet;
//!
//! let model = HookedTransformer::from_pretrained("embedded:ioi")?;
//! let found = PromptSet::Ioi.template().pairs(model.tokenizer()?, 3, 0)?;
//! for pair in &found.pairs {
//!     println!("{} -> {}, not {}", pair.clean, pair.answer, pair.wrong);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use hooklens_analysis::prompt_sets::{PromptPair, PromptPairs, PromptSet, PromptSetError, Template};
