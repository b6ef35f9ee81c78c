//! All integration tests in one binary, so that Burn is linked once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod activation_store;
mod adapters;
mod analysis;
mod analysis_parity;
mod architecture;
mod attn_experts;
mod attribution;
mod backward_rules;
mod belonging;
mod bf16_products;
mod cache;
mod cache_laws;
mod cache_systems;
mod circuit_command;
mod circuit_laws;
mod circuit_parity;
mod circuit_proofs;
mod circuits;
mod contract;
mod corpora;
mod decoder_cache_laws;
mod dense;
mod devices;
mod dictionaries_in_use;
mod dictionary_files;
mod documents;
mod dump;
mod dumped_models;
mod edits;
mod embedded;
mod encoders;
mod ends;
mod errors;
mod evaluation;
mod falcon_h1;
mod features;
mod fingerprint;
mod fixture_sizes;
mod gated_delta;
mod gemma4;
mod generation;
#[cfg(feature = "wgpu")]
mod gpu;
mod gradients;
mod graphs;
mod guide;
mod laws;
mod left_out;
mod lens;
mod loading;
mod lone_parts;
mod marian;
mod narrow;
mod neuronpedia;
mod newer_files;
mod node_circuits;
mod numpy;
mod object_stores;
mod outputs;
mod own_models;
mod pairs_that_differ;
mod parity;
mod parts_by_name;
mod patch_kinds;
mod patching;
mod plot;
mod point_names;
mod positions;
mod prefix;
mod prelude;
mod processed_dictionaries;
mod published;
mod quantized;
mod quantized_activations;
mod reference;
#[cfg(feature = "remote")]
mod remote;
mod results;
mod seeded;
#[cfg(feature = "remote")]
mod serve_guard;
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
mod weights;
mod writers;

/// Tests that do not depend on the device: of file formats, commands (each test starts a process) and pages. CI
/// runs them on the CPU only. In other files, single tests of this kind are in a module `once`.
#[path = "."]
mod once {
    mod attention_view;
    mod cli;
    mod clusters;
    pub(crate) mod dashboards;
    mod described_files;
    mod dictionary_training;
    mod gguf;
    mod graph_command;
    // Runs Bash.
    #[cfg(unix)]
    mod guide_commands;
    mod hostile;
    #[cfg(feature = "hub")]
    mod hub;
    // These tests kill commands that run on the CPU, so a LibTorch build would only repeat them.
    #[cfg(all(unix, not(feature = "libtorch")))]
    mod interrupted;
    mod limits;
    mod mistakes;
    mod model_kinds;
    mod notebook;
    pub(crate) mod notebook_twins;
    // Null settings are read alike on every device.
    mod nulls;
    mod packed_dumps;
    mod pictures;
    mod prompt_sets;
    mod refused_files;
    pub(crate) mod shell;
    mod special_files;
}
// The notebooks' twins import from this path.
use once::notebook_twins;
