//! One block: attention and MLP around the residual stream.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use hooklens_hooks::{Halt, Run};

use super::attention::{Attention, AttentionInputs, ProjectionInput};
use super::gated_delta_net::GatedDeltaNet;
use super::linear::Linear;
use super::mamba2::Mamba2;
use super::mlp::Mlp;
use super::moe::Moe;
use super::norm::{Norm, NormPoints, narrowed};
use super::pass::Pass;
use super::per_layer::PerLayer;
use super::short_convolution::ShortConvolution;
use crate::config::{Mixer, NormKind};
use crate::cpu;
use crate::points::Site;

/// Weights of one block. Components that the configuration does not include are `None`.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let block = &model.weights.blocks[0];
/// assert!(block.mlp.is_some() && block.moe.is_none() && block.ln1_post.is_none());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct Block {
    /// Norm before attention.
    pub ln1: Norm,
    /// Attention.
    pub attn: Option<Attention>,
    /// Gated delta net, in place of attention.
    pub delta: Option<GatedDeltaNet>,
    /// Mamba 2 mixer, in place of attention.
    pub ssm: Option<Mamba2>,
    /// Short convolution, in place of attention.
    pub conv: Option<ShortConvolution>,
    /// Norm on the token mixer's output.
    pub ln1_post: Option<Norm>,
    /// Norm before the MLP.
    pub ln2: Option<Norm>,
    /// The MLP.
    pub mlp: Option<Mlp>,
    /// Mixture of experts, in place of the MLP.
    pub moe: Option<Moe>,
    /// Norm on the MLP's output.
    pub ln2_post: Option<Norm>,
    /// Per-layer input, added after the MLP.
    pub per_layer: Option<PerLayer>,
    /// Scalar that multiplies the residual stream at the end of the block, `[1]`.
    pub scalar: Option<Param<Tensor<1>>>,
}

impl Block {
    /// All linear maps.
    pub(crate) fn maps(&self) -> impl Iterator<Item = &Linear> {
        let mlp = self.mlp.iter().flat_map(|mlp| [&mlp.input, &mlp.output].into_iter().chain(&mlp.gate));
        let mixture =
            self.moe.iter().flat_map(|moe| moe.experts.iter().flat_map(|expert| expert.maps()).chain([&moe.router]));
        let shared = self.moe.iter().filter_map(|moe| moe.shared.as_ref()).flat_map(|shared| shared.maps());
        let per_layer = self.per_layer.iter().flat_map(|own| own.maps());
        self.mixer_maps().chain(mlp).chain(mixture).chain(shared).chain(per_layer)
    }

    /// Linear maps of the token mixer.
    pub fn mixer_maps(&self) -> impl Iterator<Item = &Linear> {
        let attn = self.attn.iter().flat_map(Attention::maps);
        let net = self.delta.iter().flat_map(GatedDeltaNet::maps);
        let ssm = self.ssm.iter().flat_map(Mamba2::maps);
        let conv = self.conv.iter().flat_map(ShortConvolution::maps);
        attn.chain(net).chain(ssm).chain(conv)
    }

    /// All linear maps, mutably.
    pub(crate) fn maps_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let attn = self.attn.iter_mut().flat_map(Attention::maps_mut);
        let net = self.delta.iter_mut().flat_map(GatedDeltaNet::maps_mut);
        let ssm = self.ssm.iter_mut().flat_map(Mamba2::maps_mut);
        let conv = self.conv.iter_mut().flat_map(ShortConvolution::maps_mut);
        let mlp =
            self.mlp.iter_mut().flat_map(|mlp| [&mut mlp.input, &mut mlp.output].into_iter().chain(&mut mlp.gate));
        let mixture = self.moe.iter_mut().flat_map(|moe| {
            let Moe { router, experts, shared, .. } = moe;
            let shared = shared.iter_mut().flat_map(|shared| shared.maps_mut());
            experts.iter_mut().flat_map(|expert| expert.maps_mut()).chain([router]).chain(shared)
        });
        let per_layer = self.per_layer.iter_mut().flat_map(|own| own.maps_mut());
        attn.chain(net).chain(ssm).chain(conv).chain(mlp).chain(mixture).chain(per_layer)
    }

    /// Device of the weights, taken from the first linear map.
    pub(crate) fn device(&self) -> Device {
        self.maps().next().map_or_else(Device::default, Linear::device)
    }

    /// Computes the residual stream after the block.
    ///
    /// # Shapes
    /// - input and output: `[batch, pos, d_model]`
    pub(crate) fn forward(
        &self,
        layer: usize,
        resid: Tensor<3>,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let points = pass.points;
        let at = |site| points.at(layer, site);
        let norm = |scale, normalized| NormPoints { scale: at(scale), normalized: at(normalized) };

        let resid = run.fire(at(Site::ResidPre), resid)?;
        if pass.config.residual_norms {
            return self.normalizing_sums(layer, resid, pass, run);
        }
        if !pass.config.mixes(layer) {
            if let Some(cache) = &mut pass.kv_cache {
                let [batch, pos, _] = resid.dims();
                cache.pass_over(layer, [batch, pos])?;
            }
            let mlp_out = self.mlp_out(layer, resid.clone(), pass, run)?;
            return run.fire(at(Site::ResidPost), cpu::sum(resid, mlp_out));
        }
        let (resid, mut out) = self.mixer_output(layer, resid, pass, run)?;
        if let Some(post) = &self.ln1_post {
            out = post.forward(out, norm(Site::Ln1PostScale, Site::Ln1PostNormalized), run)?;
        }
        let attn_out = run.fire(at(Site::AttnOut), out)?;
        if !pass.config.has_mlp(layer) {
            return run.fire(at(Site::ResidPost), cpu::sum(resid, attn_out));
        }
        if pass.config.parallel {
            let mlp_out = self.mlp_out(layer, resid.clone(), pass, run)?;
            return run.fire(at(Site::ResidPost), cpu::sum(cpu::sum(resid, attn_out), mlp_out));
        }
        let resid = run.fire(at(Site::ResidMid), cpu::sum(resid, attn_out))?;
        if let (true, Some(ln2)) = (pass.config.normalized_residual, &self.ln2) {
            let stream = run.fire(at(Site::MlpIn), resid)?;
            let read = ln2.forward(stream, norm(Site::Ln2Scale, Site::Ln2Normalized), run)?;
            let mlp_out = self.mlp_of(layer, read.clone(), None, pass, run)?;
            return run.fire(at(Site::ResidPost), cpu::sum(read, mlp_out));
        }
        let mlp_out = self.mlp_out(layer, resid.clone(), pass, run)?;
        let mut resid = cpu::sum(resid, mlp_out);
        if let Some(own) = &self.per_layer {
            resid = own.forward(layer, resid, pass, run)?;
        }
        if let Some(scalar) = &self.scalar {
            let scalar = narrowed(scalar.val(), resid.dtype());
            resid = resid * scalar.unsqueeze();
        }
        run.fire(at(Site::ResidPost), resid)
    }

    /// Output projection of the token mixer.
    pub fn output_projection(&self) -> Option<&Linear> {
        let (net, ssm) = (self.delta.as_ref().map(|net| &net.o), self.ssm.as_ref().map(|ssm| &ssm.o));
        self.attn.as_ref().map(|attn| &attn.o).or(net).or(ssm).or(self.conv.as_ref().map(|conv| &conv.o))
    }

    /// Output projection of the token mixer, mutably.
    pub(crate) fn output_projection_mut(&mut self) -> Option<&mut Linear> {
        let (net, ssm) = (self.delta.as_mut().map(|net| &mut net.o), self.ssm.as_mut().map(|ssm| &mut ssm.o));
        self.attn.as_mut().map(|attn| &mut attn.o).or(net).or(ssm).or(self.conv.as_mut().map(|conv| &mut conv.o))
    }

    /// Computes the stream that outputs are added to, and the token mixer's output.
    fn mixer_output(
        &self,
        layer: usize,
        resid: Tensor<3>,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<(Tensor<3>, Tensor<3>), Halt> {
        let Some(attn) = &self.attn else {
            let at = |site| pass.points.at(layer, site);
            let points = NormPoints { scale: at(Site::Ln1Scale), normalized: at(Site::Ln1Normalized) };
            let read = self.ln1.forward(resid.clone(), points, run)?;
            let out = match (&self.delta, &self.ssm, &self.conv, pass.config.mixers.get(layer).copied()) {
                (Some(net), _, _, Some(Mixer::GatedDelta(sizes))) => net.forward(layer, read, sizes, pass, run)?,
                (_, Some(ssm), _, Some(Mixer::StateSpace(sizes))) => ssm.forward(layer, read, sizes, pass, run)?,
                (_, _, Some(conv), Some(Mixer::ShortConv(sizes))) => conv.forward(layer, read, sizes, pass, run)?,
                _ => resid.zeros_like(),
            };
            return Ok((resid, out));
        };
        let (reads, normalized) = attention_reads(&self.ln1, layer, &resid, pass, run)?;
        let out = attn.forward(layer, reads, pass, run)?;
        Ok((normalized.unwrap_or(resid), out))
    }

    /// Computes the normalized residual stream after a post-norm block.
    fn normalizing_sums(
        &self,
        layer: usize,
        resid: Tensor<3>,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let points = pass.points;
        let at = |site| points.at(layer, site);
        let norm = |scale, normalized| NormPoints { scale: at(scale), normalized: at(normalized) };
        let no_norm = Norm::new(NormKind::None, 0.0, None, None);
        let (reads, _) = attention_reads(&no_norm, layer, &resid, pass, run)?;
        let attn_out = match &self.attn {
            Some(attn) => attn.forward(layer, reads, pass, run)?,
            None => resid.zeros_like(),
        };
        let attn_out = run.fire(at(Site::AttnOut), attn_out)?;
        let mid = run.fire(at(Site::ResidMid), cpu::sum(resid, attn_out))?;
        let mid = run.fire(at(Site::MlpIn), mid)?;
        let mid = self.ln1.forward(mid, norm(Site::Ln1Scale, Site::Ln1Normalized), run)?;
        let mlp_out = self.mlp_of(layer, mid.clone(), None, pass, run)?;
        let mut post = run.fire(at(Site::ResidPost), cpu::sum(mid, mlp_out))?;
        if let Some(ln2) = &self.ln2 {
            post = ln2.forward(post, norm(Site::Ln2Scale, Site::Ln2Normalized), run)?;
        }
        run.fire(at(Site::NormalizedResidPost), post)
    }

    fn mlp_out(
        &self,
        layer: usize,
        stream: Tensor<3>,
        pass: &Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let at = |site| pass.points.at(layer, site);
        let norm = |scale, normalized| NormPoints { scale: at(scale), normalized: at(normalized) };
        let mut x = run.fire(at(Site::MlpIn), stream)?;
        let apart = pass.config.experts_of(layer).is_some_and(|experts| experts.own_norms);
        let stream = apart.then(|| x.clone());
        if let Some(ln2) = &self.ln2 {
            x = ln2.forward(x, norm(Site::Ln2Scale, Site::Ln2Normalized), run)?;
        }
        self.mlp_of(layer, x, stream, pass, run)
    }

    /// Applies the MLP, or the mixture of experts. Experts with their own norms read `stream`.
    fn mlp_of(
        &self,
        layer: usize,
        x: Tensor<3>,
        stream: Option<Tensor<3>>,
        pass: &Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let at = |site| pass.points.at(layer, site);
        let norm = |scale, normalized| NormPoints { scale: at(scale), normalized: at(normalized) };
        let x = run.fire(at(Site::MlpReads), x)?;
        let mut out = match (&self.mlp, &self.moe, pass.config.experts_of(layer)) {
            (Some(mlp), _, _) => mlp.forward(layer, x, pass, run)?,
            (None, Some(moe), Some(mixture)) => moe.forward(layer, x, stream, mixture, pass, run)?,
            _ => x.zeros_like(),
        };
        out = run.fire(at(Site::MlpWrites), out)?;
        if let Some(post) = &self.ln2_post {
            out = post.forward(out, norm(Site::Ln2PostScale, Site::Ln2PostNormalized), run)?;
        }
        run.fire(at(Site::MlpOut), out)
    }
}

/// Inputs of the query, key, and value projections, and the normalized stream if outputs are added to it.
///
/// Normally this is one normalized stream. Separate inputs per head are only created where a hook edits them; the
/// points of `ln1` always belong to the norm of `hook_resid_pre`.
pub(crate) fn attention_reads(
    ln1: &Norm,
    layer: usize,
    resid: &Tensor<3>,
    pass: &Pass<'_>,
    run: &mut Run<'_, '_>,
) -> Result<(AttentionInputs, Option<Tensor<3>>), Halt> {
    let at = |site| pass.points.at(layer, site);
    let (heads, kv_heads) = (pass.config.n_heads, pass.config.n_kv_heads_of(layer));
    let [batch, pos, d_model] = resid.dims();
    let wide = |heads| resid.clone().unsqueeze_dim::<4>(2).expand([batch, pos, heads, d_model]);

    let mut all_heads = None;
    if run.wants(at(Site::AttnIn)) {
        let edited = run.edits(at(Site::AttnIn));
        let seen = run.fire(at(Site::AttnIn), wide(heads))?;
        all_heads = edited.then_some(seen);
    }
    let mut own = |site, heads| -> Result<Option<Tensor<4>>, Halt> {
        if !run.wants(at(site)) {
            return Ok(all_heads.clone());
        }
        let edited = run.edits(at(site)) || all_heads.is_some();
        let seen = run.fire(at(site), all_heads.clone().unwrap_or_else(|| wide(heads)))?;
        Ok(edited.then_some(seen))
    };
    let own = [own(Site::QInput, heads)?, own(Site::KInput, kv_heads)?, own(Site::VInput, kv_heads)?];

    let points = NormPoints { scale: at(Site::Ln1Scale), normalized: at(Site::Ln1Normalized) };
    let shared = ln1.forward(resid.clone(), points, run)?;
    let kept = pass.config.normalized_residual.then(|| shared.clone());
    if pass.shortformer.is_none() && own.iter().all(Option::is_none) {
        return Ok((AttentionInputs::One(Box::new(shared)), kept));
    }
    // Shortformer: only queries and keys get positions, not values or the residual stream.
    let placed = match &pass.shortformer {
        Some(positions) => shared.clone() + positions.clone(),
        None => shared.clone(),
    };
    let streams = [placed.clone(), placed, shared.clone()];
    let mut number = 0;
    let each = own.map(|own| {
        let with_positions = number < 2;
        let stream = streams[number].clone();
        number += 1;
        match own {
            None => ProjectionInput::Shared(stream),
            Some(own) => {
                let mut own = ln1.without_hooks(own);
                if let (true, Some(positions)) = (with_positions, &pass.shortformer) {
                    own = own + positions.clone().unsqueeze_dim::<4>(2);
                }
                ProjectionInput::PerHead(own)
            }
        }
    });
    Ok((AttentionInputs::Each { streams: Box::new(each), whole: Box::new(shared) }, kept))
}
