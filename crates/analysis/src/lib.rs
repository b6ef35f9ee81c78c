//! Internal crate of [hooklens](https://docs.rs/hooklens): analyses of recordings and weights, patching and
//! experiments.

#![deny(missing_docs)]
#![deny(unsafe_code)]
// Documentation of internal crates includes private items.
#![allow(rustdoc::private_intra_doc_links)]

pub mod activations;
pub mod attribution;
pub mod circuits;
pub mod error;
pub mod experiments;
pub mod labeled;
pub mod lens;
mod nested_lists;
pub mod patching;
pub mod prompt_sets;
pub mod statistics;
pub mod tensor_ext;
