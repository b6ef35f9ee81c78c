//! Attention: projections, scores, pattern, and weighted values.

use burn::module::{Module, Param};
use burn::tensor::module::attention as fused_attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{DType, Tensor, activation};
use hooklens_hooks::{Halt, Run, SomeHeads};

use super::alibi::slope_tensor;
use super::attention_rules::rules;
use super::latent::LatentMaps;
use super::linear::Linear;
use super::norm::{Norm, NormPoints, narrowed, widened};
use super::pass::Pass;
use super::soft_cap::soft_capped;
use crate::config::{Layers, NormKind, Positional, QkNormWeights, Window};
use crate::cpu;
use crate::device::is_cubecl;
use crate::kv_cache::{KeyBlock, Keys, heads_first, select_heads};
use crate::points::Site;

/// Weights of one attention layer.
#[derive(Module, Debug)]
pub struct Attention {
    /// Query projection, `[d_model, head * d_head]`; in latent attention `[q_rank, head * d_head]`.
    pub q: Linear,
    /// Key projection, `[d_model, kv_head * d_head]`; in latent attention `[kv_rank, head * (d_head - d_rope)]`;
    /// `[d_model, 0]` in a layer that reuses the keys and values of an earlier layer.
    pub k: Linear,
    /// Value projection, `[d_model, kv_head * d_head]`; in latent attention `[kv_rank, head * d_value]`; `[d_model, 0]`
    /// in a layer that reuses the keys and values of an earlier layer.
    pub v: Linear,
    /// Output projection, `[head * d_head, d_model]`; in latent attention `[head * d_value, d_model]`.
    pub o: Linear,
    /// Query norm. Its weights are `[d_head]`, or `[head * d_head]` if each head has its own or all heads are
    /// normalized together.
    pub q_norm: Option<Norm>,
    /// Key norm. Its weights are `[d_head]`, or `[kv_head * d_head]` if each head has its own or all heads are
    /// normalized together.
    pub k_norm: Option<Norm>,
    /// Attention sinks (GPT-OSS): a learned score per head that takes part in the softmax, `[head]`.
    pub sinks: Option<Param<Tensor<1>>>,
    /// Output gate projection, `[d_model, head * d_head]`.
    pub gate: Option<Linear>,
    /// Router of attention experts, `[d_model, expert]`.
    pub router: Option<Linear>,
    /// Latent attention: the projections to the latents that `q`, `k`, and `v` read.
    pub latent: Option<LatentMaps>,
}

/// Inputs of the query, key, and value projections.
#[derive(Debug, Clone)]
pub(crate) enum AttentionInputs {
    /// One normalized residual stream for all three, `[batch, pos, d_model]`.
    One(Box<Tensor<3>>),
    /// `streams` holds separate inputs for the three projections; `whole` is the normalized residual stream without the
    /// edits that hooks made to those inputs.
    Each { streams: Box<[ProjectionInput; 3]>, whole: Box<Tensor<3>> },
}

impl AttentionInputs {
    /// Input of the query projection.
    fn queries(&self) -> ProjectionInput {
        match self {
            AttentionInputs::One(stream) => ProjectionInput::Shared((**stream).clone()),
            AttentionInputs::Each { streams, .. } => streams[0].clone(),
        }
    }

    /// The normalized residual stream shared by all heads, `[batch, pos, d_model]`.
    pub(super) fn stream(&self) -> Tensor<3> {
        match self {
            AttentionInputs::One(stream) | AttentionInputs::Each { whole: stream, .. } => (**stream).clone(),
        }
    }
}

/// The input of one projection.
#[derive(Debug, Clone)]
pub(crate) enum ProjectionInput {
    /// One normalized input for all heads, `[batch, pos, d_model]`.
    Shared(Tensor<3>),
    /// Separate inputs per head, `[batch, pos, head, d_model]`.
    PerHead(Tensor<4>),
}

impl ProjectionInput {
    /// Applies the projection, giving `[batch, pos, head, d_head]`.
    pub(crate) fn project(self, by: &Linear, heads: usize) -> Tensor<4> {
        match self {
            ProjectionInput::PerHead(x) => by.forward_per_head(x),
            ProjectionInput::Shared(x) => by_head(by.forward(x), heads),
        }
    }
}

/// Splits `[batch, pos, head * d_head]` into `[batch, pos, head, d_head]`.
pub(crate) fn by_head(projected: Tensor<3>, heads: usize) -> Tensor<4> {
    let [batch, pos, width] = projected.dims();
    projected.reshape([batch, pos, heads, width / heads])
}

impl Attention {
    /// Computes the attention output of a layer with its own keys and values.
    ///
    /// # Shapes
    /// - output: `[batch, pos, d_model]`
    pub(super) fn forward_owning(
        &self,
        layer: usize,
        reads: AttentionInputs,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let config = pass.config;
        let at = |site| pass.points.at(layer, site);
        let gate = self.gated_by(layer, &reads, pass, run)?;
        let [mut q, mut k, mut v] = match &self.latent {
            None => self.project(reads, config.n_heads, config.n_kv_heads_of(layer)),
            Some(latent) => latent.project(self, layer, reads, pass, run)?,
        };
        let norm_first = config.qk_norm.is_some_and(|norm| !norm.after_rotation);
        if let Some(clip) = config.qkv_clip {
            v = v.clamp(-clip, clip);
            if !norm_first {
                (q, k) = (q.clamp(-clip, clip), k.clamp(-clip, clip));
            }
        }
        q = run.fire(at(Site::Q), q)?;
        k = run.fire(at(Site::K), k)?;
        v = run.fire(at(Site::V), v)?;
        if config.qk_norm_of(layer).is_some_and(|norm| norm.values) {
            let norm = Norm::new(NormKind::RmsPre, config.eps, None, None);
            let points = NormPoints { scale: at(Site::VNormScale), normalized: at(Site::VNormNormalized) };
            v = normed(&norm, v, QkNormWeights::Shared, points, run)?;
        }
        if norm_first {
            (q, k) = self.normed(layer, q, k, pass, run)?;
            if let Some(clip) = config.qkv_clip {
                (q, k) = (q.clamp(-clip, clip), k.clamp(-clip, clip));
            }
        }
        let rotation = pass.rotary(layer);
        if let Some(table) = &rotation {
            let skip = config.latent.map_or(0, |latent| config.d_head() - latent.d_rope);
            (q, k) = (table.rotate_behind(skip, q), table.rotate_behind(skip, k));
        }
        if !norm_first {
            (q, k) = self.normed(layer, q, k, pass, run)?;
        }
        let rotates = rotation.is_some();
        q = pass.grown(layer, q);
        if rotates {
            q = run.fire(at(Site::RotQ), q)?;
        }
        let keys = match &mut pass.kv_cache {
            None => Keys::whole(k, v),
            Some(cache) => cache.extend(layer, k, v)?,
        };
        self.attend(layer, (q, gate), keys, pass, run)
    }

    /// Factor that multiplies the head outputs, if any: a gate `[batch, pos, head, d_head]`, or expert weights `[batch,
    /// pos, head, 1]`.
    pub(super) fn gated_by(
        &self,
        layer: usize,
        reads: &AttentionInputs,
        pass: &Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Option<Tensor<4>>, Halt> {
        let config = pass.config;
        if let (Some(router), Some(experts)) = (&self.router, config.attn_experts) {
            let shares = experts.shares(router, reads.stream());
            let shares = run.fire(pass.points.at(layer, Site::HeadShares), shares)?;
            return Ok(Some(experts.by_head(shares, config.n_heads)));
        }
        // Published models compute queries and gates with one projection, so an edit of the query input must affect
        // both.
        let Some(gate) = &self.gate else { return Ok(None) };
        let gate = reads.queries().project(gate, config.n_heads);
        run.fire(pass.points.at(layer, Site::ZGate), gate).map(|gate| Some(activation::sigmoid(gate)))
    }

    /// Attends from queries to keys and values, applies the output gate, and projects the result.
    pub(super) fn attend(
        &self,
        layer: usize,
        (q, gate): (Tensor<4>, Option<Tensor<4>>),
        mut keys: Keys,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let config = pass.config;
        let at = |site| pass.points.at(layer, site);
        if run.wants(at(Site::RotK)) {
            // Hooks need the keys in one tensor, cached keys first.
            let (joined, values) = keys.joined();
            keys = Keys::whole(run.fire(at(Site::RotK), joined)?, values);
        }
        pass.keep_keys(layer, &keys);
        let watched = run.wants(at(Site::AttnScores)) || run.wants(at(Site::Pattern));
        if let Some(relative) = &pass.disentangled {
            pass.score_bias = Some(relative.bias(&q, &keys.joined().0, config.score_divisor(layer)));
        }
        let z = match &self.sinks {
            Some(sinks) => explicit(layer, (q, None), keys, Some(sinks.val()), pass, run)?,
            None if watched => match partly_watched(layer, &q, &keys, pass, run)? {
                Some(z) => z,
                None => explicit(layer, (q, None), keys, None, pass, run)?,
            },
            None => unwatched(layer, q, keys, pass, run)?,
        };
        let z = match gate {
            Some(gate) => z * gate,
            None => z,
        };
        let z = run.fire(pass.points.at(layer, Site::Z), z)?;
        self.output(layer, z, pass, run)
    }

    /// Applies the query and key norms, if any.
    fn normed(
        &self,
        layer: usize,
        q: Tensor<4>,
        k: Tensor<4>,
        pass: &Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<(Tensor<4>, Tensor<4>), Halt> {
        let (Some(q_norm), Some(k_norm), Some(norm)) = (&self.q_norm, &self.k_norm, pass.config.qk_norm) else {
            return Ok((q, k));
        };
        let at = |site| pass.points.at(layer, site);
        let points = |scale, normalized| NormPoints { scale: at(scale), normalized: at(normalized) };
        let q = normed(q_norm, q, norm.weights, points(Site::QNormScale, Site::QNormNormalized), run)?;
        let k = normed(k_norm, k, norm.weights, points(Site::KNormScale, Site::KNormNormalized), run)?;
        Ok((q, k))
    }

    /// Like [`Attention::normed`], for queries only.
    pub(super) fn normed_queries(
        &self,
        layer: usize,
        q: Tensor<4>,
        pass: &Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<4>, Halt> {
        let (Some(q_norm), Some(norm)) = (&self.q_norm, pass.config.qk_norm) else { return Ok(q) };
        let at = |site| pass.points.at(layer, site);
        let points = NormPoints { scale: at(Site::QNormScale), normalized: at(Site::QNormNormalized) };
        normed(q_norm, q, norm.weights, points, run)
    }

    /// Projects to queries, keys, and values, `[batch, pos, head, d_head]`.
    fn project(&self, reads: AttentionInputs, heads: usize, kv_heads: usize) -> [Tensor<4>; 3] {
        match reads {
            AttentionInputs::One(stream) => {
                let [q, k, v] = Linear::forward_each([&self.q, &self.k, &self.v], *stream);
                [by_head(q, heads), by_head(k, kv_heads), by_head(v, kv_heads)]
            }
            AttentionInputs::Each { streams, .. } => {
                let [q, k, v] = *streams;
                [q.project(&self.q, heads), k.project(&self.k, kv_heads), v.project(&self.v, kv_heads)]
            }
        }
    }

    /// Applies the output projection to `z`, separately for each head if `hook_result` is hooked or recorded.
    pub(crate) fn output(
        &self,
        layer: usize,
        z: Tensor<4>,
        pass: &Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let [batch, pos, heads, d_head] = z.dims();
        let result = pass.points.at(layer, Site::Result);
        if run.wants(result) {
            let edited = run.edits(result);
            let weight = self.o.weight_in(z.dtype());
            let d_model = weight.dims()[1];
            let read = self.o.rounded(z.clone().reshape([batch * pos, heads * d_head]));
            let by_head = read.reshape([batch * pos, heads, d_head]).swap_dims(0, 1);
            let shares = by_head.matmul(weight.reshape([heads, d_head, d_model]));
            let shares = shares.reshape([heads, batch, pos, d_model]).permute([1, 2, 0, 3]);
            let shares = run.fire(result, shares)?;
            if edited {
                let sum = shares.sum_dim(2).squeeze_dim::<3>(2);
                return Ok(match &self.o.bias {
                    Some(bias) => sum + bias.val().unsqueeze(),
                    None => sum,
                });
            }
        }
        Ok(self.o.forward(z.reshape([batch, pos, heads * d_head])))
    }
}

/// Normalizes each head's vector separately, or all heads together. The hook points have one row per batch row,
/// position, and head in the first case, and one per batch row and position in the second.
fn normed(
    norm: &Norm,
    x: Tensor<4>,
    weights: QkNormWeights,
    points: NormPoints,
    run: &mut Run<'_, '_>,
) -> Result<Tensor<4>, Halt> {
    let shape @ [batch, pos, heads, d_head] = x.dims();
    let rows = match weights {
        QkNormWeights::Whole => norm.forward(x.reshape([batch * pos, heads * d_head]), points, run)?,
        QkNormWeights::Shared => norm.forward(x.reshape([batch * pos * heads, d_head]), points, run)?,
        QkNormWeights::EachHead => return norm.forward_by_head(x, points, run),
    };
    Ok(rows.reshape(shape))
}

/// Fused attention, used when no hook or recording observes scores or patterns.
fn unwatched(
    layer: usize,
    q: Tensor<4>,
    keys: Keys,
    pass: &mut Pass<'_>,
    run: &mut Run<'_, '_>,
) -> Result<Tensor<4>, Halt> {
    let config = pass.config;
    if !is_fusible(layer, pass) {
        return explicit(layer, (q, None), keys, None, pass, run);
    }
    if let Some(z) = cpu::attention(&q, &keys, || rules(layer, keys.dropped, pass)) {
        return Ok(z);
    }
    let plain = pass.masks.plainly_causal(config.window(layer))
        && config.attn_scores_soft_cap.is_none()
        && config.positional != Positional::Alibi;
    if !plain {
        return explicit(layer, (q, None), keys, None, pass, run);
    }
    let group = config.n_heads / config.n_kv_heads_of(layer);
    let mut scale = Some(1.0 / config.score_divisor(layer));
    let mut q = q;
    // CubeCL's fused kernels support only the default scale here, and multiply in 16 bits.
    if is_cubecl(&q.device()) && matches!(q.dtype(), DType::F16 | DType::BF16) {
        let usual = (config.d_head_of(layer) as f64).sqrt();
        if config.score_divisor(layer) != usual {
            q = q * (usual / config.score_divisor(layer));
        }
        scale = None;
    }
    let options = AttentionModuleOptions { scale, softcap: None, is_causal: true };
    let (k, v) = keys.joined();
    let (k, v) = (repeated(heads_first(k), group), repeated(heads_first(v), group));
    Ok(heads_first(fused_attention(heads_first(q), k, v, None, None, options)))
}

/// Whether the attention kernels support a layer's scores. The kernels do not support precomputed biases, or windows
/// that extend past the query.
fn has_rules(layer: usize, pass: &Pass<'_>) -> bool {
    let ends = |window: Window| window.newest(0).is_some() && window.width() < pass.sequence.keys();
    pass.score_bias.is_none() && !pass.config.window(layer).is_some_and(ends)
}

/// Whether the fused attention kernels support a layer. In addition to [`has_rules`], they require values to be as wide
/// as keys.
fn is_fusible(layer: usize, pass: &Pass<'_>) -> bool {
    has_rules(layer, pass) && pass.config.d_value_of(layer) == pass.config.d_head_of(layer)
}

/// Repeats each key/value head `group` times, `[batch, kv_head, pos, d_head]` to `[batch, head, ...]`.
fn repeated(x: Tensor<4>, group: usize) -> Tensor<4> {
    if group == 1 {
        return x;
    }
    let [batch, heads, pos, d_head] = x.dims();
    let wide = x.unsqueeze_dim::<5>(2).expand([batch, heads, group, pos, d_head]);
    wide.reshape([batch, heads * group, pos, d_head])
}

/// Attention in which hooks use the scores or patterns of at most half of the heads. Scores and patterns are computed
/// only for the heads in use, so the memory they take is proportional to the number of these heads. `None` if hooks use
/// more heads or the fused kernels do not support the layer.
fn partly_watched(
    layer: usize,
    q: &Tensor<4>,
    keys: &Keys,
    pass: &mut Pass<'_>,
    run: &mut Run<'_, '_>,
) -> Result<Option<Tensor<4>>, Halt> {
    let sites = [Site::AttnScores, Site::Pattern].map(|site| pass.points.at(layer, site));
    let count = q.dims()[2];
    // With ALiBi, each head has its own slope, and `explicit` does not select slopes.
    let supported = is_fusible(layer, pass) && pass.config.positional != Positional::Alibi;
    let few = |heads: &Vec<usize>| supported && !heads.is_empty() && 2 * heads.len() <= count;
    let Some(heads) = run.heads(&sites, count).filter(few) else { return Ok(None) };
    let Some(z) = cpu::attention(q, keys, || rules(layer, keys.dropped, pass)) else { return Ok(None) };
    let group = keys.blocks.first().map_or(1, |block| count / block.keys.dims()[2]);
    let read: Vec<usize> = heads.iter().map(|head| head / group).collect();
    let watched = (select_heads(q.clone(), &heads), Some(SomeHeads { heads: &heads, of: count }));
    let own = explicit(layer, watched, keys.of_heads(&read), None, pass, run)?;
    if !sites.iter().any(|site| run.edits(*site)) {
        return Ok(Some(z));
    }
    let replace = |z: Tensor<4>, (at, head): (usize, &usize)| {
        let [batch, pos, _, d_head] = z.dims();
        z.slice_assign([0..batch, 0..pos, *head..head + 1, 0..d_head], own.clone().narrow(2, at, 1))
    };
    Ok(Some(heads.iter().enumerate().fold(z, replace)))
}

/// Step-by-step attention in `f32`, which fires the score and pattern points. If `heads` is given, `q` and `keys`
/// contain only these heads, with one key head per query head.
fn explicit(
    layer: usize,
    (q, heads): (Tensor<4>, Option<SomeHeads<'_>>),
    keys: Keys,
    sinks: Option<Tensor<1>>,
    pass: &mut Pass<'_>,
    run: &mut Run<'_, '_>,
) -> Result<Tensor<4>, Halt> {
    let fast = if has_rules(layer, pass) { cpu::scores(&q, &keys, || rules(layer, keys.dropped, pass)) } else { None };
    let scores = match fast {
        Some(scores) => scores,
        None => masked(layer, raw_scores(layer, q, &keys, pass), keys.dropped, pass),
    };
    let site = |site| pass.points.at(layer, site);
    let scores_edited = run.edits(site(Site::AttnScores));
    let scores = run.fire_heads(site(Site::AttnScores), scores, heads)?;
    let blank_rows = scores_edited || pass.masks.may_hide_everything();
    let pattern = match sinks {
        Some(sinks) => softmax_beside(scores, sinks),
        None => softmax_rows(scores, blank_rows),
    };
    let pattern = run.fire_heads(site(Site::Pattern), pattern, heads)?;
    Ok(match cpu::mix(&pattern, &keys) {
        Some(z) => z,
        None => mix(pattern, &keys),
    })
}

/// Scaled scores for the stored columns, `[batch, head, query, key]`.
pub(crate) fn raw_scores(layer: usize, q: Tensor<4>, keys: &Keys, pass: &Pass<'_>) -> Tensor<4> {
    let [batch, queries, heads, _] = q.dims();
    let (mut q, scale) = (widened(q), 1.0 / pass.config.score_divisor(layer));
    // A fusing backend merges scaling with the softmax. Elsewhere it is cheaper to scale the queries.
    let fuses = is_cubecl(&q.device());
    if !fuses {
        q = q * scale;
    }
    let of_block = |block: &KeyBlock| {
        let (block, readers) = evenly_read(block);
        let [rows, columns, kv_heads, _] = block.keys.dims();
        let shape = Fold { rows, readers, kv_heads, group: heads / kv_heads, queries };
        let scores = shape.fold(heads_first(q.clone())).matmul(widened(block.keys).permute([0, 2, 3, 1]));
        shape.unfold(scores, [batch, heads, queries, columns])
    };
    let mut scores: Vec<Tensor<4>> = keys.blocks.iter().map(of_block).collect();
    let scores = if scores.len() == 1 { scores.remove(0) } else { Tensor::cat(scores, 3) };
    if fuses { scores * scale } else { scores }
}

/// Weighted sum of values per head, `[batch, query, head, d_head]`.
pub(crate) fn mix(pattern: Tensor<4>, keys: &Keys) -> Tensor<4> {
    let [batch, heads, queries, _] = pattern.dims();
    let mut column = keys.dropped;
    let of_block = |block: &KeyBlock| {
        let (block, readers) = evenly_read(block);
        let [rows, columns, kv_heads, d_head] = block.values.dims();
        let shape = Fold { rows, readers, kv_heads, group: heads / kv_heads, queries };
        let weights = narrowed(pattern.clone().narrow(3, column, columns), block.values.dtype());
        column += columns;
        let weighted = shape.fold(weights).matmul(block.values.permute([0, 2, 1, 3]));
        shape.unfold(weighted, [batch, heads, queries, d_head])
    };
    let blocks: Vec<Tensor<4>> = keys.blocks.iter().map(of_block).collect();
    let sum = blocks.into_iter().reduce(|sum, block| sum + block);
    let z = sum.unwrap_or_else(|| pattern.zeros_like());
    heads_first(z)
}

/// Expands the block so that each of its rows is read by the same number of batch rows; also returns that number.
fn evenly_read(block: &KeyBlock) -> (KeyBlock, usize) {
    match block.readers() {
        Some(readers) => (block.clone(), readers),
        None => (block.spread(), 1),
    }
}

/// Stacks queries that read the same keys into one matrix, so that keys are never repeated. The heads of a
/// group read the same keys, and so do batch rows that share a row of keys.
struct Fold {
    rows: usize,
    readers: usize,
    kv_heads: usize,
    group: usize,
    queries: usize,
}

impl Fold {
    /// Reshapes `[batch, head, query, x]` to `[row, kv_head, reader * group * query, x]`.
    fn fold(&self, x: Tensor<4>) -> Tensor<4> {
        let [.., width] = x.dims();
        let Self { rows, readers, kv_heads, group, queries } = *self;
        let folded = [rows, kv_heads, readers * group * queries, width];
        if readers == 1 {
            return x.reshape(folded);
        }
        let apart = x.reshape([rows, readers, kv_heads, group * queries, width]);
        apart.permute([0, 2, 1, 3, 4]).reshape(folded)
    }

    /// The inverse of [`Fold::fold`].
    fn unfold(&self, x: Tensor<4>, shape: [usize; 4]) -> Tensor<4> {
        let Self { rows, readers, kv_heads, group, queries } = *self;
        if readers == 1 {
            return x.reshape(shape);
        }
        let apart = x.reshape([rows, kv_heads, readers, group * queries, shape[3]]);
        apart.permute([0, 2, 1, 3, 4]).reshape(shape)
    }
}

/// Applies the soft cap, adds biases, and masks scores with negative infinity. Prepends `dropped` masked columns for
/// the keys that the cache has dropped.
fn masked(layer: usize, mut scores: Tensor<4>, dropped: usize, pass: &mut Pass<'_>) -> Tensor<4> {
    let config = pass.config;
    let [batch, heads, queries, held] = scores.dims();
    scores = soft_capped(scores, config.attn_scores_soft_cap);
    if config.positional == Positional::Alibi {
        let dtype = scores.dtype();
        let slopes = slope_tensor((config.n_heads, config.alibi_bias_max), &scores.device(), dtype);
        scores = scores + narrowed(pass.masks.distance().narrow(3, dropped, held), dtype) * slopes;
    }
    if let Some(bias) = &pass.score_bias {
        scores = scores + bias.clone().narrow(3, dropped, held);
    }
    if let Some(hidden) = pass.masks.hidden(config.window(layer)) {
        let shape = scores.dims();
        scores = scores.mask_fill(hidden.narrow(3, dropped, held).expand(shape), f32::NEG_INFINITY);
    }
    if dropped == 0 {
        return scores;
    }
    let options = (&scores.device(), scores.dtype());
    let unseen = Tensor::full([batch, heads, queries, dropped], f32::NEG_INFINITY, options);
    Tensor::cat(vec![unseen, scores], 3)
}

/// Softmax over the keys and one attention sink per head, `[head]`; the sink's column is removed afterwards.
fn softmax_beside(scores: Tensor<4>, sinks: Tensor<1>) -> Tensor<4> {
    let [batch, heads, queries, keys] = scores.dims();
    let sinks = narrowed(widened(sinks), scores.dtype()).reshape([1, heads, 1, 1]).expand([batch, heads, queries, 1]);
    softmax_rows(Tensor::cat(vec![scores, sinks], 3), false).narrow(3, 0, keys)
}

/// Softmax over keys. With `blank_rows`, a fully masked row becomes zeros.
pub(crate) fn softmax_rows(scores: Tensor<4>, blank_rows: bool) -> Tensor<4> {
    let scores = match cpu::softmax(scores) {
        Ok(pattern) => return pattern,
        Err(scores) => scores,
    };
    let pattern = activation::softmax(scores, 3);
    if blank_rows {
        let blank = pattern.clone().is_nan();
        return pattern.mask_fill(blank, 0.0);
    }
    pattern
}
