//! Internal crate of [hooklens](https://docs.rs/hooklens): model files of every family, from `config.json` and weights to a model.

#![warn(missing_docs)]
#![deny(unsafe_code)]

pub mod embedded;
pub mod families;
pub mod gguf;
pub mod loading;
pub mod weight_files;
