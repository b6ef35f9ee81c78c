//! Internal crate of [hooklens](https://docs.rs/hooklens): model files of every family, from `config.json` and weights to a model.

#![deny(missing_docs)]
#![deny(unsafe_code)]
// Internal crates are read with their private items.
#![allow(rustdoc::private_intra_doc_links)]

pub mod embedded;
pub mod families;
pub mod gguf;
pub mod loading;
pub mod weight_files;
