//! [`Transcoders`] of all layers of a model.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};

use super::dictionary::{Dictionary, placed};
use super::labels::Labels;
use super::matrix::Matrix;
use super::open::{EMBEDDED, Layers, embedded_dictionary, embedded_layers, open_layers};
use crate::error::FeatureError;
use hooklens_model::cpu;
use hooklens_model::error::Result;

/// A transcoder for each layer of a model: a set of per-layer transcoders, or a cross-layer transcoder, whose latents
/// write to their own and all later layers.
///
/// A layer's reconstruction is `Σ acts_i · W_dec_i→l + b_dec_l`, summed over layers `i ≤ l` (for a set, only `i = l`),
/// plus the skip connection of layer `l`.
///
/// ```
/// use hooklens::features::Transcoders;
/// // Or a folder in circuit-tracer's format, with config.yaml.
/// let set = Transcoders::open("embedded:ioi-transcoders")?;
/// for (layer, transcoder) in set.layers().iter().enumerate() {
///     println!("{layer}: {} latents from {:?}", transcoder.latents(), transcoder.metadata().reads);
/// }
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Transcoders {
    name: Arc<str>,
    layers: Vec<Dictionary>,
    /// Decoders of each layer's latents for later layers, nearest first.
    across: Option<Vec<Vec<Matrix>>>,
}

impl Transcoders {
    /// Opens a folder with a set of transcoders or a cross-layer transcoder, in circuit-tracer's format or as Gemma
    /// Scope 2's files for all layers. Reads only headers, biases and thresholds; if decoders are stored row by row,
    /// only the rows of active latents are ever read.
    ///
    /// # Errors
    /// [`FeatureError`] if the folder does not contain transcoders, or if tensors are missing or have the wrong shape.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        match Self::open_if_one(folder)? {
            Some(opened) => Ok(opened),
            None => {
                let found = std::fs::read_dir(folder).into_iter().flatten();
                let found = found.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
                Err(FeatureError::Unknown { path: folder.into(), found: found.collect() }.into())
            }
        }
    }

    /// Opens a folder like [`Transcoders::open`]; `None` if it does not contain transcoders.
    pub(super) fn open_if_one(folder: &Path) -> Result<Option<Self>> {
        let name = folder.to_str().and_then(|folder| folder.strip_prefix(EMBEDDED));
        // An embedded name with a slash refers to one layer of a set.
        let embedded = name.filter(|name| !name.contains('/')).map(embedded_dictionary);
        let layers = match embedded.transpose()? {
            Some(one) if one.weights.len() > 1 => Some(embedded_layers(one, &Device::flex())?),
            Some(_) => None,
            None if name.is_some() => None,
            None => open_layers(folder, &Device::flex())?,
        };
        let Some(Layers { transcoders, across }) = layers else { return Ok(None) };
        let mut layers = Vec::with_capacity(transcoders.len());
        for (layer, own) in transcoders.into_iter().enumerate() {
            if !own.labels().is_empty() {
                let reason =
                    "labels of a set of transcoders must be in one file per layer, such as labels_0.json".to_string();
                return Err(FeatureError::Setting { path: own.name().into(), reason }.into());
            }
            layers.push(own.with_labels(Labels::of_layer(folder, layer)?)?);
        }
        Ok(Some(Self { name: folder.display().to_string().into(), layers, across }))
    }

    /// A set of per-layer transcoders.
    pub fn new(name: impl Into<Arc<str>>, layers: Vec<Dictionary>) -> Self {
        Self { name: name.into(), layers, across: None }
    }

    /// Builds a cross-layer transcoder from each layer's own part and its decoders for later layers, `[latent, d_out]`,
    /// nearest layer first.
    pub(super) fn of_parts(name: impl Into<Arc<str>>, layers: Vec<Dictionary>, across: Vec<Vec<Tensor<2>>>) -> Self {
        let across = across.into_iter().map(|own| own.into_iter().map(Matrix::made).collect()).collect();
        Self { name: name.into(), layers, across: Some(across) }
    }

    /// Replaces the labels, by layer.
    ///
    /// # Errors
    /// [`FeatureError::Latent`] for a label of a latent that does not exist, [`FeatureError::Kind`] for labels of a
    /// layer that does not exist.
    pub fn with_labels(mut self, labels: BTreeMap<usize, Labels>) -> Result<Self> {
        for (layer, labels) in labels {
            let count = self.layers.len();
            let Some(own) = self.layers.get_mut(layer) else {
                let reason = format!("there are labels for layer {layer}, but only {count} layers");
                return Err(FeatureError::Kind { dictionary: self.name.to_string(), reason }.into());
            };
            *own = own.clone().with_labels(labels)?;
        }
        Ok(self)
    }

    /// Moves the transcoders to another device.
    #[must_use]
    pub fn to_device(&self, device: &Device) -> Self {
        let matrices = |all: &Vec<Matrix>| all.iter().map(|one| one.to_device(device)).collect();
        Self {
            name: self.name.clone(),
            layers: self.layers.iter().map(|layer| layer.to_device(device)).collect(),
            across: self.across.as_ref().map(|across| across.iter().map(matrices).collect()),
        }
    }

    /// The name: the folder that the transcoders were read from, or the name given to [`Transcoders::new`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether latents write to later layers.
    pub(crate) fn is_cross_layer(&self) -> bool {
        self.across.is_some()
    }

    /// The transcoders, in layer order. For a cross-layer transcoder, each entry has a layer's encoder, and its decoder
    /// for that same layer.
    pub fn layers(&self) -> &[Dictionary] {
        &self.layers
    }

    /// One layer of a set as a dictionary.
    ///
    /// ```
    /// use hooklens::features::Transcoders;
    /// let set = Transcoders::open("embedded:ioi-transcoders")?;
    /// assert_eq!(set.layer(2)?.metadata().writes.as_deref(), Some("blocks.2.hook_mlp_out"));
    /// assert!(set.layer(4).is_err());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`FeatureError::Kind`] for a layer that does not exist, and for a cross-layer transcoder, whose layers also
    /// depend on earlier ones.
    pub fn layer(&self, layer: usize) -> Result<Dictionary> {
        let refused = |reason: String| FeatureError::Kind { dictionary: self.name.to_string(), reason };
        match self.layers.get(layer) {
            _ if self.is_cross_layer() => {
                let reason = "it is a cross-layer transcoder, whose latents also write to later layers, so a single \
                              layer cannot be used alone";
                Err(refused(reason.into()).into())
            }
            Some(own) => Ok(own.clone()),
            None => Err(refused(format!(
                "it has no layer {layer}; valid layers are 0 to {}",
                self.layers.len().saturating_sub(1)
            ))
            .into()),
        }
    }

    /// Excludes these tokens, like [`Dictionary::exclude_tokens`].
    #[must_use]
    pub fn exclude_tokens(mut self, tokens: impl IntoIterator<Item = u32>) -> Self {
        let tokens: Vec<u32> = tokens.into_iter().collect();
        self.layers = self.layers.into_iter().map(|layer| layer.exclude_tokens(tokens.iter().copied())).collect();
        self
    }

    /// Sets whether reconstruction errors are added where the transcoders are spliced into a model, like
    /// [`Dictionary::with_error_term`].
    #[must_use]
    pub fn with_error_term(mut self, error_term: bool) -> Self {
        self.layers = self.layers.into_iter().map(|layer| layer.with_error_term(error_term)).collect();
        self
    }

    /// The decoder of a layer's latents for a later layer, `[latent, d_out]`; `None` for a set.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub(crate) fn decoder_across(&self, from: usize, to: usize) -> Result<Option<Tensor<2>>> {
        let matrix = self.across.as_ref().and_then(|all| all.get(from)?.get(to.checked_sub(from + 1)?));
        matrix.map(|matrix| matrix.get(true)).transpose()
    }

    pub(super) fn across(&self, from: usize, to: usize) -> Option<&Matrix> {
        self.across.as_ref()?.get(from)?.get(to.checked_sub(from + 1)?)
    }

    /// Reconstructs a layer's output from the latent activations of this and all earlier layers, `[..., latent]`, and
    /// the layer's input, `[..., d_in]`.
    ///
    /// # Errors
    /// [`FeatureError::Width`] for the wrong number of latents or layers; also fails if the file cannot be read.
    pub fn decode<const D: usize>(&self, layer: usize, acts: &[Tensor<D>], input: Tensor<D>) -> Result<Tensor<D>> {
        let (Some(own), Some(last)) = (self.layers.get(layer), acts.get(layer)) else {
            let what = format!("the list of activations up to layer {layer}");
            let (dictionary, wanted, given) = (self.name.to_string(), self.layers.len(), acts.len());
            return Err(FeatureError::Width { dictionary, what, wanted, given }.into());
        };
        let (mut shape, to, device) = (last.dims(), input.device(), own.device());
        let rows = own.rows(input)?;
        let count = rows.dims()[0];
        let mut output =
            own.with_skip(own.decoded(placed(last.clone(), &device).reshape([count, own.latents()]))?, &rows)?;
        for (from, acts) in acts.iter().enumerate().take(layer) {
            if let Some(decoder) = self.across(from, layer) {
                let acts = placed(acts.clone(), &device).reshape([count, self.layers[from].latents()]);
                output = output + combined(acts, decoder)?;
            }
        }
        shape[D - 1] = own.d_out();
        Ok(placed(output.reshape(shape), &to))
    }
}

/// Decodes activations `[rows, latent]` with a decoder for another layer.
pub(super) fn combined(acts: Tensor<2>, decoder: &Matrix) -> Result<Tensor<2>> {
    let decoder = decoder.get(true)?;
    let combined = if acts.dtype() == DType::F32 { cpu::combine(&acts, &decoder, None) } else { None };
    Ok(combined.unwrap_or_else(|| {
        let dtype = acts.dtype();
        acts.matmul(decoder.cast(dtype))
    }))
}

/// Whether latents write to later layers.
pub fn is_cross_layer(transcoders: &Transcoders) -> bool {
    transcoders.is_cross_layer()
}

/// The decoder of a layer's latents for a later layer, `[latent, d_out]`; `None` for a set.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn decoder_across(transcoders: &Transcoders, from: usize, to: usize) -> Result<Option<Tensor<2>>> {
    transcoders.decoder_across(from, to)
}
