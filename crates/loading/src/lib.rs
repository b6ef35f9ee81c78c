//! Internal crate of [hooklens](https://docs.rs/hooklens): loads models of every family from their configuration and
//! weight files.

#![deny(missing_docs)]
#![deny(unsafe_code)]
// Documentation of internal crates includes private items.
#![allow(rustdoc::private_intra_doc_links)]

pub mod embedded;
pub mod families;
pub mod gguf;
pub mod loading;
pub mod weight_files;
