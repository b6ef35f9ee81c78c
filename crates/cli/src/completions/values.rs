//! Values that may follow the cursor: models, dictionaries, and the points, layers and heads of the model that is named
//! on the same command line.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use hooklens_loading::embedded::{embedded_dictionaries, embedded_models};
use hooklens_loading::loading::{ModelConfig, inspect};

use super::bash::joined;
use crate::args::MODEL_VARIABLE;
use crate::hooks::catalog;

/// Embedded models and paths.
pub(crate) fn model() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| with_paths(typed, embedded_models()))
}

/// Embedded dictionaries and paths.
pub(crate) fn dictionary() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| with_paths(typed, embedded_dictionaries()))
}

/// Device names, separated by commas.
pub(crate) fn devices() -> ArgValueCompleter {
    let names = || ["flex", "libtorch", "libtorch:cuda:0", "cuda:0", "vulkan:0", "metal:0", "wgpu:0", "remote:ws://"];
    list(move || names().map(String::from).to_vec())
}

/// Names and globs of the model's points, separated by commas.
pub(crate) fn globs() -> ArgValueCompleter {
    list(|| {
        let names = point_names();
        let globs: BTreeSet<String> = names.iter().filter_map(|name| all_layers(name)).collect();
        globs.into_iter().chain(names).collect()
    })
}

/// Names of the model's points, separated by commas.
pub(crate) fn points() -> ArgValueCompleter {
    list(point_names)
}

/// Numbers of the model's layers, separated by commas.
pub(crate) fn layers() -> ArgValueCompleter {
    list(|| match named_model() {
        None => Vec::new(),
        Some(config) => (0..catalog(&config).n_layers()).map(|layer| layer.to_string()).collect(),
    })
}

/// Numbers of the model's heads, separated by commas.
pub(crate) fn heads() -> ArgValueCompleter {
    list(|| {
        let count = match named_model() {
            None => 0,
            Some(ModelConfig::Decoder(config)) => config.n_heads(),
            Some(ModelConfig::Encoder(config, _)) => config.n_heads,
            Some(ModelConfig::EncoderDecoder(config)) => config.n_heads,
        };
        (0..count).map(|head| head.to_string()).collect()
    })
}

fn with_paths(typed: &OsStr, names: impl Iterator<Item = &'static str>) -> Vec<CompletionCandidate> {
    let names = names.map(|name| format!("embedded:{name}"));
    let typed_text = typed.to_string_lossy();
    let named = names.filter(|name| name.starts_with(&*typed_text)).map(CompletionCandidate::new);
    named.chain(PathCompleter::any().complete(typed)).collect()
}

/// Completes the last value of a list.
fn list(values: impl Fn() -> Vec<String> + Send + Sync + 'static) -> ArgValueCompleter {
    ArgValueCompleter::new(move |typed: &OsStr| {
        let Some(typed) = typed.to_str() else { return Vec::new() };
        let (before, last) = typed.rsplit_once(',').map_or(("", typed), |(before, last)| (before, last));
        let before = if before.is_empty() { String::new() } else { format!("{before},") };
        let fitting = values().into_iter().filter(|value| value.starts_with(last));
        fitting.map(|value| CompletionCandidate::new(format!("{before}{value}"))).collect()
    })
}

fn point_names() -> Vec<String> {
    let Some(config) = named_model() else { return Vec::new() };
    catalog(&config).points().iter().map(|point| point.name.to_string()).collect()
}

/// The glob for a point in all layers: `blocks.*.hook_resid_post`.
fn all_layers(name: &str) -> Option<String> {
    let parts: Vec<&str> = name.split('.').collect();
    let layer = parts.iter().position(|part| part.parse::<usize>().is_ok())?;
    Some([&parts[..layer], &["*"], &parts[layer + 1..]].concat().join("."))
}

/// The configuration of the model that the command line or the environment names. Only models on this machine are
/// read, because a shell waits for the answer.
fn named_model() -> Option<ModelConfig> {
    let words: Vec<OsString> = joined(&std::env::args_os().skip_while(|word| word != "--").skip(1).collect::<Vec<_>>());
    let model = (words.iter().enumerate())
        .find_map(|(at, word)| match word.to_str()?.strip_prefix("--model")? {
            "" => words.get(at + 1)?.to_str().map(String::from),
            rest => rest.strip_prefix('=').map(String::from),
        })
        .or_else(|| std::env::var(MODEL_VARIABLE).ok())?;
    let here = model.starts_with("embedded:") || Path::new(&model).exists();
    here.then(|| inspect(&model).ok()).flatten().map(|info| info.config)
}
