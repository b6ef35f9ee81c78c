//! Saves dictionaries in SAELens's format, and sets of transcoders in circuit-tracer's.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use burn::tensor::{Tensor, TensorData};
use hooklens_hooks::{Activation, FolderLock, Together, file_bytes, write_safetensors_to};
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::Xxh3;

use super::architecture::Architecture;
use super::dictionary::Dictionary;
use super::labels::Labels;
use super::normalization::Normalization;
use super::open::numbered;
use super::transcoders::Transcoders;
use crate::error::FeatureError;
use hooklens_model::error::{Result, load_errors};
use hooklens_model::model::Hashed;

/// The version of SAELens whose format is written.
const VERSION: &str = "6.54.12";
/// Name of the file that describes a set of transcoders.
const SET: &str = "config.yaml";
/// Names of the files of a single dictionary.
const SINGLE: [&str; 3] = ["cfg.json", "sae_weights.safetensors", "labels.json"];
/// Key of a hash that is stored both in weight files and in their description, to detect a folder that mixes files of
/// two dictionaries.
pub(crate) const WEIGHTS: &str = "hooklens_weights";
/// Key of the metadata of all layers of a set of transcoders, as the text of a JSON list.
pub(crate) const METADATA: &str = "hooklens_metadata";
/// The `model_name` of transcoders that don't name their model, because circuit-tracer requires one.
pub(crate) const UNKNOWN: &str = "unknown";
/// Key of the version of hooklens that saved a dictionary.
pub(crate) const WRITER: &str = "hooklens_version";

impl Dictionary {
    /// Saves `cfg.json` and `sae_weights.safetensors` in SAELens's format to a folder, creating it if needed. Both
    /// SAELens and [`Dictionary::open`] can read it. Factors that the format does not support are folded into the
    /// weights. Labels are saved in `labels.json`. The files of an earlier dictionary or set are replaced all at
    /// once. If saving fails, they are all kept.
    ///
    /// ```
    /// # use hooklens::features::{Dictionary, DictionaryWeights};
    /// # use hooklens::prelude::*;
    /// # let device = Device::flex();
    /// # let weights = DictionaryWeights {
    /// #     encoder: Tensor::ones([2, 3], &device), encoder_bias: Tensor::zeros([3], &device),
    /// #     decoder: Tensor::ones([3, 2], &device), decoder_bias: Tensor::zeros([2], &device), skip: None,
    /// # };
    /// # let sae = Dictionary::new("by hand", weights)?;
    /// # let folder = tempfile::tempdir()?;
    /// sae.save(folder.path())?;
    /// let again = Dictionary::open(folder.path())?;
    /// assert_eq!(again.latents(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`FeatureError::Kind`] for an architecture that SAELens does not have; also fails if the folder cannot be
    /// written, or if another process is writing to it.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        save(folder.as_ref(), |files| self.add_files(folder.as_ref(), files))
    }

    fn saelens_config(&self) -> Result<Value> {
        let unknown = |reason: String| FeatureError::Kind { dictionary: self.name.to_string(), reason };
        let transcoder = self.is_transcoder();
        let architecture = match (&self.architecture, transcoder, self.has_skip()) {
            (Architecture::Standard, true, false) => "transcoder",
            (Architecture::Standard, true, true) => "skip_transcoder",
            (Architecture::JumpRelu { .. }, true, false) => "jumprelu_transcoder",
            (Architecture::JumpRelu { .. }, true, true) => "jumprelu_skip_transcoder",
            (Architecture::GroupMax { .. }, ..) | (_, true, _) | (_, _, true) => {
                let what = if transcoder { "transcoder" } else { "dictionary" };
                return Err(unknown(format!(
                    "SAELens does not support a {what} with the architecture {}",
                    self.architecture
                ))
                .into());
            }
            (other, false, false) => other.name(),
        };
        if let Architecture::JumpRelu { thresholds, positive: false } = &self.architecture
            && thresholds.iter().any(|threshold| *threshold < 0.0)
        {
            let reason = "SAELens's JumpReLU does not support negative activations, but these thresholds allow them";
            return Err(unknown(reason.into()).into());
        }
        let versions = [("sae_lens_version", VERSION), (WRITER, env!("CARGO_PKG_VERSION"))];
        let mut metadata: Map<String, Value> =
            versions.map(|(key, version)| (key.into(), version.into())).into_iter().collect();
        for (key, value) in self.metadata.to_json() {
            metadata.entry(key).or_insert(value);
        }
        let mut cfg = Map::from_iter([
            ("architecture".to_string(), Value::from(architecture)),
            ("d_in".to_string(), self.d_in().into()),
            ("d_sae".to_string(), self.latents().into()),
            ("dtype".to_string(), "float32".into()),
            ("device".to_string(), "cpu".into()),
            ("apply_b_dec_to_input".to_string(), self.centered.into()),
            ("normalize_activations".to_string(), self.normalization.name().into()),
            ("reshape_activations".to_string(), if self.by_heads { "hook_z" } else { "none" }.into()),
        ]);
        match &self.architecture {
            Architecture::TopK { k } | Architecture::AbsTopK { k } => {
                cfg.insert("k".into(), (*k).into());
                cfg.insert("rescale_acts_by_decoder_norm".into(), self.by_norms.into());
            }
            Architecture::MatchingPursuit { residual_threshold, max_iterations, until_repeated } => {
                cfg.insert("residual_threshold".into(), json!(residual_threshold));
                cfg.insert("max_iterations".into(), (*max_iterations).into());
                cfg.insert("stop_on_duplicate_support".into(), (*until_repeated).into());
            }
            _ => {}
        }
        if transcoder {
            cfg.insert("d_out".into(), self.d_out().into());
        }
        cfg.insert("metadata".into(), metadata.into());
        Ok(cfg.into())
    }

    fn saelens_tensors(&self) -> Result<Vec<(String, Activation)>> {
        let vector = |numbers: &[f32]| -> Activation {
            Tensor::<1>::from_data(TensorData::new(numbers.to_vec(), [numbers.len()]), &self.encoder_bias.device())
                .into()
        };
        let mut tensors: Vec<(String, Activation)> =
            vec![("W_dec".into(), self.decoder()?.into()), ("b_dec".into(), self.decoder_bias.clone().into())];
        match &self.architecture {
            Architecture::MatchingPursuit { .. } => return Ok(tensors),
            Architecture::Gated { gate_bias, log_scale } => tensors.extend([
                ("b_gate".to_string(), vector(gate_bias)),
                ("r_mag".to_string(), vector(log_scale)),
                ("b_mag".to_string(), self.encoder_bias.clone().into()),
            ]),
            Architecture::JumpRelu { thresholds, .. } => tensors.push(("threshold".into(), vector(thresholds))),
            _ => {}
        }
        tensors.push(("W_enc".into(), self.encoder()?.into()));
        if !matches!(self.architecture, Architecture::Gated { .. }) {
            tensors.push(("b_enc".into(), self.encoder_bias.clone().into()));
        }
        if let Some(skip) = self.skip()? {
            tensors.push(("W_skip".into(), skip.transpose().into()));
        }
        Ok(tensors)
    }
}

/// Writes a set of files to a folder, replacing them all at once.
fn save(folder: &Path, add: impl FnOnce(&mut Together) -> Result<()>) -> Result<()> {
    fs::create_dir_all(folder).map_err(load_errors::cant_write(folder))?;
    let _lock = FolderLock::take(folder).map_err(FeatureError::Locked)?;
    let mut files = Together::new();
    add(&mut files)?;
    Ok(files.finish().map_err(load_errors::cant_write(folder))?)
}

/// Adds a file to a set of files.
pub(super) fn add_file(files: &mut Together, path: &Path, bytes: &[u8]) -> Result<()> {
    let written = files.add(path).and_then(|file| file.write_all(bytes));
    Ok(written.map_err(load_errors::cant_write(path))?)
}

/// Adds a file of named tensors with a hash in its header, and returns the hash.
fn add_tensors(files: &mut Together, path: &Path, tensors: &[(String, Activation)]) -> Result<String> {
    let failed = load_errors::cant_write(path);
    let mut hash = Xxh3::new();
    for (name, tensor) in tensors {
        hash.update(format!("{name} {:?} ", tensor.shape()).as_bytes());
        hash.update(&file_bytes(tensor, tensor.to_data()?));
    }
    let hash = format!("{:032x}", hash.digest128());
    let file = files.add(path).map_err(&failed)?;
    let mut buffered = BufWriter::with_capacity(1 << 20, file);
    let named = tensors.iter().map(|(name, tensor)| (name.clone(), tensor));
    let metadata = HashMap::from([(WEIGHTS.to_string(), hash.clone())]);
    write_safetensors_to(&mut buffered, named, metadata).map_err(|e| failed(std::io::Error::other(e)))?;
    buffered.flush().map_err(&failed)?;
    Ok(hash)
}

impl Transcoders {
    /// Saves `config.yaml` and one file per layer (two for a cross-layer transcoder) in circuit-tracer's format to a
    /// folder, creating it if needed. Both circuit-tracer and [`Transcoders::open`] can read it. Labels are saved in
    /// `labels_0.json` and so on. The files of an earlier set or dictionary are replaced all at once. If saving fails,
    /// they are all kept.
    ///
    /// # Errors
    /// [`FeatureError::Kind`] for dictionaries that the format does not support; also fails if the folder cannot be
    /// written, or if another process is writing to it.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        save(folder.as_ref(), |files| self.add_files(folder.as_ref(), files))
    }

    /// The contents of `config.yaml`.
    fn yaml(&self) -> Result<String> {
        let unknown = |layer: &Dictionary, reason: String| {
            hooklens_model::error::Error::from(FeatureError::Kind { dictionary: layer.name().to_string(), reason })
        };
        let mut text = String::new();
        let mut say = |key: &str, value: Value| {
            // JSON values are valid YAML.
            writeln!(text, "{key}: {value}").ok();
        };
        let Some(first) = self.layers().first() else { return Ok(text) };
        let point = |name: &Option<String>| {
            let name = name.as_deref().unwrap_or_default();
            name.splitn(3, '.').nth(2).filter(|_| name.starts_with("blocks.")).map(str::to_string)
        };
        let read = point(&first.metadata.reads).unwrap_or_else(|| "mlp.hook_in".into());
        let write = point(&first.metadata.writes).unwrap_or_else(|| "hook_mlp_out".into());
        let width = |architecture: &Architecture| match architecture {
            Architecture::TopK { k } => Some(*k),
            _ => None,
        };
        for (number, layer) in self.layers().iter().enumerate() {
            let scaled = match layer.normalization {
                Normalization::None => false,
                Normalization::Scale(Some(_)) => true,
                _ => return Err(unknown(layer, "circuit-tracer's format cannot store its normalization".into())),
            };
            // A dictionary that names no point may be either.
            if !layer.is_transcoder() && (scaled || layer.centered || layer.metadata.reads.is_some()) {
                return Err(unknown(layer, "circuit-tracer's format stores transcoders, not autoencoders".into()));
            }
            if layer.architecture.name() != first.architecture.name()
                || width(&layer.architecture) != width(&first.architecture)
            {
                let reason = format!(
                    "it is {}, but layer 0 is {}; circuit-tracer's format requires one architecture for all layers",
                    layer.architecture, first.architecture
                );
                return Err(unknown(layer, reason));
            }
            for (given, end) in [(&layer.metadata.reads, &read), (&layer.metadata.writes, &write)] {
                let wanted = format!("blocks.{number}.{end}");
                if let Some(given) = given.as_ref().filter(|given| **given != wanted) {
                    let reason = format!(
                        "it is at `{given}`, but circuit-tracer's format requires layer {number} to be at `{wanted}`"
                    );
                    return Err(unknown(layer, reason));
                }
            }
        }
        let kind = if self.is_cross_layer() { "cross_layer_transcoder" } else { "transcoder_set" };
        say("model_kind", kind.into());
        say("model_name", first.metadata.model.as_deref().unwrap_or(UNKNOWN).into());
        say("feature_input_hook", read.into());
        say("feature_output_hook", write.into());
        match &first.architecture {
            Architecture::Standard => say("activation", "relu".into()),
            Architecture::TopK { k } => {
                say("activation", "topk".into());
                say("k", (*k).into());
            }
            Architecture::JumpRelu { .. } => {}
            other => {
                return Err(unknown(
                    first,
                    format!("circuit-tracer does not support transcoders with the architecture {other}"),
                ));
            }
        }
        let metadata: Vec<Value> = self.layers().iter().map(|layer| layer.metadata.to_json().into()).collect();
        say(METADATA, Value::from(metadata).to_string().into());
        Ok(text)
    }
}

/// Removes the weights and labels of an earlier set of transcoders, which would otherwise be read as part of the saved
/// one. Files whose name is in `kept` are only removed for layers that the new set does not have.
fn remove_set(folder: &Path, layers: usize, kept: &[&str], files: &mut Together) {
    for name in ["W_enc", "W_dec", "layer"] {
        let first = if kept.contains(&name) { layers } else { 0 };
        let numbered = numbered(folder, &format!("{name}_"));
        numbered.into_iter().filter(|(layer, _)| *layer >= first).for_each(|(_, path)| files.remove(&path));
    }
    Labels::remove_from(folder, layers, files);
}

/// Methods for commands that write the files of dictionaries and transcoders together with other files, or compare
/// dictionaries by hash.
pub trait DictionaryFiles {
    /// Adds the files to a set of files for the same folder, the description last.
    ///
    /// # Errors
    /// Same as [`Dictionary::save`].
    fn add_files(&self, folder: &Path, files: &mut Together) -> Result<()>;

    /// A 128-bit XXH3 hash of all weights and settings, like `ModelWeights::fingerprint` for models. Every
    /// process computes the same hash, and different dictionaries have different hashes.
    ///
    /// ```
    /// use hooklens::features::{Architecture, Dictionary, DictionaryWeights};
    /// use hooklens_features::DictionaryFiles;
    /// use hooklens::prelude::*;
    /// # let device = Device::flex();
    /// # let weights = DictionaryWeights {
    /// #     encoder: Tensor::ones([4, 8], &device), encoder_bias: Tensor::zeros([8], &device),
    /// #     decoder: Tensor::ones([8, 4], &device), decoder_bias: Tensor::zeros([4], &device), skip: None,
    /// # };
    /// let sae = Dictionary::new("by hand", weights)?;
    /// assert_eq!(sae.fingerprint()?, sae.clone().fingerprint()?);
    /// assert_ne!(sae.fingerprint()?, sae.clone().with_architecture(Architecture::TopK { k: 2 })?.fingerprint()?);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if weights cannot be read.
    fn fingerprint(&self) -> Result<String>;
}

impl DictionaryFiles for Dictionary {
    fn add_files(&self, folder: &Path, files: &mut Together) -> Result<()> {
        let folded = self.fold_center()?.fold_scale()?;
        let ranks = matches!(folded.architecture, Architecture::TopK { .. } | Architecture::AbsTopK { .. });
        // The format supports ranking by decoder norms, but not finetuned factors.
        let folded = match ranks && folded.finetuned.is_none() {
            true => folded,
            false => folded.fold_ranking_norms()?.fold_finetuned()?,
        };
        let mut cfg = folded.saelens_config()?;
        let weights = add_tensors(files, &folder.join("sae_weights.safetensors"), &folded.saelens_tensors()?)?;
        self.labels.add(folder, files)?;
        remove_set(folder, 0, &[], files);
        files.remove(&folder.join(SET));
        cfg["metadata"][WEIGHTS] = weights.into();
        add_file(files, &folder.join("cfg.json"), format!("{cfg:#}\n").as_bytes())
    }

    fn fingerprint(&self) -> Result<String> {
        if let Some(known) = self.computed.fingerprint.get() {
            return Ok(known.clone());
        }
        let hash = self.hash_with("", [])?;
        Ok(self.computed.fingerprint.get_or_init(|| hash).clone())
    }
}

impl DictionaryFiles for Transcoders {
    fn add_files(&self, folder: &Path, files: &mut Together) -> Result<()> {
        let mut config = self.yaml()?;
        let mut weights = Vec::new();
        for (layer, own) in self.layers().iter().enumerate() {
            let own = own.fold_center()?.fold_scale()?.fold_ranking_norms()?.fold_finetuned()?;
            let cross = self.is_cross_layer();
            let named = |name: &str| if cross { format!("{name}_{layer}") } else { name.to_string() };
            let mut tensors: Vec<(String, Activation)> = vec![
                (named("W_enc"), own.encoder()?.transpose().into()),
                (named("b_enc"), own.encoder_bias().into()),
                (named("b_dec"), own.decoder_bias().into()),
            ];
            if let Architecture::JumpRelu { thresholds, positive } = own.architecture() {
                // In this format, activations can be negative if thresholds are.
                let least = if *positive { 0.0 } else { f32::NEG_INFINITY };
                let numbers: Vec<f32> = thresholds.iter().map(|threshold| threshold.max(least)).collect();
                let data = TensorData::new(numbers, [thresholds.len()]);
                let name = if cross { named("threshold") } else { "activation_function.threshold".into() };
                tensors.push((name, Tensor::<1>::from_data(data, &own.encoder_bias().device()).into()));
            }
            let decoder = own.decoder()?;
            if cross {
                let mut parts = vec![decoder.unsqueeze_dim::<3>(1)];
                for to in layer + 1..self.layers().len() {
                    parts.extend(self.decoder_across(layer, to)?.map(|across| across.unsqueeze_dim::<3>(1)));
                }
                let decoders = [(named("W_dec"), Tensor::cat(parts, 1).into())];
                if let Some(skip) = own.skip()? {
                    tensors.push((named("W_skip"), skip.into()));
                }
                weights.push(add_tensors(files, &folder.join(format!("W_dec_{layer}.safetensors")), &decoders)?);
                weights.push(add_tensors(files, &folder.join(format!("W_enc_{layer}.safetensors")), &tensors)?);
            } else {
                tensors.push(("W_dec".into(), decoder.into()));
                if let Some(skip) = own.skip()? {
                    tensors.push(("W_skip".into(), skip.transpose().into()));
                }
                weights.push(add_tensors(files, &folder.join(format!("layer_{layer}.safetensors")), &tensors)?);
            }
            own.labels().add_of_layer(folder, layer, files)?;
        }
        let kept: &[&str] = if self.is_cross_layer() { &["W_enc", "W_dec"] } else { &["layer"] };
        remove_set(folder, self.layers().len(), kept, files);
        SINGLE.iter().for_each(|name| files.remove(&folder.join(name)));
        writeln!(config, "{WRITER}: {}", Value::from(env!("CARGO_PKG_VERSION"))).ok();
        writeln!(config, "{WEIGHTS}: {}", Value::from(weights)).ok();
        add_file(files, &folder.join(SET), config.as_bytes())
    }

    fn fingerprint(&self) -> Result<String> {
        let mut hashed = Vec::new();
        for (from, layer) in self.layers().iter().enumerate() {
            let across = (from + 1..self.layers().len()).filter_map(|to| self.across(from, to));
            hashed.push(layer.hash_with("", across)?);
        }
        Hashed::default().finish(hashed.join(" ").as_bytes())
    }
}
