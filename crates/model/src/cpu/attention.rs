//! Attention: fused, or as separate scores, pattern and weighted values if a hook observes them.

use std::borrow::Cow;

use burn::tensor::{DType, Tensor};
use hooklens_kernels::attention::{Attention, HeadsView};
use hooklens_kernels::attention_back::attention_back;
use hooklens_kernels::gemm::gemm_serial;
use hooklens_kernels::key_blocks;
use hooklens_kernels::softmax::{self as kernel, RowMask, Scores};
use hooklens_kernels::tasks::each_item;
use hooklens_kernels::view::View2;

use super::{HostTensor, in_place_or_to, tracked};
use crate::kv_cache::{KeyBlock, Keys};

/// Scaling, masks and biases of a layer's attention scores, for the key columns that are still in memory.
pub(crate) struct Rules<'p> {
    pub(crate) scale: f32,
    pub(crate) soft_cap: Option<f32>,
    pub(crate) slopes: Option<Vec<f32>>,
    pub(crate) causal: bool,
    /// Oldest position that each query attends to, `[batch, query]`.
    pub(crate) oldest: Option<Vec<i32>>,
    /// Whether each column holds an unmasked token, `[batch, key]`.
    pub(crate) valid: Option<Cow<'p, [bool]>>,
    /// Number of columns before the queries.
    pub(crate) past: usize,
    /// Positions of queries, `[batch, query]`; empty unless ALiBi slopes or a window need them.
    pub(crate) query_positions: Vec<i32>,
    /// Positions of keys, `[batch, key]`; empty unless ALiBi slopes or a window need them.
    pub(crate) key_positions: Vec<i32>,
}

impl Rules<'_> {
    fn request(&self, batch: usize, dh: usize) -> Attention<'_> {
        Attention {
            batch,
            dh,
            scale: self.scale,
            soft_cap: self.soft_cap,
            alibi: self.slopes.as_deref(),
            causal: self.causal.then_some(self.past),
            oldest: self.oldest.as_deref(),
            valid: self.valid.as_deref(),
            query_pos: &self.query_positions,
            key_pos: &self.key_positions,
        }
    }

    fn into_owned(self) -> Rules<'static> {
        Rules { valid: self.valid.map(|valid| Cow::Owned(valid.into_owned())), ..self }
    }
}

/// A block of keys and values in host memory.
struct PlainBlock {
    keys: HostTensor,
    values: HostTensor,
    /// For each batch row, the row of the block that it reads.
    rows: Vec<usize>,
}

impl PlainBlock {
    fn borrowed(&self) -> key_blocks::KeyBlock<'_> {
        key_blocks::KeyBlock { keys: heads(&self.keys), values: heads(&self.values), rows: &self.rows }
    }
}

/// All blocks as host tensors; `None` if one of them is not plain.
fn plain_blocks(keys: &Keys, batch: usize) -> Option<Vec<PlainBlock>> {
    let plain = |block: &KeyBlock| {
        let rows = block.rows.as_ref().map_or_else(|| (0..batch).collect(), |rows| rows.to_vec());
        Some(PlainBlock { keys: HostTensor::rows(&block.keys)?, values: HostTensor::rows(&block.values)?, rows })
    };
    keys.blocks.iter().map(plain).collect()
}

/// Fused attention: each head's weighted sum of values, without materializing its pattern. `None` if a tensor is not
/// plain. Tensors may be tracked if the keys are a single block.
///
/// # Shapes
/// - q `[batch, query, head, d_head]`, keys and values `[batch, key, kv_head, d_head]`
/// - output `[batch, query, head, d_head]`
pub(crate) fn attention<'r>(q: &Tensor<4>, keys: &Keys, rules: impl FnOnce() -> Rules<'r>) -> Option<Tensor<4>> {
    let shape @ [batch, _, _, d_head] = q.dims();
    if let [KeyBlock { keys: k, values: v, rows: None }] = &keys.blocks[..]
        && [q, k, v].iter().any(|x| x.is_tracked())
    {
        return tracked_attention(q, [k, v], rules().into_owned());
    }
    let (q, blocks) = (HostTensor::rows(q)?, plain_blocks(keys, batch)?);
    let rules = rules();
    let request = rules.request(batch, d_head);
    let mut z = q.zeros(shape.iter().product());
    match &blocks[..] {
        [one] if keys.blocks[0].rows.is_none() => {
            hooklens_kernels::attention::attention(
                request,
                heads(&q),
                heads(&one.keys),
                heads(&one.values),
                z.elements(),
            );
        }
        many => {
            let many: Vec<_> = many.iter().map(PlainBlock::borrowed).collect();
            key_blocks::attention_over(request, heads(&q), &many, z.elements());
        }
    }
    Some(z.tensor(shape))
}

fn tracked_attention(q: &Tensor<4>, [k, v]: [&Tensor<4>; 2], rules: Rules<'static>) -> Option<Tensor<4>> {
    let ([batch, _, _, d_head], kv_shape) = (q.dims(), k.dims());
    if kv_shape != v.dims() {
        return None;
    }
    let q_shape = q.dims();
    tracked([q, k, v], |[q, k, v]| {
        let held = [HostTensor::rows(&q)?, HostTensor::rows(&k)?, HostTensor::rows(&v)?];
        let [q, k, v] = held.each_ref().map(heads);
        let mut z = held[0].blank(q_shape.iter().product());
        hooklens_kernels::attention::attention(rules.request(batch, d_head), q, k, v, z.elements());
        let z = z.tensor(q_shape);
        let back = move |gradient: Tensor<4>, needed: [bool; 3]| {
            let Some(gradient) = HostTensor::rows(&gradient) else { return [None, None, None] };
            let [q, k, v] = held.each_ref();
            let lengths = [q_shape, kv_shape, kv_shape].map(|shape| shape.iter().product());
            let (mut dq, mut dk, mut dv) = (q.blank(lengths[0]), k.blank(lengths[1]), v.blank(lengths[2]));
            let request = rules.request(batch, d_head);
            let made = [dq.elements(), dk.elements(), dv.elements()];
            attention_back(request, [heads(q), heads(k), heads(v), heads(&gradient)], made);
            [
                needed[0].then(|| dq.tensor(q_shape)),
                needed[1].then(|| dk.tensor(kv_shape)),
                needed[2].then(|| dv.tensor(kv_shape)),
            ]
        };
        Some((z, back))
    })
}

fn heads(x: &HostTensor) -> HeadsView<'_> {
    let shape = x.shape();
    HeadsView {
        data: x.elements(),
        tokens: shape[1],
        heads: shape[2],
        batch_stride: x.stride(0),
        token_stride: x.stride(1),
        head_stride: x.stride(2),
    }
}

/// One head of one batch row as a matrix `[pos, d_head]`.
fn head(x: &HostTensor, row: usize, head: usize) -> View2<'_> {
    let shape = x.shape();
    let offset = row * x.stride(0) + head * x.stride(2);
    View2::new(x.elements(), offset, (shape[1], shape[3]), (x.stride(1), 1))
}

/// Number of queries whose scores are computed at once if they see different keys.
const QUERIES: usize = 64;

/// Attention scores: scaled, soft-capped, biased, and masked with minus infinity. Columns dropped from the cache are
/// included, as minus infinity. `None` if a tensor is not plain.
///
/// # Shapes
/// - q `[batch, query, head, d_head]`, keys `[batch, key, kv_head, d_head]`
/// - output `[batch, head, query, key]`
pub(crate) fn scores<'r>(q: &Tensor<4>, keys: &Keys, rules: impl FnOnce() -> Rules<'r>) -> Option<Tensor<4>> {
    let [batch, queries, n_heads, _] = q.dims();
    let (q, blocks) = (HostTensor::rows(q)?, plain_blocks(keys, batch)?);
    let rules = rules();
    let (held, columns) = (keys.held(), keys.columns());
    let mut scores = q.blank(batch * n_heads * queries * columns).in_type(DType::F32);
    each_item(scores.elements().chunks_mut((queries * columns).max(1)).enumerate(), |(number, out)| {
        let (row, which) = (number / n_heads, number % n_heads);
        let q = head(&q, row, which);
        let step = if rules.causal { QUERIES } else { queries.max(1) };
        for first in (0..queries).step_by(step) {
            let count = step.min(queries - first);
            // Keys that none of these queries sees are masked below, so their scores are not needed.
            let mut left = if rules.causal { rules.past + first + count } else { held };
            let mut column = first * columns + keys.dropped;
            for block in &blocks {
                let [_, len, kv_heads, _] = dims(&block.keys);
                let of_head = head(&block.keys, block.rows[row], which / (n_heads / kv_heads));
                let needed = left.min(len);
                if needed > 0 {
                    let q = q.block((first, count), (0, q.cols()));
                    let of_head = of_head.block((0, needed), (0, of_head.cols()));
                    gemm_serial(q, of_head.t(), None, &mut out[column..], columns);
                }
                (column, left) = (column + len, left - needed);
            }
        }
        let positions = rules.key_positions.get(row * held..(row + 1) * held).unwrap_or(&[]);
        for (query, line) in out.chunks_exact_mut(columns).enumerate() {
            let (dropped, line) = line.split_at_mut(keys.dropped);
            dropped.fill(f32::NEG_INFINITY);
            let place = row * queries + query;
            let at = rules.query_positions.get(place).copied().unwrap_or(0);
            let slope = rules.slopes.as_ref().map(|slopes| (slopes[which], at, positions));
            let mask = RowMask {
                limit: if rules.causal { rules.past + query + 1 } else { held },
                valid: rules.valid.as_ref().map(|valid| &valid[row * held..(row + 1) * held]),
                oldest: rules.oldest.as_ref().map(|oldest| (oldest[place], positions)),
            };
            kernel::mask_scores(line, Scores { scale: rules.scale, soft_cap: rules.soft_cap, alibi: slope }, mask);
        }
    });
    Some(scores.tensor([batch, n_heads, queries, columns]))
}

/// Softmax over keys. Rows that are all minus infinity become zeros. Returns the tensor unchanged as an error if it is
/// not plain.
pub(crate) fn softmax(scores: Tensor<4>) -> Result<Tensor<4>, Tensor<4>> {
    let keys = scores.dims()[3];
    in_place_or_to(
        scores,
        |values| kernel::softmax(values, keys),
        |scores, pattern| kernel::softmax_into(scores, pattern, keys),
    )
}

/// Sum of values per head, weighted by the attention pattern. `None` if a tensor is not plain.
///
/// # Shapes
/// - pattern `[batch, head, query, key]`, values `[batch, key, kv_head, d_head]`
/// - output `[batch, query, head, d_head]`
pub(crate) fn mix(pattern: &Tensor<4>, keys: &Keys) -> Option<Tensor<4>> {
    let [batch, n_heads, queries, _] = pattern.dims();
    let (pattern, blocks) = (HostTensor::rows(pattern)?, plain_blocks(keys, batch)?);
    let first = &blocks.first()?.values;
    let d_head = dims(first)[3];
    // Computed head by head, because a batch row's heads are not adjacent in the result.
    let mut by_head = first.zeros(batch * n_heads * queries * d_head);
    each_item(by_head.elements().chunks_mut((queries * d_head).max(1)).enumerate(), |(number, out)| {
        let (row, which) = (number / n_heads, number % n_heads);
        let mut column = keys.dropped;
        let mut own = Vec::new();
        for (i, block) in blocks.iter().enumerate() {
            let [_, len, kv_heads, _] = dims(&block.values);
            let offset = row * pattern.stride(0) + which * pattern.stride(1) + column;
            let weights = View2::new(pattern.elements(), offset, (queries, len), (pattern.stride(2), 1));
            let values = head(&block.values, block.rows[row], which / (n_heads / kv_heads));
            if i == 0 {
                gemm_serial(weights, values, None, out, d_head);
            } else {
                own.resize(out.len(), 0.0);
                gemm_serial(weights, values, None, &mut own, d_head);
                out.iter_mut().zip(&own).for_each(|(sum, own)| *sum += own);
            }
            column += len;
        }
    });
    Some(by_head.tensor([batch, n_heads, queries, d_head]).permute([0, 2, 1, 3]))
}

/// Lengths of the four axes.
fn dims(x: &HostTensor) -> [usize; 4] {
    let shape = x.shape();
    [shape[0], shape[1], shape[2], shape[3]]
}
