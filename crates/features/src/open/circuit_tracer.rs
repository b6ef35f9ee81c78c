//! circuit-tracer's folders: `config.yaml` with one file per layer (a set) or two files per layer (a cross-layer
//! transcoder); and Gemma Scope 2's cross-layer transcoders, with one file per layer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde_json::{Map, Value};
use yaml_rust2::Yaml;

use super::{Found, Lies, Parts, yaml};
use crate::architecture::Architecture;
use crate::dictionary::Dictionary;
use crate::error::FeatureError;
use crate::matrix::Matrix;
use crate::metadata::{ExcludedTokens, Metadata};
use crate::save::{METADATA, UNKNOWN, WEIGHTS};
use hooklens_io::excerpt::excerpt;
use hooklens_io::regular;
use hooklens_loading::embedded::EmbeddedDictionary;
use hooklens_model::error::{Result, load_errors};

/// Transcoders of all layers.
pub(crate) struct Layers {
    pub(crate) transcoders: Vec<Dictionary>,
    /// For a cross-layer transcoder, each layer's decoders for later layers, nearest first.
    pub(crate) across: Option<Vec<Vec<Matrix>>>,
}

/// Contents of `config.yaml`.
#[derive(Default)]
struct Config {
    path: PathBuf,
    model: Option<String>,
    cross_layer: Option<bool>,
    read: Option<String>,
    write: Option<String>,
    activation: Option<String>,
    k: Option<usize>,
    /// Metadata of each layer, under a key specific to hooklens, which circuit-tracer ignores.
    layers: Vec<Metadata>,
    /// Keys of earlier versions of hooklens.
    prepend_bos: Option<bool>,
    excluded: ExcludedTokens,
    /// Hashes of the weight files.
    weights: Vec<String>,
    /// File names of the layers, if given.
    files: Vec<String>,
}

/// Parses the excluded tokens.
fn excluded(yaml: &Yaml) -> Option<ExcludedTokens> {
    match yaml {
        Yaml::BadValue | Yaml::Null | Yaml::Boolean(false) => Some(ExcludedTokens::None),
        Yaml::Boolean(true) => Some(ExcludedTokens::Special),
        Yaml::Array(ids) => ids.iter().map(|id| u32::try_from(id.as_i64()?).ok()).collect(),
        _ => None,
    }
}

/// Parses the metadata of all layers; on failure, returns the reason.
fn layers(yaml: &Yaml) -> Result<Vec<Metadata>, String> {
    let text = yaml.as_str().ok_or("it is not a text")?;
    let layers: Vec<Map<String, Value>> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    layers.into_iter().map(Metadata::of_json).collect()
}

impl Config {
    fn read(path: PathBuf) -> Result<Self> {
        let text = regular::read(&path).map_err(load_errors::cant_read(&path))?;
        Self::parsed(&String::from_utf8_lossy(&text), path)
    }

    fn parsed(text: &str, path: PathBuf) -> Result<Self> {
        let wrong = |reason: String| FeatureError::Setting { path: path.clone(), reason };
        let Some(yaml) = yaml::first(text).map_err(wrong)? else {
            return Err(wrong("the file is empty".into()).into());
        };
        let text = |key: &str| yaml[key].as_str().map(str::to_string);
        let list = |key: &str| match &yaml[key] {
            Yaml::BadValue | Yaml::Null => Ok(Vec::new()),
            value => {
                let texts =
                    value.as_vec().and_then(|all| all.iter().map(|one| Some(one.as_str()?.to_string())).collect());
                texts.ok_or_else(|| wrong(format!("`{key}` is not a list of texts")))
            }
        };
        let named: Vec<String> = list("transcoders")?;
        if let Some(remote) = named.iter().find(|name| name.contains("://")) {
            let what = format!("fetching a layer from `{remote}` instead of a local file");
            return Err(FeatureError::Unsupported { path, what }.into());
        }
        Ok(Self {
            model: text("model_name").filter(|name| name != UNKNOWN),
            cross_layer: text("model_kind").map(|kind| kind == "cross_layer_transcoder"),
            read: text("feature_input_hook"),
            write: text("feature_output_hook"),
            activation: text("activation"),
            k: yaml["k"].as_i64().and_then(|k| usize::try_from(k).ok()),
            prepend_bos: yaml["prepend_bos"].as_bool(),
            excluded: excluded(&yaml["exclude_special_tokens"])
                .ok_or_else(|| wrong("`exclude_special_tokens` is not a boolean or a list of token ids".into()))?,
            layers: match &yaml[METADATA] {
                Yaml::BadValue | Yaml::Null => Vec::new(),
                value => layers(value).map_err(|reason| wrong(format!("`{METADATA}`: {reason}")))?,
            },
            weights: list(WEIGHTS)?,
            files: named,
            path,
        })
    }

    /// Fails if a weight file belongs to a different set, or if `config.yaml` has hashes, but none for this file.
    fn check_belongs(&self, found: &Found, number: usize) -> Result<()> {
        if !self.weights.is_empty() {
            found.check_belongs(&self.path, self.weights.get(number).map_or("", String::as_str))?;
        }
        Ok(())
    }

    fn metadata(&self, layer: usize) -> Metadata {
        let point = |name: &Option<String>| name.as_ref().map(|name| format!("blocks.{layer}.{name}"));
        let mut metadata = self.layers.get(layer).cloned().unwrap_or_default();
        metadata.reads = point(&self.read);
        metadata.writes = Some(point(&self.write).unwrap_or_else(|| format!("blocks.{layer}.hook_mlp_out")));
        metadata.model = self.model.clone().or(metadata.model);
        metadata.prepend_bos = self.prepend_bos.or(metadata.prepend_bos);
        if self.excluded != ExcludedTokens::None {
            metadata.exclude_special_tokens.clone_from(&self.excluded);
        }
        metadata
    }

    fn architecture(&self, found: &Found, threshold: &str, latents: usize) -> Result<Architecture> {
        if found.has(threshold) {
            return Ok(Architecture::JumpRelu { thresholds: found.numbers(threshold, latents)?, positive: false });
        }
        // A weight file may contain the k of TopK.
        let own = if found.has("k") { found.integer("k")? } else { None };
        match self.activation.as_deref() {
            None if own.is_some() => Ok(Architecture::TopK { k: own.unwrap_or_default() }),
            None | Some("relu") => Ok(Architecture::Standard),
            Some("topk") => {
                let (path, reason) = (self.path.clone(), "`k` is missing".to_string());
                let k = self.k.or(own).ok_or(FeatureError::Setting { path, reason })?;
                Ok(Architecture::TopK { k })
            }
            Some(other) => {
                let (path, what) = (self.path.clone(), format!("the activation `{}`", excerpt(other)));
                Err(FeatureError::Unsupported { path, what }.into())
            }
        }
    }
}

/// The layers' files in a folder with this prefix, such as `layer_3.safetensors`, by layer.
pub(crate) fn numbered(folder: &Path, beginning: &str) -> BTreeMap<usize, PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return BTreeMap::new() };
    let files = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        let layer = path.file_name()?.to_str()?.strip_prefix(beginning)?.strip_suffix(".safetensors")?;
        let number: usize = layer.parse().ok()?;
        (number.to_string() == layer && path.is_file()).then_some((number, path))
    });
    files.collect()
}

/// The files of layers 0 to the last one found, and of at least `count` layers. Fails if one is missing.
fn gapless(folder: &Path, beginning: &str, count: usize) -> Result<Vec<PathBuf>, FeatureError> {
    let mut files = numbered(folder, beginning);
    let count = files.keys().next_back().map_or(0, |last| last + 1).max(count);
    let all = (0..count).map(|layer| files.remove(&layer).ok_or_else(|| missing(folder, beginning, layer)));
    all.collect()
}

fn missing(folder: &Path, beginning: &str, layer: usize) -> FeatureError {
    let there: Vec<String> =
        numbered(folder, beginning).keys().map(|layer| format!("{beginning}{layer}.safetensors")).collect();
    let there = if there.is_empty() { "none".to_string() } else { there.join(", ") };
    let reason = format!("{beginning}{layer} is missing from the set; found: {there}");
    FeatureError::Setting { path: folder.into(), reason }
}

/// Whether files named after layers form a set. They do if `config.yaml` declares one, if there is a file for layer 0,
/// or if several files contain a layer's tensors. A single file may be any dictionary.
fn is_set(config: &Config, folder: &Path, device: &Device) -> bool {
    let files = numbered(folder, "layer_");
    let Some((first, file)) = files.first_key_value() else { return false };
    let is_layer = |found: Found| {
        found.config.is_none() && ["W_enc", "b_enc", "W_dec", "b_dec"].iter().all(|name| found.has(name))
    };
    config.cross_layer.is_some()
        || *first == 0
        || files.len() > 1 && Found::of_file(file.clone(), device).is_ok_and(is_layer)
}

/// Opens the transcoders in a folder; `None` if it does not contain a set.
pub(crate) fn open(folder: &Path, device: &Device) -> Result<Option<Layers>> {
    let described = folder.join("config.yaml");
    let config = if described.is_file() { Config::read(described)? } else { Config::default() };
    let has = |beginning: &str| !numbered(folder, beginning).is_empty();
    let own_files = has("W_enc_") || has("W_dec_");
    let no_files = config.files.is_empty() && !has("params_layer_");
    if own_files && config.cross_layer != Some(false) || no_files && config.cross_layer == Some(true) {
        let count = config.weights.len() / 2;
        let (encoders, decoders) = (gapless(folder, "W_enc_", count)?, gapless(folder, "W_dec_", count)?);
        return cross_layer(&config, &encoders, &decoders, folder, device).map(Some);
    }
    let layers = match config.files.is_empty() {
        true if is_set(&config, folder, device) => gapless(folder, "layer_", config.weights.len())?,
        true => Vec::new(),
        false => config.files.iter().map(|file| folder.join(file)).collect(),
    };
    if let Some((layer, file)) = layers.iter().enumerate().find(|(_, file)| !file.is_file()) {
        let reason = format!("{}, the file for layer {layer}, is missing", file.display());
        return Err(FeatureError::Setting { path: config.path, reason }.into());
    }
    if !layers.is_empty() {
        let layers = layers.into_iter().map(|file| Found::of_file(file, device)).collect::<Result<Vec<_>>>()?;
        return set(&config, &layers, device).map(Some);
    }
    let layers = gapless(folder, "params_layer_", 0)?;
    if !layers.is_empty() { gemma_scope(&layers, folder, device).map(Some) } else { Ok(None) }
}

/// Opens transcoders embedded in the binary.
pub(crate) fn embedded(one: &EmbeddedDictionary, device: &Device) -> Result<Layers> {
    let named = |layer: usize| format!("embedded:{}/layer_{layer}", one.name);
    let config = Config::parsed(one.description, format!("embedded:{}", one.name).into())?;
    let files = one.weights.iter().enumerate();
    let files = files.map(|(layer, bytes)| Found::of_static(&named(layer), bytes, None, device));
    set(&config, &files.collect::<Result<Vec<_>>>()?, device)
}

/// Reads a set with one file per layer: `W_enc [F, d]`, `b_enc`, `W_dec [F, d]`, `b_dec`.
fn set(config: &Config, files: &[Found], device: &Device) -> Result<Layers> {
    let one = |(layer, found): (usize, &Found)| {
        // A set may contain Gemma Scope's original files.
        if found.path.extension().is_some_and(|ending| ending == "npz") {
            return Ok(Dictionary::of_file(&found.path, device)?.with_metadata(config.metadata(layer)));
        }
        config.check_belongs(found, layer)?;
        let [latents, d_in] = found.matrix_shape("W_enc")?;
        let [_, d_out] = found.matrix_shape("W_dec")?;
        let mut parts = Parts::new(
            found.matrix("W_enc", [d_in, latents], Lies::Turned)?,
            found.vector("b_enc", latents)?,
            found.matrix("W_dec", [latents, d_out], Lies::AsIs)?,
            found.vector("b_dec", d_out)?,
        );
        parts.architecture = config.architecture(found, "activation_function.threshold", latents)?;
        if found.has("W_skip") {
            parts.skip = Some(found.matrix("W_skip", [d_in, d_out], Lies::Turned)?);
        }
        parts.metadata = config.metadata(layer);
        parts.dictionary(found, "circuit-tracer")
    };
    Ok(Layers { transcoders: files.iter().enumerate().map(one).collect::<Result<_>>()?, across: None })
}

/// Reads a cross-layer transcoder with two files per layer: `W_enc_i [F, d]`, `b_enc_i`, `b_dec_i` and optionally
/// `W_skip_i [d_in, d_out]`; and `W_dec_i [F, L − i, d]`.
fn cross_layer(
    config: &Config,
    encoders: &[PathBuf],
    decoders: &[PathBuf],
    folder: &Path,
    device: &Device,
) -> Result<Layers> {
    let (count, written) = (encoders.len(), decoders.len());
    if written < count {
        return Err(missing(folder, "W_dec_", written).into());
    }
    if count == 0 || count < written {
        return Err(missing(folder, "W_enc_", count).into());
    }
    let mut layers = Layers { transcoders: Vec::new(), across: Some(Vec::new()) };
    for (layer, (file, decoders)) in encoders.iter().zip(decoders).enumerate() {
        let found = Found::of_file(file.clone(), device)?;
        let decoders = Found::of_file(decoders.clone(), device)?;
        config.check_belongs(&decoders, 2 * layer)?;
        config.check_belongs(&found, 2 * layer + 1)?;
        let [encoder, bias, center, threshold, decoder] =
            ["W_enc", "b_enc", "b_dec", "threshold", "W_dec"].map(|name| format!("{name}_{layer}"));
        let [latents, d_in] = found.matrix_shape(&encoder)?;
        let d_out = found.shape(&center)?.iter().product();
        let of = count - layer;
        // The first layer writes to all layers.
        if layer == 0 && decoders.shape(&decoder)?.get(1).is_some_and(|parts| *parts > of) {
            return Err(missing(folder, "W_enc_", count).into());
        }
        let part = |part: usize| decoders.matrix(&decoder, [latents, d_out], Lies::Part { part, of });
        let mut parts = Parts::new(
            found.matrix(&encoder, [d_in, latents], Lies::Turned)?,
            found.vector(&bias, latents)?,
            part(0)?,
            found.vector(&center, d_out)?,
        );
        parts.architecture = config.architecture(&found, &threshold, latents)?;
        let skip = format!("W_skip_{layer}");
        if found.has(&skip) {
            // circuit-tracer transposes the skip matrix in its per-layer sets, but not in its cross-layer class.
            parts.skip = Some(found.matrix(&skip, [d_in, d_out], Lies::AsIs)?);
        }
        parts.metadata = config.metadata(layer);
        layers.transcoders.push(parts.dictionary(&found, "circuit-tracer")?);
        let across = (1..of).map(part).collect::<Result<_>>()?;
        layers.across.get_or_insert_default().push(across);
    }
    Ok(layers)
}

/// Reads Gemma Scope 2's cross-layer transcoder: one file per layer, whose decoder has a part for every layer. Parts
/// for earlier layers are not used.
fn gemma_scope(files: &[PathBuf], folder: &Path, device: &Device) -> Result<Layers> {
    let count = files.len();
    let mut layers = Layers { transcoders: Vec::new(), across: Some(Vec::new()) };
    for (layer, file) in files.iter().enumerate() {
        let found = Found::of_file(file.clone(), device)?;
        let shape @ [d_in, latents] = found.matrix_shape("w_enc")?;
        let d_out = found.shape("b_dec")?.iter().product();
        if layer == 0 && found.shape("w_dec")?.get(1).is_some_and(|parts| *parts > count) {
            return Err(missing(folder, "params_layer_", count).into());
        }
        let part = |part: usize| found.matrix("w_dec", [latents, d_out], Lies::Part { part, of: count });
        let mut parts = Parts::new(
            found.matrix("w_enc", shape, Lies::AsIs)?,
            found.vector("b_enc", latents)?,
            part(layer)?,
            found.vector("b_dec", d_out)?,
        );
        parts.architecture =
            Architecture::JumpRelu { thresholds: found.numbers("threshold", latents)?, positive: true };
        if found.has("affine_skip_connection") {
            parts.skip = Some(found.matrix("affine_skip_connection", [d_in, d_out], Lies::AsIs)?);
        }
        let block = |point: &str| format!("blocks.{layer}.{point}");
        parts.metadata = Metadata::between(block("mlp.hook_in"), block("hook_mlp_out"));
        parts.metadata.prepend_bos = Some(true);
        layers.transcoders.push(parts.dictionary(&found, "Gemma Scope 2")?);
        let across = (layer + 1..count).map(part).collect::<Result<_>>()?;
        layers.across.get_or_insert_default().push(across);
    }
    Ok(layers)
}
