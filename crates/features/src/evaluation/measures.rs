//! Results of an evaluation, as text and JSON.

use std::fmt;

use hooklens_analysis::statistics::Interval;
use serde_json::{Map, Value, json};

/// Densities above which latents count as dense and very dense.
const DENSE: [f64; 2] = [0.01, 0.1];
/// The formula of the explained variance.
const VARIANCE: &str = "1 - E|x - x̂|² / (E|x|² - |E x|²)";

/// Evaluation metrics of a dictionary, defined as in SAELens. They are computed over all tokens of the prompts unless
/// noted otherwise.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Evaluation {
    /// Number of tokens evaluated.
    pub tokens: usize,
    /// Ids of tokens that were excluded from all metrics.
    pub(super) left_out: Vec<u32>,
    /// Mean number of active latents per token.
    pub l0: f64,
    /// Mean L1 norm of the activations.
    pub(super) l1: f64,
    /// Mean of `‖x − x̂‖²`.
    pub(super) mse: f64,
    /// `1 − E‖x − x̂‖² / (E‖x‖² − ‖E x‖²)`; NaN if all activations are equal, such as for a single token.
    pub explained_variance: f64,
    /// Mean over tokens of `1 − ‖x − x̂‖² / ‖x − mean of the batch‖²`, excluding tokens equal to the mean of their
    /// batch. An earlier formula, kept for comparison with old results; it depends on the composition of batches.
    pub(super) explained_variance_legacy: f64,
    /// Mean cosine similarity of `x` and `x̂`.
    pub(super) cosine: f64,
    /// Mean of `‖x‖`.
    pub(super) l2_norm_in: f64,
    /// Mean of `‖x̂‖`.
    pub(super) l2_norm_out: f64,
    /// Mean of `‖x̂‖ / ‖x‖`.
    pub(super) l2_ratio: f64,
    /// `E‖x̂‖² / E(x · x̂)`, which is 1 if the reconstruction is unbiased.
    pub(super) relative_reconstruction_bias: f64,
    /// Mean loss of the model, in nats. Like the other losses, it is NaN if no evaluated token has a next token.
    pub(super) loss: f64,
    /// Mean loss with the reconstruction in place of the activation. In a [`SetEvaluation`], this and the following
    /// losses and divergences are computed with all layers replaced at once.
    pub(super) loss_with_dictionary: f64,
    /// Mean loss with the activation replaced by zeros.
    pub(super) loss_with_zeros: f64,
    /// `(loss with zeros − loss with the dictionary) / (loss with zeros − loss)`: SAELens's `ce_loss_score`.
    pub loss_recovered: f64,
    /// Mean KL divergence from the model's predictions, with the activation replaced by the reconstruction.
    pub(super) kl_with_dictionary: f64,
    /// Mean KL divergence from the model's predictions, with the activation replaced by zeros.
    pub(super) kl_with_zeros: f64,
    /// `(KL with zeros − KL with the dictionary) / KL with zeros`.
    pub(super) kl_score: f64,
    /// 95 % bootstrap intervals over prompts, under SAELens's names: of the loss and KL scores, the explained variance,
    /// MSE, cosine and L0. Prompts are divided into 32 groups by a hash of their tokens, and the groups are resampled.
    /// Undefined metrics have no interval, and no metric has one if the prompts are in fewer than 8 groups.
    pub intervals: Vec<(&'static str, Interval)>,
    /// Fraction of tokens at which each latent is active, `[latent]`.
    pub density: Vec<f64>,
    /// For each latent, the mean number of tokens per prompt at which it is active, over the prompts in which it is
    /// active at all; NaN for a latent that is never active.
    pub(super) tokens_a_prompt: Vec<f64>,
    /// Cosine similarity of each latent's encoder column and decoder row; empty if `d_in` and `d_out` differ.
    pub(super) encoder_decoder_cosine: Vec<f64>,
    /// Norm of each latent's encoder column.
    pub(super) encoder_norm: Vec<f64>,
    /// Each latent's encoder bias.
    pub(super) encoder_bias: Vec<f64>,
    /// Largest cosine similarity of each decoder row with another row; empty if not requested.
    pub(super) largest_decoder_cosine: Vec<f64>,
}

impl Evaluation {
    /// Fraction of latents that are never active.
    fn dead(&self) -> f64 {
        self.share(|density| density == 0.0)
    }

    /// Fractions of latents that are active at more than 1 % and more than 10 % of tokens.
    fn dense(&self) -> [f64; 2] {
        DENSE.map(|bound| self.share(|density| density > bound))
    }

    /// Remark to print next to losses if they are undefined.
    fn next_token(&self) -> Option<&'static str> {
        (!self.loss.is_finite()).then_some("(no next token)")
    }

    fn share(&self, of: impl Fn(f64) -> bool) -> f64 {
        if self.tokens == 0 {
            return f64::NAN;
        }
        self.density.iter().filter(|density| of(**density)).count() as f64 / self.density.len().max(1) as f64
    }

    /// Metrics over all tokens, under SAELens's names.
    ///
    /// | name | metric |
    /// |---|---|
    /// | `ce_loss_without_sae`, `ce_loss_with_sae`, `ce_loss_with_ablation` | mean loss of the model in nats: unchanged, with the reconstruction in place of the activation, and with zeros; NaN if no evaluated token has a next token |
    /// | `ce_loss_score` | [`Evaluation::loss_recovered`] |
    /// | `kl_div_with_sae`, `kl_div_with_ablation` | mean KL divergence from the model's predictions, with the reconstruction and with zeros |
    /// | `kl_div_score` | `(KL with zeros − KL with the dictionary) / KL with zeros` |
    /// | `explained_variance` | [`Evaluation::explained_variance`] |
    /// | `explained_variance_legacy` | mean over tokens of `1 − ‖x − x̂‖² / ‖x − mean of the batch‖²`, which depends on how prompts are batched |
    /// | `mse`, `cossim` | means of `‖x − x̂‖²` and of the cosine similarity of `x` and `x̂` |
    /// | `l2_norm_in`, `l2_norm_out`, `l2_ratio` | means of `‖x‖`, `‖x̂‖` and `‖x̂‖ / ‖x‖` |
    /// | `relative_reconstruction_bias` | `E‖x̂‖² / E(x · x̂)`, which is 1 if the reconstruction is unbiased |
    /// | `l0`, `l1` | mean number of active latents and mean L1 norm of the activations |
    /// | `dead`, `dense`, `very_dense` | fractions of latents that are never active, active at more than 1 % of tokens, and active at more than 10 % |
    ///
    /// In a [`SetEvaluation`], losses and divergences are computed with all layers replaced at once.
    ///
    /// ```
    /// # use hooklens::features::{Dictionary, EvaluateOptions, evaluate};
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let sae = Dictionary::open("embedded:ioi-sae")?;
    /// # let prompts = [model.to_tokens("When Mary and John went to the store")?.row(0).to_vec()];
    /// for (name, value) in evaluate(&model, &sae, &prompts, &EvaluateOptions::new(), |_| {})?.metrics() {
    ///     println!("{name:<28} {value:.4}");
    /// }
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn metrics(&self) -> Vec<(&'static str, f64)> {
        self.groups().into_iter().flat_map(|(_, metrics)| metrics).collect()
    }

    /// Metrics over all tokens, in the groups of SAELens's files.
    fn groups(&self) -> [(&'static str, Vec<(&'static str, f64)>); 6] {
        let [dense, very_dense] = self.dense();
        [
            (
                "model_performance_preservation",
                vec![
                    ("ce_loss_score", self.loss_recovered),
                    ("ce_loss_with_ablation", self.loss_with_zeros),
                    ("ce_loss_with_sae", self.loss_with_dictionary),
                    ("ce_loss_without_sae", self.loss),
                ],
            ),
            (
                "model_behavior_preservation",
                vec![
                    ("kl_div_score", self.kl_score),
                    ("kl_div_with_ablation", self.kl_with_zeros),
                    ("kl_div_with_sae", self.kl_with_dictionary),
                ],
            ),
            (
                "reconstruction_quality",
                vec![
                    ("explained_variance", self.explained_variance),
                    ("explained_variance_legacy", self.explained_variance_legacy),
                    ("mse", self.mse),
                    ("cossim", self.cosine),
                ],
            ),
            (
                "shrinkage",
                vec![
                    ("l2_norm_in", self.l2_norm_in),
                    ("l2_norm_out", self.l2_norm_out),
                    ("l2_ratio", self.l2_ratio),
                    ("relative_reconstruction_bias", self.relative_reconstruction_bias),
                ],
            ),
            ("sparsity", vec![("l0", self.l0), ("l1", self.l1)]),
            ("latents", vec![("dead", self.dead()), ("dense", dense), ("very_dense", very_dense)]),
        ]
    }

    /// Metrics of each latent, `[latent]`, under SAELens's names: density, mean number of active tokens per prompt in
    /// which the latent is active, encoder norm, encoder bias, cosine similarity of encoder column and decoder row
    /// (empty if `d_in` and `d_out` differ), and the largest cosine similarity with another decoder row (empty if not
    /// requested).
    pub fn feature_metrics(&self) -> [(&'static str, &[f64]); 6] {
        [
            ("feature_density", &self.density),
            ("consistent_activation_heuristic", &self.tokens_a_prompt),
            ("encoder_norm", &self.encoder_norm),
            ("encoder_bias", &self.encoder_bias),
            ("encoder_decoder_cosine_sim", &self.encoder_decoder_cosine),
            ("max_decoder_cosine_sim", &self.largest_decoder_cosine),
        ]
    }

    fn intervals_json(&self) -> Map<String, Value> {
        self.intervals.iter().map(|(name, own)| (name.to_string(), json!([own.low, own.high]))).collect()
    }

    /// The interval of a metric as text; empty if the metric has none.
    fn within(&self, name: &str, decimals: usize) -> String {
        let own = self.intervals.iter().find(|(own, _)| *own == name);
        own.map_or(String::new(), |(_, own)| format!("[{:.decimals$}, {:.decimals$}]", own.low, own.high))
    }

    /// All metrics as JSON, under SAELens's names where they exist. Non-finite numbers become null.
    pub fn to_json(&self) -> Value {
        let object = |metrics: Vec<(&str, f64)>| {
            metrics.into_iter().map(|(name, value)| (name.to_string(), value.into())).collect::<Map<_, _>>()
        };
        let mut metrics: Map<String, Value> =
            self.groups().into_iter().map(|(group, metrics)| (group.into(), object(metrics).into())).collect();
        metrics.insert("token_stats".into(), json!({ "total_tokens": self.tokens, "left_out": self.left_out }));
        json!({
            "metrics": metrics,
            "intervals": self.intervals_json(),
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

/// Formats a metric; non-finite values print as "not defined".
pub(crate) fn defined(measure: f64, decimals: usize) -> String {
    if measure.is_finite() { format!("{measure:.decimals$}") } else { "not defined".into() }
}

/// Formats a fraction of latents, which is undefined without tokens.
fn percent(share: f64, tokens: usize) -> String {
    if tokens == 0 { "not defined".into() } else { format!("{:.2} %", 100.0 * share) }
}

/// Describes the tokens that were excluded.
fn without(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    match &ids[..] {
        [] => "none excluded".into(),
        [one] => format!("without token {one}"),
        several => format!("without tokens {}", several.join(", ")),
    }
}

/// Formats a table with one metric per line.
impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [dense, very_dense] = self.dense();
        let percent = |share: f64| percent(share, self.tokens);
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        let left_out = without(&self.left_out);
        let next = self.next_token();
        let varies = if self.explained_variance.is_finite() { VARIANCE } else { "(all activations are equal)" };
        let mut lines = vec![
            ("tokens", self.tokens.to_string(), &*left_out),
            ("L0", defined(self.l0, 2), "active latents per token"),
            ("L1", defined(self.l1, 4), ""),
            ("explained variance", defined(self.explained_variance, 4), varies),
            ("MSE", defined(self.mse, 6), "summed over the width"),
            ("cosine", defined(self.cosine, 4), ""),
            ("L2 ratio", defined(self.l2_ratio, 4), "|x̂| / |x|"),
            ("reconstruction bias", defined(self.relative_reconstruction_bias, 4), "E|x̂|² / E(x·x̂)"),
            ("loss", defined(self.loss, 4), next.unwrap_or("of the model, in nats")),
            ("loss with dictionary", defined(self.loss_with_dictionary, 4), next.unwrap_or_default()),
            ("loss with zeros", defined(self.loss_with_zeros, 4), next.unwrap_or_default()),
            ("loss recovered", defined(self.loss_recovered, 4), next.unwrap_or("of the loss added by zeros")),
            ("KL with dictionary", defined(self.kl_with_dictionary, 6), "from the model's predictions"),
            ("KL with zeros", defined(self.kl_with_zeros, 6), ""),
            ("KL score", defined(self.kl_score, 4), ""),
            ("dead latents", percent(self.dead()), "never active"),
            ("dense latents", percent(dense), "active at more than 1 % of tokens"),
            ("very dense latents", percent(very_dense), "at more than 10 %"),
        ];
        if !self.largest_decoder_cosine.is_empty() {
            let mean = format!("{:.4}", mean(&self.largest_decoder_cosine));
            lines.push(("largest cosine", mean, "between a decoder row and its nearest other row, on average"));
        }
        let intervals = [
            ("tokens", if self.intervals.is_empty() { "" } else { "95 % interval" }.to_string()),
            ("L0", self.within("l0", 2)),
            ("explained variance", self.within("explained_variance", 4)),
            ("MSE", self.within("mse", 6)),
            ("cosine", self.within("cossim", 4)),
            ("loss recovered", self.within("ce_loss_score", 4)),
            ("KL score", self.within("kl_div_score", 4)),
        ];
        let width = intervals.iter().map(|(_, interval)| interval.len()).max().unwrap_or(0);
        for (name, value, remark) in lines {
            let interval = intervals.iter().find(|(own, _)| *own == name).map_or("", |(_, interval)| interval);
            let line = match width {
                0 => format!("{name:<22}{value:>12}   {remark}"),
                _ => format!("{name:<22}{value:>12}  {interval:<width$}   {remark}"),
            };
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Evaluation metrics of a set of transcoders, one per layer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SetEvaluation {
    /// Metrics per layer. Reconstruction metrics differ between layers; losses and divergences are computed with all
    /// MLPs replaced by transcoders or zeros, so they are the same for every layer.
    pub layers: Vec<Evaluation>,
}

impl SetEvaluation {
    /// Fraction of the loss increase from zeroing all MLPs that is recovered by using the transcoders instead.
    pub fn loss_recovered(&self) -> f64 {
        self.layers.first().map_or(f64::NAN, |layer| layer.loss_recovered)
    }

    /// All metrics as JSON: the model's losses and divergences, and a list with each layer's metrics, under the same
    /// keys as in [`Evaluation::to_json`].
    pub fn to_json(&self) -> Value {
        const OF_LOSSES: [&str; 2] = ["ce_loss_score", "kl_div_score"];
        const OF_MODEL: [&str; 2] = ["model_performance_preservation", "model_behavior_preservation"];
        let mut layers: Vec<Value> = self.layers.iter().map(Evaluation::to_json).collect();
        let mut metrics = Map::new();
        // The intervals of losses and divergences, which all layers share.
        let mut intervals = Map::new();
        for layer in &mut layers {
            if let Some(Value::Object(own)) = layer.get_mut("intervals") {
                intervals.extend(OF_LOSSES.iter().filter_map(|name| Some((name.to_string(), own.remove(*name)?))));
            }
            let Some(Value::Object(own)) = layer.get_mut("metrics") else { continue };
            metrics.extend(OF_MODEL.iter().filter_map(|name| Some((name.to_string(), own.remove(*name)?))));
        }
        json!({ "metrics": metrics, "intervals": intervals, "layers": layers })
    }
}

/// Formats a table with one layer per line, followed by the model's losses.
impl fmt::Display for SetEvaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["layer", "L0", "explained variance", "MSE", "cosine", "L2 ratio", "dead", "dense"];
        let line = |cells: [String; 8]| {
            let cells =
                cells.iter().zip(names).map(|(cell, name)| format!("{cell:>width$}", width = name.len().max(8)));
            cells.collect::<Vec<_>>().join("  ")
        };
        writeln!(f, "{}", line(names.map(str::to_string)))?;
        for (layer, one) in self.layers.iter().enumerate() {
            let cells = [
                layer.to_string(),
                defined(one.l0, 2),
                defined(one.explained_variance, 4),
                defined(one.mse, 6),
                defined(one.cosine, 4),
                defined(one.l2_ratio, 4),
                percent(one.dead(), one.tokens),
                percent(one.dense()[0], one.tokens),
            ];
            writeln!(f, "{}", line(cells))?;
        }
        let Some(first) = self.layers.first() else { return Ok(()) };
        let next = first.next_token();
        let lines = [
            ("tokens", first.tokens.to_string(), &*without(&first.left_out)),
            ("loss", defined(first.loss, 4), next.unwrap_or("of the model, in nats")),
            (
                "loss with all",
                defined(first.loss_with_dictionary, 4),
                next.unwrap_or("all MLPs replaced by transcoders"),
            ),
            ("loss with zeros", defined(first.loss_with_zeros, 4), next.unwrap_or_default()),
            ("loss recovered", defined(first.loss_recovered, 4), next.unwrap_or("of the loss added by zeros")),
            ("KL with all", defined(first.kl_with_dictionary, 6), "from the model's predictions"),
            ("KL with zeros", defined(first.kl_with_zeros, 6), ""),
            ("KL score", defined(first.kl_score, 4), ""),
        ];
        for (name, value, remark) in lines {
            let interval = match name {
                "loss recovered" => first.within("ce_loss_score", 4),
                "KL score" => first.within("kl_div_score", 4),
                _ => String::new(),
            };
            let interval = if interval.is_empty() { interval } else { format!("  {interval}") };
            writeln!(f, "{}", format!("{name:<22}{value:>12}{interval}   {remark}").trim_end())?;
        }
        Ok(())
    }
}
