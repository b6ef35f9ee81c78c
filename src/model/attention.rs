//! Attention: projections, scores, pattern, mix.

use burn::module::Module;
use burn::tensor::module::attention as fused_attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Tensor, activation};
use hooklens_hooks::{Halt, HookError, Run};

use super::alibi::slope_tensor;
use super::linear::Linear;
use super::norm::{Norm, NormPoints, narrowed, widened};
use super::pass::Pass;
use super::points::Site;
use crate::config::Positional;
use crate::flex;

/// Weights of one attention layer.
#[derive(Module, Debug)]
pub struct Attention {
    /// Queries, `[d_model, head * d_head]`.
    pub q: Linear,
    /// Keys, `[d_model, kv_head * d_head]`.
    pub k: Linear,
    /// Values, `[d_model, kv_head * d_head]`.
    pub v: Linear,
    /// Output, `[head * d_head, d_model]`.
    pub o: Linear,
    /// RMS norm of every query, `[d_head]`.
    pub q_norm: Option<Norm>,
    /// RMS norm of every key, `[d_head]`.
    pub k_norm: Option<Norm>,
}

/// What queries, keys or values are projected from.
#[derive(Debug, Clone)]
pub(crate) enum Reads {
    /// One normalised stream for all heads, `[batch, pos, d_model]`.
    Shared(Tensor<3>),
    /// A stream a head, `[batch, pos, head, d_model]`.
    PerHead(Tensor<4>),
}

impl Reads {
    fn project(self, by: &Linear, heads: usize) -> Tensor<4> {
        match self {
            Reads::PerHead(x) => by.forward_per_head(x),
            Reads::Shared(x) => {
                let projected = by.forward(x);
                let [batch, pos, width] = projected.dims();
                projected.reshape([batch, pos, heads, width / heads])
            }
        }
    }
}

impl Attention {
    /// What attention adds to the stream.
    ///
    /// # Shapes
    /// - output: `[batch, pos, d_model]`
    pub(crate) fn forward(
        &self,
        layer: usize,
        [q, k, v]: [Reads; 3],
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let config = pass.config;
        let at = |site| pass.points.at(layer, site);
        let mut q = run.fire(at(Site::Q), q.project(&self.q, config.n_heads))?;
        let mut k = run.fire(at(Site::K), k.project(&self.k, config.n_kv_heads))?;
        let v = run.fire(at(Site::V), v.project(&self.v, config.n_kv_heads))?;
        if let (Some(q_norm), Some(k_norm)) = (&self.q_norm, &self.k_norm) {
            let points = |scale, normalized| NormPoints { scale: at(scale), normalized: at(normalized) };
            q = by_head(q_norm, q, points(Site::QNormScale, Site::QNormNormalized), run)?;
            k = by_head(k_norm, k, points(Site::KNormScale, Site::KNormNormalized), run)?;
        }
        let mut v = v;
        if let Some(cache) = &mut pass.kv_cache {
            let appended = cache.entry_mut(layer).append(k, v);
            (k, v) = appended.map_err(|error| HookError::Failed {
                point: format!("blocks.{layer}.attn.hook_k"),
                source: error.into(),
            })?;
        }
        if let Some([of_queries, of_keys]) = &pass.rotary {
            q = run.fire(at(Site::RotQ), of_queries.rotate(q))?;
            k = run.fire(at(Site::RotK), of_keys.rotate(k))?;
        }
        let watched = run.wants(at(Site::AttnScores)) || run.wants(at(Site::Pattern));
        let z = if watched { explicit(layer, q, k, v, pass, run)? } else { unwatched(layer, q, k, v, pass, run)? };
        let z = run.fire(pass.points.at(layer, Site::Z), z)?;
        self.output(layer, z, pass, run)
    }

    /// Mixes the heads' `z` into the stream's coordinates, head by head when a hook wants
    /// each head's share.
    fn output(&self, layer: usize, z: Tensor<4>, pass: &Pass<'_>, run: &mut Run<'_, '_>) -> Result<Tensor<3>, Halt> {
        let [batch, pos, heads, d_head] = z.dims();
        let result = pass.points.at(layer, Site::Result);
        if run.wants(result) {
            let edited = run.edits(result);
            let weight = self.o.weight.val();
            let d_model = weight.dims()[1];
            let by_head = z.clone().permute([2, 0, 1, 3]).reshape([heads, batch * pos, d_head]);
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

/// Normalises every head's vector; the points see one row a batch, position and head.
fn by_head(norm: &Norm, x: Tensor<4>, points: NormPoints, run: &mut Run<'_, '_>) -> Result<Tensor<4>, Halt> {
    let shape @ [batch, pos, heads, d_head] = x.dims();
    let rows = norm.forward(x.reshape([batch * pos * heads, d_head]), points, run)?;
    Ok(rows.reshape(shape))
}

/// Attention when no one looks at scores or pattern.
fn unwatched(
    layer: usize,
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    pass: &mut Pass<'_>,
    run: &mut Run<'_, '_>,
) -> Result<Tensor<4>, Halt> {
    let config = pass.config;
    if let Some(z) = flex::attention(layer, &q, &k, &v, pass) {
        return Ok(z);
    }
    let plain = pass.masks.plainly_causal(config.window(layer))
        && config.attn_scores_soft_cap.is_none()
        && config.positional != Positional::Alibi;
    if !plain {
        return explicit(layer, q, k, v, pass, run);
    }
    let group = config.n_heads / config.n_kv_heads;
    let options =
        AttentionModuleOptions { scale: Some(1.0 / config.score_divisor(layer)), softcap: None, is_causal: true };
    let heads_first = |x: Tensor<4>| x.permute([0, 2, 1, 3]);
    let (k, v) = (repeated(heads_first(k), group), repeated(heads_first(v), group));
    Ok(heads_first(fused_attention(heads_first(q), k, v, None, None, options)))
}

/// Each key/value head `group` times, `[batch, kv_head, pos, d_head]` to `[batch, head, ...]`.
fn repeated(x: Tensor<4>, group: usize) -> Tensor<4> {
    if group == 1 {
        return x;
    }
    let [batch, heads, pos, d_head] = x.dims();
    let wide = x.unsqueeze_dim::<5>(2).expand([batch, heads, group, pos, d_head]);
    wide.reshape([batch, heads * group, pos, d_head])
}

/// Attention step by step, in `f32`, with scores and pattern shown to their points.
fn explicit(
    layer: usize,
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    pass: &mut Pass<'_>,
    run: &mut Run<'_, '_>,
) -> Result<Tensor<4>, Halt> {
    let dtype = v.dtype();
    let scores = match flex::scores(layer, &q, &k, pass) {
        Some(scores) => scores,
        None => masked(layer, raw_scores(layer, q, k, pass), pass),
    };
    let site = |site| pass.points.at(layer, site);
    let scores_edited = run.edits(site(Site::AttnScores));
    let scores = run.fire(site(Site::AttnScores), scores)?;
    let blank_rows = scores_edited || pass.masks.may_hide_everything();
    let pattern = run.fire(site(Site::Pattern), softmax_rows(scores, blank_rows))?;
    if let Some(z) = flex::mix(&pattern, &v) {
        return Ok(z);
    }
    let [batch, heads, queries, keys] = pattern.dims();
    let [_, _, kv_heads, d_head] = v.dims();
    let pattern = narrowed(pattern, dtype).reshape([batch, kv_heads, heads / kv_heads * queries, keys]);
    let z = pattern.matmul(v.permute([0, 2, 1, 3]));
    Ok(z.reshape([batch, heads, queries, d_head]).permute([0, 2, 1, 3]))
}

/// Scaled scores, `[batch, head, query, key]`.
fn raw_scores(layer: usize, q: Tensor<4>, k: Tensor<4>, pass: &Pass<'_>) -> Tensor<4> {
    let [batch, queries, heads, d_head] = q.dims();
    let [_, keys, kv_heads, _] = k.dims();
    // A key head's queries stand in one matrix, so that keys are never repeated.
    let rows = heads / kv_heads * queries;
    let q = widened(q) * (1.0 / pass.config.score_divisor(layer));
    let q = q.permute([0, 2, 1, 3]).reshape([batch, kv_heads, rows, d_head]);
    q.matmul(widened(k).permute([0, 2, 3, 1])).reshape([batch, heads, queries, keys])
}

/// Soft cap, linear bias, then minus infinity where a query must not look.
fn masked(layer: usize, mut scores: Tensor<4>, pass: &mut Pass<'_>) -> Tensor<4> {
    let config = pass.config;
    if let Some(cap) = config.attn_scores_soft_cap {
        scores = (scores / cap).tanh() * cap;
    }
    if config.positional == Positional::Alibi {
        let dtype = scores.dtype();
        let slopes = slope_tensor(config.n_heads, &scores.device(), dtype);
        scores = scores + narrowed(pass.masks.distance(), dtype) * slopes;
    }
    match pass.masks.hidden(config.window(layer)) {
        Some(hidden) => {
            let shape = scores.dims();
            scores.mask_fill(hidden.expand(shape), f32::NEG_INFINITY)
        }
        None => scores,
    }
}

/// Softmax over keys; a row of nothing but minus infinity becomes zeros when `blank_rows`.
fn softmax_rows(scores: Tensor<4>, blank_rows: bool) -> Tensor<4> {
    let scores = match flex::softmax(scores) {
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
