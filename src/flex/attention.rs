//! Attention: fused when no one watches, else scores, pattern and mix one by one.

use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use hooklens_kernels::attention::{Attention, Heads};
use hooklens_kernels::gemm::gemm_serial;
use hooklens_kernels::softmax::{self as kernel, RowMask, Scores};
use hooklens_kernels::view::View2;
use rayon::prelude::*;

use super::{elements, in_place, plain_rows, stride, tensor};
use crate::config::Positional;
use crate::model::{Pass, slopes};

/// What the kernels need to know of a layer's scores.
struct Rules<'p> {
    scale: f32,
    soft_cap: Option<f32>,
    slopes: Option<Vec<f32>>,
    causal: bool,
    window: Option<i32>,
    valid: Option<&'p [bool]>,
    /// Positions before the queries.
    past: usize,
    /// `[batch, query]` and `[batch, key]`; empty where neither slopes nor a window need them.
    query_positions: Vec<i32>,
    key_positions: Vec<i32>,
}

impl<'p> Rules<'p> {
    fn new(layer: usize, pass: &Pass<'p>) -> Self {
        let config = pass.config;
        let sequence = pass.sequence;
        let window = config.window(layer).filter(|w| *w < sequence.keys()).map(|w| w as i32);
        let slopes = (config.positional == Positional::Alibi)
            .then(|| slopes(config.n_heads).into_iter().map(|slope| slope as f32).collect());
        let needed = window.is_some() || slopes.is_some();
        let a_row_each = |rows: Vec<u32>| -> Vec<i32> {
            let copies = if needed { sequence.batch / sequence.position_rows() } else { 0 };
            (0..copies).flat_map(|_| rows.iter().map(|p| *p as i32)).collect()
        };
        Self {
            scale: (1.0 / config.score_divisor(layer)) as f32,
            soft_cap: config.attn_scores_soft_cap.map(|cap| cap as f32),
            slopes,
            causal: !config.bidirectional,
            window,
            valid: sequence.key_mask(),
            past: sequence.past,
            query_positions: a_row_each(sequence.query_positions()),
            key_positions: a_row_each(sequence.key_positions()),
        }
    }
}

/// Each head's mix of values, without its pattern ever standing in memory; `None` if a tensor is
/// not plain.
///
/// # Shapes
/// - q `[batch, query, head, d_head]`, k and v `[batch, key, kv_head, d_head]`
/// - output `[batch, query, head, d_head]`
pub(crate) fn attention(
    layer: usize,
    q: &Tensor<4>,
    k: &Tensor<4>,
    v: &Tensor<4>,
    pass: &Pass<'_>,
) -> Option<Tensor<4>> {
    let shape @ [batch, _, _, d_head] = q.dims();
    let (q, k, v) = (plain_rows(q)?, plain_rows(k)?, plain_rows(v)?);
    let rules = Rules::new(layer, pass);
    let request = Attention {
        batch,
        dh: d_head,
        scale: rules.scale,
        soft_cap: rules.soft_cap,
        alibi: rules.slopes.as_deref(),
        causal: rules.causal.then_some(rules.past),
        window: rules.window,
        valid: rules.valid,
        query_pos: &rules.query_positions,
        key_pos: &rules.key_positions,
    };
    let mut z = vec![0.0; shape.iter().product()];
    hooklens_kernels::attention::attention(request, heads(&q), heads(&k), heads(&v), &mut z);
    Some(tensor(z, shape))
}

fn heads(x: &FlexTensor) -> Heads<'_> {
    let shape = x.layout().shape();
    Heads {
        data: elements(x),
        tokens: shape[1],
        heads: shape[2],
        batch_stride: stride(x, 0),
        token_stride: stride(x, 1),
        head_stride: stride(x, 2),
    }
}

/// One head of one row as a matrix `[pos, d_head]`.
fn head(x: &FlexTensor, row: usize, head: usize) -> View2<'_> {
    let shape = x.layout().shape();
    let offset = row * stride(x, 0) + head * stride(x, 2);
    View2::new(elements(x), offset, (shape[1], shape[3]), (stride(x, 1), 1))
}

/// Attention scores, scaled, capped, biased and masked with minus infinity; `None` if a tensor is
/// not plain.
///
/// # Shapes
/// - q `[batch, query, head, d_head]`, k `[batch, key, kv_head, d_head]`
/// - output `[batch, head, query, key]`
pub(crate) fn scores(layer: usize, q: &Tensor<4>, k: &Tensor<4>, pass: &Pass<'_>) -> Option<Tensor<4>> {
    let ([batch, queries, n_heads, _], [_, keys, kv_heads, _]) = (q.dims(), k.dims());
    let (q, k) = (plain_rows(q)?, plain_rows(k)?);
    let rules = Rules::new(layer, pass);
    let mut scores = vec![0.0; batch * n_heads * queries * keys];
    scores.par_chunks_mut((queries * keys).max(1)).enumerate().for_each(|(number, out)| {
        let (row, which) = (number / n_heads, number % n_heads);
        gemm_serial(head(&q, row, which), head(&k, row, which / (n_heads / kv_heads)).t(), None, out, keys);
        let positions = rules.key_positions.get(row * keys..(row + 1) * keys).unwrap_or(&[]);
        for (query, line) in out.chunks_exact_mut(keys).enumerate() {
            let at = rules.query_positions.get(row * queries + query).copied().unwrap_or(0);
            let slope = rules.slopes.as_ref().map(|slopes| (slopes[which], at, positions));
            let mask = RowMask {
                limit: if rules.causal { rules.past + query + 1 } else { keys },
                valid: rules.valid.map(|valid| &valid[row * keys..(row + 1) * keys]),
                window: rules.window.map(|window| (window, at, positions)),
            };
            kernel::mask_scores(line, Scores { scale: rules.scale, soft_cap: rules.soft_cap, alibi: slope }, mask);
        }
    });
    Some(tensor(scores, [batch, n_heads, queries, keys]))
}

/// Softmax over keys; a row of nothing but minus infinity becomes zeros. Hands the tensor back if
/// it is not plain.
pub(crate) fn softmax(scores: Tensor<4>) -> Result<Tensor<4>, Tensor<4>> {
    let keys = scores.dims()[3];
    in_place(scores, |values| kernel::softmax(values, keys))
}

/// Each head's mix of values by its pattern; `None` if a tensor is not plain.
///
/// # Shapes
/// - pattern `[batch, head, query, key]`, v `[batch, key, kv_head, d_head]`
/// - output `[batch, query, head, d_head]`
pub(crate) fn mix(pattern: &Tensor<4>, v: &Tensor<4>) -> Option<Tensor<4>> {
    let ([batch, n_heads, queries, keys], [_, _, kv_heads, d_head]) = (pattern.dims(), v.dims());
    let (pattern, v) = (plain_rows(pattern)?, plain_rows(v)?);
    // Head by head first: the heads of a row lie apart in the result.
    let mut by_head = vec![0.0; batch * n_heads * queries * d_head];
    by_head.par_chunks_mut((queries * d_head).max(1)).enumerate().for_each(|(number, out)| {
        let (row, which) = (number / n_heads, number % n_heads);
        let offset = row * stride(&pattern, 0) + which * stride(&pattern, 1);
        let weights = View2::new(elements(&pattern), offset, (queries, keys), (stride(&pattern, 2), 1));
        gemm_serial(weights, head(&v, row, which / (n_heads / kv_heads)), None, out, d_head);
    });
    Some(tensor::<4>(by_head, [batch, n_heads, queries, d_head]).permute([0, 2, 1, 3]))
}
