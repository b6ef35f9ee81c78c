//! The MLP: plain, gated, or with a norm inside.

use burn::module::Module;
use burn::tensor::Tensor;
use hooklens_hooks::{Halt, Run};

use super::linear::Linear;
use super::norm::{Norm, NormPoints};
use super::pass::Pass;
use crate::cpu;
use crate::points::Site;

/// Weights of one MLP.
///
/// Plain: `out(act(in(x)))`. Gated: `out(act(gate(x)) * in(x))`. Both biases of a gated MLP
/// act before the product.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let mlp = model.weights.blocks[0].mlp.as_ref();
/// assert_eq!(mlp.map(|mlp| mlp.input.weight.val().dims()), Some([64, 256]));
/// assert!(mlp.is_some_and(|mlp| mlp.gate.is_none()));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct Mlp {
    /// `[d_model, d_mlp]`; `hook_pre`, or `hook_pre_linear` when gated.
    pub input: Linear,
    /// `[d_model, d_mlp]`; `hook_pre` when gated.
    pub gate: Option<Linear>,
    /// Norm over neurons, for `solu_ln`.
    pub norm: Option<Norm>,
    /// `[d_mlp, d_model]`.
    pub output: Linear,
}

impl Mlp {
    /// What the MLP adds to the stream.
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
        let function = pass.config.activation;
        let post = if let Some(gate) = &self.gate {
            let [pre, linear] = Linear::forward_each([gate, &self.input], x);
            let pre = run.fire(at(Site::Pre), pre)?;
            let linear = run.fire(at(Site::PreLinear), linear)?;
            cpu::product(function.apply(pre), linear)
        } else {
            let pre = run.fire(at(Site::Pre), self.input.forward(x))?;
            function.apply(pre)
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
