//! Sums over tokens, from which metrics are computed.

use burn::tensor::{Tensor, activation::log_softmax};
use serde::{Deserialize, Serialize};

use super::intervals::GROUPS;
use super::share::{number, numbers};
use crate::host::host;

/// Sums over tokens for one dictionary.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sums {
    pub(super) tokens: usize,
    #[serde(with = "number")]
    pub(super) l0: f64,
    #[serde(with = "number")]
    pub(super) l1: f64,
    #[serde(with = "number")]
    pub(super) error: f64,
    #[serde(with = "number")]
    pub(super) legacy: f64,
    /// Number of tokens whose activation differs from the mean of their batch.
    pub(super) legacy_tokens: usize,
    #[serde(with = "number")]
    pub(super) cosine: f64,
    #[serde(with = "number")]
    pub(super) norm_in: f64,
    #[serde(with = "number")]
    pub(super) norm_out: f64,
    #[serde(with = "number")]
    pub(super) ratio: f64,
    #[serde(with = "number")]
    pub(super) square_in: f64,
    #[serde(with = "number")]
    pub(super) square_out: f64,
    #[serde(with = "number")]
    pub(super) product: f64,
    #[serde(with = "numbers")]
    pub(super) mean: Vec<f64>,
    pub(super) active: Vec<u64>,
    pub(super) prompts: Vec<u64>,
    /// The sums of each group of prompts, without the per-latent sums; empty if groups are not needed.
    #[serde(default)]
    pub(super) groups: Vec<Sums>,
}

/// What one token adds to the sums.
struct OfToken {
    l0: f64,
    l1: f64,
    error: f64,
    /// `None` if the activation equals the mean of its batch.
    legacy: Option<f64>,
    square_in: f64,
    square_out: f64,
    product: f64,
}

/// Sums of losses and KL divergences: plain, with the dictionary, and with zeros.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Losses {
    pub(super) predicted: usize,
    #[serde(with = "number")]
    pub(super) loss: f64,
    #[serde(with = "number")]
    pub(super) dictionary: f64,
    #[serde(with = "number")]
    pub(super) zeros: f64,
    pub(super) positions: usize,
    #[serde(with = "number")]
    pub(super) kl_dictionary: f64,
    #[serde(with = "number")]
    pub(super) kl_zeros: f64,
    /// The sums of each group of prompts.
    #[serde(default)]
    pub(super) groups: Vec<Losses>,
}

/// Adds the sums of each group in `others` to the sums of the same group in `all`.
fn join_groups<T: Default>(all: &mut Vec<T>, others: &[T], join: impl Fn(&mut T, &T)) {
    if all.len() < others.len() {
        all.resize_with(others.len(), T::default);
    }
    all.iter_mut().zip(others).for_each(|(own, other)| join(own, other));
}

impl Sums {
    /// Adds the sums over other tokens for the same dictionary.
    pub(super) fn join(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.legacy_tokens += other.legacy_tokens;
        let scalars = [
            (&mut self.l0, other.l0),
            (&mut self.l1, other.l1),
            (&mut self.error, other.error),
            (&mut self.legacy, other.legacy),
            (&mut self.cosine, other.cosine),
            (&mut self.norm_in, other.norm_in),
            (&mut self.norm_out, other.norm_out),
            (&mut self.ratio, other.ratio),
            (&mut self.square_in, other.square_in),
            (&mut self.square_out, other.square_out),
            (&mut self.product, other.product),
        ];
        scalars.into_iter().for_each(|(sum, more)| *sum += more);
        // A shard without prompts has empty vectors.
        let len = self.mean.len().max(other.mean.len());
        self.mean.resize(len, 0.0);
        self.mean.iter_mut().zip(&other.mean).for_each(|(sum, more)| *sum += more);
        for (all, more) in [(&mut self.active, &other.active), (&mut self.prompts, &other.prompts)] {
            all.resize(all.len().max(more.len()), 0);
            all.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        join_groups(&mut self.groups, &other.groups, Self::join);
    }

    /// Adds the `counted` rows of activations, reconstructions and latent activations, with `len` rows per prompt.
    /// `groups` has the group of each prompt, or is empty.
    pub(super) fn add(
        &mut self,
        [x, output, acts]: [Tensor<2>; 3],
        (counted, len): (&[bool], usize),
        groups: &[usize],
    ) {
        if !groups.is_empty() {
            self.groups.resize_with(GROUPS, Self::default);
        }
        let ([_, width], [_, latents]) = (x.dims(), acts.dims());
        let [x, output, acts] = [x, output, acts].map(host);
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
            let (mut l0, mut l1) = (0.0, 0.0);
            for (latent, act) in acts[row * latents..][..latents].iter().enumerate().filter(|(_, act)| **act != 0.0) {
                l0 += 1.0;
                l1 += f64::from(act.abs());
                self.active[latent] += 1;
                if !std::mem::replace(&mut fired[latent], true) {
                    self.prompts[latent] += 1;
                }
            }
            let legacy = (spread > 0.0).then(|| 1.0 - error / spread);
            let token = OfToken { l0, l1, error, legacy, square_in: xx, square_out: yy, product: xy };
            self.add_token(&token);
            if let Some(group) = groups.get(row / len) {
                let group = &mut self.groups[*group];
                group.add_token(&token);
                group.mean.resize(width, 0.0);
                group.mean.iter_mut().zip(x).for_each(|(sum, x)| *sum += f64::from(*x));
            }
        }
    }

    fn add_token(&mut self, token: &OfToken) {
        let (xx, yy, xy) = (token.square_in, token.square_out, token.product);
        self.square_in += xx;
        self.square_out += yy;
        self.product += xy;
        self.error += token.error;
        if let Some(legacy) = token.legacy {
            self.legacy += legacy;
            self.legacy_tokens += 1;
        }
        self.norm_in += xx.sqrt();
        self.norm_out += yy.sqrt();
        // The cosine similarity with a zero vector counts as 0.
        self.cosine += if xx * yy > 0.0 { xy / (xx * yy).sqrt() } else { 0.0 };
        let short = xx.sqrt() < 1e-4;
        self.ratio += yy.sqrt() / if short { 1.0 } else { xx.sqrt() };
        self.l0 += token.l0;
        self.l1 += token.l1;
        self.tokens += 1;
    }

    /// Mean number of active latents.
    pub(crate) fn l0(&self) -> f64 {
        self.l0 / self.tokens as f64
    }

    /// Mean cosine similarity of `x` and `x̂`.
    pub(super) fn cosine(&self) -> f64 {
        self.cosine / self.tokens as f64
    }

    /// Mean of `‖x − x̂‖²`.
    pub(crate) fn mse(&self) -> f64 {
        self.error / self.tokens as f64
    }

    /// `1 − E‖x − x̂‖² / (E‖x‖² − ‖E x‖²)`; NaN if all activations are equal.
    pub(crate) fn explained_variance(&self) -> f64 {
        let n = self.tokens as f64;
        let of_mean: f64 = self.mean.iter().map(|sum| (sum / n) * (sum / n)).sum();
        let spread = self.square_in / n - of_mean;
        // If all activations are equal, the spread consists of rounding errors only.
        if spread > 1e-12 * self.square_in / n { 1.0 - self.mse() / spread } else { f64::NAN }
    }

    /// Fraction of tokens at which each latent is active, `[latent]`.
    pub(crate) fn density(&self) -> Vec<f64> {
        self.active.iter().map(|count| *count as f64 / self.tokens as f64).collect()
    }

    /// Number of tokens added.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }
}

impl Losses {
    /// Adds the sums over other tokens.
    pub(super) fn join(&mut self, other: &Self) {
        self.predicted += other.predicted;
        self.positions += other.positions;
        let sums = [
            (&mut self.loss, other.loss),
            (&mut self.dictionary, other.dictionary),
            (&mut self.zeros, other.zeros),
            (&mut self.kl_dictionary, other.kl_dictionary),
            (&mut self.kl_zeros, other.kl_zeros),
        ];
        sums.into_iter().for_each(|(sum, more)| *sum += more);
        join_groups(&mut self.groups, &other.groups, Self::join);
    }

    /// Fraction of the loss increase from zeros that is avoided by using the dictionary instead.
    pub(super) fn loss_recovered(&self) -> f64 {
        let [loss, with, zeros] = [self.loss, self.dictionary, self.zeros].map(|sum| sum / self.predicted as f64);
        (zeros - with) / (zeros - loss)
    }

    /// Fraction of the KL divergence from zeros that is avoided by using the dictionary instead.
    pub(super) fn kl_score(&self) -> f64 {
        let [kl, kl_zeros] = [self.kl_dictionary, self.kl_zeros].map(|sum| sum / self.positions as f64);
        (kl_zeros - kl) / kl_zeros
    }

    fn group(&mut self, group: usize) -> &mut Self {
        self.groups.resize_with(GROUPS, Self::default);
        &mut self.groups[group]
    }

    fn add_token(&mut self, [loss, with, zeros]: [f64; 3]) {
        self.predicted += 1;
        self.loss += loss;
        self.dictionary += with;
        self.zeros += zeros;
    }

    fn add_position(&mut self, [with, zeros]: [f64; 2]) {
        self.positions += 1;
        self.kl_dictionary += with;
        self.kl_zeros += zeros;
    }

    /// Adds the losses of a batch. `groups` has the group of each prompt.
    pub(super) fn add_losses(
        &mut self,
        each: [Tensor<2>; 3],
        counted: &[bool],
        real: &dyn Fn(usize) -> bool,
        groups: &[usize],
    ) {
        let len = counted.len() / groups.len();
        let [plain, with, zeros] = each.map(|each| each.to_data().iter::<f64>().collect::<Vec<_>>());
        for (at, loss) in plain.iter().enumerate() {
            let token = at / (len - 1) * len + at % (len - 1);
            if counted[token] && real(token + 1) {
                let own = [*loss, with[at], zeros[at]];
                self.add_token(own);
                self.group(groups[token / len]).add_token(own);
            }
        }
    }

    /// Adds the KL divergences of a batch. `groups` has the group of each prompt.
    pub(super) fn add_divergences(&mut self, logits: [Tensor<3>; 3], counted: &[bool], groups: &[usize]) {
        let len = counted.len() / groups.len();
        let [plain, with, zeros] = logits.map(|logits| log_softmax(logits, 2));
        let of = |other: Tensor<3>| -> Vec<f64> {
            (plain.clone().exp() * (plain.clone() - other)).sum_dim(2).to_data().iter().collect()
        };
        let (with, zeros) = (of(with), of(zeros));
        for (at, _) in counted.iter().enumerate().filter(|(_, counted)| **counted) {
            let own = [with[at], zeros[at]];
            self.add_position(own);
            self.group(groups[at / len]).add_position(own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After an overflow, sums are infinite or not numbers. A share must say so instead of being unreadable.
    #[test]
    fn sums_that_are_not_finite_are_read_as_written() {
        let sums = Sums { error: f64::NAN, l1: f64::INFINITY, mean: vec![0.5, f64::NEG_INFINITY], ..Sums::default() };
        let losses = Losses { loss: f64::NAN, kl_zeros: f64::INFINITY, ..Losses::default() };
        let (own, of_losses) = (serde_json::to_string(&sums).unwrap(), serde_json::to_string(&losses).unwrap());
        let read: Sums = serde_json::from_str(&own).unwrap();
        assert!(read.error.is_nan() && (read.l1, read.mean) == (sums.l1, sums.mean), "{own}");
        let read: Losses = serde_json::from_str(&of_losses).unwrap();
        assert!(read.loss.is_nan() && read.kl_zeros == f64::INFINITY, "{of_losses}");
    }
}
