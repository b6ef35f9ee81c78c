//! Internal crate of [hooklens](https://docs.rs/hooklens): reads corpora of prompts and dumps activations to files.

#![deny(missing_docs)]
#![deny(unsafe_code)]
// Documentation of internal crates includes private items.
#![allow(rustdoc::private_intra_doc_links)]

pub mod corpus;
pub mod dump;
pub mod error;
