//! [`Dictionary`]: sparse autoencoders and transcoders.

use std::sync::{Arc, OnceLock};

use burn::tensor::{DType, Device, Tensor};
use hooklens_hooks::{Selection, SelectionText};
use hooklens_kernels::latents::Keep;

use super::architecture::Architecture;
use super::labels::Labels;
use super::matrix::Matrix;
use super::metadata::Metadata;
use super::normalization::{Denormalize, Normalization};
use crate::error::FeatureError;
use hooklens_model::cpu;
use hooklens_model::error::Result;

/// Lower bound for norms that rows are divided by.
const LEAST: f64 = 1e-8;

/// A sparse autoencoder or transcoder. Represents an activation as a sparse weighted sum of directions, one per latent.
///
/// Computes `pre = (normalized(x) − b_dec) · W_enc + b_enc` (subtracting `b_dec` only if it was trained that way),
/// applies the [`Architecture`]'s activation function to get `acts`, and reconstructs `x̂ = acts · W_dec + b_dec`,
/// undoing the normalization. A transcoder reconstructs a different point than it reads, and may have a skip
/// connection.
///
/// Weights are read from their files on first use. If the decoder is stored row by row, only the rows of active latents
/// are read.
///
/// ```
/// use hooklens::features::{Dictionary, DictionaryWeights};
/// use hooklens::prelude::*;
/// let device = Device::flex();
/// let weights = DictionaryWeights {
///     encoder: Tensor::from_floats([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]], &device), // [d_in, latent]
///     encoder_bias: Tensor::zeros([3], &device),
///     decoder: Tensor::from_floats([[1.0, 0.0], [0.0, 1.0], [-0.5, -0.5]], &device), // [latent, d_out]
///     decoder_bias: Tensor::zeros([2], &device),
///     skip: None,
/// };
/// let sae = Dictionary::new("by hand", weights)?;
/// let x = Tensor::<3>::from_floats([[[2.0, -1.0]]], &device); // [batch, pos, d_in]
/// let acts = sae.encode(x.clone())?;
/// assert_eq!(acts.to_data().iter::<f32>().collect::<Vec<_>>(), [2.0, 0.0, 0.0]);
/// assert_eq!(sae.decode(acts)?.to_data().iter::<f32>().collect::<Vec<_>>(), [2.0, 0.0]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dictionary {
    pub(super) name: Arc<str>,
    pub(super) format: &'static str,
    pub(super) architecture: Architecture,
    pub(super) normalization: Normalization,
    pub(super) metadata: Metadata,
    /// Whether `b_dec` is subtracted from the input.
    pub(super) centered: bool,
    /// Whether pre-activations are multiplied by the norms of the decoder rows before the activation function, so that
    /// activations include the norms (SAELens's `rescale_acts_by_decoder_norm`).
    pub(super) by_norms: bool,
    /// Whether the input is the flattened outputs of all heads, `[.., head, d_head]`.
    pub(super) by_heads: bool,
    /// Factors that multiply activations before decoding, `[latent]`.
    pub(super) finetuned: Option<Tensor<1>>,
    pub(super) encoder: Matrix,
    pub(super) decoder: Matrix,
    pub(super) encoder_bias: Tensor<1>,
    pub(super) decoder_bias: Tensor<1>,
    pub(super) skip: Option<Matrix>,
    pub(super) labels: Labels,
    /// Whether the reconstruction error is added where the dictionary is spliced into a model.
    pub(super) error_term: bool,
    pub(super) computed: Arc<Computed>,
}

/// Values computed from the weights and settings when they are first needed, shared by clones. Whatever changes weights
/// or settings starts new ones.
#[derive(Debug, Default)]
pub(super) struct Computed {
    norms: OnceLock<Tensor<1>>,
    pub(super) fingerprint: OnceLock<String>,
}

/// The weights of a [`Dictionary`].
///
/// # Shapes
/// - encoder `[d_in, latent]`, encoder_bias `[latent]`, decoder `[latent, d_out]`, decoder_bias `[d_out]`, skip
///   `[d_in, d_out]`
#[derive(Clone, Debug)]
pub struct DictionaryWeights {
    /// `W_enc`, with one column per latent.
    pub encoder: Tensor<2>,
    /// `b_enc`.
    pub encoder_bias: Tensor<1>,
    /// `W_dec`, with one row per latent: the latent's direction.
    pub decoder: Tensor<2>,
    /// `b_dec`.
    pub decoder_bias: Tensor<1>,
    /// Matrix of a transcoder's skip connection, which multiplies the input.
    pub skip: Option<Tensor<2>>,
}

/// Details of a dictionary for reports, besides its [`Metadata`].
#[derive(Debug, Clone, Copy)]
pub struct DictionarySummary {
    /// SAELens's name of the architecture.
    pub architecture: &'static str,
    /// The format the dictionary was read from.
    pub format: &'static str,
    /// Width of the reconstruction.
    pub d_out: usize,
    /// Whether the dictionary reconstructs a different point than it reads.
    pub transcoder: bool,
    /// The normalization of inputs.
    pub normalization: Normalization,
    /// Whether `b_dec` is subtracted from the input.
    pub centers_input: bool,
    /// Whether the reconstruction includes a skip connection from the input.
    pub skip: bool,
}

/// Summarizes a dictionary.
pub fn summary(dictionary: &Dictionary) -> DictionarySummary {
    DictionarySummary {
        architecture: dictionary.architecture().name(),
        format: dictionary.format,
        d_out: dictionary.d_out(),
        transcoder: dictionary.is_transcoder(),
        normalization: dictionary.normalization(),
        centers_input: dictionary.centered,
        skip: dictionary.has_skip(),
    }
}

/// The encoder's output for normalized inputs, before the activation function.
pub(super) struct Encoded {
    /// Pre-activations, `[rows, latent]`; magnitudes for gated dictionaries, `None` for matching pursuit.
    pub(super) pre: Option<Tensor<2>>,
    /// Gate pre-activations, which decide whether latents of a gated dictionary are active.
    gate: Option<Tensor<2>>,
    /// The input of the encoder.
    input: Tensor<2>,
}

impl Dictionary {
    /// Creates a sparse autoencoder with these weights: `standard` architecture, no normalization, and no subtraction
    /// of `b_dec` from the input. The `with_*` methods change these settings.
    ///
    /// # Errors
    /// [`FeatureError::Width`] for weights whose shapes do not match.
    pub fn new(name: impl Into<Arc<str>>, weights: DictionaryWeights) -> Result<Self> {
        let DictionaryWeights { encoder, encoder_bias, decoder, decoder_bias, skip } = weights;
        let name = name.into();
        let ([d_in, latents], [_, d_out]) = (encoder.dims(), decoder.dims());
        let mut asked = vec![
            ("encoder_bias", encoder_bias.dims()[0], latents),
            ("decoder's first axis", decoder.dims()[0], latents),
            ("decoder_bias", decoder_bias.dims()[0], d_out),
        ];
        if let Some(skip) = &skip {
            asked.extend([("skip's first axis", skip.dims()[0], d_in), ("skip's last axis", skip.dims()[1], d_out)]);
        }
        if let Some((what, given, wanted)) = asked.into_iter().find(|(_, given, wanted)| given != wanted) {
            return Err(FeatureError::Width { dictionary: name.to_string(), what: what.into(), wanted, given }.into());
        }
        Ok(Self {
            name,
            format: "in-memory dictionary",
            architecture: Architecture::Standard,
            normalization: Normalization::None,
            metadata: Metadata::default(),
            centered: false,
            by_norms: false,
            by_heads: false,
            finetuned: None,
            encoder: Matrix::made(encoder),
            decoder: Matrix::made(decoder),
            encoder_bias: encoder_bias.detach(),
            decoder_bias: decoder_bias.detach(),
            skip: skip.map(Matrix::made),
            labels: Labels::default(),
            error_term: true,
            computed: Arc::default(),
        })
    }

    /// Sets the activation function.
    ///
    /// ```
    /// # use hooklens::features::{Architecture, Dictionary, DictionaryWeights};
    /// # use hooklens::prelude::*;
    /// # let device = Device::flex();
    /// # let weights = DictionaryWeights {
    /// #     encoder: Tensor::ones([2, 3], &device), encoder_bias: Tensor::zeros([3], &device),
    /// #     decoder: Tensor::ones([3, 2], &device), decoder_bias: Tensor::zeros([2], &device), skip: None,
    /// # };
    /// let sae = Dictionary::new("by hand", weights)?.with_architecture(Architecture::TopK { k: 1 })?;
    /// assert_eq!(sae.encode(Tensor::<2>::ones([1, 2], &device))?.sum().into_scalar::<f32>(), 2.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`FeatureError::Kind`] if k is 0 or exceeds the number of latents, if the number of latents is not divisible by
    /// the number of groups, if the number of thresholds or gate parameters is wrong, or if a transcoder is given
    /// matching pursuit.
    pub fn with_architecture(mut self, architecture: Architecture) -> Result<Self> {
        let latents = self.latents();
        let wrong = match &architecture {
            Architecture::TopK { k } | Architecture::AbsTopK { k } if *k == 0 || *k > latents => {
                Some(format!("k is {k}; expected 1 to {latents}, the number of latents"))
            }
            Architecture::GroupMax { k } if *k == 0 || !latents.is_multiple_of(*k) => {
                Some(format!("{latents} latents cannot be divided into {k} equal groups"))
            }
            Architecture::JumpRelu { thresholds, .. } if thresholds.len() != latents => {
                Some(format!("{} thresholds for {latents} latents; expected one per latent", thresholds.len()))
            }
            Architecture::Gated { gate_bias, log_scale }
                if gate_bias.len() != latents || log_scale.len() != latents =>
            {
                Some(format!(
                    "{} gate biases and {} gate scales for {latents} latents; expected one each per latent",
                    gate_bias.len(),
                    log_scale.len()
                ))
            }
            Architecture::MatchingPursuit { .. } if self.is_transcoder() => {
                Some("matching pursuit subtracts from its input, so a transcoder cannot use it".into())
            }
            _ => None,
        };
        if let Some(reason) = wrong {
            return Err(FeatureError::Kind { dictionary: self.name.to_string(), reason }.into());
        }
        self.architecture = architecture;
        self.computed = Arc::default();
        Ok(self)
    }

    /// Sets the normalization of inputs. Needed for files that omit the factor of [`Normalization::Scale`], which is
    /// `sqrt(d_in)` divided by the mean norm of the activations that the dictionary was trained on.
    #[must_use]
    pub fn with_normalization(mut self, normalization: Normalization) -> Self {
        self.normalization = normalization;
        self.computed = Arc::default();
        self
    }

    /// Sets whether pre-activations are multiplied by the norms of the decoder rows before the activation function.
    #[must_use]
    pub fn with_decoder_norms(mut self, by_norms: bool) -> Self {
        self.by_norms = by_norms;
        self.computed = Arc::default();
        self
    }

    /// Sets whether `b_dec` is subtracted from the input.
    #[must_use]
    pub fn with_centered_input(mut self, centered: bool) -> Self {
        self.centered = centered;
        self.computed = Arc::default();
        self
    }

    /// Replaces the metadata, for example to use the dictionary at another point.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        // What the files say about flattening heads applies only to the original point.
        if (&metadata.reads, metadata.head) != (&self.metadata.reads, self.metadata.head) {
            self.by_heads = metadata.reads_all_heads();
            self.computed = Arc::default();
        }
        self.metadata = metadata;
        self
    }

    /// Sets the point that the dictionary reads.
    #[must_use]
    pub fn at(self, point: impl Into<Selection>) -> Self {
        let metadata = Metadata { reads: Some(point.into().full_name()), ..self.metadata.clone() };
        self.with_metadata(metadata)
    }

    /// Excludes these tokens: spliced models, evaluations and searches do not apply the dictionary to them. Overrides
    /// the tokens listed in the dictionary's files; pass `[]` to exclude none.
    ///
    /// ```
    /// use hooklens::features::{Dictionary, ExcludedTokens};
    /// let sae = Dictionary::open("embedded:ioi-sae")?;
    /// assert_eq!(sae.metadata().exclude_special_tokens, ExcludedTokens::Ids(vec![0]));
    /// let everywhere = sae.exclude_tokens([]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn exclude_tokens(mut self, tokens: impl IntoIterator<Item = u32>) -> Self {
        self.metadata.exclude_special_tokens = tokens.into_iter().collect();
        self
    }

    /// Sets whether the reconstruction error is added where the dictionary is spliced into a model, so that without
    /// edits the spliced model's output equals the original model's. Default true.
    #[must_use]
    pub fn with_error_term(mut self, error_term: bool) -> Self {
        self.error_term = error_term;
        self
    }

    /// Moves the dictionary to another device.
    #[must_use]
    pub fn to_device(&self, device: &Device) -> Self {
        let vector = |vector: &Tensor<1>| vector.clone().to_device(device);
        Self {
            encoder: self.encoder.to_device(device),
            decoder: self.decoder.to_device(device),
            encoder_bias: vector(&self.encoder_bias),
            decoder_bias: vector(&self.decoder_bias),
            skip: self.skip.as_ref().map(|skip| skip.to_device(device)),
            finetuned: self.finetuned.as_ref().map(vector),
            computed: Arc::default(),
            ..self.clone()
        }
    }

    /// Labels of the latents.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Replaces the labels.
    ///
    /// # Errors
    /// [`FeatureError::Latent`] for a label of a latent that does not exist.
    pub fn with_labels(mut self, labels: Labels) -> Result<Self> {
        labels.check(&self.name, self.latents())?;
        self.labels = labels;
        Ok(self)
    }

    /// The dictionary's name: the file or folder it was read from, or the name given to [`Dictionary::new`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The activation function.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// The normalization of inputs.
    pub(crate) fn normalization(&self) -> Normalization {
        self.normalization
    }

    /// Metadata about the model and points.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The points that the dictionary reads and writes.
    pub(super) fn points(&self) -> Result<[&str; 2]> {
        let read = self.metadata.reads.as_deref();
        let read = read.ok_or_else(|| FeatureError::NoPoint { dictionary: self.name.to_string() })?;
        Ok([read, self.metadata.writes.as_deref().unwrap_or(read)])
    }

    /// Width of the input.
    pub fn d_in(&self) -> usize {
        self.encoder.shape()[0]
    }

    /// Width of the reconstruction.
    pub(crate) fn d_out(&self) -> usize {
        self.decoder.shape()[1]
    }

    /// Number of latents.
    pub fn latents(&self) -> usize {
        self.encoder.shape()[1]
    }

    /// Whether the dictionary reconstructs a different point than it reads.
    pub(crate) fn is_transcoder(&self) -> bool {
        self.metadata.is_transcoder()
    }

    /// Whether the reconstruction includes a skip connection from the input.
    pub(crate) fn has_skip(&self) -> bool {
        self.skip.is_some()
    }

    /// The weights, in the forms that [`Dictionary::new`] takes. The encoder's bias is `b_mag` for gated dictionaries.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn weights(&self) -> Result<DictionaryWeights> {
        Ok(DictionaryWeights {
            encoder: self.encoder()?,
            encoder_bias: self.encoder_bias(),
            decoder: self.decoder()?,
            decoder_bias: self.decoder_bias(),
            skip: self.skip()?,
        })
    }

    /// `W_enc`, `[d_in, latent]`.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub(crate) fn encoder(&self) -> Result<Tensor<2>> {
        self.encoder.get(false)
    }

    /// `b_enc`, `[latent]`; `b_mag` for gated dictionaries.
    pub(crate) fn encoder_bias(&self) -> Tensor<1> {
        self.encoder_bias.clone()
    }

    /// `W_dec`, `[latent, d_out]`.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub(crate) fn decoder(&self) -> Result<Tensor<2>> {
        self.decoder.get(true)
    }

    /// `b_dec`, `[d_out]`.
    pub(crate) fn decoder_bias(&self) -> Tensor<1> {
        self.decoder_bias.clone()
    }

    /// The matrix of a transcoder's skip connection, `[d_in, d_out]`.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub(crate) fn skip(&self) -> Result<Option<Tensor<2>>> {
        self.skip.as_ref().map(|skip| skip.get(false)).transpose()
    }

    /// The direction of one latent, `[d_out]`: what one unit of its activation adds to the reconstruction. Reads only
    /// that row of the decoder, unless the file is in PyTorch's format or compressed.
    ///
    /// ```no_run
    /// # use hooklens::features::Dictionary;
    /// # use hooklens::prelude::*;
    /// let sae = Dictionary::open("gemma-scope/layer_12/width_16k/average_l0_82")?;
    /// let steering = sae.direction(4231)?; // add it to the residual stream, or project it onto the vocabulary
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`FeatureError::Latent`] if there is no such latent; also fails if the file cannot be read.
    pub fn direction(&self, latent: usize) -> Result<Tensor<1>> {
        self.check_latent(latent)?;
        let row = self.decoder.row(latent)?.cast(DType::F32);
        let row = match self.by_norms {
            true => row.clone() / row.square().sum_dim(1).sqrt().clamp_min(LEAST),
            false => row,
        };
        let row = match &self.finetuned {
            Some(factors) => row * factors.clone().narrow(0, latent, 1).unsqueeze::<2>(),
            None => row,
        };
        Ok(row.reshape([self.d_out()]))
    }

    /// Fails for a latent that does not exist.
    pub(super) fn check_latent(&self, latent: usize) -> Result<()> {
        match latent < self.latents() {
            true => Ok(()),
            false => {
                Err(FeatureError::Latent { dictionary: self.name.to_string(), latent, count: self.latents() }.into())
            }
        }
    }

    /// Computes the activations of the latents, on the input's device.
    ///
    /// # Shapes
    /// - input: `[..., d_in]`; flattened to `[..., head * d_head]` for dictionaries that read attention head outputs
    /// - output: `[..., latent]`
    ///
    /// # Errors
    /// [`FeatureError::Width`] for an input of the wrong width, [`FeatureError::NoScale`] if the scale of inputs is
    /// unknown; also fails if the file cannot be read.
    pub fn encode<const D: usize>(&self, x: Tensor<D>) -> Result<Tensor<D>> {
        let (shape, device) = (x.dims(), x.device());
        let (x, _) = self.normalized(self.rows(x)?)?;
        let acts = self.activate(self.encoded(x)?)?;
        Ok(placed(unflattened(acts, shape), &device))
    }

    /// Decodes activations of the latents. Does not undo the normalization of inputs or add the skip connection, as
    /// [`Dictionary::forward`] does.
    ///
    /// # Shapes
    /// - input: `[..., latent]`
    /// - output: `[..., d_out]`
    ///
    /// # Errors
    /// [`FeatureError::Width`] for the wrong number of latents; also fails if the file cannot be read.
    pub fn decode<const D: usize>(&self, acts: Tensor<D>) -> Result<Tensor<D>> {
        let (shape, device) = (acts.dims(), acts.device());
        self.check_width("the latent activations", shape[D - 1], self.latents())?;
        let rows = shape[..D - 1].iter().product();
        let acts = placed(acts, &self.device()).reshape([rows, self.latents()]);
        Ok(placed(unflattened(self.decoded(acts)?, shape), &device))
    }

    /// Computes the reconstruction of the input or, for transcoders, of the activation at the point they write.
    ///
    /// # Shapes
    /// - input: `[..., d_in]`
    /// - output: `[..., d_out]`
    ///
    /// # Errors
    /// Same as [`Dictionary::encode`].
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Result<Tensor<D>> {
        let (shape, device) = (x.dims(), x.device());
        let (_, output) = self.encode_and_reconstruct(x)?;
        Ok(placed(unflattened(output, shape), &device))
    }

    /// Computes [`Dictionary::encode`] and [`Dictionary::forward`] of the same input, which is encoded once.
    ///
    /// # Shapes
    /// - input: `[..., d_in]`
    /// - output: `[rows, latent]` and `[rows, d_out]`, on the dictionary's device
    pub(crate) fn encode_and_reconstruct<const D: usize>(&self, x: Tensor<D>) -> Result<(Tensor<2>, Tensor<2>)> {
        let raw = self.rows(x)?;
        let (x, undo) = self.normalized(raw.clone())?;
        let acts = self.activate(self.encoded(x)?)?;
        let output = undo.apply(self.with_skip(self.decoded(acts.clone())?, &raw)?);
        Ok((acts, output))
    }

    /// The device of the weights.
    pub(super) fn device(&self) -> Device {
        self.encoder_bias.device()
    }

    pub(crate) fn check_width(&self, what: &str, given: usize, wanted: usize) -> Result<()> {
        match given == wanted {
            true => Ok(()),
            false => {
                let (dictionary, what) = (self.name.to_string(), what.to_string());
                Err(FeatureError::Width { dictionary, what, wanted, given }.into())
            }
        }
    }

    /// Flattens the input to rows, `[rows, d_in]`, in the dtype used for computation.
    pub(super) fn rows<const D: usize>(&self, x: Tensor<D>) -> Result<Tensor<2>> {
        let shape = x.dims();
        self.check_width("the input", shape[D - 1], self.d_in())?;
        let rows = placed(x, &self.device()).reshape([shape[..D - 1].iter().product(), self.d_in()]);
        Ok(match rows.dtype() {
            DType::F32 | DType::F64 => rows,
            _ => rows.cast(DType::F32),
        })
    }

    /// Normalizes and centers rows `[rows, d_in]` for the encoder, and returns how to undo the normalization.
    pub(super) fn normalized(&self, x: Tensor<2>) -> Result<(Tensor<2>, Denormalize)> {
        if self.normalization == Normalization::Scale(None) {
            return Err(FeatureError::NoScale { dictionary: self.name.to_string() }.into());
        }
        let (x, undo) = self.normalization.apply(x);
        let x = match self.centered {
            true => {
                let center = self.decoder_bias.clone().cast(x.dtype()).unsqueeze::<2>();
                x - center
            }
            false => x,
        };
        Ok((x, if self.is_transcoder() { Denormalize::default() } else { undo }))
    }

    /// Applies the encoder to normalized rows.
    pub(super) fn encoded(&self, input: Tensor<2>) -> Result<Encoded> {
        if let Architecture::MatchingPursuit { .. } = self.architecture {
            return Ok(Encoded { pre: None, gate: None, input });
        }
        let dtype = input.dtype();
        let vector = |of: &[f32]| {
            let data = burn::tensor::TensorData::new(of.to_vec(), [1, of.len()]);
            Tensor::<2>::from_data(data, (&self.encoder_bias.device(), DType::F32)).cast(dtype)
        };
        if let Architecture::Gated { gate_bias, log_scale } = &self.architecture {
            let base = product(&input, self.encoder()?, None);
            let bias = self.encoder_bias.clone().cast(dtype).unsqueeze::<2>();
            let magnitude = base.clone() * vector(log_scale).exp() + bias;
            return Ok(Encoded { pre: Some(magnitude), gate: Some(base + vector(gate_bias)), input });
        }
        let pre = product(&input, self.encoder()?, Some(self.encoder_bias.clone()));
        Ok(Encoded { pre: Some(pre), gate: None, input })
    }

    /// Applies the activation function. Returns `[rows, latent]`.
    pub(super) fn activate(&self, encoded: Encoded) -> Result<Tensor<2>> {
        let Encoded { pre, gate, input } = encoded;
        let Some(pre) = pre else { return self.pursued(input) };
        let pre = match self.by_norms {
            true => pre.clone() * self.decoder_norms()?.cast(pre.dtype()).unsqueeze::<2>(),
            false => pre,
        };
        Ok(match &self.architecture {
            Architecture::JumpRelu { thresholds, positive } => {
                keep(pre, Keep::Above { thresholds, positive: *positive })
            }
            Architecture::TopK { k } => keep(pre, Keep::Largest(*k)),
            Architecture::AbsTopK { k } => keep(pre, Keep::Furthest(*k)),
            Architecture::GroupMax { k } => keep(pre, Keep::LargestOfEach(*k)),
            _ => {
                let acts = keep(pre, Keep::Positive);
                match gate {
                    Some(gate) => acts.mask_fill(gate.lower_equal_elem(0.0), 0.0),
                    None => acts,
                }
            }
        })
    }

    /// Runs matching pursuit on rows `[rows, d_in]`.
    fn pursued(&self, input: Tensor<2>) -> Result<Tensor<2>> {
        let Architecture::MatchingPursuit { residual_threshold, max_iterations, until_repeated } = self.architecture
        else {
            return Ok(input);
        };
        let ([rows, _], latents, device) = (input.dims(), self.latents(), input.device());
        let dtype = input.dtype();
        let decoder = self.decoder()?.cast(dtype);
        let mut left = input;
        let mut acts = Tensor::<2>::zeros([rows, latents], (&device, dtype));
        let mut going = Tensor::<2>::ones([rows, 1], (&device, dtype));
        for _ in 0..max_iterations {
            let along = left.clone().matmul(decoder.clone().transpose()).clamp_min(0.0);
            let best = along.clone().detach().argmax(1); // [rows, 1]
            let value = along.gather(1, best.clone()) * going.clone();
            let before = acts.clone().detach().greater_elem(0.0).int().sum_dim(1);
            let chosen = Tensor::<2>::zeros([rows, latents], (&device, dtype)).scatter(
                1,
                best,
                value,
                burn::tensor::IndexingUpdateOp::Add,
            );
            left = left - chosen.clone().matmul(decoder.clone());
            acts = acts + chosen;
            let after = acts.clone().detach().greater_elem(0.0).int().sum_dim(1);
            let small = left.clone().detach().square().sum_dim(1).sqrt().lower_elem(residual_threshold);
            let done = if until_repeated { before.equal(after).bool_or(small) } else { small };
            going = going.mask_fill(done, 0.0);
            if going.clone().max().into_scalar::<f32>() == 0.0 {
                break;
            }
        }
        Ok(acts)
    }

    /// Decodes activations `[rows, latent]`, without undoing the normalization.
    pub(super) fn decoded(&self, acts: Tensor<2>) -> Result<Tensor<2>> {
        let dtype = acts.dtype();
        let acts = match self.by_norms {
            true => acts / self.divisors()?.cast(dtype).unsqueeze::<2>(),
            false => acts,
        };
        let acts = match &self.finetuned {
            Some(factors) => acts * factors.clone().cast(dtype).unsqueeze::<2>(),
            None => acts,
        };
        let unbiased = matches!(self.architecture, Architecture::MatchingPursuit { .. }) && !self.centered;
        let (decoder, bias) = (self.decoder()?, (!unbiased).then(|| self.decoder_bias.clone()));
        if dtype == DType::F32
            && let Some(combined) = cpu::combine(&acts, &decoder, bias.as_ref())
        {
            // The decoder was not checked for non-finite values when it was read. It is checked only if an output is
            // not finite although all activations are.
            let rows = |of: &Tensor<2>| 0..of.dims()[0];
            if cpu::not_finite(&combined, rows(&combined)).is_some() && cpu::not_finite(&acts, rows(&acts)).is_none() {
                self.decoder.check(&decoder, rows(&decoder))?;
            }
            return Ok(combined);
        }
        let combined = acts.matmul(decoder.cast(dtype));
        Ok(match bias {
            Some(bias) => combined + bias.cast(dtype).unsqueeze::<2>(),
            None => combined,
        })
    }

    /// Adds the skip connection from the input to a reconstruction, both `[rows, width]`.
    pub(super) fn with_skip(&self, output: Tensor<2>, raw: &Tensor<2>) -> Result<Tensor<2>> {
        Ok(match self.skip()? {
            Some(skip) => output + product(raw, skip, None),
            None => output,
        })
    }

    /// Norms of the decoder rows, `[latent]`. Reads the whole decoder once.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub(crate) fn decoder_norms(&self) -> Result<Tensor<1>> {
        if let Some(norms) = self.computed.norms.get() {
            return Ok(norms.clone());
        }
        let norms = self.decoder()?.cast(DType::F32).square().sum_dim(1).sqrt().reshape([self.latents()]);
        Ok(self.computed.norms.get_or_init(|| norms).clone())
    }

    /// Norms of the decoder rows to divide by, `[latent]`; never 0.
    pub(super) fn divisors(&self) -> Result<Tensor<1>> {
        Ok(self.decoder_norms()?.clamp_min(LEAST))
    }
}

/// `x · weight + bias` in the dtype of `x`.
fn product(x: &Tensor<2>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
    let dtype = x.dtype();
    if dtype == DType::F32
        && let Some([output]) = cpu::linear(x, &[(cpu::Weight::Plain(weight.clone()), bias.clone())])
    {
        return output;
    }
    let output = x.clone().matmul(weight.cast(dtype));
    match bias {
        Some(bias) => output + bias.cast(dtype).unsqueeze::<2>(),
        None => output,
    }
}

/// Applies an activation function, with Burn operations if the CPU kernel does not support the tensor.
fn keep(pre: Tensor<2>, which: Keep<'_>) -> Tensor<2> {
    let pre = match pre.dtype() {
        DType::F32 => match cpu::keep(pre, which) {
            Ok(acts) => return acts,
            Err(pre) => pre,
        },
        _ => pre,
    };
    let [rows, latents] = pre.dims();
    let largest = |pre: Tensor<2>, k: usize| {
        let k = k.min(pre.dims()[1]);
        let (values, places) = pre.clone().topk_with_indices(k, 1);
        pre.zeros_like().scatter(1, places, values.clamp_min(0.0), burn::tensor::IndexingUpdateOp::Add)
    };
    match which {
        Keep::Positive => {
            let dropped = pre.clone().lower_equal_elem(0.0);
            pre.mask_fill(dropped, 0.0)
        }
        Keep::Above { thresholds, positive } => {
            let data = burn::tensor::TensorData::new(thresholds.to_vec(), [1, latents]);
            let thresholds = Tensor::<2>::from_data(data, (&pre.device(), DType::F32)).cast(pre.dtype());
            let low = pre.clone().lower_equal(thresholds.expand([rows, latents]));
            let dropped = if positive { low.bool_or(pre.clone().lower_equal_elem(0.0)) } else { low };
            pre.mask_fill(dropped, 0.0)
        }
        Keep::Largest(k) => largest(pre, k),
        Keep::Furthest(k) => {
            let sizes = largest(pre.clone().abs(), k);
            pre.mask_fill(sizes.equal_elem(0.0), 0.0)
        }
        Keep::LargestOfEach(groups) => {
            let grouped = pre.reshape([rows * groups, latents / groups]);
            largest(grouped, 1).reshape([rows, latents])
        }
    }
}

/// Moves a tensor to a device, keeping its autodiff context.
pub(super) fn placed<const D: usize>(given: Tensor<D>, device: &Device) -> Tensor<D> {
    let from = given.device();
    match from == *device {
        true => given,
        false => given.to_device(&device.clone().with_autodiff_context_from(&from)),
    }
}

/// Restores the leading axes of flattened rows.
fn unflattened<const D: usize>(rows: Tensor<2>, mut shape: [usize; D]) -> Tensor<D> {
    shape[D - 1] = rows.dims()[1];
    rows.reshape(shape)
}
