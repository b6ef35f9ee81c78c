//! Attention on the kernels: fused when no hook watches, else scores, pattern and weighted values step by step.

use std::borrow::Cow;

use burn::tensor::Tensor;
use hooklens_kernels::attention::{Attention, Heads};
use hooklens_kernels::gemm::gemm_serial;
use hooklens_kernels::parts;
use hooklens_kernels::softmax::{self as kernel, RowMask, Scores};
use hooklens_kernels::tasks::each_item;
use hooklens_kernels::view::View2;

use super::{Held, in_place};
use crate::config::Positional;
use crate::kv_cache::{Keys, Part};
use crate::model::{Pass, slopes};

/// Masks, positions and scaling of a layer's scores, as the kernels take them.
struct Rules<'p> {
    scale: f32,
    soft_cap: Option<f32>,
    slopes: Option<Vec<f32>>,
    causal: bool,
    /// The oldest position each query sees, `[batch, query]`.
    oldest: Option<Vec<i32>>,
    /// Columns with a token, `[batch, key]`.
    valid: Option<Cow<'p, [bool]>>,
    /// Columns before the queries.
    past: usize,
    /// `[batch, query]` and `[batch, key]`; empty where neither slopes nor a window need them.
    query_positions: Vec<i32>,
    key_positions: Vec<i32>,
}

impl<'p> Rules<'p> {
    fn new(layer: usize, dropped: usize, pass: &Pass<'p>) -> Self {
        let config = pass.config;
        let sequence = pass.sequence;
        let window = config.window(layer).filter(|window| window.width() < sequence.keys());
        let slopes = (config.positional == Positional::Alibi)
            .then(|| slopes(config.n_heads).into_iter().map(|slope| slope as f32).collect());
        let needed = window.is_some() || slopes.is_some();
        let a_row_each = |rows: Vec<u32>| -> Vec<i32> {
            let copies = if needed { sequence.batch / sequence.position_rows() } else { 0 };
            (0..copies).flat_map(|_| rows.iter().map(|p| *p as i32)).collect()
        };
        let query_positions = a_row_each(sequence.query_positions());
        let oldest = window.map(|window| query_positions.iter().map(|p| window.oldest(*p as usize) as i32).collect());
        let keys = sequence.keys();
        let mut key_positions = a_row_each(sequence.key_positions());
        let mut valid = sequence.key_mask().map(Cow::Borrowed);
        if dropped > 0 {
            key_positions = key_positions.chunks(keys).flat_map(|row| row[dropped..].to_vec()).collect();
            valid = valid.map(|valid| valid.chunks(keys).flat_map(|row| row[dropped..].to_vec()).collect());
        }
        Self {
            scale: (1.0 / config.score_divisor(layer)) as f32,
            soft_cap: config.attn_scores_soft_cap.map(|cap| cap as f32),
            slopes,
            causal: !config.bidirectional,
            oldest,
            valid,
            past: sequence.past - dropped,
            query_positions,
            key_positions,
        }
    }
}

/// A part on the CPU.
struct PlainPart {
    keys: Held,
    values: Held,
    /// For each row of the batch the row it reads.
    rows: Vec<usize>,
}

impl PlainPart {
    fn borrowed(&self) -> parts::Part<'_> {
        parts::Part { keys: heads(&self.keys), values: heads(&self.values), rows: &self.rows }
    }
}

/// The parts, if all are plain.
fn plain_parts(keys: &Keys, batch: usize) -> Option<Vec<PlainPart>> {
    let plain = |part: &Part| {
        let rows = part.rows.as_ref().map_or_else(|| (0..batch).collect(), |rows| rows.to_vec());
        Some(PlainPart { keys: Held::rows(&part.keys)?, values: Held::rows(&part.values)?, rows })
    };
    keys.parts.iter().map(plain).collect()
}

/// Each head's weighted sum of values, its pattern never stored; `None` if a tensor is
/// not plain.
///
/// # Shapes
/// - q `[batch, query, head, d_head]`, keys and values `[batch, key, kv_head, d_head]`
/// - output `[batch, query, head, d_head]`
pub(crate) fn attention(layer: usize, q: &Tensor<4>, keys: &Keys, pass: &Pass<'_>) -> Option<Tensor<4>> {
    let shape @ [batch, _, _, d_head] = q.dims();
    let (q, parts) = (Held::rows(q)?, plain_parts(keys, batch)?);
    let rules = Rules::new(layer, keys.dropped, pass);
    let request = Attention {
        batch,
        dh: d_head,
        scale: rules.scale,
        soft_cap: rules.soft_cap,
        alibi: rules.slopes.as_deref(),
        causal: rules.causal.then_some(rules.past),
        oldest: rules.oldest.as_deref(),
        valid: rules.valid.as_deref(),
        query_pos: &rules.query_positions,
        key_pos: &rules.key_positions,
    };
    let mut z = q.output(shape.iter().product(), 0.0);
    match &parts[..] {
        [one] if keys.parts[0].rows.is_none() => {
            hooklens_kernels::attention::attention(
                request,
                heads(&q),
                heads(&one.keys),
                heads(&one.values),
                z.elements(),
            );
        }
        many => {
            let many: Vec<_> = many.iter().map(PlainPart::borrowed).collect();
            parts::attention_over(request, heads(&q), &many, z.elements());
        }
    }
    Some(z.tensor(shape))
}

fn heads(x: &Held) -> Heads<'_> {
    let shape = x.shape();
    Heads {
        data: x.elements(),
        tokens: shape[1],
        heads: shape[2],
        batch_stride: x.stride(0),
        token_stride: x.stride(1),
        head_stride: x.stride(2),
    }
}

/// One head of one row as a matrix `[pos, d_head]`.
fn head(x: &Held, row: usize, head: usize) -> View2<'_> {
    let shape = x.shape();
    let offset = row * x.stride(0) + head * x.stride(2);
    View2::new(x.elements(), offset, (shape[1], shape[3]), (x.stride(1), 1))
}

/// Attention scores, scaled, capped, biased and masked with minus infinity, columns that were
/// dropped included; `None` if a tensor is not plain.
///
/// # Shapes
/// - q `[batch, query, head, d_head]`, keys `[batch, key, kv_head, d_head]`
/// - output `[batch, head, query, key]`
pub(crate) fn scores(layer: usize, q: &Tensor<4>, keys: &Keys, pass: &Pass<'_>) -> Option<Tensor<4>> {
    let [batch, queries, n_heads, _] = q.dims();
    let (q, parts) = (Held::rows(q)?, plain_parts(keys, batch)?);
    let rules = Rules::new(layer, keys.dropped, pass);
    let (held, columns) = (keys.held(), keys.columns());
    let mut scores = q.output(batch * n_heads * queries * columns, f32::NEG_INFINITY);
    each_item(scores.elements().chunks_mut((queries * columns).max(1)).enumerate(), |(number, out)| {
        let (row, which) = (number / n_heads, number % n_heads);
        let mut column = keys.dropped;
        for part in &parts {
            let [_, len, kv_heads, _] = dims(&part.keys);
            let of_head = head(&part.keys, part.rows[row], which / (n_heads / kv_heads));
            if len > 0 {
                gemm_serial(head(&q, row, which), of_head.t(), None, &mut out[column..], columns);
            }
            column += len;
        }
        let positions = rules.key_positions.get(row * held..(row + 1) * held).unwrap_or(&[]);
        for (query, line) in out.chunks_exact_mut(columns).enumerate() {
            let line = &mut line[keys.dropped..];
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

/// Softmax over keys; a row of nothing but minus infinity becomes zeros. Hands the tensor back if
/// it is not plain.
pub(crate) fn softmax(scores: Tensor<4>) -> Result<Tensor<4>, Tensor<4>> {
    let keys = scores.dims()[3];
    in_place(scores, |values| kernel::softmax(values, keys))
}

/// Each head's weighted sum of values, by its pattern; `None` if a tensor is not plain.
///
/// # Shapes
/// - pattern `[batch, head, query, key]`, values `[batch, key, kv_head, d_head]`
/// - output `[batch, query, head, d_head]`
pub(crate) fn mix(pattern: &Tensor<4>, keys: &Keys) -> Option<Tensor<4>> {
    let [batch, n_heads, queries, _] = pattern.dims();
    let (pattern, parts) = (Held::rows(pattern)?, plain_parts(keys, batch)?);
    let d_head = dims(&parts.first()?.values)[3];
    // Head by head first: the heads of a row lie apart in the result.
    let mut by_head = pattern.output(batch * n_heads * queries * d_head, 0.0);
    each_item(by_head.elements().chunks_mut((queries * d_head).max(1)).enumerate(), |(number, out)| {
        let (row, which) = (number / n_heads, number % n_heads);
        let mut column = keys.dropped;
        let mut own = vec![0.0; out.len()];
        for part in &parts {
            let [_, len, kv_heads, _] = dims(&part.values);
            let offset = row * pattern.stride(0) + which * pattern.stride(1) + column;
            let weights = View2::new(pattern.elements(), offset, (queries, len), (pattern.stride(2), 1));
            let values = head(&part.values, part.rows[row], which / (n_heads / kv_heads));
            gemm_serial(weights, values, None, &mut own, d_head);
            out.iter_mut().zip(&own).for_each(|(sum, own)| *sum += own);
            column += len;
        }
    });
    Some(by_head.tensor([batch, n_heads, queries, d_head]).permute([0, 2, 1, 3]))
}

/// Length of each axis.
fn dims(x: &Held) -> [usize; 4] {
    let shape = x.shape();
    [shape[0], shape[1], shape[2], shape[3]]
}
