//! Internal crate of [hooklens](https://docs.rs/hooklens): hooked models, key-value caches, tokenizers, devices and generation.

#![deny(missing_docs)]
#![deny(unsafe_code)]
// Internal crates are read with their private items.
#![allow(rustdoc::private_intra_doc_links)]

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
