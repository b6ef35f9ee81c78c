//! Gated delta net: convolved queries, keys, and values, a recurrence with the gated delta rule, and a gated norm.

use burn::module::{Module, Param};
use burn::tensor::{Tensor, activation};
use hooklens_hooks::{Halt, Run};

use super::attention::by_head;
use super::convolution::Carried;
use super::linear::Linear;
use super::norm::{Norm, narrowed, widened};
use super::pass::Pass;
use super::recurrence::{Steps, flat, for_each_head, softplus};
use crate::config::GatedDelta;
use crate::kv_cache::StateShape;
use crate::points::Site;

/// Weights of one gated delta net.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::{GatedDelta, Mixer};
/// let net = GatedDelta { n_key_heads: 2, n_value_heads: 4, d_key: 8, d_value: 6, width: 4 };
/// let config = TransformerConfig { mixers: vec![Mixer::GatedDelta(net)], ..TransformerConfig::new(1, 32, 4, 100, 32) };
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let block = &model.weights.blocks[0];
/// assert!(block.attn.is_none());
/// let own = block.delta.as_ref().map(|net| (net.q.weight.val().dims(), net.conv.val().dims()));
/// assert_eq!(own, Some(([32, 16], [4, 56])));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct GatedDeltaNet {
    /// Query projection, `[d_model, key_head * d_key]`.
    pub q: Linear,
    /// Key projection, `[d_model, key_head * d_key]`.
    pub k: Linear,
    /// Value projection, `[d_model, value_head * d_value]`.
    pub v: Linear,
    /// Output gate projection, `[d_model, value_head * d_value]`.
    pub gate: Linear,
    /// Projection to `beta`, the fraction of each value that is written, `[d_model, value_head]`.
    pub beta: Linear,
    /// Projection to the decay of the state, `[d_model, value_head]`.
    pub decay: Linear,
    /// Convolution filters of all channels (queries, keys, values), `[width, channel]`, oldest position first.
    pub conv: Param<Tensor<2>>,
    /// Logarithm of each head's decay rate, `[value_head]`.
    pub a_log: Param<Tensor<1>>,
    /// Bias of the decay before softplus, `[value_head]`.
    pub dt_bias: Param<Tensor<1>>,
    /// Norm of the heads' outputs, `[d_value]`.
    pub norm: Norm,
    /// Output projection, `[value_head * d_value, d_model]`.
    pub o: Linear,
}

impl GatedDeltaNet {
    /// All linear maps.
    pub(crate) fn maps(&self) -> impl Iterator<Item = &Linear> {
        [&self.q, &self.k, &self.v, &self.gate, &self.beta, &self.decay, &self.o].into_iter()
    }

    /// All linear maps, mutably.
    pub(crate) fn maps_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let Self { q, k, v, gate, beta, decay, o, .. } = self;
        [q, k, v, gate, beta, decay, o].into_iter()
    }

    /// The linear maps that read the residual stream, mutably.
    pub(crate) fn readers_mut(&mut self) -> [&mut Linear; 6] {
        let Self { q, k, v, gate, beta, decay, .. } = self;
        [q, k, v, gate, beta, decay]
    }

    /// Computes the mixer output from the normalized residual stream.
    ///
    /// # Shapes
    /// - input and output: `[batch, pos, d_model]`
    pub(crate) fn forward(
        &self,
        layer: usize,
        x: Tensor<3>,
        sizes: GatedDelta,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let at = |site| pass.points.at(layer, site);
        let dtype = x.dtype();
        let GatedDelta { n_key_heads, n_value_heads, d_key, d_value, .. } = sizes;

        let [q, k, v] = Linear::forward_each([&self.q, &self.k, &self.v], x.clone());
        let q = run.fire(at(Site::QPreConv), by_head(q, n_key_heads))?;
        let k = run.fire(at(Site::KPreConv), by_head(k, n_key_heads))?;
        let v = run.fire(at(Site::VPreConv), by_head(v, n_value_heads))?;
        let new = Tensor::cat([q, k, v].map(flat).into(), 2);
        let carried = Carried::on(layer, StateShape::of_net(sizes), new, pass)?;
        let output_projection = activation::silu(carried.convolved(self.conv.val()));
        let keys = n_key_heads * d_key;
        let part = |from: usize, heads: usize, width: usize| {
            by_head(output_projection.clone().narrow(2, from, heads * width), heads)
        };
        let q = run.fire(at(Site::LinearQ), part(0, n_key_heads, d_key))?;
        let k = run.fire(at(Site::LinearK), part(keys, n_key_heads, d_key))?;
        let v = run.fire(at(Site::LinearV), part(2 * keys, n_value_heads, d_value))?;

        let logit = run.fire(at(Site::BetaLogit), self.beta.forward(x.clone()))?;
        let beta = run.fire(at(Site::Beta), activation::sigmoid(logit))?;
        let step = softplus(widened(self.decay.forward(x.clone())) + widened(self.dt_bias.val()).unsqueeze());
        let log_decay = (step * widened(self.a_log.val()).exp().unsqueeze()).neg();
        let log_decay = run.fire(at(Site::LogDecay), narrowed(log_decay, dtype))?;
        let unit = |x: Tensor<4>| {
            let x = widened(x);
            for_each_head(x.clone() / (x.square().sum_dim(3) + 1e-6).sqrt(), n_value_heads)
        };
        let steps = Steps {
            q: unit(q) / (d_key as f64).sqrt(),
            k: unit(k),
            v: widened(v),
            log_decay: widened(log_decay),
            beta: widened(beta),
            corrects: true,
        };
        let read = carried.run(steps, pass)?;
        let read = run.fire(at(Site::RecurrenceOut), narrowed(read, dtype))?;
        let gate = run.fire(at(Site::GateInput), by_head(self.gate.forward(x), n_value_heads))?;
        let z = self.norm.without_hooks(widened(read)) * activation::silu(widened(gate));
        let z = run.fire(at(Site::LinearZ), narrowed(z, dtype))?;
        Ok(self.o.forward(flat(z)))
    }
}
