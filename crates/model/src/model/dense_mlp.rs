//! A dense MLP: plain, gated, or with a norm inside.

use burn::module::{Module, Param};
use burn::tensor::{Tensor, activation};
use hooklens_hooks::{Halt, Run};

use super::function::xielu;
use super::linear::Linear;
use super::norm::{Norm, NormPoints, widened};
use super::pass::Pass;
use crate::cpu;
use crate::points::Site;

/// Weights of one MLP.
///
/// Plain: `out(act(in(x)))`. Gated: `out(act(gate(x)) * in(x))`. In a gated MLP, both biases are added before the
/// product.
#[derive(Module, Debug)]
pub struct DenseMlp {
    /// Input projection, `[d_model, d_mlp]`; fires `hook_pre`, or `hook_pre_linear` when gated.
    pub input: Linear,
    /// Gate projection, `[d_model, d_mlp]`; fires `hook_pre`.
    pub gate: Option<Linear>,
    /// Norm over neurons, for `solu_ln`.
    pub norm: Option<Norm>,
    /// Learned slopes of `xielu`.
    pub slopes: Option<Slopes>,
    /// Output projection, `[d_mlp, d_model]`.
    pub output: Linear,
}

/// Learned parameters of an MLP's `xielu`.
#[derive(Module, Debug)]
pub struct Slopes {
    /// Parameter of the slope above zero, `softplus(alpha_p)`, `[1]`.
    pub alpha_p: Param<Tensor<1>>,
    /// Parameter of the slope below zero, `0.5 + softplus(alpha_n)`, `[1]`.
    pub alpha_n: Param<Tensor<1>>,
}

impl Slopes {
    fn apply(&self, x: Tensor<3>) -> Tensor<3> {
        let positive = |alpha: &Param<Tensor<1>>| activation::softplus(widened(alpha.val()), 1.0);
        xielu(x, positive(&self.alpha_p), positive(&self.alpha_n) + 0.5)
    }
}

impl DenseMlp {
    /// All linear maps.
    pub(super) fn maps(&self) -> impl Iterator<Item = &Linear> {
        [&self.input, &self.output].into_iter().chain(&self.gate)
    }

    /// All linear maps, mutably.
    pub(super) fn maps_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        [&mut self.input, &mut self.output].into_iter().chain(&mut self.gate)
    }

    /// Computes the MLP output.
    ///
    /// # Shapes
    /// - input and output: `[batch, pos, d_model]`
    pub(crate) fn forward(
        &self,
        layer: usize,
        x: Tensor<3>,
        pass: &Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let at = |site| pass.points.at(layer, site);
        let act = |pre| match &self.slopes {
            Some(slopes) => slopes.apply(pre),
            None => pass.config.activation.apply(pre),
        };
        let post = if let Some(gate) = &self.gate {
            let [pre, linear] = Linear::forward_each([gate, &self.input], x);
            let pre = run.fire(at(Site::Pre), pre)?;
            let linear = run.fire(at(Site::PreLinear), linear)?;
            cpu::product(act(pre), linear)
        } else {
            let pre = run.fire(at(Site::Pre), self.input.forward(x))?;
            act(pre)
        };
        let post = match &self.norm {
            Some(norm) => {
                let mid = run.fire(at(Site::Mid), post)?;
                let points = NormPoints { scale: at(Site::MlpLnScale), normalized: at(Site::MlpLnNormalized) };
                norm.forward(mid, points, run)?
            }
            None => post,
        };
        let post = run.fire(at(Site::Post), post)?;
        Ok(self.output.forward(post))
    }
}
