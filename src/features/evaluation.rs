//! How well a dictionary stands for the activations it was made for.

use std::fmt;

use burn::tensor::{Tensor, activation::log_softmax};
use hooklens_hooks::{ActivationCache, Record, at};
use serde_json::{Value, json};

use super::dictionary::Dictionary;
use super::splice::{SpliceDictionary, Splicing};
use super::transcoders::{Transcoders, combined};
use crate::driver::{ForwardOptions, HookedModel};
use crate::error::{FeatureError, InputError, Result};
use crate::model::HookedTransformer;
use crate::tokens::{PaddingSide, Tokens};

/// Latents active at more of the tokens than this are called dense.
const DENSE: [f64; 2] = [0.01, 0.1];
/// Bins of the histogram of densities, by their decimal logarithms from -8 to 0.
const BINS: usize = 32;

/// What is measured, and on what.
///
/// ```
/// use hooklens::features::EvaluateOptions;
/// let options = EvaluateOptions::new().batch_size(8).leaving_out([0]); // without tokens 0
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct EvaluateOptions {
    batch_size: usize,
    /// What the dictionary says, unless given.
    left_out: Option<Vec<u32>>,
    cosines: bool,
}

impl Default for EvaluateOptions {
    fn default() -> Self {
        Self { batch_size: 16, left_out: None, cosines: true }
    }
}

impl EvaluateOptions {
    /// Ids of the tokens that are left out.
    fn left_out(&self, model: &HookedTransformer, dictionary: &Dictionary) -> Result<Vec<u32>> {
        match &self.left_out {
            Some(ids) => Ok(ids.clone()),
            None => dictionary.metadata().exclude_special_tokens.ids(model),
        }
    }

    /// 16 prompts at a time, all tokens but those that the dictionary says it was trained without.
    pub fn new() -> Self {
        Self::default()
    }

    /// Prompts run together.
    pub fn batch_size(mut self, prompts: usize) -> Self {
        self.batch_size = prompts.max(1);
        self
    }

    /// Leaves these tokens out of every measure, and their activations as they are, instead of those that the
    /// dictionary's files say ([`Metadata::exclude_special_tokens`](super::Metadata::exclude_special_tokens)): `[]` for
    /// none.
    pub fn leaving_out(mut self, tokens: impl IntoIterator<Item = u32>) -> Self {
        self.left_out = Some(tokens.into_iter().collect());
        self
    }

    /// Whether decoder rows are compared with each other, which takes time with the square of their number.
    pub fn cosines(mut self, cosines: bool) -> Self {
        self.cosines = cosines;
        self
    }
}

/// Measures of a dictionary, over all tokens of the prompts unless said otherwise; as SAELens's evaluation has them.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Evaluation {
    /// Tokens measured.
    pub tokens: usize,
    /// Tokens that were left out of every measure.
    pub left_out: Vec<u32>,
    /// Mean number of active latents.
    pub l0: f64,
    /// Mean sum of activations' magnitudes.
    pub l1: f64,
    /// Mean of `‖x − x̂‖²`.
    pub mse: f64,
    /// `1 − E‖x − x̂‖² / (E‖x‖² − ‖E x‖²)`.
    pub explained_variance: f64,
    /// Mean over tokens of `1 − ‖x − x̂‖² / ‖x − mean of the batch‖²`: an earlier formula, for figures made by it.
    pub explained_variance_legacy: f64,
    /// Mean cosine of `x` and `x̂`.
    pub cosine: f64,
    /// Mean of `‖x‖`.
    pub l2_norm_in: f64,
    /// Mean of `‖x̂‖`.
    pub l2_norm_out: f64,
    /// Mean of `‖x̂‖ / ‖x‖`.
    pub l2_ratio: f64,
    /// `E‖x̂‖² / E(x · x̂)`: 1 without bias.
    pub relative_reconstruction_bias: f64,
    /// Mean loss of the model, in nats.
    pub loss: f64,
    /// Mean loss with the reconstruction in the place of the point; of a layer of [`SetEvaluation`], as all that follow,
    /// with those of all layers in their places.
    pub loss_with_dictionary: f64,
    /// Mean loss with zeros in the place of the point.
    pub loss_with_zeros: f64,
    /// `(loss with zeros − loss with the dictionary) / (loss with zeros − loss)`: SAELens's `ce_loss_score`.
    pub loss_recovered: f64,
    /// Mean KL divergence of the predictions with the reconstruction from the model's.
    pub kl_with_dictionary: f64,
    /// The same with zeros.
    pub kl_with_zeros: f64,
    /// `(KL with zeros − KL with the dictionary) / KL with zeros`.
    pub kl_score: f64,
    /// Share of tokens at which each latent is active, `[latent]`.
    pub density: Vec<f64>,
    /// Tokens a prompt at which each latent is active, of prompts where it is at all; NaN where it never is.
    pub tokens_a_prompt: Vec<f64>,
    /// Cosine of each latent's encoder column and decoder row; nothing of a transcoder between widths that differ.
    pub encoder_decoder_cosine: Vec<f64>,
    /// Norm of each latent's encoder column.
    pub encoder_norm: Vec<f64>,
    /// Each latent's encoder bias.
    pub encoder_bias: Vec<f64>,
    /// Largest cosine of each decoder row with another; nothing if not asked for.
    pub largest_decoder_cosine: Vec<f64>,
}

/// Sums over tokens.
#[derive(Default)]
struct Sums {
    tokens: usize,
    l0: f64,
    l1: f64,
    error: f64,
    legacy: f64,
    cosine: f64,
    norm_in: f64,
    norm_out: f64,
    ratio: f64,
    square_in: f64,
    square_out: f64,
    product: f64,
    mean: Vec<f64>,
    active: Vec<u64>,
    prompts: Vec<u64>,
}

/// Losses and divergences, with the dictionary and with zeros.
#[derive(Default)]
struct Losses {
    predicted: usize,
    loss: f64,
    dictionary: f64,
    zeros: f64,
    positions: usize,
    kl_dictionary: f64,
    kl_zeros: f64,
}

/// Measures a dictionary on prompts of token ids; `progress` is told of prompts done. Prompts begin as those did that it
/// was trained on: [`Metadata::prepend_bos`](super::Metadata::prepend_bos) says how.
///
/// ```
/// use hooklens::features::{Dictionary, EvaluateOptions, evaluate};
/// use hooklens::prelude::*;
/// # use hooklens::features::{DictionaryWeights, Metadata};
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// # let device = Device::flex();
/// # let eye = Tensor::<2>::eye(64, &device);
/// # let weights = DictionaryWeights {
/// #     encoder: Tensor::cat(vec![eye.clone(), -eye.clone()], 1), encoder_bias: Tensor::zeros([128], &device),
/// #     decoder: Tensor::cat(vec![eye.clone(), -eye], 0), decoder_bias: Tensor::zeros([64], &device), skip: None,
/// # };
/// # let sae = Dictionary::new("exact", weights)?.with_metadata(Metadata::at("blocks.2.hook_resid_post"));
/// let prompts = model.to_tokens("When Mary and John went to the store, John gave a drink to")?;
/// let measured = evaluate(&model, &sae, &[prompts.row(0).to_vec()], &EvaluateOptions::new(), |_| {})?;
/// assert!((measured.explained_variance - 1.0).abs() < 1e-6 && (measured.loss_recovered - 1.0).abs() < 1e-6);
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// # Errors
/// Those of [`SpliceDictionary::splice_dictionary`]; prompts that the model can't run, or of which nothing is left.
pub fn evaluate(
    model: &HookedTransformer,
    dictionary: &Dictionary,
    prompts: &[Vec<u32>],
    options: &EvaluateOptions,
    progress: impl FnMut(usize),
) -> Result<Evaluation> {
    let left_out = options.left_out(model, dictionary)?;
    let splicing = Splicing::new().error_term(false).leaving_out(left_out.iter().copied());
    let spliced = model.splice_dictionary_with(dictionary, &splicing)?;
    let own = match model.devices().first() {
        Some(device) => dictionary.to_device(device),
        None => dictionary.clone(),
    };
    let site = Site::of(&own)?;
    let mut sums = Sums::default();
    let each = |batch: &Batch<'_>| {
        let input = batch.rows(&site.read, own.d_in())?;
        let (acts, output) = (own.encode(input.clone())?, own.forward(input)?);
        sums.add(&batch.rows(&site.write, own.d_out())?, &output, &acts, batch)
    };
    let losses = run([model, &spliced], std::slice::from_ref(&site), prompts, (options, &left_out), each, progress)?;
    sums.check(dictionary.name())?;
    sums.evaluation(&losses, &own, options, &left_out)
}

/// Measures transcoders of all layers, a set or a cross-layer transcoder, on prompts of token ids: what each layer's
/// reconstruction misses of what its MLP writes, and what the model loses with all of them in the places of the MLPs.
///
/// ```
/// use hooklens::features::{EvaluateOptions, Transcoders, evaluate_transcoders};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let set = Transcoders::open("embedded:ioi-transcoders")?;
/// let prompts = model.to_tokens("When Mary and John went to the store, John gave a drink to")?;
/// let measured = evaluate_transcoders(&model, &set, &[prompts.row(0).to_vec()], &EvaluateOptions::new(), |_| {})?;
/// assert_eq!(measured.layers.len(), 4);
/// assert!(measured.loss_recovered() > 0.5);
/// # Ok::<(), hooklens::Error>(())
/// ```
///
/// # Errors
/// As [`evaluate`]; those of [`SpliceDictionary::splice_transcoders`].
pub fn evaluate_transcoders(
    model: &HookedTransformer,
    transcoders: &Transcoders,
    prompts: &[Vec<u32>],
    options: &EvaluateOptions,
    progress: impl FnMut(usize),
) -> Result<SetEvaluation> {
    let first = transcoders.layers().first();
    let first = first.ok_or_else(|| FeatureError::NoPoint { dictionary: transcoders.name().into() })?;
    let left_out = options.left_out(model, first)?;
    let splicing = Splicing::new().error_term(false).leaving_out(left_out.iter().copied());
    let spliced = model.splice_transcoders_with(transcoders, &splicing)?;
    let own = match model.devices().first() {
        Some(device) => transcoders.to_device(device),
        None => transcoders.clone(),
    };
    let sites = own.layers().iter().map(Site::of).collect::<Result<Vec<_>>>()?;
    let mut sums: Vec<Sums> = sites.iter().map(|_| Sums::default()).collect();
    let each = |batch: &Batch<'_>| {
        // What latents of earlier layers write to each.
        let mut written: Vec<Option<Tensor<2>>> = vec![None; sites.len()];
        for (layer, (one, site)) in own.layers().iter().zip(&sites).enumerate() {
            let input = batch.rows(&site.read, one.d_in())?;
            let (acts, output) = (one.encode(input.clone())?, one.forward(input)?);
            for (to, written) in written.iter_mut().enumerate().skip(layer + 1) {
                if let Some(decoder) = own.across(layer, to) {
                    let more = combined(acts.clone(), decoder)?;
                    *written = Some(written.take().map_or(more.clone(), |sum| sum + more));
                }
            }
            let output = written[layer].take().map_or(output.clone(), |written| output + written);
            sums[layer].add(&batch.rows(&site.write, one.d_out())?, &output, &acts, batch)?;
        }
        Ok(())
    };
    let losses = run([model, &spliced], &sites, prompts, (options, &left_out), each, progress)?;
    let mut layers = Vec::new();
    for (sums, one) in sums.into_iter().zip(own.layers()) {
        sums.check(transcoders.name())?;
        layers.push(sums.evaluation(&losses, one, options, &left_out)?);
    }
    Ok(SetEvaluation { layers })
}

/// The points that a dictionary reads and reconstructs.
struct Site {
    read: String,
    write: String,
}

impl Site {
    fn of(dictionary: &Dictionary) -> Result<Self> {
        let metadata = dictionary.metadata();
        let read = metadata.reads.clone();
        let read = read.ok_or_else(|| FeatureError::NoPoint { dictionary: dictionary.name().into() })?;
        Ok(Self { write: metadata.writes.clone().unwrap_or_else(|| read.clone()), read })
    }
}

/// Activations of some prompts that were run together.
struct Batch<'b> {
    cache: &'b ActivationCache,
    /// Whether each place is measured, and how many of them are a prompt's.
    counted: &'b [bool],
    len: usize,
}

impl Batch<'_> {
    /// A point's activations, `[row, width]`.
    fn rows(&self, point: &str, width: usize) -> Result<Tensor<2>> {
        Ok(self.cache.activation(point)?.reshape(&[self.counted.len(), width]).to_tensor::<2>()?)
    }
}

/// Runs a model on prompts, alone, with dictionaries and with zeros in the places of what they write, and gives losses.
fn run(
    [model, spliced]: [&HookedTransformer; 2],
    sites: &[Site],
    prompts: &[Vec<u32>],
    (options, left_out): (&EvaluateOptions, &[u32]),
    mut each: impl FnMut(&Batch<'_>) -> Result<()>,
    mut progress: impl FnMut(usize),
) -> Result<Losses> {
    let pad = model.tokenizer().map_or(0, |tokenizer| tokenizer.pad());
    let points: Vec<&str> = sites.iter().flat_map(|site| [&*site.read, &*site.write]).collect();
    let zeros = || sites.iter().map(|site| at(&*site.write).edit_any(|x, _| Ok(Some(x.zeros_like()))));
    let (mut losses, mut done) = (Losses::default(), 0);
    for batch in prompts.chunks(options.batch_size) {
        let tokens = Tokens::padded(batch, pad, PaddingSide::Right)?;
        let [_, len] = tokens.shape();
        let real = |at: usize| tokens.mask().is_none_or(|mask| mask[at]);
        let counted: Vec<bool> =
            tokens.ids().iter().enumerate().map(|(at, id)| real(at) && !left_out.contains(id)).collect();
        let with_losses = || ForwardOptions::new().loss_per_token();
        let plain = model.run(&tokens, with_losses().record(Record::new(&points[..])))?;
        let with = spliced.run(&tokens, with_losses())?;
        let zeroed = model.run(&tokens, with_losses().hooks(zeros()))?;
        each(&Batch { cache: &plain.cache, counted: &counted, len })?;

        let logits = |run: &crate::model::Output| run.logits.clone().ok_or(InputError::NoOutput { what: "logits" });
        let losses_of = [&plain, &with, &zeroed].map(|run| run.loss_per_token.clone());
        let [Some(a), Some(b), Some(c)] = losses_of else { return Err(InputError::NoOutput { what: "loss" }.into()) };
        losses.add_losses([a, b, c], &counted, &real, len);
        losses.add_divergences([logits(&plain)?, logits(&with)?, logits(&zeroed)?], &counted);
        done += batch.len();
        progress(done);
    }
    Ok(losses)
}

impl Sums {
    /// An error where nothing was measured.
    fn check(&self, dictionary: &str) -> Result<()> {
        match self.tokens {
            0 => {
                let reason = "no token of the prompts is left to measure it on".to_string();
                Err(FeatureError::Kind { dictionary: dictionary.into(), reason }.into())
            }
            _ => Ok(()),
        }
    }

    fn add(&mut self, x: &Tensor<2>, output: &Tensor<2>, acts: &Tensor<2>, batch: &Batch<'_>) -> Result<()> {
        let Batch { counted, len, .. } = *batch;
        let ([_, width], [_, latents]) = (x.dims(), acts.dims());
        let numbers = |of: &Tensor<2>| -> Vec<f32> { of.to_data().iter().collect() };
        let (x, output, acts) = (numbers(x), numbers(output), numbers(acts));
        self.mean.resize(width, 0.0);
        self.active.resize(latents, 0);
        self.prompts.resize(latents, 0);
        let rows = || counted.iter().enumerate().filter(|(_, counted)| **counted).map(|(row, _)| row);
        let count = rows().count();
        let mut mean = vec![0.0; width];
        for row in rows() {
            mean.iter_mut().zip(&x[row * width..]).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        self.mean.iter_mut().zip(&mean).for_each(|(all, batch)| *all += batch);
        mean.iter_mut().for_each(|sum| *sum /= count.max(1) as f64);
        let mut fired = vec![false; latents];
        for row in 0..counted.len() {
            if row % len == 0 {
                fired.fill(false);
            }
            if !counted[row] {
                continue;
            }
            let (x, output) = (&x[row * width..][..width], &output[row * width..][..width]);
            let (mut xx, mut yy, mut xy, mut error, mut spread) = (0.0, 0.0, 0.0, 0.0, 0.0);
            for ((x, y), mean) in x.iter().zip(output).zip(&mean) {
                let (x, y) = (f64::from(*x), f64::from(*y));
                xx += x * x;
                yy += y * y;
                xy += x * y;
                error += (x - y) * (x - y);
                spread += (x - mean) * (x - mean);
            }
            self.square_in += xx;
            self.square_out += yy;
            self.product += xy;
            self.error += error;
            self.legacy += 1.0 - error / spread;
            self.norm_in += xx.sqrt();
            self.norm_out += yy.sqrt();
            self.cosine += xy / (xx * yy).sqrt();
            let short = xx.sqrt() < 1e-4;
            self.ratio += yy.sqrt() / if short { 1.0 } else { xx.sqrt() };
            for (latent, act) in acts[row * latents..][..latents].iter().enumerate().filter(|(_, act)| **act != 0.0) {
                self.l0 += 1.0;
                self.l1 += f64::from(act.abs());
                self.active[latent] += 1;
                if !std::mem::replace(&mut fired[latent], true) {
                    self.prompts[latent] += 1;
                }
            }
            self.tokens += 1;
        }
        Ok(())
    }

    fn evaluation(
        self,
        losses: &Losses,
        own: &Dictionary,
        options: &EvaluateOptions,
        left_out: &[u32],
    ) -> Result<Evaluation> {
        let n = self.tokens as f64;
        let of_mean: f64 = self.mean.iter().map(|sum| (sum / n) * (sum / n)).sum();
        let spread = self.square_in / n - of_mean;
        let [predicted, positions] = [losses.predicted as f64, losses.positions as f64];
        let [loss, with, zeros] = [losses.loss, losses.dictionary, losses.zeros].map(|sum| sum / predicted);
        let [kl, kl_zeros] = [losses.kl_dictionary, losses.kl_zeros].map(|sum| sum / positions);
        let numbers = |of: Tensor<2>| -> Vec<f64> { of.to_data().iter().collect() };
        let (encoder, decoder) = (own.encoder()?, own.decoder()?);
        let wide = |matrix: Tensor<2>| matrix.cast(burn::tensor::DType::F32);
        let encoder = wide(encoder).transpose();
        let decoder = wide(decoder);
        let norms = |rows: &Tensor<2>| rows.clone().square().sum_dim(1).sqrt();
        let encoder_norms = norms(&encoder);
        let cosines = match own.d_in() == own.d_out() {
            true => {
                let product = (encoder.clone() * decoder.clone()).sum_dim(1);
                numbers(product / (encoder_norms.clone() * norms(&decoder)))
            }
            false => Vec::new(),
        };
        let largest = if options.cosines { largest_cosines(decoder.clone() / norms(&decoder)) } else { Vec::new() };
        Ok(Evaluation {
            tokens: self.tokens,
            left_out: left_out.to_vec(),
            l0: self.l0 / n,
            l1: self.l1 / n,
            mse: self.error / n,
            explained_variance: 1.0 - self.error / n / spread,
            explained_variance_legacy: self.legacy / n,
            cosine: self.cosine / n,
            l2_norm_in: self.norm_in / n,
            l2_norm_out: self.norm_out / n,
            l2_ratio: self.ratio / n,
            relative_reconstruction_bias: self.square_out / self.product,
            loss,
            loss_with_dictionary: with,
            loss_with_zeros: zeros,
            loss_recovered: (zeros - with) / (zeros - loss),
            kl_with_dictionary: kl,
            kl_with_zeros: kl_zeros,
            kl_score: (kl_zeros - kl) / kl_zeros,
            density: self.active.iter().map(|count| *count as f64 / n).collect(),
            tokens_a_prompt: self.active.iter().zip(&self.prompts).map(|(a, p)| *a as f64 / *p as f64).collect(),
            encoder_decoder_cosine: cosines,
            encoder_norm: numbers(encoder_norms),
            encoder_bias: own.encoder_bias().to_data().iter().collect(),
            largest_decoder_cosine: largest,
        })
    }
}

/// The largest cosine of each of these rows of norm 1 with another, block by block.
fn largest_cosines(rows: Tensor<2>) -> Vec<f64> {
    const BLOCK: usize = 512;
    let [count, _] = rows.dims();
    let mut largest = Vec::with_capacity(count);
    for start in (0..count).step_by(BLOCK) {
        let some = BLOCK.min(count - start);
        let products: Vec<f32> =
            rows.clone().narrow(0, start, some).matmul(rows.clone().transpose()).to_data().iter().collect();
        for (place, row) in products.chunks_exact(count).enumerate() {
            let others = row.iter().enumerate().filter(|(other, _)| *other != start + place).map(|(_, x)| *x);
            largest.push(f64::from(others.fold(f32::NEG_INFINITY, f32::max)));
        }
    }
    largest
}

impl Losses {
    fn add_losses(&mut self, each: [Tensor<2>; 3], counted: &[bool], real: &dyn Fn(usize) -> bool, len: usize) {
        let [plain, with, zeros] = each.map(|each| each.to_data().iter::<f64>().collect::<Vec<_>>());
        for (at, loss) in plain.iter().enumerate() {
            let token = at / (len - 1) * len + at % (len - 1);
            if counted[token] && real(token + 1) {
                self.predicted += 1;
                self.loss += loss;
                self.dictionary += with[at];
                self.zeros += zeros[at];
            }
        }
    }

    fn add_divergences(&mut self, logits: [Tensor<3>; 3], counted: &[bool]) {
        let [plain, with, zeros] = logits.map(|logits| log_softmax(logits, 2));
        let of = |other: Tensor<3>| -> Vec<f64> {
            (plain.clone().exp() * (plain.clone() - other)).sum_dim(2).to_data().iter().collect()
        };
        let (with, zeros) = (of(with), of(zeros));
        for (at, _) in counted.iter().enumerate().filter(|(_, counted)| **counted) {
            self.positions += 1;
            self.kl_dictionary += with[at];
            self.kl_zeros += zeros[at];
        }
    }
}

impl Evaluation {
    /// Share of latents that are active at none of the tokens.
    pub fn dead(&self) -> f64 {
        self.share(|density| density == 0.0)
    }

    /// Shares of latents that are active at more than 1 % and more than 10 % of the tokens.
    pub fn dense(&self) -> [f64; 2] {
        DENSE.map(|bound| self.share(|density| density > bound))
    }

    fn share(&self, of: impl Fn(f64) -> bool) -> f64 {
        self.density.iter().filter(|density| of(**density)).count() as f64 / self.density.len().max(1) as f64
    }

    /// The histogram of latents' densities: decimal logarithms at which bins begin, and how many latents are in each.
    /// Dead ones are in none.
    pub fn histogram(&self) -> Vec<(f64, usize)> {
        let width = 8.0 / BINS as f64;
        let mut bins: Vec<(f64, usize)> = (0..BINS).map(|bin| (-8.0 + bin as f64 * width, 0)).collect();
        for density in self.density.iter().filter(|density| **density > 0.0) {
            let bin = ((density.log10() + 8.0) / width).floor().clamp(0.0, (BINS - 1) as f64) as usize;
            bins[bin].1 += 1;
        }
        bins
    }

    /// All of it as JSON, under SAELens's names where it has one. What is no finite number is null.
    pub fn to_json(&self) -> Value {
        let [dense, very_dense] = self.dense();
        json!({
            "metrics": {
                "model_performance_preservation": {
                    "ce_loss_score": self.loss_recovered,
                    "ce_loss_with_ablation": self.loss_with_zeros,
                    "ce_loss_with_sae": self.loss_with_dictionary,
                    "ce_loss_without_sae": self.loss,
                },
                "model_behavior_preservation": {
                    "kl_div_score": self.kl_score,
                    "kl_div_with_ablation": self.kl_with_zeros,
                    "kl_div_with_sae": self.kl_with_dictionary,
                },
                "reconstruction_quality": {
                    "explained_variance": self.explained_variance,
                    "explained_variance_legacy": self.explained_variance_legacy,
                    "mse": self.mse,
                    "cossim": self.cosine,
                },
                "shrinkage": {
                    "l2_norm_in": self.l2_norm_in,
                    "l2_norm_out": self.l2_norm_out,
                    "l2_ratio": self.l2_ratio,
                    "relative_reconstruction_bias": self.relative_reconstruction_bias,
                },
                "sparsity": { "l0": self.l0, "l1": self.l1 },
                "latents": { "dead": self.dead(), "dense": dense, "very_dense": very_dense },
                "token_stats": { "total_tokens": self.tokens, "left_out": self.left_out },
            },
            "feature_metrics": {
                "feature_density": self.density,
                "consistent_activation_heuristic": self.tokens_a_prompt,
                "encoder_decoder_cosine_sim": self.encoder_decoder_cosine,
                "encoder_norm": self.encoder_norm,
                "encoder_bias": self.encoder_bias,
                "max_decoder_cosine_sim": self.largest_decoder_cosine,
            },
        })
    }
}

/// What is said of tokens that were left out.
fn without(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    match &ids[..] {
        [] => "all of them".into(),
        [one] => format!("without token {one}"),
        several => format!("without tokens {}", several.join(", ")),
    }
}

/// A table, a measure a line.
impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [dense, very_dense] = self.dense();
        let percent = |share: f64| format!("{:.2} %", 100.0 * share);
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        let left_out = without(&self.left_out);
        let mut lines = vec![
            ("tokens", self.tokens.to_string(), &*left_out),
            ("L0", format!("{:.2}", self.l0), "active latents a token"),
            ("L1", format!("{:.4}", self.l1), ""),
            ("explained variance", format!("{:.4}", self.explained_variance), "1 - E|x - x̂|² / (E|x|² - |E x|²)"),
            ("MSE", format!("{:.6}", self.mse), "summed over the width"),
            ("cosine", format!("{:.4}", self.cosine), ""),
            ("L2 ratio", format!("{:.4}", self.l2_ratio), "|x̂| / |x|"),
            ("reconstruction bias", format!("{:.4}", self.relative_reconstruction_bias), "E|x̂|² / E(x·x̂)"),
            ("loss", format!("{:.4}", self.loss), "of the model, in nats"),
            ("loss with dictionary", format!("{:.4}", self.loss_with_dictionary), ""),
            ("loss with zeros", format!("{:.4}", self.loss_with_zeros), ""),
            ("loss recovered", format!("{:.4}", self.loss_recovered), "of what zeros cost"),
            ("KL with dictionary", format!("{:.6}", self.kl_with_dictionary), "from the model's predictions"),
            ("KL with zeros", format!("{:.6}", self.kl_with_zeros), ""),
            ("KL score", format!("{:.4}", self.kl_score), ""),
            ("dead latents", percent(self.dead()), "active at no token"),
            ("dense latents", percent(dense), "active at more than 1 % of tokens"),
            ("very dense latents", percent(very_dense), "at more than 10 %"),
        ];
        if !self.largest_decoder_cosine.is_empty() {
            let mean = format!("{:.4}", mean(&self.largest_decoder_cosine));
            lines.push(("largest cosine", mean, "of a decoder row with another, on average"));
        }
        for (name, value, remark) in lines {
            writeln!(f, "{}", format!("{name:<22}{value:>12}   {remark}").trim_end())?;
        }
        Ok(())
    }
}

/// Measures of transcoders of all layers.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SetEvaluation {
    /// Each layer's: how it reconstructs is its own; losses and divergences are of the model with all layers'
    /// transcoders in the places of the MLPs, and with zeros there, and so the same for all layers.
    pub layers: Vec<Evaluation>,
}

impl SetEvaluation {
    /// Share of the loss that zeros in the places of all MLPs cost which their transcoders recover.
    pub fn loss_recovered(&self) -> f64 {
        self.layers.first().map_or(f64::NAN, |layer| layer.loss_recovered)
    }

    /// All of it as JSON: the measures of the model, and a list of each layer's under the names of
    /// [`Evaluation::to_json`].
    pub fn to_json(&self) -> Value {
        const OF_MODEL: [&str; 2] = ["model_performance_preservation", "model_behavior_preservation"];
        let mut layers: Vec<Value> = self.layers.iter().map(Evaluation::to_json).collect();
        let mut metrics = serde_json::Map::new();
        for layer in &mut layers {
            let Some(Value::Object(own)) = layer.get_mut("metrics") else { continue };
            metrics.extend(OF_MODEL.iter().filter_map(|name| Some((name.to_string(), own.remove(*name)?))));
        }
        json!({ "metrics": metrics, "layers": layers })
    }
}

/// A table, a layer a line, and below it what the model loses.
impl fmt::Display for SetEvaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["layer", "L0", "explained variance", "MSE", "cosine", "L2 ratio", "dead", "dense"];
        let line = |cells: [String; 8]| {
            let cells =
                cells.iter().zip(names).map(|(cell, name)| format!("{cell:>width$}", width = name.len().max(8)));
            cells.collect::<Vec<_>>().join("  ")
        };
        writeln!(f, "{}", line(names.map(str::to_string)))?;
        let percent = |share: f64| format!("{:.2} %", 100.0 * share);
        for (layer, one) in self.layers.iter().enumerate() {
            let cells = [
                layer.to_string(),
                format!("{:.2}", one.l0),
                format!("{:.4}", one.explained_variance),
                format!("{:.6}", one.mse),
                format!("{:.4}", one.cosine),
                format!("{:.4}", one.l2_ratio),
                percent(one.dead()),
                percent(one.dense()[0]),
            ];
            writeln!(f, "{}", line(cells))?;
        }
        let Some(first) = self.layers.first() else { return Ok(()) };
        let lines = [
            ("tokens", first.tokens.to_string(), &*without(&first.left_out)),
            ("loss", format!("{:.4}", first.loss), "of the model, in nats"),
            ("loss with all", format!("{:.4}", first.loss_with_dictionary), "transcoders in the places of the MLPs"),
            ("loss with zeros", format!("{:.4}", first.loss_with_zeros), ""),
            ("loss recovered", format!("{:.4}", first.loss_recovered), "of what zeros cost"),
            ("KL with all", format!("{:.6}", first.kl_with_dictionary), "from the model's predictions"),
            ("KL with zeros", format!("{:.6}", first.kl_with_zeros), ""),
            ("KL score", format!("{:.4}", first.kl_score), ""),
        ];
        for (name, value, remark) in lines {
            writeln!(f, "{}", format!("{name:<22}{value:>12}   {remark}").trim_end())?;
        }
        Ok(())
    }
}
