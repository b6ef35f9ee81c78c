//! All integration tests in one program, so that Burn is linked once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod activation_store;
mod adapters;
mod analysis;
mod analysis_parity;
mod architecture;
mod attention_view;
mod attn_experts;
mod attribution;
mod belonging;
mod cache;
mod cache_laws;
mod cache_systems;
mod circuits;
mod cli;
mod clusters;
mod contract;
mod corpora;
mod dashboards;
mod decoder_cache_laws;
mod dense;
mod devices;
mod dictionaries_in_use;
mod dictionary_files;
mod dictionary_training;
mod documents;
mod dump;
mod dumped_models;
mod edits;
mod embedded;
mod encoders;
mod ends;
mod errors;
mod evaluation;
mod features;
mod fingerprint;
mod fixture_sizes;
mod gated_delta;
mod gemma4;
mod generation;
mod gguf;
#[cfg(feature = "wgpu")]
mod gpu;
mod gradients;
mod graph_command;
mod graphs;
mod guide;
mod hostile;
#[cfg(feature = "hub")]
mod hub;
// Commands to be killed run on the CPU. With LibTorch built in, they would test nothing more.
#[cfg(all(unix, not(feature = "libtorch")))]
mod interrupted;
mod laws;
mod left_out;
mod lens;
mod limits;
mod loading;
mod lone_parts;
mod marian;
mod model_kinds;
mod narrow;
mod neuronpedia;
mod newer_files;
mod notebook;
mod notebook_twins;
mod nulls;
mod numpy;
mod object_stores;
mod outputs;
mod pairs_that_differ;
mod parity;
mod parts_by_name;
mod patch_kinds;
mod patching;
mod pictures;
mod plot;
mod positions;
mod prefix;
mod prelude;
mod processed_dictionaries;
mod published;
mod quantized;
mod readme;
mod reference;
#[cfg(feature = "remote")]
mod remote;
mod seeded;
#[cfg(feature = "remote")]
mod serve_guard;
mod shell;
mod special_files;
mod splice;
mod support;
mod svg;
mod tensor_ext;
mod text_after_prefix;
mod tokenizer_files;
mod tokens;
mod top_examples;
mod trained;
mod training;
mod transformer_lens_4;
mod variants;
mod writers;
