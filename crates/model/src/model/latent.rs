//! Multi-head latent attention: queries, keys, and values projected from low-rank latents.

use burn::module::Module;
use burn::tensor::{DType, Tensor};
use hooklens_hooks::{Halt, HookError, Run};

use super::attention::{Attention, AttentionInputs, ProjectionInput, by_head};
use super::linear::Linear;
use super::norm::{Norm, NormPoints};
use super::pass::Pass;
use crate::config::TransformerConfig;
use crate::points::Site;

/// Projections from the residual stream to the latents and to the rotary part of the keys.
#[derive(Module, Debug)]
pub struct LatentMaps {
    /// Projection to the query latent, `[d_model, q_rank]`.
    pub q_down: Option<Linear>,
    /// RMS norm applied to the query latent; weight `[q_rank]`.
    pub q_norm: Option<Norm>,
    /// Projection to the key/value latent, `[d_model, kv_rank]`.
    pub kv_down: Linear,
    /// RMS norm applied to the key/value latent; weight `[kv_rank]`.
    pub kv_norm: Norm,
    /// Projection to the rotary part of the keys, shared by all heads, `[d_model, d_rope]`.
    pub k_rope: Linear,
}

impl LatentMaps {
    /// All linear maps.
    pub(crate) fn maps(&self) -> impl Iterator<Item = &Linear> {
        [&self.kv_down, &self.k_rope].into_iter().chain(&self.q_down)
    }

    /// All linear maps, mutably.
    pub(crate) fn maps_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        [&mut self.kv_down, &mut self.k_rope].into_iter().chain(&mut self.q_down)
    }

    /// Queries and keys, `[batch, pos, head, d_head]`, and values, `[batch, pos, head, d_value]`, before rotation.
    pub(crate) fn project(
        &self,
        attention: &Attention,
        layer: usize,
        reads: AttentionInputs,
        pass: &Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<[Tensor<4>; 3], Halt> {
        let at = |site| pass.points.at(layer, site);
        let heads = pass.config.n_heads;
        let stream = match reads {
            AttentionInputs::One(stream) => *stream,
            AttentionInputs::Each { streams, .. } => match *streams {
                [ProjectionInput::Shared(stream), ..] => stream,
                _ => {
                    let point = format!("blocks.{layer}.hook_q_input");
                    let source = "latent attention has no separate input per head".into();
                    return Err(HookError::Failed { point, source }.into());
                }
            },
        };
        let q = match (&self.q_down, &self.q_norm) {
            (Some(down), Some(norm)) => {
                let latent = run.fire(at(Site::QLatent), down.forward(stream.clone()))?;
                let points = NormPoints { scale: at(Site::QLatentScale), normalized: at(Site::QLatentNormalized) };
                attention.q.forward(norm.forward(latent, points, run)?)
            }
            _ => attention.q.forward(stream.clone()),
        };
        let latent = run.fire(at(Site::KvLatent), self.kv_down.forward(stream.clone()))?;
        let turned = run.fire(at(Site::KRope), self.k_rope.forward(stream))?;
        let points = NormPoints { scale: at(Site::KvLatentScale), normalized: at(Site::KvLatentNormalized) };
        let latent = self.kv_norm.forward(latent, points, run)?;
        let [k, v] = Linear::forward_each([&attention.k, &attention.v], latent);
        let [batch, pos, width] = turned.dims();
        let turned = turned.unsqueeze_dim::<4>(2).expand([batch, pos, heads, width]);
        let k = Tensor::cat(vec![by_head(k, heads), turned], 3);
        Ok([by_head(q, heads), k, by_head(v, heads)])
    }

    /// Product of the down and up projections of a latent, `[d_model, out]`. Includes the weight of the norm between
    /// them, but not the division by its scale.
    fn whole(down: &Linear, norm: &Norm, up: &Linear, dtype: DType) -> Tensor<2> {
        let mut down = down.weight_in(dtype);
        if let Some(w) = &norm.w {
            down = down * w.val().cast(dtype).unsqueeze::<2>();
        }
        down.matmul(up.weight_in(dtype))
    }

    /// Combined query projection of all heads, without the division by the scale of the latent's norm, `[d_model,
    /// head * d_head]`.
    pub(crate) fn whole_q(&self, attention: &Attention, dtype: DType) -> Tensor<2> {
        match (&self.q_down, &self.q_norm) {
            (Some(down), Some(norm)) => Self::whole(down, norm, &attention.q, dtype),
            _ => attention.q.weight_in(dtype),
        }
    }

    /// Combined key projection of all heads, without the division by the scale of the latent's norm, `[d_model,
    /// head * d_head]`.
    pub(crate) fn whole_k(&self, attention: &Attention, c: &TransformerConfig, dtype: DType) -> Tensor<2> {
        let made = Self::whole(&self.kv_down, &self.kv_norm, &attention.k, dtype);
        let turned = self.k_rope.weight_in(dtype);
        let ([d_model, width], [_, d_rope]) = (made.dims(), turned.dims());
        let made = made.reshape([d_model, c.n_heads, width / c.n_heads]);
        let turned = turned.unsqueeze_dim::<3>(1).expand([d_model, c.n_heads, d_rope]);
        Tensor::cat(vec![made, turned], 2).reshape([d_model, c.n_heads * c.d_head()])
    }

    /// Combined value projection of all heads, without the division by the scale of the latent's norm, `[d_model,
    /// head * d_value]`.
    pub fn whole_v(&self, attention: &Attention, dtype: DType) -> Tensor<2> {
        Self::whole(&self.kv_down, &self.kv_norm, &attention.v, dtype)
    }
}
