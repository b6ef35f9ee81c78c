//! Blocks of both stacks, with norms before each sublayer or after each residual addition.

use burn::tensor::{Bool, Tensor};
use hooklens_hooks::{Halt, PointId, Run};

use super::forward::Encoded;
use super::weights::{DecoderBlock, EncoderBlock};
use crate::config::NormKind;
use crate::cpu;
use crate::kv_cache::Keys;
use crate::model::{
    Attention, DenseMlp, Norm, NormPoints, Pass, ProjectionInput, TokenMixer, attention_reads, mix, raw_scores,
    soft_capped, softmax_rows,
};
use crate::points::{Site, Stack};

/// Inputs of a decoder block's cross-attention.
pub(super) struct CrossInputs<'a, 'p> {
    pub(super) pass: &'a mut Pass<'p>,
    pub(super) encoded: &'a Encoded,
    /// Padding mask of the encoder's positions, `[batch, 1, 1, encoder_pos]`, `true` at padding.
    pub(super) hidden_keys: &'a Option<Tensor<4, Bool>>,
    /// Keys and values computed by an earlier run.
    pub(super) known: Option<&'a (Tensor<4>, Tensor<4>)>,
}

/// A norm between two sublayers: applied to the input of the second (pre-norm), or to the residual stream after the
/// first (post-norm).
struct SublayerNorm<'b> {
    /// Hook point at the norm's input.
    point: Option<PointId>,
    norm: &'b Norm,
    points: NormPoints,
    /// Whether the normalized value becomes the residual stream (post-norm).
    after: bool,
}

impl SublayerNorm<'_> {
    /// Returns the input of the next sublayer, and the stream that the next sublayer's output is added to.
    fn pass(self, resid: Tensor<3>, run: &mut Run<'_, '_>) -> Result<(Tensor<3>, Tensor<3>), Halt> {
        let read = run.fire(self.point, resid.clone())?;
        let normalized = self.norm.forward(read, self.points, run)?;
        Ok(if self.after { (normalized.clone(), normalized) } else { (normalized, resid) })
    }
}

/// Hook points of a block's `number`-th norm.
fn norm_points(points: &Stack, layer: usize, number: usize) -> NormPoints {
    let (scale, normalized) = [
        (Site::Ln1Scale, Site::Ln1Normalized),
        (Site::Ln2Scale, Site::Ln2Normalized),
        (Site::Ln3Scale, Site::Ln3Normalized),
    ][number - 1];
    NormPoints { scale: points.at(layer, scale), normalized: points.at(layer, normalized) }
}

/// Applies the norm on a sublayer's output, or returns the output unchanged if there is no such norm. `number` selects
/// the hook points.
fn output(
    norm: &Option<Norm>,
    number: usize,
    layer: usize,
    out: Tensor<3>,
    points: &Stack,
    run: &mut Run<'_, '_>,
) -> Result<Tensor<3>, Halt> {
    let Some(norm) = norm else { return Ok(out) };
    let (scale, normalized) = [
        (Site::Ln1PostScale, Site::Ln1PostNormalized),
        (Site::Ln2PostScale, Site::Ln2PostNormalized),
        (Site::Ln3PostScale, Site::Ln3PostNormalized),
    ][number - 1];
    norm.forward(out, NormPoints { scale: points.at(layer, scale), normalized: points.at(layer, normalized) }, run)
}

/// Runs self-attention; returns the residual stream after it.
fn attended(
    (ln1, attn, post): (&Norm, &Attention, &Option<Norm>),
    after: bool,
    layer: usize,
    resid: Tensor<3>,
    pass: &mut Pass<'_>,
    run: &mut Run<'_, '_>,
) -> Result<Tensor<3>, Halt> {
    let points = pass.points;
    let at = |site| points.at(layer, site);
    let resid = run.fire(at(Site::ResidPre), resid)?;
    // In a post-norm model, the stream is already normalized.
    let none = Norm::new(NormKind::None, 0.0, None, None);
    let (reads, _) = attention_reads(if after { &none } else { ln1 }, layer, &resid, pass, run)?;
    let out = attn.forward(layer, reads, pass, run)?;
    let out = output(post, 1, layer, out, points, run)?;
    let out = run.fire(at(Site::AttnOut), out)?;
    run.fire(at(Site::ResidMid), cpu::sum(resid, out))
}

/// Runs the MLP; returns the residual stream after it, or after the norm `last` if the block ends with a norm. `number`
/// selects the hook points of the MLP's output norm.
fn transformed(
    (mlp, post, number): (&DenseMlp, &Option<Norm>, usize),
    last: Option<(&Norm, NormPoints)>,
    layer: usize,
    (read, resid): (Tensor<3>, Tensor<3>),
    pass: &Pass<'_>,
    run: &mut Run<'_, '_>,
) -> Result<Tensor<3>, Halt> {
    let at = |site| pass.points.at(layer, site);
    let read = run.fire(at(Site::MlpReads), read)?;
    let out = mlp.forward(layer, read, pass, run)?;
    let out = run.fire(at(Site::MlpWrites), out)?;
    let out = output(post, number, layer, out, pass.points, run)?;
    let out = run.fire(at(Site::MlpOut), out)?;
    let resid = run.fire(at(Site::ResidPost), cpu::sum(resid, out))?;
    match last {
        None => Ok(resid),
        Some((norm, points)) => {
            let resid = norm.forward(resid, points, run)?;
            run.fire(at(Site::NormalizedResidPost), resid)
        }
    }
}

impl EncoderBlock {
    /// Runs the block; returns the residual stream, `[batch, pos, d_model]`. `after` is true in a post-norm
    /// model.
    pub(super) fn forward(
        &self,
        layer: usize,
        resid: Tensor<3>,
        after: bool,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let stack = pass.points;
        let resid = attended((&self.ln1, &self.attn, &self.ln1_post), after, layer, resid, pass, run)?;
        let (norm, number) = if after { (&self.ln1, 1) } else { (&self.ln2, 2) };
        let points = norm_points(stack, layer, number);
        let both = SublayerNorm { point: stack.at(layer, Site::MlpIn), norm, points, after }.pass(resid, run)?;
        let last = after.then(|| (&self.ln2, norm_points(stack, layer, 2)));
        transformed((&self.mlp, &self.ln2_post, 2), last, layer, both, pass, run)
    }
}

impl DecoderBlock {
    /// Runs the block; returns the residual stream, `[batch, pos, d_model]`, and the encoder's keys and values. `after`
    /// is true in a post-norm model.
    pub(super) fn forward(
        &self,
        layer: usize,
        resid: Tensor<3>,
        after: bool,
        pass: &mut Pass<'_>,
        across: CrossInputs<'_, '_>,
        run: &mut Run<'_, '_>,
    ) -> Result<(Tensor<3>, (Tensor<4>, Tensor<4>)), Halt> {
        let stack = pass.points;
        let at = |site| stack.at(layer, site);
        let resid = attended((&self.ln1, &self.attn, &self.ln1_post), after, layer, resid, pass, run)?;
        let (norm, number) = if after { (&self.ln1, 1) } else { (&self.ln2, 2) };
        let points = norm_points(stack, layer, number);
        let (read, resid) = SublayerNorm { point: at(Site::CrossAttnIn), norm, points, after }.pass(resid, run)?;
        let (out, keys) = self.cross(layer, read, across, run)?;
        let out = output(&self.ln2_post, 2, layer, out, stack, run)?;
        let out = run.fire(at(Site::CrossAttnOut), out)?;
        let resid = run.fire(at(Site::ResidMidCross), cpu::sum(resid, out))?;
        let (norm, number) = if after { (&self.ln2, 2) } else { (&self.ln3, 3) };
        let points = norm_points(stack, layer, number);
        let both = SublayerNorm { point: at(Site::MlpIn), norm, points, after }.pass(resid, run)?;
        let last = after.then(|| (&self.ln3, norm_points(stack, layer, 3)));
        Ok((transformed((&self.mlp, &self.ln3_post, 3), last, layer, both, pass, run)?, keys))
    }

    /// Runs cross-attention; returns its output, `[batch, pos, d_model]`, and the keys and values it attended to.
    fn cross(
        &self,
        layer: usize,
        read: Tensor<3>,
        CrossInputs { pass, encoded, hidden_keys, known }: CrossInputs<'_, '_>,
        run: &mut Run<'_, '_>,
    ) -> Result<(Tensor<3>, (Tensor<4>, Tensor<4>)), Halt> {
        let at = |site| pass.points.at(layer, site);
        let (attn, heads, kv_heads) = (&self.cross_attn, pass.config.n_heads, pass.config.n_kv_heads());
        let q = run.fire(at(Site::Q), ProjectionInput::Shared(read).project(&attn.q, heads))?;
        let (k, v) = match known {
            Some(known) => known.clone(),
            None => {
                let hidden = || ProjectionInput::Shared(encoded.hidden.clone());
                let k = run.fire(at(Site::K), hidden().project(&attn.k, kv_heads))?;
                (k, run.fire(at(Site::V), hidden().project(&attn.v, kv_heads))?)
            }
        };
        let keys = Keys::whole(k.clone(), v.clone());
        let mut scores = raw_scores(layer, q, &keys, pass);
        scores = soft_capped(scores, pass.config.attn_scores_soft_cap);
        if let Some(hidden) = hidden_keys {
            let shape = scores.dims();
            scores = scores.mask_fill(hidden.clone().expand(shape), f32::NEG_INFINITY);
        }
        let edited = run.edits(at(Site::AttnScores));
        let scores = run.fire(at(Site::AttnScores), scores)?;
        let pattern = run.fire(at(Site::Pattern), softmax_rows(scores, edited || hidden_keys.is_some()))?;
        let z = run.fire(at(Site::Z), mix(pattern, &keys))?;
        Ok((attn.output(layer, z, pass, run)?, (k, v)))
    }
}
