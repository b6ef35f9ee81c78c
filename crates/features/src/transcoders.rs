//! Transcoders of all layers of a model.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};

use super::dictionary::{Dictionary, placed};
use super::labels::Labels;
use super::matrix::Matrix;
use super::open::{EMBEDDED, Layers, embedded_layers, open_layers};
use crate::error::FeatureError;
use hooklens_loading::embedded::find_dictionary;
use hooklens_model::cpu;
use hooklens_model::error::Result;

/// A transcoder for each layer of a model: a set of transcoders of their own, or one cross-layer transcoder, whose
/// latents write to their own layer and to all behind it.
///
/// A layer's reconstruction is `Σ acts_i · W_dec_i→l + b_dec_l` over layers `i ≤ l`, of a set over `i = l` alone, and the
/// skip connection of layer `l`.
///
/// ```
/// use hooklens::features::Transcoders;
/// let set = Transcoders::open("embedded:ioi-transcoders")?; // or circuit-tracer's folder, with config.yaml
/// for (layer, transcoder) in set.layers().iter().enumerate() {
///     println!("{layer}: {} latents from {:?}", transcoder.latents(), transcoder.metadata().reads);
/// }
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Transcoders {
    name: Arc<str>,
    layers: Vec<Dictionary>,
    /// What latents of each layer write to those behind it, nearest first.
    across: Option<Vec<Vec<Matrix>>>,
}

impl Transcoders {
    /// Opens the folder of a set or of a cross-layer transcoder: circuit-tracer's, or Gemma Scope 2's files of all layers.
    /// Only headers, biases and thresholds are read; of decoders that lie by rows, at any time, only those of active
    /// latents.
    ///
    /// # Errors
    /// [`FeatureError`]: files that are none, tensors that are missing or of another shape.
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

    /// The same, or nothing if the folder has no such files.
    pub(super) fn open_if_one(folder: &Path) -> Result<Option<Self>> {
        let name = folder.to_str().and_then(|folder| folder.strip_prefix(EMBEDDED));
        // What is named behind it is a layer of one.
        let embedded = name.filter(|name| !name.contains('/')).map(find_dictionary);
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
                let reason = "labels of transcoders of all layers are in a file a layer: labels_0.json".to_string();
                return Err(FeatureError::Setting { path: own.name().into(), reason }.into());
            }
            layers.push(own.with_labels(Labels::of_layer(folder, layer)?)?);
        }
        Ok(Some(Self { name: folder.display().to_string().into(), layers, across }))
    }

    /// A set of these, one a layer.
    pub fn new(name: impl Into<Arc<str>>, layers: Vec<Dictionary>) -> Self {
        Self { name: name.into(), layers, across: None }
    }

    /// A cross-layer transcoder: of each layer what is within it, and what its latents write to those behind it, nearest
    /// first, `[latent, d_out]`.
    pub(super) fn of_parts(name: impl Into<Arc<str>>, layers: Vec<Dictionary>, across: Vec<Vec<Tensor<2>>>) -> Self {
        let across = across.into_iter().map(|own| own.into_iter().map(Matrix::made).collect()).collect();
        Self { name: name.into(), layers, across: Some(across) }
    }

    /// The same with these labels, by layer.
    ///
    /// # Errors
    /// [`FeatureError::Latent`] for a label of a latent that is not there, [`FeatureError::Kind`] for one of a layer that
    /// is not.
    pub fn with_labels(mut self, labels: BTreeMap<usize, Labels>) -> Result<Self> {
        for (layer, labels) in labels {
            let count = self.layers.len();
            let Some(own) = self.layers.get_mut(layer) else {
                let reason = format!("there are labels of layer {layer}, and {count} layers");
                return Err(FeatureError::Kind { dictionary: self.name.to_string(), reason }.into());
            };
            *own = own.clone().with_labels(labels)?;
        }
        Ok(self)
    }

    /// The same on another device.
    #[must_use]
    pub fn to_device(&self, device: &Device) -> Self {
        let matrices = |all: &Vec<Matrix>| all.iter().map(|one| one.to_device(device)).collect();
        Self {
            name: self.name.clone(),
            layers: self.layers.iter().map(|layer| layer.to_device(device)).collect(),
            across: self.across.as_ref().map(|across| across.iter().map(matrices).collect()),
        }
    }

    /// What it is called: the folder it was read from, or the name it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether latents write to layers behind their own.
    pub fn is_cross_layer(&self) -> bool {
        self.across.is_some()
    }

    /// The transcoders, by layer; of a cross-layer one, what is within a layer.
    pub fn layers(&self) -> &[Dictionary] {
        &self.layers
    }

    /// One layer of a set by itself.
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
    /// [`FeatureError::Kind`] for a layer that is not there, and for a cross-layer transcoder, whose layers are
    /// reconstructed by those before them too.
    pub fn layer(&self, layer: usize) -> Result<Dictionary> {
        let refused = |reason: String| FeatureError::Kind { dictionary: self.name.to_string(), reason };
        match self.layers.get(layer) {
            _ if self.is_cross_layer() => {
                let reason = "it is a cross-layer transcoder: a layer's latents write to those behind it, so no layer \
                              stands by itself";
                Err(refused(reason.into()).into())
            }
            Some(own) => Ok(own.clone()),
            None => {
                Err(refused(format!("it has no layer {layer}: they are 0 to {}", self.layers.len().saturating_sub(1)))
                    .into())
            }
        }
    }

    /// The same with other tokens at which it is not used, as [`Dictionary::excluding`].
    #[must_use]
    pub fn excluding(mut self, tokens: impl IntoIterator<Item = u32>) -> Self {
        let tokens: Vec<u32> = tokens.into_iter().collect();
        self.layers = self.layers.into_iter().map(|layer| layer.excluding(tokens.iter().copied())).collect();
        self
    }

    /// What latents of a layer write to a layer behind it, `[latent, d_out]`; nothing in a set.
    ///
    /// # Errors
    /// A file that can't be read.
    pub fn decoder_across(&self, from: usize, to: usize) -> Result<Option<Tensor<2>>> {
        let matrix = self.across.as_ref().and_then(|all| all.get(from)?.get(to.checked_sub(from + 1)?));
        matrix.map(|matrix| matrix.get(true)).transpose()
    }

    pub(super) fn across(&self, from: usize, to: usize) -> Option<&Matrix> {
        self.across.as_ref()?.get(from)?.get(to.checked_sub(from + 1)?)
    }

    /// The reconstruction of a layer, from the activations of all layers up to it and the layer's input, all
    /// `[..., width]`.
    ///
    /// # Errors
    /// [`FeatureError::Width`] for another number of latents or layers; a file that can't be read.
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

/// What activations `[rows, latent]` write by a decoder of another layer.
pub(super) fn combined(acts: Tensor<2>, decoder: &Matrix) -> Result<Tensor<2>> {
    let decoder = decoder.get(true)?;
    let combined = if acts.dtype() == DType::F32 { cpu::combine(&acts, &decoder, None) } else { None };
    Ok(combined.unwrap_or_else(|| {
        let dtype = acts.dtype();
        acts.matmul(decoder.cast(dtype))
    }))
}
