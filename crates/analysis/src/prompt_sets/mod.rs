//! Pairs of clean and corrupted prompts, generated from templates and checked against a tokenizer.

mod arithmetic;
mod capital_country;
mod choices;
mod docstring;
mod filler;
mod gender_bias;
mod greater_than;
mod ioi;
mod numbers;
mod pairs;
mod set;
mod subject_verb_agreement;
mod template;
mod text;

pub use crate::error::PromptSetError;
pub use pairs::{PromptPair, PromptPairs};
pub use set::PromptSet;
pub use template::Template;
