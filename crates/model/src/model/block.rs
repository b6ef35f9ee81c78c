//! One block: a token mixer and an MLP around the residual stream.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor};
use hooklens_hooks::{Halt, Run};

use super::attention::{Attention, AttentionInputs, ProjectionInput};
use super::dense_mlp::DenseMlp;
use super::linear::Linear;
use super::mixer::Mixer;
use super::mlp::Mlp;
use super::moe::Moe;
use super::norm::{Norm, NormPoints, narrowed};
use super::pass::Pass;
use super::per_layer::PerLayer;
use crate::between_blocks::between_blocks;
use crate::config::{Layers, NormKind, ResidualScheme};
use crate::cpu;
use crate::error::InputError;
use crate::points::Site;

/// Weights of one block. Components that the configuration does not include are `None`.
#[derive(Module, Debug)]
pub struct Block {
    /// Norm before the token mixer.
    pub ln1: Norm,
    /// The token mixer.
    pub mixer: Option<Mixer>,
    /// Norm applied to the token mixer's output.
    pub ln1_post: Option<Norm>,
    /// Norm before the MLP.
    pub ln2: Option<Norm>,
    /// The MLP.
    pub mlp: Option<Mlp>,
    /// Norm applied to the MLP's output.
    pub ln2_post: Option<Norm>,
    /// Per-layer input, added after the MLP.
    pub per_layer: Option<PerLayer>,
    /// Scalar that multiplies the residual stream at the end of the block, `[1]`.
    pub scalar: Option<Param<Tensor<1>>>,
}

/// Access to the mixer and the MLP as concrete types.
impl Block {
    /// Attention, if the mixer has any.
    pub fn attn(&self) -> Option<&Attention> {
        match self.mixer.as_ref()? {
            Mixer::Attention(attention) => Some(attention),
            Mixer::AttentionAndMamba2(both) => Some(&both.attention),
            Mixer::GatedDeltaNet(_) | Mixer::Mamba2(_) | Mixer::ShortConvolution(_) => None,
        }
    }

    /// Attention, mutably, if the mixer has any.
    pub fn attn_mut(&mut self) -> Option<&mut Attention> {
        match self.mixer.as_mut()? {
            Mixer::Attention(attention) => Some(attention),
            Mixer::AttentionAndMamba2(both) => Some(&mut both.attention),
            Mixer::GatedDeltaNet(_) | Mixer::Mamba2(_) | Mixer::ShortConvolution(_) => None,
        }
    }

    /// The MLP, unless it is a mixture of experts.
    pub fn dense_mlp(&self) -> Option<&DenseMlp> {
        match self.mlp.as_ref()? {
            Mlp::Dense(mlp) => Some(mlp),
            Mlp::Experts(_) => None,
        }
    }

    /// The MLP, mutably, unless it is a mixture of experts.
    pub fn dense_mlp_mut(&mut self) -> Option<&mut DenseMlp> {
        match self.mlp.as_mut()? {
            Mlp::Dense(mlp) => Some(mlp),
            Mlp::Experts(_) => None,
        }
    }

    /// The mixture of experts, if the MLP is one.
    pub fn moe(&self) -> Option<&Moe> {
        match self.mlp.as_ref()? {
            Mlp::Experts(moe) => Some(moe),
            Mlp::Dense(_) => None,
        }
    }

    /// The mixture of experts, mutably, if the MLP is one.
    pub fn moe_mut(&mut self) -> Option<&mut Moe> {
        match self.mlp.as_mut()? {
            Mlp::Experts(moe) => Some(moe),
            Mlp::Dense(_) => None,
        }
    }
}

impl Block {
    /// All linear maps.
    pub(crate) fn maps(&self) -> impl Iterator<Item = &Linear> {
        let mlp = self.mlp.iter().flat_map(Mlp::maps);
        let per_layer = self.per_layer.iter().flat_map(|own| own.maps());
        self.mixer_maps().chain(mlp).chain(per_layer)
    }

    /// Linear maps of the token mixer.
    pub fn mixer_maps(&self) -> impl Iterator<Item = &Linear> {
        self.mixer.iter().flat_map(|mixer| mixer.of_kind().maps())
    }

    /// All linear maps, mutably.
    pub(crate) fn maps_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let mixer = self.mixer.iter_mut().flat_map(|mixer| mixer.of_kind_mut().maps_mut());
        let mlp = self.mlp.iter_mut().flat_map(Mlp::maps_mut);
        mixer.chain(mlp).chain(self.per_layer.iter_mut().flat_map(|own| own.maps_mut()))
    }

    /// The mixer's output projections, each with the name of the hook point that is its input, `[batch, pos, head,
    /// d_head]`. The name does not include the layer.
    pub fn mixer_outputs(&self) -> impl Iterator<Item = (&'static str, &Linear)> {
        self.mixer.iter().flat_map(|mixer| mixer.of_kind().outputs()).map(|(site, map)| (site.suffix(), map))
    }

    /// The bias of the mixer's output, which is the sum of its output projections' biases. `None` if there is no mixer.
    pub fn mixer_bias(&self, dtype: DType) -> Option<Tensor<1>> {
        self.mixer_outputs().map(|(_, map)| map.bias_or_zeros(dtype)).reduce(|all, bias| all + bias)
    }

    /// The mixer's output projections, mutably.
    pub(crate) fn mixer_outputs_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        self.mixer.iter_mut().flat_map(|mixer| mixer.of_kind_mut().outputs_mut())
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
        between_blocks();
        let points = pass.points;
        let at = |site| points.at(layer, site);
        let norm = |scale, normalized| NormPoints { scale: at(scale), normalized: at(normalized) };

        let resid = run.fire(at(Site::ResidPre), resid)?;
        if self.mixer.is_some() != pass.config.mixes(layer) {
            return Err(InputError::OtherWeights { layer }.into());
        }
        let Some(mixer) = &self.mixer else {
            if let Some(cache) = &mut pass.kv_cache {
                let [batch, pos, _] = resid.dims();
                cache.pass_over(layer, [batch, pos])?;
            }
            return self.with_mlp(layer, resid, pass, run);
        };
        if pass.config.residual == ResidualScheme::NormalizedSums {
            return self.normalizing_sums(mixer, layer, resid, pass, run);
        }
        let (inputs, normalized) = attention_reads(&self.ln1, layer, &resid, pass, run)?;
        let mut out = mixer.of_kind().forward(layer, inputs, pass, run)?;
        if let Some(post) = &self.ln1_post {
            out = post.forward(out, norm(Site::Ln1PostScale, Site::Ln1PostNormalized), run)?;
        }
        let resid = normalized.unwrap_or(resid);
        let attn_out = run.fire(at(Site::AttnOut), out)?;
        if !pass.config.has_mlp(layer) {
            return run.fire(at(Site::ResidPost), cpu::sum(resid, attn_out));
        }
        match pass.config.residual {
            ResidualScheme::Parallel => {
                let mlp_out = self.mlp_out(layer, resid.clone(), pass, run)?;
                run.fire(at(Site::ResidPost), cpu::sum(cpu::sum(resid, attn_out), mlp_out))
            }
            ResidualScheme::NormalizedInputs => {
                let stream = run.fire(at(Site::ResidMid), cpu::sum(resid, attn_out))?;
                let mut read = run.fire(at(Site::MlpIn), stream)?;
                if let Some(ln2) = &self.ln2 {
                    read = ln2.forward(read, norm(Site::Ln2Scale, Site::Ln2Normalized), run)?;
                }
                let mlp_out = self.mlp_of(layer, read.clone(), None, pass, run)?;
                run.fire(at(Site::ResidPost), cpu::sum(read, mlp_out))
            }
            ResidualScheme::Sequential | ResidualScheme::NormalizedSums => {
                let resid = run.fire(at(Site::ResidMid), cpu::sum(resid, attn_out))?;
                self.with_mlp(layer, resid, pass, run)
            }
        }
    }

    /// Adds the MLP's output to the residual stream, then applies the per-layer input and the layer scalar, if any.
    fn with_mlp(
        &self,
        layer: usize,
        resid: Tensor<3>,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let mlp_out = self.mlp_out(layer, resid.clone(), pass, run)?;
        let mut resid = cpu::sum(resid, mlp_out);
        if let Some(own) = &self.per_layer {
            resid = own.forward(layer, resid, pass, run)?;
        }
        if let Some(scalar) = &self.scalar {
            let scalar = narrowed(scalar.val(), resid.dtype());
            resid = resid * scalar.unsqueeze();
        }
        run.fire(pass.points.at(layer, Site::ResidPost), resid)
    }

    /// Computes the normalized residual stream after a post-norm block.
    fn normalizing_sums(
        &self,
        mixer: &Mixer,
        layer: usize,
        resid: Tensor<3>,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let points = pass.points;
        let at = |site| points.at(layer, site);
        let norm = |scale, normalized| NormPoints { scale: at(scale), normalized: at(normalized) };
        let no_norm = Norm::new(NormKind::None, 0.0, None, None);
        let (inputs, _) = attention_reads(&no_norm, layer, &resid, pass, run)?;
        let attn_out = mixer.of_kind().forward(layer, inputs, pass, run)?;
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

    /// Applies the MLP to `x`. Experts with their own norms read the unnormalized `stream` instead.
    fn mlp_of(
        &self,
        layer: usize,
        x: Tensor<3>,
        stream: Option<Tensor<3>>,
        pass: &Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        between_blocks();
        let at = |site| pass.points.at(layer, site);
        let norm = |scale, normalized| NormPoints { scale: at(scale), normalized: at(normalized) };
        let x = run.fire(at(Site::MlpReads), x)?;
        let mlp = self.mlp.as_ref().ok_or(InputError::OtherWeights { layer })?;
        let out = mlp.forward(layer, x, stream, pass, run)?;
        let mut out = run.fire(at(Site::MlpWrites), out)?;
        if let Some(post) = &self.ln2_post {
            out = post.forward(out, norm(Site::Ln2PostScale, Site::Ln2PostNormalized), run)?;
        }
        run.fire(at(Site::MlpOut), out)
    }
}

/// Computes the inputs of the query, key, and value projections. Also returns the normalized stream if block outputs
/// are added to it ([`ResidualScheme::NormalizedInputs`]).
///
/// Normally the three projections share one normalized stream. Separate inputs per head are created only where a hook
/// edits them; the hook points of `ln1` always show the norm applied to `hook_resid_pre`.
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
    let kept = (pass.config.residual == ResidualScheme::NormalizedInputs).then(|| shared.clone());
    if pass.shortformer.is_none() && own.iter().all(Option::is_none) {
        return Ok((AttentionInputs::One(Box::new(shared)), kept));
    }
    // Shortformer adds position embeddings to the input of queries and keys, but not to values or the residual stream.
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
