//! Internal crate of [hooklens](https://docs.rs/hooklens): corpora of prompts, and activations dumped to files.

#![deny(missing_docs)]
#![deny(unsafe_code)]
// Internal crates are read with their private items.
#![allow(rustdoc::private_intra_doc_links)]

pub mod corpus;
pub mod dump;
pub mod error;
