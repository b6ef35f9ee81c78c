//! Fuzz targets: functions that read untrusted bytes and panic if something is wrong.

#![allow(clippy::expect_used)]

use std::sync::LazyLock;

use hooklens::prelude::*;

mod adapter;
mod cache;
mod chat;
mod config;
mod corpus;
mod gguf;
mod graph;
mod manifest;
mod npz;
mod pickle;
mod prompts;
mod safetensors;
mod selection;
mod sentence_piece;
mod tokenizer;
mod yaml;

/// The model that targets run.
static MODEL: LazyLock<HookedTransformer> =
    LazyLock::new(|| HookedTransformer::from_pretrained("embedded:induction").expect("a model"));

/// A function that reads untrusted bytes.
pub type Target = fn(&[u8]);

/// All targets by name. Inputs worth keeping are in `corpus/NAME`.
pub const TARGETS: &[(&str, Target)] = &[
    ("adapter", adapter::run),
    ("cache", cache::run),
    ("chat", chat::run),
    ("config", config::run),
    ("corpus", corpus::run),
    ("gguf", gguf::run),
    ("graph", graph::run),
    ("manifest", manifest::run),
    ("npz", npz::run),
    ("pickle", pickle::run),
    ("prompts", prompts::run),
    ("safetensors", safetensors::run),
    ("selection", selection::run),
    ("sentence-piece", sentence_piece::run),
    ("tokenizer", tokenizer::run),
    ("yaml", yaml::run),
];
