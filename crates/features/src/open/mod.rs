//! Published dictionary formats. The format is inferred from the contents of the files.

mod circuit_tracer;
mod dictionary_learning;
mod found;
mod gemma_scope;
mod hook_names;
mod linear_pair;
mod llama_scope;
mod openai;
mod saelens;
mod sparsify;
mod yaml;

use std::path::Path;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};

use super::Labels;
use super::architecture::Architecture;
use super::dictionary::Dictionary;
use super::matrix::{Lies, Matrix};
use super::metadata::Metadata;
use super::normalization::Normalization;
use super::transcoders::Transcoders;
use crate::error::FeatureError;
use found::Found;
use hooklens_loading::embedded::{EmbeddedDictionary, embedded_dictionaries, find_dictionary};
use hooklens_model::error::{LoadError, Result};

pub(super) use circuit_tracer::{Layers, embedded as embedded_layers, numbered, open as open_layers};

/// A format: how to recognize and how to read it.
struct Format {
    name: &'static str,
    fits: fn(&Found) -> bool,
    read: fn(&Found, &'static str) -> Result<Dictionary>,
}

/// The formats, most specific first.
const FORMATS: [Format; 9] = [
    Format { name: "SAELens", fits: saelens::fits, read: saelens::read },
    Format { name: "Kissane et al.", fits: saelens::fits_kissane, read: saelens::read_kissane },
    Format { name: "Gemma Scope", fits: gemma_scope::fits_first, read: gemma_scope::read },
    Format { name: "Gemma Scope 2", fits: gemma_scope::fits_second, read: gemma_scope::read },
    Format { name: "Llama Scope", fits: llama_scope::fits, read: llama_scope::read },
    Format { name: "sparsify", fits: sparsify::fits, read: sparsify::read },
    Format { name: "OpenAI", fits: openai::fits, read: openai::read },
    Format { name: "dictionary_learning", fits: dictionary_learning::fits, read: dictionary_learning::read },
    Format { name: "encoder and decoder", fits: linear_pair::fits, read: linear_pair::read },
];

/// Prefix of names of embedded dictionaries.
pub(super) const EMBEDDED: &str = "embedded:";

fn format_of(found: &Found) -> Option<&'static Format> {
    FORMATS.iter().find(|format| (format.fits)(found))
}

impl Dictionary {
    /// Opens a dictionary from a weight file, its folder, or a parent folder that contains no other dictionary. The
    /// path can also be the embedded `embedded:ioi-sae`, or a layer of a set of transcoders, such as `PATH/layer_3`.
    /// Reads only headers, biases and thresholds; matrices are read on first use.
    ///
    /// Supported formats: SAELens (before and since 6.0), Gemma Scope (`.npz`), Gemma Scope 2, sparsify,
    /// dictionary_learning, OpenAI, Llama Scope, Goodfire, DeepSeek R1, Kissane et al.
    ///
    /// ```no_run
    /// use hooklens::features::Dictionary;
    /// let sae = Dictionary::open("gemma-scope-2b-pt-res/layer_12/width_16k/average_l0_82")?;
    /// println!("{} latents of {}", sae.latents(), sae.d_in());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`FeatureError`] if no format matches (listing what was found), if there are several dictionaries, or if tensors
    /// are missing, have the wrong shape or are not finite; also fails if a file cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if let Some(layer) = layer_of_set(path)? {
            return Ok(layer);
        }
        if let Some(name) = path.to_str().and_then(|path| path.strip_prefix(EMBEDDED)) {
            let one = embedded_dictionary(name)?;
            if one.weights.len() > 1 {
                let found = (0..one.weights.len()).map(|layer| format!("layer_{layer}")).collect();
                return Err(FeatureError::Several { path: path.into(), found }.into());
            }
            let config = serde_json::from_str(one.description);
            let config = config.map_err(|source| LoadError::Json { path: path.into(), source })?;
            let bytes = one.weights.first().copied().unwrap_or_default();
            return Self::of_found(&Found::of_static(
                &format!("{EMBEDDED}{name}"),
                bytes,
                Some(config),
                &Device::flex(),
            )?);
        }
        if path.is_dir()
            && let Some(Layers { transcoders, .. }) = open_layers(path, &Device::flex())?
        {
            let found = (0..transcoders.len()).map(|layer| format!("layer_{layer}")).collect();
            return Err(FeatureError::Several { path: path.into(), found }.into());
        }
        if !path.try_exists().unwrap_or(true) {
            return Err(not_found(path).into());
        }
        Self::of_found(&Found::at(path, &Device::flex(), |found| format_of(found).is_some())?)
    }

    /// Opens the dictionary in a weight file of any format.
    pub(super) fn of_file(path: &Path, device: &Device) -> Result<Self> {
        Self::of_found(&Found::of_file(path.into(), device)?)
    }

    fn of_found(found: &Found) -> Result<Self> {
        match format_of(found) {
            Some(format) => (format.read)(found, format.name),
            None => Err(FeatureError::Unknown { path: found.path.clone(), found: found.tensors() }.into()),
        }
    }
}

/// Finds an embedded dictionary.
pub(super) fn embedded_dictionary(name: &str) -> Result<&'static EmbeddedDictionary, FeatureError> {
    find_dictionary(name).ok_or_else(|| not_found(Path::new(&format!("{EMBEDDED}{name}"))))
}

/// The error for a path with no dictionary.
fn not_found(path: &Path) -> FeatureError {
    let names: Vec<String> = embedded_dictionaries().map(|name| format!("{EMBEDDED}{name}")).collect();
    let given = path.to_str().unwrap_or_default();
    let reason = match names.iter().find(|name| name.strip_prefix(EMBEDDED) == Some(given)) {
        Some(name) => format!("there is no such file or folder; did you mean {name}?"),
        None => format!("there is no such dictionary; expected a file, a folder, or {}", names.join(" or ")),
    };
    FeatureError::Setting { path: path.into(), reason }
}

/// Opens one layer of a set of transcoders, given as `PATH/layer_3` or as the layer's file in the set's folder; `None`
/// if the path is neither.
fn layer_of_set(path: &Path) -> Result<Option<Dictionary>> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let number = name.strip_prefix("layer_").map(|rest| rest.strip_suffix(".safetensors").unwrap_or(rest));
    let (Some(layer), Some(set)) = (number.and_then(|number| number.parse::<usize>().ok()), path.parent()) else {
        return Ok(None);
    };
    let set = if set.as_os_str().is_empty() { Path::new(".") } else { set };
    let embedded = set.to_str().is_some_and(|set| set.starts_with(EMBEDDED));
    // A folder with this name takes precedence.
    if !embedded && (path.is_dir() || !set.is_dir()) {
        return Ok(None);
    }
    match Transcoders::open_if_one(set)? {
        Some(all) => all.layer(layer).map(Some),
        None => Ok(None),
    }
}

/// A dictionary under construction, as described by its format.
struct Parts {
    encoder: Matrix,
    encoder_bias: Tensor<1>,
    decoder: Matrix,
    decoder_bias: Tensor<1>,
    architecture: Architecture,
    metadata: Metadata,
    centered: bool,
    normalization: Normalization,
    skip: Option<Matrix>,
    finetuned: Option<Tensor<1>>,
    by_norms: bool,
    /// Whether the input consists of flattened heads; `None` if the files do not specify it, in which case it is
    /// inferred from the point.
    by_heads: Option<bool>,
}

impl Parts {
    /// A standard dictionary that does not normalize or center its input.
    fn new(encoder: Matrix, encoder_bias: Tensor<1>, decoder: Matrix, decoder_bias: Tensor<1>) -> Self {
        Self {
            encoder,
            encoder_bias,
            decoder,
            decoder_bias,
            architecture: Architecture::Standard,
            metadata: Metadata::default(),
            centered: false,
            normalization: Normalization::None,
            skip: None,
            finetuned: None,
            by_norms: false,
            by_heads: None,
        }
    }

    fn dictionary(self, found: &Found, format: &'static str) -> Result<Dictionary> {
        let made = Dictionary {
            name: found.name(),
            format,
            architecture: Architecture::Standard,
            normalization: self.normalization,
            by_heads: self.by_heads.unwrap_or(self.metadata.reads_all_heads()),
            metadata: self.metadata,
            centered: self.centered,
            by_norms: self.by_norms,
            finetuned: self.finetuned,
            encoder: self.encoder,
            decoder: self.decoder,
            encoder_bias: self.encoder_bias,
            decoder_bias: self.decoder_bias,
            skip: self.skip,
            labels: Labels::beside(found.folder())?,
            error_term: true,
            computed: Arc::default(),
        };
        // Make errors refer to the dictionary's files.
        made.with_architecture(self.architecture).map_err(|error| match error.downcast_ref() {
            Some(FeatureError::Kind { reason, .. }) => found.wrong(reason.clone()).into(),
            _ => error,
        })
    }
}

/// Encoder `[d_in, latents]` and decoder `[latents, d_out]` stored like `torch.nn.Linear`, with the encoder's bias.
fn linear_layers(found: &Found, [encoder, decoder]: [&str; 2]) -> Result<(Matrix, Tensor<1>, Matrix)> {
    let [weight, bias] = [format!("{encoder}.weight"), format!("{encoder}.bias")];
    let [latents, d_in] = found.matrix_shape(&weight)?;
    let decoder = format!("{decoder}.weight");
    let [d_out, _] = found.matrix_shape(&decoder)?;
    let encoder_bias = if found.has(&bias) { found.vector(&bias, latents)? } else { found.zeros(latents) };
    Ok((
        found.matrix(&weight, [d_in, latents], Lies::Turned)?,
        encoder_bias,
        found.matrix(&decoder, [latents, d_out], Lies::Turned)?,
    ))
}
