//! [`Training`]: settings for training a dictionary.

use hooklens_hooks::{Catalog, Selection, SelectionText};

use super::objective::Objective;
use crate::error::FeatureError;
use crate::splice::splice_point;
use hooklens_model::driver::HookedModel;
use hooklens_model::error::Result;

/// The points that a dictionary is trained on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TrainedPoints {
    /// An autoencoder that reads and reconstructs one point.
    Autoencoder(String),
    /// A transcoder from one point to another.
    Transcoder(String, String),
    /// A cross-layer transcoder: the names of the points each layer reads and writes, without the layer prefix, and the
    /// number of layers.
    CrossLayer(String, String, usize),
}

/// Settings for training a dictionary: points, objective, and hyperparameters with sensible defaults.
///
/// ```
/// use hooklens::features::{Objective, Training};
/// let sae = Training::autoencoder("blocks.2.hook_resid_post", 512).k(8.0).tokens(1_000_000).seed(1);
/// let transcoder = Training::transcoder("blocks.2.mlp.hook_in", "blocks.2.hook_mlp_out", 512)
///     .objective(Objective::jump_relu(16.0))
///     .skip(true);
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Training {
    pub(super) trained_on: TrainedPoints,
    pub(super) name: String,
    pub(super) latents: usize,
    pub(super) objective: Objective,
    pub(super) total: usize,
    pub(super) batch: usize,
    pub(super) rate: Option<f32>,
    pub(super) warm_up: f64,
    pub(super) decay: f64,
    pub(super) penalty_warm_up: f64,
    pub(super) betas: [f32; 2],
    pub(super) clip: f32,
    pub(super) seed: u64,
    pub(super) decoder_norm: f32,
    pub(super) dead_after: Option<usize>,
    pub(super) revive: f32,
    pub(super) normalize: bool,
    pub(super) skip: bool,
    pub(super) buffer: usize,
    pub(super) model: Option<String>,
    pub(super) prepend_bos: Option<bool>,
}

impl Training {
    fn new(trained_on: TrainedPoints, latents: usize) -> Self {
        let name = match &trained_on {
            TrainedPoints::Autoencoder(point) => point.clone(),
            TrainedPoints::Transcoder(_, write) => write.clone(),
            TrainedPoints::CrossLayer(..) => "cross-layer transcoder".into(),
        };
        Self {
            trained_on,
            name,
            latents,
            objective: Objective::BatchTopK { k: 32.0 },
            total: 1_000_000,
            batch: 2048,
            rate: None,
            warm_up: 0.05,
            decay: 0.2,
            penalty_warm_up: 0.1,
            betas: [0.9, 0.999],
            clip: 1.0,
            seed: 0,
            decoder_norm: 0.1,
            dead_after: None,
            revive: 1.0,
            normalize: true,
            skip: false,
            buffer: 32,
            model: None,
            prepend_bos: None,
        }
    }

    /// Settings for a sparse autoencoder at a point. Defaults to BatchTopK with k 32 and a million tokens.
    pub fn autoencoder(point: impl Into<Selection>, latents: usize) -> Self {
        Self::new(TrainedPoints::Autoencoder(point.into().full_name()), latents)
    }

    /// Settings for a transcoder from one point to another.
    pub fn transcoder(read: impl Into<Selection>, write: impl Into<Selection>, latents: usize) -> Self {
        Self::new(TrainedPoints::Transcoder(read.into().full_name(), write.into().full_name()), latents)
    }

    /// Settings for a cross-layer transcoder with `latents` latents per layer, for a model with `layers` layers. Each
    /// layer reads its MLP's input and writes to the outputs of that MLP and all later ones.
    pub fn cross_layer(layers: usize, latents: usize) -> Self {
        Self::new(TrainedPoints::CrossLayer("mlp.hook_in".into(), "hook_mlp_out".into(), layers), latents)
    }

    /// Returns the settings with the model's own names for the points, and negative layer indices converted.
    pub(super) fn resolved(&self, catalog: &Catalog) -> Result<Self> {
        let own = |point: &str| -> Result<String> {
            Ok(splice_point(catalog, "the dictionary to train", point)?.0.name.to_string())
        };
        let trained_on = match &self.trained_on {
            TrainedPoints::Autoencoder(point) => TrainedPoints::Autoencoder(own(point)?),
            TrainedPoints::Transcoder(read, write) => TrainedPoints::Transcoder(own(read)?, own(write)?),
            TrainedPoints::CrossLayer(..) => self.trained_on.clone(),
        };
        let default = |trained_on: &TrainedPoints| Self::new(trained_on.clone(), self.latents).name;
        let name = if self.name == default(&self.trained_on) { default(&trained_on) } else { self.name.clone() };
        Ok(Self { trained_on, name, ..self.clone() })
    }

    /// Sets the activation function and sparsity loss. [`Objective::JumpRelu`] sets Adam's first beta to 0.
    pub fn objective(mut self, objective: Objective) -> Self {
        self.betas[0] = if matches!(objective, Objective::JumpRelu { .. }) { 0.0 } else { 0.9 };
        self.objective = objective;
        self
    }

    /// Uses BatchTopK with this mean number of active latents per token.
    pub fn k(self, k: f64) -> Self {
        self.objective(Objective::BatchTopK { k })
    }

    /// Sets the number of tokens to train on. Prompts are repeated if they contain fewer.
    pub fn tokens(mut self, tokens: usize) -> Self {
        self.total = tokens;
        self
    }

    /// Sets the number of tokens per step.
    pub fn batch_size(mut self, tokens: usize) -> Self {
        self.batch = tokens.max(1);
        self
    }

    /// Sets the learning rate. Default `2e-4 / sqrt(latents / 16384)`, but at most 2e-3.
    pub fn learning_rate(mut self, rate: f32) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Sets the fractions of training during which the learning rate rises from 0 at the start (default 5 %) and falls
    /// to 0 at the end (default 20 %).
    pub fn schedule(mut self, warm_up: f64, decay: f64) -> Self {
        (self.warm_up, self.decay) = (warm_up, decay);
        self
    }

    /// Sets the seed of the initial weights and of the order of activations. Training again with the same seed gives
    /// the same file.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets whether activations are scaled by one factor to a mean norm of `sqrt(width)`. The factor is folded into the
    /// weights at the end. Default true.
    pub fn normalize(mut self, normalize: bool) -> Self {
        self.normalize = normalize;
        self
    }

    /// Sets whether a transcoder has a skip connection.
    pub fn skip(mut self, skip: bool) -> Self {
        self.skip = skip;
        self
    }

    /// Sets how many batches are held in memory and shuffled together. Default 32.
    pub fn buffer(mut self, batches: usize) -> Self {
        self.buffer = batches.max(1);
        self
    }

    /// Sets the model name in the dictionary's metadata.
    pub fn model(mut self, name: impl Into<String>) -> Self {
        self.model = Some(name.into());
        self
    }

    /// Sets whether prompts start with a BOS token, for the dictionary's metadata.
    pub fn prepend_bos(mut self, prepend_bos: bool) -> Self {
        self.prepend_bos = Some(prepend_bos);
        self
    }

    /// Sets the dictionary's name.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Number of layers; 1 unless it is a cross-layer transcoder.
    pub(super) fn layers(&self) -> usize {
        match self.trained_on {
            TrainedPoints::CrossLayer(_, _, layers) => layers,
            _ => 1,
        }
    }

    pub(super) fn is_transcoder(&self) -> bool {
        !matches!(self.trained_on, TrainedPoints::Autoencoder(_))
    }

    pub(super) fn is_cross_layer(&self) -> bool {
        matches!(self.trained_on, TrainedPoints::CrossLayer(..))
    }

    /// The points that a layer reads and, for transcoders, writes.
    pub(super) fn points(&self, layer: usize) -> (String, Option<String>) {
        match &self.trained_on {
            TrainedPoints::Autoencoder(point) => (point.clone(), None),
            TrainedPoints::Transcoder(read, write) => (read.clone(), Some(write.clone())),
            TrainedPoints::CrossLayer(read, write, _) => {
                (format!("blocks.{layer}.{read}"), Some(format!("blocks.{layer}.{write}")))
            }
        }
    }

    /// All points whose activations are needed: the inputs and the outputs, with one of each per layer.
    pub(super) fn all_points(&self) -> (Vec<String>, Vec<String>) {
        (0..self.layers())
            .map(|layer| self.points(layer))
            .map(|(read, write)| (read.clone(), write.unwrap_or(read)))
            .unzip()
    }

    pub(super) fn dead_after_tokens(&self) -> usize {
        self.dead_after.unwrap_or((self.total / 10).min(10_000_000))
    }

    /// The learning rate after this many tokens.
    pub(super) fn rate_at(&self, tokens: usize) -> f32 {
        let done = tokens as f64 / self.total.max(1) as f64;
        let own = self.rate.unwrap_or_else(|| (2e-4 / (self.latents as f32 / 16384.0).sqrt()).min(2e-3));
        let warm = if self.warm_up > 0.0 { ((done + 1e-3) / self.warm_up).min(1.0) } else { 1.0 };
        let left = if self.decay > 0.0 { ((1.0 - done) / self.decay).clamp(0.0, 1.0) } else { 1.0 };
        own * (warm * left) as f32
    }

    /// The factor that multiplies sparsity penalties after this many tokens.
    pub(super) fn penalty_share(&self, tokens: usize) -> f32 {
        let done = tokens as f64 / self.total.max(1) as f64;
        if self.penalty_warm_up > 0.0 { (done / self.penalty_warm_up).min(1.0) as f32 } else { 1.0 }
    }

    /// Fails for invalid settings.
    pub(super) fn check(&self) -> Result<()> {
        let wrong = |reason: String| {
            Err(FeatureError::Kind { dictionary: format!("the training of {}", self.name), reason }.into())
        };
        let all = self.latents * self.layers();
        if self.latents == 0 || self.layers() == 0 {
            return wrong("the number of latents or of layers is 0; expected at least 1".into());
        }
        let k = match &self.objective {
            // Each layer's latents are ranked on their own.
            Objective::TopK { k } => Some((*k as f64, self.latents)),
            other => other.by_batch().map(|k| (k, all)),
        };
        if let Some((k, most)) = k.filter(|(k, most)| !(*k > 0.0 && *k <= *most as f64)) {
            return wrong(format!("k is {k}; expected more than 0 and at most {most}, the number of latents"));
        }
        if let Objective::Matryoshka { widths, .. } = &self.objective {
            let rising = widths.windows(2).all(|pair| pair[0] < pair[1]) && widths.first() != Some(&0);
            if !rising || widths.last().is_some_and(|last| *last > self.latents) {
                return wrong(format!(
                    "the widths {widths:?} must increase from 1 or more to at most {} latents",
                    self.latents
                ));
            }
        }
        let shares = [
            ("the warm-up", self.warm_up),
            ("the decay", self.decay),
            ("the warm-up of the penalty", self.penalty_warm_up),
        ];
        if let Some((name, share)) = shares.into_iter().find(|(_, share)| !(0.0..=1.0).contains(share)) {
            return wrong(format!("{name} is {share}; expected a fraction from 0 to 1"));
        }
        if let Some(rate) = self.rate.filter(|rate| !(*rate > 0.0 && rate.is_finite())) {
            return wrong(format!("the learning rate is {rate}; expected a finite number above 0"));
        }
        if !self.betas.iter().all(|beta| (0.0..1.0).contains(beta)) {
            return wrong(format!("Adam's betas are {:?}; expected at least 0 and less than 1", self.betas));
        }
        let sizes = [
            ("the gradient clip", self.clip),
            ("the auxiliary loss weight", self.revive),
            ("the decoder norm", self.decoder_norm),
        ];
        if let Some((name, size)) = sizes.into_iter().find(|(_, size)| !(*size >= 0.0 && size.is_finite())) {
            return wrong(format!("{name} is {size}; expected a finite number of at least 0"));
        }
        if let Objective::JumpRelu { bandwidth, threshold, .. } = &self.objective
            && !(*bandwidth > 0.0 && bandwidth.is_finite() && *threshold >= 0.0 && threshold.is_finite())
        {
            return wrong(format!(
                "the bandwidth is {bandwidth} and the threshold {threshold}; expected a finite bandwidth above 0 and a \
                 finite threshold of at least 0"
            ));
        }
        if self.skip && !self.is_transcoder() {
            return wrong("only a transcoder can have a skip connection".into());
        }
        if self.total < self.batch {
            return wrong(format!(
                "{} tokens are fewer than one batch of {}; train on more tokens or use a smaller batch",
                self.total, self.batch
            ));
        }
        Ok(())
    }

    /// Sets the fraction of training over which sparsity penalties warm up from 0 (default 10 %).
    pub fn penalty_warm_up(mut self, share: f64) -> Self {
        self.penalty_warm_up = share;
        self
    }

    /// Sets Adam's betas, the decay rates of the first and second moments.
    pub fn betas(mut self, first: f32, second: f32) -> Self {
        self.betas = [first, second];
        self
    }

    /// Sets the maximum gradient norm; larger gradients are scaled down. 0 disables clipping. Default 1.
    pub fn clip(mut self, norm: f32) -> Self {
        self.clip = norm;
        self
    }

    /// Sets the initial norm of decoder rows. Default 0.1.
    pub fn decoder_norm(mut self, norm: f32) -> Self {
        self.decoder_norm = norm;
        self
    }

    /// Sets the number of tokens after which an inactive latent counts as dead. Default: a tenth of all tokens, at most
    /// 10 million.
    pub fn dead_after(mut self, tokens: usize) -> Self {
        self.dead_after = Some(tokens);
        self
    }

    /// Sets the weight of the auxiliary loss (AuxK), in which dead latents reconstruct the error, for objectives that
    /// choose k latents. 0 disables it. Default 1.
    pub fn revive(mut self, coefficient: f32) -> Self {
        self.revive = coefficient;
        self
    }
}

/// Checks that a model has a point that a dictionary can be trained on, with one vector of fixed width per token.
///
/// ```
/// use hooklens_features::check_point;
/// # use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// assert!(check_point(&model, ("z", -1)).is_ok());
/// assert!(check_point(&model, "blocks.1.attn.hook_pattern").is_err());
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// # Errors
/// [`FeatureError::Place`] if the model has no such point.
pub fn check_point<M: HookedModel>(model: &M, point: impl Into<Selection>) -> Result<()> {
    splice_point(model.catalog(), "the dictionary to train", &point.into().full_name()).map(drop)
}
