//! What is trained, and how.

use super::objective::Objective;
use crate::error::FeatureError;
use crate::splice::host;
use hooklens_model::driver::HookedModel;
use hooklens_model::error::Result;

/// The points a dictionary is trained on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sites {
    /// One point, reconstructed from itself.
    Autoencoder(String),
    /// One point, reconstructed from another.
    Transcoder(String, String),
    /// Of every layer a point that is read and one that is written, without what stands before the layer's own name.
    CrossLayer(String, String, usize),
}

/// The training of a dictionary: what it reads and reconstructs, its kind, and every knob with a default that serves.
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
    pub(super) sites: Sites,
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
    fn new(sites: Sites, latents: usize) -> Self {
        let name = match &sites {
            Sites::Autoencoder(point) => point.clone(),
            Sites::Transcoder(_, write) => write.clone(),
            Sites::CrossLayer(..) => "cross-layer transcoder".into(),
        };
        Self {
            sites,
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

    /// A sparse autoencoder of a point. BatchTopK with k 32, a million tokens.
    pub fn autoencoder(point: impl Into<String>, latents: usize) -> Self {
        Self::new(Sites::Autoencoder(point.into()), latents)
    }

    /// A transcoder from one point to another.
    pub fn transcoder(read: impl Into<String>, write: impl Into<String>, latents: usize) -> Self {
        Self::new(Sites::Transcoder(read.into(), write.into()), latents)
    }

    /// A cross-layer transcoder of a model of so many layers, with so many latents a layer: from what every MLP reads to
    /// what it and those behind it write.
    pub fn cross_layer(layers: usize, latents: usize) -> Self {
        Self::new(Sites::CrossLayer("mlp.hook_in".into(), "hook_mlp_out".into(), layers), latents)
    }

    /// Checks that a model has a point whose activations a dictionary can be trained on: a vector of one width per token.
    ///
    /// ```
    /// use hooklens::features::Training;
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// assert!(Training::check_point(&model, "blocks.1.attn.hook_z").is_ok());
    /// assert!(Training::check_point(&model, "blocks.1.attn.hook_pattern").is_err());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`FeatureError::Place`].
    pub fn check_point<M: HookedModel>(model: &M, point: &str) -> Result<()> {
        host(model.catalog(), "the dictionary to train", point).map(drop)
    }

    /// The activation function and what keeps latents few. With [`Objective::JumpRelu`] Adam's first decay becomes 0.
    pub fn objective(mut self, objective: Objective) -> Self {
        self.betas[0] = if matches!(objective, Objective::JumpRelu { .. }) { 0.0 } else { 0.9 };
        self.objective = objective;
        self
    }

    /// BatchTopK with this mean of active latents a token.
    pub fn k(self, k: f64) -> Self {
        self.objective(Objective::BatchTopK { k })
    }

    /// Tokens to train on; prompts are gone through again if there are fewer.
    pub fn tokens(mut self, tokens: usize) -> Self {
        self.total = tokens;
        self
    }

    /// Tokens a step.
    pub fn batch_size(mut self, tokens: usize) -> Self {
        self.batch = tokens.max(1);
        self
    }

    /// The learning rate: by default `2e-4 / sqrt(latents / 16384)`, but at most 2e-3.
    pub fn learning_rate(mut self, rate: f32) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Shares of the training in which the learning rate rises from 0 (5 %) and falls to 0 (20 %).
    pub fn schedule(mut self, warm_up: f64, decay: f64) -> Self {
        (self.warm_up, self.decay) = (warm_up, decay);
        self
    }

    /// The share of the training in which penalties of latents rise from 0 (10 %).
    pub fn penalty_warm_up(mut self, share: f64) -> Self {
        self.penalty_warm_up = share;
        self
    }

    /// Adam's decays: of the mean of gradients and of their squares.
    pub fn betas(mut self, first: f32, second: f32) -> Self {
        self.betas = [first, second];
        self
    }

    /// The largest norm of a step's gradients; longer ones are shortened to it. 0 for any. Default 1.
    pub fn clip(mut self, norm: f32) -> Self {
        self.clip = norm;
        self
    }

    /// What random numbers begin with: weights, and the order of activations. The same seed gives the same file.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Norm of decoder rows at the beginning. Default 0.1.
    pub fn decoder_norm(mut self, norm: f32) -> Self {
        self.decoder_norm = norm;
        self
    }

    /// Latents that are not active for so many tokens are dead. Default: a tenth of all tokens, at most 10 million.
    pub fn dead_after(mut self, tokens: usize) -> Self {
        self.dead_after = Some(tokens);
        self
    }

    /// The weight of the loss in which dead latents reconstruct what the others miss (AuxK), for kinds that choose k
    /// latents. 0 for none. Default 1.
    pub fn revive(mut self, coefficient: f32) -> Self {
        self.revive = coefficient;
        self
    }

    /// Whether activations are multiplied by one factor to a mean norm of `sqrt(width)`, which is folded into the weights
    /// at the end. Default yes.
    pub fn normalize(mut self, normalize: bool) -> Self {
        self.normalize = normalize;
        self
    }

    /// Whether a transcoder has a skip connection.
    pub fn skip(mut self, skip: bool) -> Self {
        self.skip = skip;
        self
    }

    /// Batches that are held and shuffled together. Default 32.
    pub fn buffer(mut self, batches: usize) -> Self {
        self.buffer = batches.max(1);
        self
    }

    /// What the model is called, to be said with the dictionary.
    pub fn model(mut self, name: impl Into<String>) -> Self {
        self.model = Some(name.into());
        self
    }

    /// Whether prompts begin with a token of their beginning, to be said with the dictionary.
    pub fn prepend_bos(mut self, prepend_bos: bool) -> Self {
        self.prepend_bos = Some(prepend_bos);
        self
    }

    /// What it is called.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Number of layers it spans; 1 unless it is a cross-layer transcoder.
    pub(super) fn layers(&self) -> usize {
        match self.sites {
            Sites::CrossLayer(_, _, layers) => layers,
            _ => 1,
        }
    }

    pub(super) fn is_transcoder(&self) -> bool {
        !matches!(self.sites, Sites::Autoencoder(_))
    }

    pub(super) fn is_cross_layer(&self) -> bool {
        matches!(self.sites, Sites::CrossLayer(..))
    }

    /// The points a layer reads and, if it is another, writes.
    pub(super) fn points(&self, layer: usize) -> (String, Option<String>) {
        match &self.sites {
            Sites::Autoencoder(point) => (point.clone(), None),
            Sites::Transcoder(read, write) => (read.clone(), Some(write.clone())),
            Sites::CrossLayer(read, write, _) => {
                (format!("blocks.{layer}.{read}"), Some(format!("blocks.{layer}.{write}")))
            }
        }
    }

    /// Every point whose activations it needs, in the order of inputs and then outputs.
    pub(super) fn all_points(&self) -> (Vec<String>, Vec<String>) {
        (0..self.layers())
            .map(|layer| self.points(layer))
            .map(|(read, write)| (read.clone(), write.unwrap_or(read)))
            .unzip()
    }

    pub(super) fn dead_after_tokens(&self) -> usize {
        self.dead_after.unwrap_or((self.total / 10).min(10_000_000))
    }

    /// The learning rate when so many tokens have been seen.
    pub(super) fn rate_at(&self, tokens: usize) -> f32 {
        let done = tokens as f64 / self.total.max(1) as f64;
        let own = self.rate.unwrap_or_else(|| (2e-4 / (self.latents as f32 / 16384.0).sqrt()).min(2e-3));
        let warm = if self.warm_up > 0.0 { ((done + 1e-3) / self.warm_up).min(1.0) } else { 1.0 };
        let left = if self.decay > 0.0 { ((1.0 - done) / self.decay).clamp(0.0, 1.0) } else { 1.0 };
        own * (warm * left) as f32
    }

    /// The share of penalties that counts when so many tokens have been seen.
    pub(super) fn penalty_share(&self, tokens: usize) -> f32 {
        let done = tokens as f64 / self.total.max(1) as f64;
        if self.penalty_warm_up > 0.0 { (done / self.penalty_warm_up).min(1.0) as f32 } else { 1.0 }
    }

    /// An error for settings that make no sense.
    pub(super) fn check(&self) -> Result<()> {
        let wrong = |reason: String| {
            Err(FeatureError::Kind { dictionary: format!("the training of {}", self.name), reason }.into())
        };
        let all = self.latents * self.layers();
        if self.latents == 0 || self.layers() == 0 {
            return wrong("it has no latents".into());
        }
        let k = match &self.objective {
            Objective::TopK { k } => Some(*k as f64),
            other => other.by_batch(),
        };
        if let Some(k) = k.filter(|k| !(*k > 0.0 && *k <= all as f64)) {
            return wrong(format!("k is {k} of {all} latents"));
        }
        if let Objective::Matryoshka { widths, .. } = &self.objective {
            let rising = widths.windows(2).all(|pair| pair[0] < pair[1]) && widths.first() != Some(&0);
            if !rising || widths.last().is_some_and(|last| *last > self.latents) {
                return wrong(format!("the widths {widths:?} do not rise to the {} latents", self.latents));
            }
        }
        let shares = [self.warm_up, self.decay, self.penalty_warm_up];
        if shares.iter().any(|share| !(0.0..=1.0).contains(share)) {
            return wrong("warm-up and decay are shares between 0 and 1".into());
        }
        if self.rate.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
            return wrong("the learning rate is above 0".into());
        }
        if !self.betas.iter().all(|beta| (0.0..1.0).contains(beta)) {
            return wrong("Adam's decays are from 0 to below 1".into());
        }
        let sizes = [self.clip, self.revive, self.decoder_norm];
        if sizes.iter().any(|size| !(*size >= 0.0 && size.is_finite())) {
            return wrong("the clip, the weight of what revives latents and the decoder's norm are 0 or above".into());
        }
        if let Objective::JumpRelu { bandwidth, threshold, .. } = &self.objective
            && !(*bandwidth > 0.0 && bandwidth.is_finite() && *threshold >= 0.0 && threshold.is_finite())
        {
            return wrong("a bandwidth is above 0, and a threshold not below it".into());
        }
        if self.skip && !self.is_transcoder() {
            return wrong("only a transcoder has a skip connection".into());
        }
        if self.total < self.batch {
            return wrong(format!("{} tokens are less than one batch of {}", self.total, self.batch));
        }
        Ok(())
    }
}
