//! Internal crate of [hooklens](https://docs.rs/hooklens): regular files, object stores, CSV, and text made safe to show.

#![deny(missing_docs)]
#![deny(unsafe_code)]
// The documentation of internal crates includes private items.
#![allow(rustdoc::private_intra_doc_links)]

pub mod caught;
pub mod csv_text;
pub mod excerpt;
pub mod json_memory;
pub mod json_shape;
pub mod numerals;
pub mod object_stores;
pub mod regular;
pub mod script_json;
pub mod shown_text;
pub mod stderr;
