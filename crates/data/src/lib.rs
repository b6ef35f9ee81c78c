//! Internal crate of [hooklens](https://docs.rs/hooklens): corpora of prompts, and activations dumped to files.

#![warn(missing_docs)]
#![deny(unsafe_code)]

pub mod corpus;
pub mod dump;
pub mod error;
