//! Sampling a token from logits.

use std::cmp::Ordering;

use crate::error::InputError;

/// How the next token is sampled. At temperature 0, the default, the most likely token is chosen.
///
/// The steps are applied in this order: repetition penalty, temperature, frequency penalty, then top-k, top-p and
/// min-p, each to the tokens that remain.
///
/// ```
/// use hooklens::generation::Sampling;
/// let sampling = Sampling { temperature: 1.0, top_k: Some(2), ..Sampling::default() };
/// let kept = sampling.distribution(&[1.0, 0.0, 1.0, -1.0], &[]);
/// assert_eq!(kept, [0.5, 0.0, 0.5, 0.0]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 selects the most likely token.
    pub temperature: f64,
    /// Keeps only this many of the most likely tokens.
    pub top_k: Option<usize>,
    /// Keeps the smallest set of most likely tokens whose probabilities sum to at least this value.
    pub top_p: Option<f64>,
    /// Keeps only tokens with at least this fraction of the most likely token's probability.
    pub min_p: Option<f64>,
    /// Subtracted from a token's logit for each of its occurrences so far, including those in the prompt.
    pub frequency_penalty: f64,
    /// Divides positive logits of tokens that have occurred, and multiplies negative ones (Keskar et al. 2019).
    pub repetition_penalty: f64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: None,
            top_p: None,
            min_p: None,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
        }
    }
}

impl Sampling {
    /// Checks that every setting is valid for a vocabulary of `d_vocab` tokens.
    pub(super) fn check(&self, d_vocab: usize) -> Result<(), InputError> {
        let setting = |name, given: String, allowed| Err(InputError::Setting { name, given, allowed });
        let number = |x: f64| x.is_finite();
        if !number(self.temperature) || self.temperature < 0.0 {
            return setting("temperature", self.temperature.to_string(), "0 or more".into());
        }
        if let Some(k) = self.top_k.filter(|k| *k == 0 || *k > d_vocab) {
            return setting("top_k", k.to_string(), format!("1 to {d_vocab}, the size of the vocabulary"));
        }
        if let Some(p) = self.top_p.filter(|p| !number(*p) || *p <= 0.0 || *p > 1.0) {
            return setting("top_p", p.to_string(), "a number greater than 0 and at most 1".into());
        }
        if let Some(p) = self.min_p.filter(|p| !number(*p) || *p < 0.0 || *p > 1.0) {
            return setting("min_p", p.to_string(), "0 to 1".into());
        }
        if !number(self.frequency_penalty) {
            return setting("frequency_penalty", self.frequency_penalty.to_string(), "a finite number".into());
        }
        if !number(self.repetition_penalty) || self.repetition_penalty <= 0.0 {
            return setting(
                "repetition_penalty",
                self.repetition_penalty.to_string(),
                "a number greater than 0".into(),
            );
        }
        Ok(())
    }

    /// Probability of each token, given the logits and the tokens so far. At temperature 0, the most likely token (the
    /// first, if tied) has probability 1. Infinite logits share all of the probability. If any logit is NaN, so is
    /// every probability.
    ///
    /// ```
    /// use hooklens::generation::Sampling;
    /// let penalised = Sampling { temperature: 1.0, frequency_penalty: 1.0, ..Sampling::default() };
    /// let shares = penalised.distribution(&[1.0, 0.0], &[0]); // the first token has occurred once
    /// assert_eq!(shares, [0.5, 0.5]);
    /// ```
    pub fn distribution(&self, logits: &[f32], so_far: &[u32]) -> Vec<f64> {
        if logits.iter().any(|logit| logit.is_nan()) {
            return vec![f64::NAN; logits.len()];
        }
        let kept = self.kept(logits, so_far);
        let sum: f64 = kept.iter().map(|(_, weight)| weight).sum();
        let mut probabilities = vec![0.0; logits.len()];
        for (token, weight) in kept {
            probabilities[token] = weight / sum;
        }
        probabilities
    }

    /// Tokens that can be drawn and their unnormalized probabilities, in token order.
    fn kept(&self, logits: &[f32], so_far: &[u32]) -> Vec<(usize, f64)> {
        let mut logits: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
        self.penalise_repetition(&mut logits, so_far);
        let greedy = self.temperature == 0.0;
        if !greedy {
            logits.iter_mut().for_each(|x| *x /= self.temperature);
        }
        if self.frequency_penalty != 0.0 {
            for token in so_far {
                if let Some(logit) = logits.get_mut(*token as usize) {
                    *logit -= self.frequency_penalty;
                }
            }
        }
        let mut kept: Vec<(usize, f64)> = logits.into_iter().enumerate().collect();
        // Vocabularies are large, so only the part that is needed is sorted.
        if let Some(k) = if greedy { Some(1) } else { self.top_k }.filter(|k| *k < kept.len()) {
            kept.select_nth_unstable_by(k - 1, best_first);
            kept.truncate(k);
        }
        let most = kept.iter().map(|(_, logit)| *logit).max_by(f64::total_cmp).unwrap_or(0.0);
        // An infinite logit takes all probability; the difference of infinities is undefined.
        let share = |logit: f64| if logit == most { 1.0 } else { (logit - most).exp() };
        kept.iter_mut().for_each(|(_, logit)| *logit = share(*logit));
        if let Some(p) = self.top_p {
            let count = count_with_share(&mut kept, p);
            kept.truncate(count);
        }
        if let Some(p) = self.min_p {
            kept.retain(|(_, weight)| *weight >= p);
        }
        kept.sort_unstable_by_key(|(token, _)| *token);
        kept
    }

    fn penalise_repetition(&self, logits: &mut [f64], so_far: &[u32]) {
        if self.repetition_penalty == 1.0 {
            return;
        }
        let mut seen = so_far.to_vec();
        seen.sort_unstable();
        seen.dedup();
        for token in seen {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = if *logit > 0.0 { *logit / self.repetition_penalty } else { *logit * self.repetition_penalty };
            }
        }
    }

    /// Whether logits depend on the tokens so far.
    pub(super) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0
    }

    /// Whether the choice is the argmax of the unmodified logits.
    pub(super) fn is_greedy(&self) -> bool {
        self.temperature == 0.0 && !self.has_penalties()
    }

    /// Draws a token; `at` is uniform in [0, 1).
    pub(super) fn draw(&self, logits: &[f32], so_far: impl FnOnce() -> Vec<u32>, at: f64) -> u32 {
        if self.is_greedy() {
            return argmax(logits);
        }
        let kept = self.kept(logits, &so_far());
        let mut left = at * kept.iter().map(|(_, weight)| weight).sum::<f64>();
        let drawn = kept.iter().find(|(_, weight)| {
            left -= weight;
            left < 0.0
        });
        // Rounding may leave a remainder: use the last token with nonzero probability.
        let last = || kept.iter().rfind(|(_, weight)| *weight > 0.0);
        drawn.or_else(last).map_or(0, |(token, _)| *token as u32)
    }
}

/// Orders by descending weight, then by token.
fn best_first(a: &(usize, f64), b: &(usize, f64)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Number of largest weights needed to make up at least a fraction `p` of the total; moves those weights to the front.
fn count_with_share(weights: &mut [(usize, f64)], p: f64) -> usize {
    let wanted = p * weights.iter().map(|(_, weight)| weight).sum::<f64>() * (1.0 - 1e-12);
    let (mut sum, mut sorted) = (0.0, 0);
    while sorted < weights.len() {
        let rest = &mut weights[sorted..];
        let next = rest.len().min((3 * sorted).max(256));
        if next < rest.len() {
            rest.select_nth_unstable_by(next, best_first);
        }
        rest[..next].sort_unstable_by(best_first);
        for (place, (_, weight)) in rest[..next].iter().enumerate() {
            sum += weight;
            if sum >= wanted {
                return sorted + place + 1;
            }
        }
        sorted += next;
    }
    weights.len()
}

/// Index of the largest logit, the first if tied.
fn argmax(logits: &[f32]) -> u32 {
    let most = largest(logits);
    logits.iter().position(|logit| *logit == most).unwrap_or(0) as u32
}

/// Largest logit, computed in lanes that the compiler can keep in one register.
fn largest(logits: &[f32]) -> f32 {
    let (lanes, rest) = logits.as_chunks::<16>();
    let mut most = [f32::NEG_INFINITY; 16];
    for chunk in lanes {
        for (most, x) in most.iter_mut().zip(chunk) {
            *most = if *x > *most { *x } else { *most };
        }
    }
    most.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Log-probability (natural logarithm) of a token under the unmodified logits.
pub(super) fn log_prob(logits: &[f32], token: u32) -> f32 {
    let most = largest(logits);
    if most.is_infinite() {
        // The difference of infinities is undefined; infinite logits share all probability.
        let shared = logits.iter().filter(|logit| **logit == most).count();
        return if logits[token as usize] == most { -(shared as f32).ln() } else { f32::NEG_INFINITY };
    }
    let sum: f64 =
        logits.chunks(1024).map(|chunk| f64::from(chunk.iter().map(|x| (x - most).exp()).sum::<f32>())).sum();
    (f64::from(logits[token as usize] - most) - sum.ln()) as f32
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    const LOGITS: [f32; 6] = [0.1, 2.0, -1.0, 1.5, 0.1, 0.7];

    /// Checks Pearson's chi-squared statistic, which exceeds the bound (at most five degrees of freedom) once in ten
    /// thousand runs.
    #[test]
    fn draws_follow_the_distribution() {
        let plain = Sampling { temperature: 1.0, ..Sampling::default() };
        for sampling in [
            plain,
            Sampling { temperature: 0.5, ..plain },
            Sampling { temperature: 2.0, top_k: Some(4), ..plain },
            Sampling { top_p: Some(0.8), ..plain },
            Sampling { min_p: Some(0.3), ..plain },
            Sampling { frequency_penalty: 0.7, ..plain },
            Sampling { repetition_penalty: 1.8, top_k: Some(5), top_p: Some(0.95), ..plain },
        ] {
            let so_far = [1, 1, 3, 2];
            let expected = sampling.distribution(&LOGITS, &so_far);
            assert!((expected.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            let mut rng = ChaCha8Rng::seed_from_u64(7);
            const DRAWS: usize = 40_000;
            let mut counts = [0usize; 6];
            (0..DRAWS).for_each(|_| counts[sampling.draw(&LOGITS, || so_far.to_vec(), rng.random()) as usize] += 1);
            let mut statistic = 0.0;
            for (count, p) in counts.iter().zip(&expected) {
                if *p == 0.0 {
                    assert_eq!(*count, 0, "{sampling:?}");
                    continue;
                }
                let due = p * DRAWS as f64;
                statistic += (*count as f64 - due).powi(2) / due;
            }
            assert!(statistic < 25.7, "{sampling:?}: {statistic}");
        }
    }

    #[test]
    fn cut_offs_keep_what_they_should() {
        let logits: Vec<f32> = [0.5f32, 0.25, 0.15, 0.1].iter().map(|p| p.ln()).collect();
        let kept = |sampling: Sampling| sampling.distribution(&logits, &[]).iter().filter(|p| **p > 0.0).count();
        let plain = Sampling { temperature: 1.0, ..Sampling::default() };
        for (p, count) in [(0.1, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.89, 3), (1.0, 4)] {
            assert_eq!(kept(Sampling { top_p: Some(p), ..plain }), count, "top_p {p}");
        }
        for (p, count) in [(0.0, 4), (0.21, 3), (0.49, 2), (1.0, 1)] {
            assert_eq!(kept(Sampling { min_p: Some(p), ..plain }), count, "min_p {p}");
        }
        assert_eq!(kept(Sampling { top_k: Some(3), top_p: Some(0.8), ..plain }), 2);
        assert_eq!(kept(Sampling::default()), 1);
    }

    #[test]
    fn infinite_logits_take_all() {
        let plain = Sampling { temperature: 1.0, ..Sampling::default() };
        for sampling in [
            Sampling::default(),
            plain,
            Sampling { temperature: 0.1, ..plain },
            Sampling { top_k: Some(2), ..plain },
            Sampling { top_p: Some(0.5), ..plain },
            Sampling { min_p: Some(0.1), ..plain },
            Sampling { repetition_penalty: 1.5, ..plain },
            Sampling { frequency_penalty: 2.0, ..Sampling::default() },
        ] {
            for at in [0.0, 0.3, 0.999] {
                let logits = [1.0, f32::NEG_INFINITY, 80.0, f32::INFINITY, -3.0];
                assert_eq!(sampling.draw(&logits, || vec![3, 2], at), 3, "{sampling:?}");
                assert_eq!(sampling.distribution(&logits, &[3, 2]), [0.0, 0.0, 0.0, 1.0, 0.0], "{sampling:?}");
                assert_eq!(log_prob(&logits, 3), 0.0);
            }
        }
        let two = [f32::INFINITY, 1.0, f32::INFINITY];
        assert_eq!(plain.distribution(&two, &[]), [0.5, 0.0, 0.5]);
        assert_eq!([0.4, 0.6].map(|at| plain.draw(&two, Vec::new, at)), [0, 2]);
        assert_eq!((log_prob(&two, 2), log_prob(&two, 1)), (-2f32.ln(), f32::NEG_INFINITY));
        assert!(plain.distribution(&[f32::NAN, 1.0], &[]).iter().all(|p| p.is_nan()));
    }

    #[test]
    fn settings_are_checked() {
        let plain = Sampling::default();
        for (sampling, name) in [
            (Sampling { temperature: -0.1, ..plain }, "temperature"),
            (Sampling { temperature: f64::NAN, ..plain }, "temperature"),
            (Sampling { top_k: Some(0), ..plain }, "top_k"),
            (Sampling { top_k: Some(7), ..plain }, "top_k"),
            (Sampling { top_p: Some(0.0), ..plain }, "top_p"),
            (Sampling { top_p: Some(1.1), ..plain }, "top_p"),
            (Sampling { min_p: Some(-0.5), ..plain }, "min_p"),
            (Sampling { repetition_penalty: 0.0, ..plain }, "repetition_penalty"),
            (Sampling { frequency_penalty: f64::INFINITY, ..plain }, "frequency_penalty"),
        ] {
            let error = sampling.check(6).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        assert!(Sampling { top_k: Some(6), top_p: Some(1.0), ..plain }.check(6).is_ok());
    }

    #[test]
    fn log_probs_are_those_of_the_logits() {
        let all: f32 = (0..6).map(|token| log_prob(&LOGITS, token).exp()).sum();
        assert!((all - 1.0).abs() < 1e-6);
    }
}
