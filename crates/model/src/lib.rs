//! Internal crate of [hooklens](https://docs.rs/hooklens): hooked models, key-value caches, tokenizers, devices, and
//! text generation.

#![deny(missing_docs)]
#![deny(unsafe_code)]
// The docs of internal crates are built with private items.
#![allow(rustdoc::private_intra_doc_links)]

pub mod between_blocks;
pub mod config;
pub mod cpu;
pub mod device;
pub mod driver;
pub mod encoder;
pub mod encoder_decoder;
pub mod error;
pub mod generation;
pub mod hook;
pub mod kv_cache;
pub mod model;
pub mod points;
pub mod processing;
pub mod tokens;
