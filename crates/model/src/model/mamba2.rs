//! Mamba 2 mixer: convolved inputs, decaying states, and a gated norm.

use burn::module::{Module, Param};
use burn::tensor::{Tensor, activation};
use hooklens_hooks::{Halt, Run};

use super::attention::by_head;
use super::convolution::Carried;
use super::linear::Linear;
use super::norm::{Norm, NormPoints, narrowed, widened};
use super::pass::Pass;
use super::recurrence::{Steps, flat, for_each_head, softplus};
use crate::config::StateSpace;
use crate::kv_cache::StateShape;
use crate::points::Site;

/// Weights of one Mamba 2 mixer.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::{Mixer, StateSpace};
/// let space = StateSpace { n_groups: 2, ..StateSpace::new(4, 8, 6) };
/// let config = TransformerConfig { mixers: vec![Mixer::StateSpace(space)], ..TransformerConfig::new(1, 32, 4, 100, 32) };
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let block = &model.weights.blocks[0];
/// let own = block.ssm.as_ref().map(|ssm| (ssm.x.weight.val().dims(), ssm.conv.val().dims(), ssm.d.val().dims()));
/// assert_eq!(own, Some(([32, 32], [4, 56], [4])));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct Mamba2 {
    /// Projection to the heads' inputs, `[d_model, head * d_head]`.
    pub x: Linear,
    /// Projection to `B`, which writes to the states, `[d_model, group * d_state]`.
    pub b: Linear,
    /// Projection to `C`, which reads from the states, `[d_model, group * d_state]`.
    pub c: Linear,
    /// Output gate projection, `[d_model, head * d_head]`.
    pub gate: Linear,
    /// Projection to the steps `dt`, `[d_model, head]`.
    pub dt: Linear,
    /// Convolution filters of all channels (inputs, then `B`, then `C`), `[width, channel]`, oldest position first.
    pub conv: Param<Tensor<2>>,
    /// Convolution bias, `[channel]`: inputs, then `B`, then `C`.
    pub conv_bias: Option<Param<Tensor<1>>>,
    /// Logarithm of each head's decay rate, `[head]`.
    pub a_log: Param<Tensor<1>>,
    /// Bias of the steps before softplus, `[head]`.
    pub dt_bias: Param<Tensor<1>>,
    /// Skip connection: the factor on each head's input that is added to its output, `[head]`.
    pub d: Param<Tensor<1>>,
    /// Norm of the gated head outputs, `[head * d_head]`.
    pub norm: Norm,
    /// Output projection, `[head * d_head, d_model]`.
    pub o: Linear,
}

impl Mamba2 {
    /// All linear maps.
    pub(crate) fn maps(&self) -> impl Iterator<Item = &Linear> {
        [&self.x, &self.b, &self.c, &self.gate, &self.dt, &self.o].into_iter()
    }

    /// All linear maps, mutably.
    pub(crate) fn maps_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let Self { x, b, c, gate, dt, o, .. } = self;
        [x, b, c, gate, dt, o].into_iter()
    }

    /// The linear maps that read the residual stream, mutably.
    pub(crate) fn readers_mut(&mut self) -> [&mut Linear; 5] {
        let Self { x, b, c, gate, dt, .. } = self;
        [x, b, c, gate, dt]
    }

    /// Computes the mixer output from the normalized residual stream.
    ///
    /// # Shapes
    /// - input and output: `[batch, pos, d_model]`
    pub(crate) fn forward(
        &self,
        layer: usize,
        stream: Tensor<3>,
        sizes: StateSpace,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let at = |site| pass.points.at(layer, site);
        let dtype = stream.dtype();
        let StateSpace { n_heads, d_head, n_groups, d_state, .. } = sizes;

        let new = Linear::forward_each([&self.x, &self.b, &self.c], stream.clone());
        let new = run.fire(at(Site::SsmPreConv), Tensor::cat(new.into(), 2))?;
        let carried = Carried::on(layer, StateShape::of_space(sizes), new, pass)?;
        let mut output_projection = carried.convolved(self.conv.val());
        if let Some(bias) = &self.conv_bias {
            output_projection = output_projection + narrowed(bias.val(), dtype).unsqueeze();
        }
        let output_projection = activation::silu(output_projection);
        let (all, shared) = (n_heads * d_head, n_groups * d_state);
        let part =
            |from: usize, width: usize, heads: usize| by_head(output_projection.clone().narrow(2, from, width), heads);
        let x = run.fire(at(Site::SsmX), part(0, all, n_heads))?;
        let b = run.fire(at(Site::SsmB), part(all, shared, n_groups))?;
        let c = run.fire(at(Site::SsmC), part(all + shared, shared, n_groups))?;

        let dt = softplus(widened(self.dt.forward(stream.clone())) + widened(self.dt_bias.val()).unsqueeze());
        let dt = if sizes.least_step > 0.0 { dt.clamp_min(sizes.least_step) } else { dt };
        let dt = run.fire(at(Site::SsmDt), narrowed(dt, dtype))?;
        let log_decay = (widened(dt.clone()) * widened(self.a_log.val()).exp().unsqueeze()).neg();
        let log_decay = run.fire(at(Site::SsmLogDecay), narrowed(log_decay, dtype))?;
        let steps = Steps {
            q: for_each_head(widened(c), n_heads),
            k: for_each_head(widened(b), n_heads),
            v: widened(x.clone()),
            log_decay: widened(log_decay),
            beta: widened(dt),
            corrects: false,
        };
        let read = carried.run(steps, pass)?;
        let passed = widened(x) * widened(self.d.val()).reshape([1, 1, n_heads, 1]);
        let read = run.fire(at(Site::SsmOut), narrowed(read + passed, dtype))?;
        let gate = run.fire(at(Site::SsmGate), by_head(self.gate.forward(stream), n_heads))?;
        let gated = flat(widened(read) * activation::silu(widened(gate)));
        let none = NormPoints { scale: None, normalized: None };
        let z = match sizes.norm_groups {
            1 => self.norm.without_hooks(gated),
            groups => flat(self.norm.forward_by_head(by_head(gated, groups), none, run)?),
        };
        let z = narrowed(z, dtype);
        let z = run.fire(at(Site::SsmZ), by_head(z, n_heads))?;
        Ok(self.o.forward(flat(z)))
    }
}
