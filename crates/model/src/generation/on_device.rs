//! Samples tokens on the device, which avoids transferring the logits: only a few bytes per row are read.

use burn::tensor::{Bool, FloatDType, Int, Tensor, TensorData};
use hooklens_hooks::{HookError, upload};

use super::sampler::host;
use super::sampling::Sampling;

/// Block size for cumulative sums.
const BLOCK: usize = 256;

/// Number of bisection steps when searching for the smallest logit that is kept.
const HALVINGS: usize = 40;

/// Samples each row's token from the logits and the row's random number in `at`, as [`Sampling::draw`] does. Returns
/// each token with its log-probability under the unmodified logits. The result is `None` if a log-probability is not
/// finite or the vocabulary is too large.
///
/// Sums are computed in `f32`, so a random number within about a millionth of the boundary between two tokens may
/// select the neighboring token.
///
/// # Shapes
/// - logits: `[batch, d_vocab]`
pub(super) fn drawn(logits: &Tensor<2>, sampling: &Sampling, at: &[f64]) -> Result<Option<Vec<(u32, f32)>>, HookError> {
    // Token ids must be exact as floats.
    if logits.dims()[1] >= 1 << 24 {
        return Ok(None);
    }
    let logits = logits.clone().cast(FloatDType::F32);
    let most = logits.clone().max_dim(1);
    let under = logits.clone() - most;
    let token = match sampling.is_greedy() {
        true => logits.argmax(1),
        false => of_share(shares(under.clone(), sampling), at),
    };
    let log_prob = under.clone().gather(1, token.clone()) - under.exp().sum_dim(1).log();
    let both = host(Tensor::cat(vec![token.float().cast(FloatDType::F32), log_prob], 1))?;
    let drawn: Vec<(u32, f32)> =
        both.as_chunks().0.iter().map(|[token, log_prob]| (*token as u32, *log_prob)).collect();
    Ok(drawn.iter().all(|(_, log_prob)| log_prob.is_finite()).then_some(drawn))
}

/// Unnormalized probability of each token; zero for tokens that are filtered out.
///
/// # Shapes
/// - under: `[batch, d_vocab]`, logits minus the largest one
fn shares(under: Tensor<2>, sampling: &Sampling) -> Tensor<2> {
    let [batch, d_vocab] = under.dims();
    let mut shares = (under.clone() / sampling.temperature).exp();
    if let Some(k) = sampling.top_k.filter(|k| *k < d_vocab) {
        let wanted = Tensor::full([batch, 1], k as f64, (&under.device(), under.dtype()));
        let out = beyond(&under, under.ones_like(), wanted);
        shares = shares.mask_fill(out, 0.0);
    }
    if let Some(p) = sampling.top_p.filter(|p| *p < 1.0) {
        // Tokens removed by top-k contribute nothing.
        let wanted = shares.clone().sum_dim(1) * p;
        let out = beyond(&under, shares.clone(), wanted);
        shares = shares.mask_fill(out, 0.0);
    }
    match sampling.min_p {
        Some(p) => shares.clone().mask_fill(shares.lower_elem(p), 0.0),
        None => shares,
    }
}

/// Takes tokens in order of descending logit until their amounts sum to `wanted`, and marks all other tokens. Ties are
/// broken by token order.
///
/// # Shapes
/// - under, amounts, output: `[batch, d_vocab]`
/// - wanted: `[batch, 1]`
fn beyond(under: &Tensor<2>, amounts: Tensor<2>, wanted: Tensor<2>) -> Tensor<2, Bool> {
    let sum = |out: Tensor<2, Bool>| amounts.clone().mask_fill(out, 0.0).sum_dim(1);
    // Logits below this have zero probability, and -inf has no midpoint.
    let under = under.clone().clamp_min(-1e6);
    // Tokens with logits of at least `low` suffice to reach `wanted`; tokens with logits of at least `high` do not.
    let mut low = under.clone().min_dim(1);
    let mut high = low.ones_like();
    for _ in 0..HALVINGS {
        let middle = (low.clone() + high.clone()) / 2.0;
        let enough = sum(under.clone().lower(middle.clone().expand(under.dims()))).greater_equal(wanted.clone());
        low = low.mask_where(enough.clone(), middle.clone());
        high = middle.mask_where(enough, high);
    }
    let lower = under.clone().lower(high.expand(under.dims()));
    // Of the tokens at the boundary, keep only enough to reach `wanted`.
    let missing = wanted - sum(lower.clone());
    let border = lower.clone().bool_and(under.clone().greater_equal(low.expand(under.dims())));
    let at_border = amounts.zeros_like().mask_where(border.clone(), amounts);
    let fits = sums_before(at_border).lower(missing.expand(under.dims()));
    lower.bool_and(border.bool_and(fits).bool_not())
}

/// Exclusive prefix sums along each row.
fn sums_before(amounts: Tensor<2>) -> Tensor<2> {
    let [batch, count] = amounts.dims();
    let blocks = in_blocks(amounts);
    let of_blocks = exclusive(blocks.clone().sum_dim(2).swap_dims(1, 2)).swap_dims(1, 2);
    let sums = exclusive(blocks);
    let dims = sums.dims();
    (sums + of_blocks.expand(dims)).reshape([batch as i32, -1]).narrow(1, 0, count)
}

/// Exclusive prefix sums along the last axis.
fn exclusive(amounts: Tensor<3>) -> Tensor<3> {
    amounts.clone().cumsum(2) - amounts
}

/// Reshapes to `[batch, block, place]`, padded with zeros.
fn in_blocks(amounts: Tensor<2>) -> Tensor<3> {
    let [batch, count] = amounts.dims();
    let blocks = count.div_ceil(BLOCK);
    let filled = match blocks * BLOCK - count {
        0 => amounts,
        missing => {
            let zeros = Tensor::zeros([batch, missing], (&amounts.device(), amounts.dtype()));
            Tensor::cat(vec![amounts, zeros], 1)
        }
    };
    filled.reshape([batch, blocks, BLOCK])
}

/// For each number in `at`, the token whose interval contains it, `[batch, 1]`. The intervals have the tokens'
/// normalized probabilities as lengths and cover 0 to 1, in token order.
fn of_share(shares: Tensor<2>, at: &[f64]) -> Tensor<2, Int> {
    let [batch, count] = shares.dims();
    let at: Vec<f32> = at.iter().map(|at| *at as f32).collect();
    let at = upload::<2, burn::tensor::Float>(TensorData::new(at, [batch, 1]), (&shares.device(), shares.dtype()));
    // Fall back to the last token with nonzero probability if rounding leaves a remainder.
    let numbers = Tensor::<1, Int>::arange(0..count as i64, &shares.device()).unsqueeze::<2>().expand([batch, count]);
    let last = numbers.mask_fill(shares.clone().lower_equal_elem(0.0), 0).max_dim(1);
    let place = at * shares.clone().sum_dim(1);
    // The first token at which the inclusive sum exceeds the number.
    let up_to = sums_before(shares.clone()) + shares;
    let token = up_to.lower_equal(place.expand([batch, count])).int().sum_dim(1);
    token.min_pair(last)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn rows(count: usize, d_vocab: usize, rng: &mut ChaCha8Rng) -> Vec<Vec<f32>> {
        // Multiples of one half, so that many are tied, and -inf for some tokens, which can never be drawn.
        let logit = |rng: &mut ChaCha8Rng| match rng.random_range(0..20) {
            0 => f32::NEG_INFINITY,
            _ => (rng.random_range(-6.0..6.0f32) * 2.0).round() / 2.0,
        };
        (0..count).map(|_| (0..d_vocab).map(|_| logit(rng)).collect()).collect()
    }

    fn tensor(rows: &[Vec<f32>]) -> Tensor<2> {
        Tensor::from_data(TensorData::new(rows.concat(), [rows.len(), rows[0].len()]), &Device::default())
    }

    #[test]
    fn tokens_are_those_of_the_host() {
        let plain = Sampling { temperature: 1.0, ..Sampling::default() };
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        for sampling in [
            Sampling::default(),
            plain,
            Sampling { temperature: 0.3, ..plain },
            Sampling { top_k: Some(1), ..plain },
            Sampling { top_k: Some(7), temperature: 3.0, ..plain },
            Sampling { top_p: Some(0.9), ..plain },
            Sampling { top_p: Some(1.0), min_p: Some(0.05), ..plain },
            Sampling { top_k: Some(100), top_p: Some(0.7), min_p: Some(0.1), temperature: 2.0, ..plain },
        ] {
            for d_vocab in [1, 5, 256, 700] {
                let sampling = Sampling { top_k: sampling.top_k.map(|k| k.min(d_vocab)), ..sampling };
                let mut logits = rows(40, d_vocab, &mut rng);
                logits.iter_mut().for_each(|row| row[d_vocab / 2] = 1.0);
                let at: Vec<f64> = logits.iter().map(|_| rng.random()).collect();
                let drawn = drawn(&tensor(&logits), &sampling, &at).unwrap().unwrap();
                for ((logits, at), (token, log_prob)) in logits.iter().zip(&at).zip(drawn) {
                    let near = [-1e-5, 0.0, 1e-5].map(|by| sampling.draw(logits, Vec::new, (at + by).clamp(0.0, 1.0)));
                    assert!(near.contains(&token), "{sampling:?}, {d_vocab} tokens: {token}, not {near:?}");
                    let expected = super::super::sampling::log_prob(logits, token);
                    assert!((log_prob - expected).abs() < 1e-4, "{log_prob}, not {expected}");
                }
            }
        }
    }

    #[test]
    fn what_is_left_out_has_no_share() {
        let plain = Sampling { temperature: 1.0, ..Sampling::default() };
        let logits = rows(6, 300, &mut ChaCha8Rng::seed_from_u64(4));
        for sampling in [
            Sampling { top_k: Some(5), ..plain },
            Sampling { top_p: Some(0.4), ..plain },
            Sampling { min_p: Some(0.2), ..plain },
            Sampling { top_k: Some(60), top_p: Some(0.8), ..plain },
        ] {
            let under = tensor(&logits);
            let under = under.clone() - under.max_dim(1);
            let shares = host(shares(under, &sampling)).unwrap();
            for (shares, logits) in shares.chunks(300).zip(&logits) {
                let expected = sampling.distribution(logits, &[]);
                let kept = |shares: Vec<bool>| shares.iter().map(|share| u8::from(*share)).collect::<Vec<_>>();
                assert_eq!(
                    kept(shares.iter().map(|share| *share > 0.0).collect()),
                    kept(expected.iter().map(|share| *share > 0.0).collect()),
                    "{sampling:?}"
                );
            }
        }
    }

    #[test]
    fn what_is_not_a_number_is_left_to_the_host() {
        let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
        let logits = tensor(&[vec![0.0, f32::NAN, 1.0]]);
        assert_eq!(drawn(&logits, &sampling, &[0.5]).unwrap(), None);
        assert_eq!(drawn(&logits, &Sampling::default(), &[0.5]).unwrap(), None);
        for infinite in [f32::INFINITY, f32::NEG_INFINITY] {
            let logits = tensor(&[vec![infinite; 3]]);
            assert_eq!(drawn(&logits, &sampling, &[0.5]).unwrap(), None);
            let logits = tensor(&[vec![0.0, f32::INFINITY, 1.0]]);
            assert_eq!(drawn(&logits, &Sampling::default(), &[0.5]).unwrap(), None);
        }
    }
}
