//! Attention with frozen pattern and norms: a linear map of the residual stream.

use burn::tensor::{DType, Tensor};
use hooklens_kernels::gemm::{Product, gemm, gemm_each};
use hooklens_kernels::tasks::each_item;
use hooklens_kernels::view::View2;

use super::gradient::{Gradient, Targets};
use super::held_norm::HeldNorm;
use super::host;
use hooklens_model::model::Attention;

/// Number of keys per block of a stored pattern. Queries before a block have no entries in it.
const KEYS: usize = 128;

/// A layer's attention as a linear map from the stream it reads to its output. The norms around it are folded into the
/// matrices and the pattern, so the backward pass is three matrix products.
#[derive(Debug)]
pub(super) struct FrozenAttention {
    heads: usize,
    kv_heads: usize,
    d_head: usize,
    width: usize,
    /// Output matrix, `[head * d_head, d_model]`, with the norm after it folded in except for the norm's scale.
    output: Vec<f32>,
    /// Value matrix, `[d_model, kv_head * d_head]`, with the norm before it folded in except for the norm's scale.
    values: Vec<f32>,
    pattern: HeldPattern,
    /// Output for a zero stream, `[pos, d_model]`; `None` if it is zero.
    constant: Option<Vec<f32>>,
}

/// A transposed attention pattern, divided by the scales of the norms. Each block of keys is `[head, key, query]`, with
/// queries starting at the block's first key.
#[derive(Debug, Default)]
pub(super) struct HeldPattern {
    blocks: Vec<Vec<f32>>,
    len: usize,
    /// Sum over keys for each head and query, before division by the scales, `[head, pos]`.
    sums: Vec<f32>,
}

impl HeldPattern {
    /// Stores a pattern `[1, head, query, key]`.
    pub(super) fn new(pattern: Tensor<4>) -> Self {
        let [_, heads, len, _] = pattern.dims();
        let values = host(pattern);
        let sums = values.chunks_exact(len.max(1)).map(|row| row.iter().sum()).collect();
        let block = |first: usize| {
            let keys = KEYS.min(len - first);
            let mut block = vec![0.0; heads * keys * (len - first)];
            for (head, block) in block.chunks_exact_mut(keys * (len - first)).enumerate() {
                for query in first..len {
                    let row = &values[(head * len + query) * len + first..][..keys];
                    row.iter().enumerate().for_each(|(key, x)| block[key * (len - first) + query - first] = *x);
                }
            }
            block
        };
        Self { blocks: (0..len).step_by(KEYS).map(block).collect(), len, sums }
    }

    /// Divides by the scales of the norm before attention (at keys) and of the norm after it (at queries).
    fn scaled(self, before: &HeldNorm, behind: Option<&HeldNorm>) -> Self {
        self.divided(|key, query| before.scale(key) * behind.map_or(1.0, |norm| norm.scale(query)))
    }

    /// Divides by the scales, at keys, of the norm on the latents that values are computed from, `[pos]`.
    pub(super) fn over_keys(self, scale: &[f32]) -> Self {
        self.divided(|key, _| scale[key])
    }

    /// Divides each entry by a function of its key and query.
    fn divided(mut self, by: impl Fn(usize, usize) -> f32) -> Self {
        for (number, block) in self.blocks.iter_mut().enumerate() {
            let first = number * KEYS;
            let (keys, queries) = (KEYS.min(self.len - first), self.len - first);
            for (row, key) in block.chunks_exact_mut(queries).zip((0..keys).cycle()) {
                row.iter_mut().enumerate().for_each(|(query, x)| *x /= by(first + key, first + query));
            }
        }
        self
    }

    /// The weights of one query, `[key, head]`.
    fn of_query(&self, query: usize, heads: usize) -> Vec<f32> {
        let mut weights = vec![0.0; (query + 1) * heads];
        for (number, block) in self.blocks.iter().enumerate() {
            let first = number * KEYS;
            if first > query {
                break;
            }
            let (keys, queries) = (KEYS.min(self.len - first), self.len - first);
            for head in 0..heads {
                for key in 0..keys.min(query + 1 - first) {
                    weights[(first + key) * heads + head] = block[(head * keys + key) * queries + query - first];
                }
            }
        }
        weights
    }

    /// Memory size in bytes.
    fn bytes(&self) -> usize {
        4 * (self.blocks.iter().map(Vec::len).sum::<usize>() + self.sums.len())
    }
}

impl FrozenAttention {
    pub(super) fn new(
        attention: &Attention,
        [heads, kv_heads, d_head]: [usize; 3],
        pattern: HeldPattern,
        before: &HeldNorm,
        behind: Option<&HeldNorm>,
    ) -> Self {
        // Values made from a latent use the product of two matrices; the scale of the latent's norm is in the pattern.
        let matrix = match &attention.latent {
            Some(latent) => latent.whole_v(attention, DType::F32),
            None => attention.v.matrix(),
        };
        let [width, _] = matrix.dims();
        let (mut values, mut output) = (host(matrix), host(attention.o.matrix()));
        let vector = |bias: &Option<burn::module::Param<Tensor<1>>>| bias.as_ref().map(|bias| host(bias.val()));
        let constant = constant(
            [&values, &output],
            [vector(&attention.v.bias), vector(&attention.o.bias)],
            &pattern,
            [heads, kv_heads, d_head, width],
            before,
            behind,
        );
        fold_before(&mut values, before, width);
        if let Some(norm) = behind {
            output.chunks_exact_mut(width).for_each(|row| fold_behind(row, norm));
        }
        Self { heads, kv_heads, d_head, width, output, values, pattern: pattern.scaled(before, behind), constant }
    }

    /// Memory size in bytes.
    pub(super) fn bytes(&self) -> usize {
        let constant = self.constant.as_ref().map_or(0, Vec::len);
        4 * (self.output.len() + self.values.len() + constant) + self.pattern.bytes()
    }

    /// Adds the contribution of the constant output to each target's constant.
    pub(super) fn add_constants(&self, gradient: &Gradient, targets: &Targets<'_>, constants: &mut [f64]) {
        let Some(constant) = &self.constant else { return };
        add_dots(gradient, constant, targets, constants);
    }

    /// Propagates a gradient backward through the layer, including the residual connection.
    pub(super) fn back(&self, gradient: Gradient, targets: &Targets<'_>) -> Gradient {
        match gradient {
            Gradient::Own(own) => Gradient::Spread(self.first(&own, targets, None)),
            Gradient::Spread(mut values) => {
                let shares = self.share_of(&values, targets, None);
                values.iter_mut().zip(&shares).for_each(|(x, share)| *x += share);
                Gradient::Spread(values)
            }
        }
    }

    /// Propagates a gradient backward through one head only, without the residual connection.
    pub(super) fn through_head(&self, gradient: &Gradient, targets: &Targets<'_>, head: usize) -> Gradient {
        Gradient::Spread(match gradient {
            Gradient::Own(own) => {
                let mut spread = self.first(own, targets, Some(head));
                let len = targets.len();
                for (target, pos) in targets.positions.iter().enumerate() {
                    let row = &mut spread[(target * len + pos) * self.width..][..self.width];
                    row.iter_mut().zip(&own[target * self.width..]).for_each(|(x, own)| *x -= own);
                }
                spread
            }
            Gradient::Spread(values) => self.share_of(values, targets, Some(head)),
        })
    }

    fn group(&self) -> usize {
        self.heads / self.kv_heads.max(1)
    }

    fn turned<'v>(values: &'v [f32], rows: usize, cols: usize) -> View2<'v> {
        View2::row_major(values, rows, cols).t()
    }

    /// Propagates gradients that are each nonzero at a single position. A gradient spreads to all positions that this
    /// position attends to: one vector per head, weighted by the head's pattern.
    fn first(&self, own: &[f32], targets: &Targets<'_>, only: Option<usize>) -> Vec<f32> {
        let (count, len, width) = (targets.count(), targets.len(), self.width);
        let inner = self.heads * self.d_head;
        let mut z = vec![0.0; count * inner];
        let own_rows = View2::row_major(own, count, width);
        gemm(own_rows, Self::turned(&self.output, inner, width), None, &mut z, inner);
        // The gradient that each head passes to its keys, `[target, head, d_model]`.
        let mut given = vec![0.0; count * self.heads * width];
        for head in (0..self.heads).filter(|head| only.is_none_or(|only| only == *head)) {
            let rows = View2::row_major(&z, count, inner).block((0, count), (head * self.d_head, self.d_head));
            let kv = head / self.group();
            let values = View2::row_major(&self.values, width, self.kv_heads * self.d_head);
            let values = values.block((0, width), (kv * self.d_head, self.d_head)).t();
            gemm(rows, values, None, &mut given[head * width..], self.heads * width);
        }
        let mut spread = vec![0.0; count * len * width];
        each_item(spread.chunks_exact_mut(len * width).enumerate(), |(target, spread)| {
            let pos = targets.positions[target];
            let weights = self.pattern.of_query(pos, self.heads);
            let given = &given[target * self.heads * width..][..self.heads * width];
            let (weights, given) =
                (View2::row_major(&weights, pos + 1, self.heads), View2::row_major(given, self.heads, width));
            gemm(weights, given, None, spread, width);
            let at = &mut spread[pos * width..][..width];
            at.iter_mut().zip(&own[target * width..]).for_each(|(x, own)| *x += own);
        });
        spread
    }

    /// Propagates a gradient through attention without the residual connection, `[target, pos, d_model]`.
    fn share_of(&self, gradient: &[f32], targets: &Targets<'_>, only: Option<usize>) -> Vec<f32> {
        let (count, len, width) = (targets.count(), targets.len(), self.width);
        let (inner, kv_inner, rows) = (self.heads * self.d_head, self.kv_heads * self.d_head, count * len);
        let mut z = vec![0.0; rows * inner];
        gemm(View2::row_major(gradient, rows, width), Self::turned(&self.output, inner, width), None, &mut z, inner);
        let mut v = vec![0.0; rows * kv_inner];
        let mut shared = Vec::new();
        for (number, block) in self.pattern.blocks.iter().enumerate() {
            let first = number * KEYS;
            if first >= len {
                break;
            }
            let (held, queries) = (KEYS.min(self.pattern.len - first), self.pattern.len - first);
            let keys = held.min(len - first);
            for head in (0..self.heads).filter(|head| only.is_none_or(|only| only == *head)) {
                let weights = View2::row_major(&block[head * held * queries..][..held * queries], held, queries);
                let weights = weights.block((0, keys), (0, len - first));
                let kv = head / self.group();
                let z_of = |target: usize| {
                    let rows = View2::row_major(&z[target * len * inner..][..len * inner], len, inner);
                    rows.block((first, len - first), (head * self.d_head, self.d_head))
                };
                let alone = self.group() == 1 || only.is_some();
                if alone {
                    let products = v.chunks_exact_mut(len * kv_inner).enumerate().map(|(target, v)| Product {
                        b: z_of(target).into(),
                        bias: None,
                        c: &mut v[first * kv_inner + kv * self.d_head..],
                        ldc: kv_inner,
                    });
                    gemm_each(weights, products.collect());
                    continue;
                }
                // Heads in a group share values.
                let size = keys * self.d_head;
                shared.resize(count * size, 0.0);
                let products = shared.chunks_exact_mut(size).enumerate().map(|(target, c)| Product {
                    b: z_of(target).into(),
                    bias: None,
                    c,
                    ldc: self.d_head,
                });
                gemm_each(weights, products.collect());
                for (v, made) in v.chunks_exact_mut(len * kv_inner).zip(shared.chunks_exact(size)) {
                    for (key, made) in made.chunks_exact(self.d_head).enumerate() {
                        let to = &mut v[(first + key) * kv_inner + kv * self.d_head..][..self.d_head];
                        to.iter_mut().zip(made).for_each(|(x, more)| *x += more);
                    }
                }
            }
        }
        let mut share = z;
        share.resize(rows * width, 0.0);
        gemm(
            View2::row_major(&v, rows, kv_inner),
            Self::turned(&self.values, width, kv_inner),
            None,
            &mut share,
            width,
        );
        share
    }
}

/// Adds the dot product of each target's gradient with rows for every position, `[pos, d_model]`.
pub(super) fn add_dots(gradient: &Gradient, rows: &[f32], targets: &Targets<'_>, sums: &mut [f64]) {
    let width = targets.width;
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    match gradient {
        Gradient::Own(own) => {
            for ((own, pos), sum) in own.chunks_exact(width).zip(targets.positions).zip(sums) {
                *sum += dot(own, &rows[pos * width..][..width]);
            }
        }
        Gradient::Spread(values) => {
            let size = targets.len() * width;
            each_item(values.chunks_exact(size.max(1)).zip(sums), |(own, sum)| {
                *sum += own
                    .chunks_exact(width)
                    .zip(rows.chunks_exact(width))
                    .map(|(own, row)| f64::from(own.iter().zip(row).map(|(a, b)| a * b).sum::<f32>()))
                    .sum::<f64>();
            });
        }
    }
}

/// Folds the norm before a map, except for its scale, into the map's matrix, `[width, out]`.
fn fold_before(matrix: &mut [f32], norm: &HeldNorm, width: usize) {
    let columns = matrix.len() / width.max(1);
    if let Some(weight) = norm.weight() {
        matrix.chunks_exact_mut(columns).zip(weight).for_each(|(row, w)| row.iter_mut().for_each(|x| *x *= w));
    }
    if norm.centers() {
        let mut means = vec![0f64; columns];
        matrix.chunks_exact(columns).for_each(|row| means.iter_mut().zip(row).for_each(|(m, x)| *m += f64::from(*x)));
        for row in matrix.chunks_exact_mut(columns) {
            row.iter_mut().zip(&means).for_each(|(x, mean)| *x -= (mean / width as f64) as f32);
        }
    }
}

/// Folds the norm after a map, except for its scale and bias, into a row of the map's matrix.
fn fold_behind(row: &mut [f32], norm: &HeldNorm) {
    if norm.centers() {
        let mean = (row.iter().map(|x| f64::from(*x)).sum::<f64>() / row.len() as f64) as f32;
        row.iter_mut().for_each(|x| *x -= mean);
    }
    if let Some(weight) = norm.weight() {
        row.iter_mut().zip(weight).for_each(|(x, w)| *x *= w);
    }
}

/// Attention's output for a zero stream, `[pos, d_model]`.
fn constant(
    [values, output]: [&[f32]; 2],
    [value_bias, output_bias]: [Option<Vec<f32>>; 2],
    pattern: &HeldPattern,
    [heads, kv_heads, d_head, width]: [usize; 4],
    before: &HeldNorm,
    behind: Option<&HeldNorm>,
) -> Option<Vec<f32>> {
    let behind_bias = behind.and_then(HeldNorm::bias);
    if value_bias.is_none() && output_bias.is_none() && before.bias().is_none() && behind_bias.is_none() {
        return None;
    }
    let (len, inner, kv_inner) = (pattern.len, heads * d_head, kv_heads * d_head);
    let mut value = value_bias.unwrap_or_else(|| vec![0.0; kv_inner]);
    if let Some(bias) = before.bias() {
        let mut through = vec![0.0; kv_inner];
        gemm(View2::row_major(bias, 1, width), View2::row_major(values, width, kv_inner), None, &mut through, kv_inner);
        value.iter_mut().zip(through).for_each(|(x, more)| *x += more);
    }
    let mut z = vec![0.0; len * inner];
    for (pos, z) in z.chunks_exact_mut(inner).enumerate() {
        for (head, z) in z.chunks_exact_mut(d_head).enumerate() {
            let own = &value[head * kv_heads / heads * d_head..][..d_head];
            z.iter_mut().zip(own).for_each(|(z, v)| *z = v * pattern.sums[head * len + pos]);
        }
    }
    let mut constant = vec![0.0; len * width];
    let rows = View2::row_major(&z, len, inner);
    gemm(rows, View2::row_major(output, inner, width), output_bias.as_deref(), &mut constant, width);
    if let Some(norm) = behind {
        constant.chunks_exact_mut(width).enumerate().for_each(|(pos, row)| norm.forward(row, pos));
    }
    Some(constant)
}
