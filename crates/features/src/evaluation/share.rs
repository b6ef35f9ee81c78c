//! Partial evaluations, each on a shard of the prompts, which can be joined.

use burn::tensor::Tensor;
use hooklens_analysis::statistics::Interval;
use serde::{Deserialize, Serialize};

use super::intervals;
use super::sums::{Losses, Sums};
use super::{Batch, EvaluateOptions, Evaluation, SetEvaluation, add_reconstructions, run};
use crate::dictionary::Dictionary;
use crate::error::FeatureError;
use crate::host::host;
use crate::splice::SpliceDictionary;
use crate::transcoders::Transcoders;
use hooklens_model::driver::HookedModel;
use hooklens_model::error::Result;
use hooklens_model::model::HookedTransformer;

/// Partial evaluation of a dictionary, or of a set of transcoders, on one shard of the prompts. Shards evaluated in
/// separate processes can be joined, with the same result as [`evaluate`](super::evaluate) on all prompts.
///
/// ```
/// use hooklens::features::{EvaluateOptions, evaluate, open, Opened};
/// use hooklens::prelude::*;
/// use hooklens_features::EvaluationShard;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let Opened::Dictionary(sae) = open("embedded:ioi-sae")? else { return Ok(()) };
/// let prompts: Vec<Vec<u32>> = ["When Mary and John went to the store", "John gave a drink to Mary"]
///     .iter()
///     .map(|text| Ok(model.to_tokens(*text)?.row(0).to_vec()))
///     .collect::<Result<_, hooklens::Error>>()?;
/// let options = EvaluateOptions::new().batch_size(1);
/// let share = |of: usize| EvaluationShard::of(&model, &sae, &prompts[of..of + 1], &options, |_| {});
/// let joined = EvaluationShard::joined([share(0)?, share(1)?])?.evaluation()?;
/// let whole = evaluate(&model, &sae, &prompts, &options, |_| {})?;
/// assert_eq!(joined.tokens, whole.tokens);
/// assert!((joined.loss_recovered - whole.loss_recovered).abs() < 1e-9);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluationShard {
    name: String,
    left_out: Vec<u32>,
    losses: Losses,
    layers: Vec<Layer>,
}

/// Sums of one dictionary, and statistics of its weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Layer {
    sums: Sums,
    #[serde(with = "numbers")]
    encoder_decoder_cosine: Vec<f64>,
    #[serde(with = "numbers")]
    encoder_norm: Vec<f64>,
    #[serde(with = "numbers")]
    encoder_bias: Vec<f64>,
    #[serde(with = "numbers")]
    largest_decoder_cosine: Vec<f64>,
}

/// Yields prompts from memory. Before each prompt, calls `progress` with the number of prompts already yielded.
fn counted<'p>(
    prompts: &'p [Vec<u32>],
    progress: &'p mut impl FnMut(usize),
) -> impl Iterator<Item = Result<Vec<u32>>> + 'p {
    prompts.iter().enumerate().map(move |(number, row)| {
        progress(number);
        Ok(row.clone())
    })
}

impl EvaluationShard {
    /// Evaluates a dictionary on a shard of the prompts, like [`evaluate`](super::evaluate).
    ///
    /// # Errors
    /// Same as [`evaluate`](super::evaluate), except that an empty list of prompts is allowed.
    pub fn of(
        model: &HookedTransformer,
        dictionary: &Dictionary,
        prompts: &[Vec<u32>],
        options: &EvaluateOptions,
        mut progress: impl FnMut(usize),
    ) -> Result<Self> {
        Self::of_rows(model, dictionary, counted(prompts, &mut progress), options)
    }

    /// Like [`EvaluationShard::of`], on prompts that are read when they are needed.
    ///
    /// # Errors
    /// Same as [`EvaluationShard::of`]; also fails if a prompt cannot be read.
    pub fn of_rows(
        model: &HookedTransformer,
        dictionary: &Dictionary,
        prompts: impl Iterator<Item = Result<Vec<u32>>>,
        options: &EvaluateOptions,
    ) -> Result<Self> {
        let left_out = dictionary.metadata().exclude_special_tokens.ids(model)?;
        let replacing = dictionary.clone().with_error_term(false);
        let spliced = model.splice_dictionary(&replacing)?;
        let own = match model.devices().first() {
            Some(device) => dictionary.to_device(device),
            None => dictionary.clone(),
        };
        let own = Transcoders::new(dictionary.name(), vec![own]);
        Self::measured([model, &spliced], &own, prompts, (options, left_out))
    }

    /// Evaluates a set of transcoders on a shard of the prompts, like
    /// [`evaluate_transcoders`](super::evaluate_transcoders).
    ///
    /// # Errors
    /// Same as [`evaluate_transcoders`](super::evaluate_transcoders), except that an empty list of prompts is allowed.
    pub fn of_transcoders(
        model: &HookedTransformer,
        transcoders: &Transcoders,
        prompts: &[Vec<u32>],
        options: &EvaluateOptions,
        mut progress: impl FnMut(usize),
    ) -> Result<Self> {
        Self::of_transcoders_rows(model, transcoders, counted(prompts, &mut progress), options)
    }

    /// Like [`EvaluationShard::of_transcoders`], on prompts that are read when they are needed.
    ///
    /// # Errors
    /// Same as [`EvaluationShard::of_transcoders`]; also fails if a prompt cannot be read.
    pub fn of_transcoders_rows(
        model: &HookedTransformer,
        transcoders: &Transcoders,
        prompts: impl Iterator<Item = Result<Vec<u32>>>,
        options: &EvaluateOptions,
    ) -> Result<Self> {
        let first = transcoders.layers().first();
        let first = first.ok_or_else(|| FeatureError::NoPoint { dictionary: transcoders.name().into() })?;
        let left_out = first.metadata().exclude_special_tokens.ids(model)?;
        for layer in transcoders.layers() {
            // Tokens are counted once for all layers, so all layers must exclude the same tokens.
            if layer.metadata().exclude_special_tokens.ids(model)? != left_out {
                let reason = "its layers exclude different tokens; set one list for all layers with \
                              `Transcoders::exclude_tokens`";
                let dictionary = transcoders.name().to_string();
                return Err(FeatureError::Kind { dictionary, reason: reason.into() }.into());
            }
        }
        let replacing = transcoders.clone().with_error_term(false);
        let spliced = model.splice_transcoders(&replacing)?;
        let own = match model.devices().first() {
            Some(device) => transcoders.to_device(device),
            None => transcoders.clone(),
        };
        Self::measured([model, &spliced], &own, prompts, (options, left_out))
    }

    fn measured(
        models: [&HookedTransformer; 2],
        own: &Transcoders,
        prompts: impl Iterator<Item = Result<Vec<u32>>>,
        (options, left_out): (&EvaluateOptions, Vec<u32>),
    ) -> Result<Self> {
        let sites = own.layers().iter().map(Dictionary::points).collect::<Result<Vec<_>>>()?;
        let mut sums: Vec<Sums> = sites.iter().map(|_| Sums::default()).collect();
        let each = |batch: &Batch<'_>| {
            let rows = |point: &str, width: usize| batch.rows(point, width);
            add_reconstructions(own, &mut sums, &rows, (batch.counted, batch.len), batch.groups)
        };
        let losses = run(models, &sites, prompts, (options, &left_out), each)?;
        let layers = sums.into_iter().zip(own.layers()).map(|(sums, one)| Layer::new(sums, one, options));
        Ok(Self { name: own.name().to_string(), layers: layers.collect::<Result<_>>()?, left_out, losses })
    }

    /// Joins partial evaluations.
    ///
    /// # Errors
    /// Fails if there are no shards, or if they belong to different dictionaries or exclude different tokens.
    pub fn joined(shares: impl IntoIterator<Item = Self>) -> Result<Self> {
        let mut shares = shares.into_iter();
        let wrong = |name: &str, reason: &str| FeatureError::Kind { dictionary: name.into(), reason: reason.into() };
        let mut all = shares.next().ok_or_else(|| wrong("the evaluation", "there are no shards to join"))?;
        for share in shares {
            // Norms may be rounded differently on other processors.
            let near = |(one, other): (&f64, &f64)| (one - other).abs() <= 1e-4 * one.abs();
            let same = |(one, other): (&Layer, &Layer)| {
                let norms = one.encoder_norm.iter().zip(&other.encoder_norm);
                one.encoder_bias == other.encoder_bias && norms.into_iter().all(near)
            };
            if share.layers.len() != all.layers.len() || !all.layers.iter().zip(&share.layers).all(same) {
                return Err(wrong(&share.name, "a shard belongs to a different dictionary").into());
            }
            if share.left_out != all.left_out {
                return Err(wrong(&share.name, "a shard excludes different tokens").into());
            }
            all.losses.join(&share.losses);
            all.layers.iter_mut().zip(&share.layers).for_each(|(one, other)| one.sums.join(&other.sums));
        }
        Ok(all)
    }

    /// Returns the metrics of the dictionary, or of the first layer.
    ///
    /// # Errors
    /// Fails if no prompts were evaluated.
    pub fn evaluation(self) -> Result<Evaluation> {
        let name = self.name.clone();
        let first = self.set_evaluation()?.layers.into_iter().next();
        first.ok_or_else(|| FeatureError::NoPoint { dictionary: name }.into())
    }

    /// Returns the metrics of all layers.
    ///
    /// # Errors
    /// Fails if no prompts were evaluated.
    pub fn set_evaluation(self) -> Result<SetEvaluation> {
        if self.layers.iter().any(|layer| layer.sums.density().is_empty()) {
            let reason = "there are no prompts to evaluate it on".to_string();
            return Err(FeatureError::Kind { dictionary: self.name, reason }.into());
        }
        let (losses, left_out) = (&self.losses, &self.left_out);
        let of_losses = intervals::of_losses(losses);
        let evaluated = |layer: Layer| layer.evaluation(losses, &of_losses, left_out);
        Ok(SetEvaluation { layers: self.layers.into_iter().map(evaluated).collect() })
    }

    /// Number of dictionaries: one, or one per layer.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }
}

impl Layer {
    fn new(sums: Sums, own: &Dictionary, options: &EvaluateOptions) -> Result<Self> {
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
        Ok(Self {
            sums,
            encoder_decoder_cosine: cosines,
            encoder_norm: numbers(encoder_norms),
            encoder_bias: own.encoder_bias().to_data().iter().collect(),
            largest_decoder_cosine: largest,
        })
    }

    /// Computes the metrics of one dictionary. `of_losses` are the intervals of the losses, which all layers share.
    fn evaluation(self, losses: &Losses, of_losses: &[(&'static str, Interval)], left_out: &[u32]) -> Evaluation {
        let sums = self.sums;
        let intervals = [of_losses, &intervals::of_sums(&sums)].concat();
        let n = sums.tokens as f64;
        let [predicted, positions] = [losses.predicted as f64, losses.positions as f64];
        let [loss, with, zeros] = [losses.loss, losses.dictionary, losses.zeros].map(|sum| sum / predicted);
        let [kl, kl_zeros] = [losses.kl_dictionary, losses.kl_zeros].map(|sum| sum / positions);
        Evaluation {
            tokens: sums.tokens,
            left_out: left_out.to_vec(),
            l0: sums.l0(),
            l1: sums.l1 / n,
            mse: sums.mse(),
            explained_variance: sums.explained_variance(),
            explained_variance_legacy: sums.legacy / sums.legacy_tokens as f64,
            cosine: sums.cosine(),
            l2_norm_in: sums.norm_in / n,
            l2_norm_out: sums.norm_out / n,
            l2_ratio: sums.ratio / n,
            relative_reconstruction_bias: sums.square_out / sums.product,
            loss,
            loss_with_dictionary: with,
            loss_with_zeros: zeros,
            loss_recovered: losses.loss_recovered(),
            kl_with_dictionary: kl,
            kl_with_zeros: kl_zeros,
            kl_score: losses.kl_score(),
            intervals,
            density: sums.density(),
            tokens_a_prompt: sums.active.iter().zip(&sums.prompts).map(|(a, p)| *a as f64 / *p as f64).collect(),
            encoder_decoder_cosine: self.encoder_decoder_cosine,
            encoder_norm: self.encoder_norm,
            encoder_bias: self.encoder_bias,
            largest_decoder_cosine: self.largest_decoder_cosine,
        }
    }
}

/// For each row, the largest cosine similarity with another row. All rows must have norm 1. Computed block by block.
fn largest_cosines(rows: Tensor<2>) -> Vec<f64> {
    const BLOCK: usize = 512;
    let [count, _] = rows.dims();
    let mut largest = Vec::with_capacity(count);
    for start in (0..count).step_by(BLOCK) {
        let some = BLOCK.min(count - start);
        let products = host(rows.clone().narrow(0, start, some).matmul(rows.clone().transpose()));
        for (place, row) in products.chunks_exact(count).enumerate() {
            let others = row.iter().enumerate().filter(|(other, _)| *other != start + place).map(|(_, x)| *x);
            largest.push(f64::from(others.fold(f32::NEG_INFINITY, f32::max)));
        }
    }
    largest
}

/// A JSON number, or a string such as `NaN` or `inf` for values that JSON does not support.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Number {
    Finite(f64),
    Other(String),
}

impl From<f64> for Number {
    fn from(x: f64) -> Self {
        if x.is_finite() { Self::Finite(x) } else { Self::Other(x.to_string()) }
    }
}

impl Number {
    fn read<E: serde::de::Error>(self) -> std::result::Result<f64, E> {
        match self {
            Self::Finite(x) => Ok(x),
            Self::Other(text) => text.parse().map_err(|_| E::custom(format!("`{text}` is not a number"))),
        }
    }
}

/// Serializes a number that may not be finite.
pub(super) mod number {
    use super::Number;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(x: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        Number::from(*x).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'d, D: Deserializer<'d>>(deserializer: D) -> Result<f64, D::Error> {
        Number::deserialize(deserializer)?.read()
    }
}

/// Serializes numbers that may not be finite.
pub(super) mod numbers {
    use super::Number;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(all: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(all.iter().map(|x| Number::from(*x)))
    }

    #[derive(Deserialize)]
    struct One(#[serde(with = "super::number")] f64);

    pub(in super::super) fn deserialize<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
        Ok(Vec::<One>::deserialize(deserializer)?.into_iter().map(|number| number.0).collect())
    }
}
