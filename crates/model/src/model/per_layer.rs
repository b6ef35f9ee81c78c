//! Per-layer inputs: their embedding, and how each block uses its own input.

use burn::module::Module;
use burn::tensor::Tensor;
use hooklens_hooks::{Halt, Run};

use super::linear::Linear;
use super::norm::{Norm, NormPoints};
use super::pass::Pass;
use super::weights::Embed;
use crate::config::PerLayerInputs;
use crate::cpu;
use crate::points::Site;
use crate::tokens::Tokens;

/// Weights of the per-layer token embeddings.
#[derive(Module, Debug)]
pub struct PerLayerEmbed {
    /// Token embeddings for all layers, `[d_vocab, layer * width]`.
    pub vectors: Embed,
    /// Projection from the main embedding, `[d_model, layer * width]`.
    pub projection: Linear,
    /// RMS norm applied to that projection, separately for each layer; weight `[width]`.
    pub norm: Norm,
}

impl PerLayerEmbed {
    /// Computes the inputs of all layers, `[batch, pos, layer, width]`, from the tokens and their embedding, `[batch,
    /// pos, d_model]`.
    pub(crate) fn inputs(&self, tokens: &Tokens, embedded: Tensor<3>, own: PerLayerInputs) -> Tensor<4> {
        let [batch, pos, d_model] = embedded.dims();
        let dtype = embedded.dtype();
        let by_layer = |x: Tensor<2>| {
            let [_, width] = x.dims();
            x.reshape([batch, pos, width / own.width, own.width])
        };
        let vectors = by_layer(self.vectors.rows(tokens.ids(), dtype)) * (own.width as f64).sqrt();
        let made = self.projection.forward(embedded.reshape([batch * pos, d_model])) / (d_model as f64).sqrt();
        (self.norm.without_hooks(by_layer(made)) + vectors) / 2f64.sqrt()
    }
}

/// Weights with which a block applies its per-layer input.
#[derive(Module, Debug)]
pub struct PerLayer {
    /// Gate projection from the residual stream, `[d_model, width]`.
    pub gate: Linear,
    /// Output projection to the residual stream, `[width, d_model]`.
    pub output: Linear,
    /// RMS norm applied to the output; weight `[d_model]`.
    pub post: Norm,
}

impl PerLayer {
    /// All linear maps.
    pub fn maps(&self) -> impl Iterator<Item = &Linear> {
        [&self.gate, &self.output].into_iter()
    }

    /// All linear maps, mutably.
    pub(crate) fn maps_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        [&mut self.gate, &mut self.output].into_iter()
    }

    /// Computes the residual stream after the per-layer input is added.
    ///
    /// # Shapes
    /// - input and output: `[batch, pos, d_model]`
    pub(crate) fn forward(
        &self,
        layer: usize,
        resid: Tensor<3>,
        pass: &Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let at = |site| pass.points.at(layer, site);
        let resid = run.fire(at(Site::ResidMidPerLayer), resid)?;
        let input = run.fire(at(Site::PerLayerInput), pass.per_layer_input(layer)?)?;
        let pre = run.fire(at(Site::PerLayerPre), self.gate.forward(resid.clone()))?;
        let post = run.fire(at(Site::PerLayerPost), cpu::product(pass.config.activation.apply(pre), input))?;
        let points = NormPoints { scale: at(Site::PerLayerPostScale), normalized: at(Site::PerLayerPostNormalized) };
        let out = self.post.forward(self.output.forward(post), points, run)?;
        let out = run.fire(at(Site::PerLayerOut), out)?;
        Ok(cpu::sum(resid, out))
    }
}
