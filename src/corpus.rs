//! Prompts from files: lines of text or JSON, compressed or not, in one file or thousands of files. Prompts are read
//! one at a time.

pub use hooklens_data::corpus::{Corpus, Place, Prompt};
