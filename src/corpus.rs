//! Prompts of files: lines, JSON lines, compressed or not, one file or thousands, read one by one.

pub use hooklens_data::corpus::{Corpus, Place, PlacedPrompts, Prompt, Prompts, read_prompts};
