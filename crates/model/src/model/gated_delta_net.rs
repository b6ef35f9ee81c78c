//! Gated delta net: convolved queries, keys, and values, a recurrence with the gated delta rule, and a gated norm.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor, activation};
use hooklens_hooks::{Halt, Run};

use super::attention::{AttentionInputs, by_head};
use super::convolution::Carried;
use super::each_weight::{Weight, linear, norm};
use super::linear::Linear;
use super::mixer::{MixerKind, TokenMixer, sizes_of};
use super::norm::{Norm, narrowed, widened};
use super::pass::Pass;
use super::recurrence::{Steps, flat, for_each_head, softplus};
use super::source::WeightSource;
use crate::config::{GatedDelta, NormKind, TransformerConfig};
use crate::kv_cache::StateShape;
use crate::points::Site;

/// Weights of one gated delta net.
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
    /// Projection to the decay rate of the state, `[d_model, value_head]`.
    pub decay: Linear,
    /// Convolution filters of all channels (queries, keys, values), `[width, channel]`, oldest position first.
    pub conv: Param<Tensor<2>>,
    /// Logarithm of each head's decay rate, `[value_head]`.
    pub a_log: Param<Tensor<1>>,
    /// Bias of the decay before softplus, `[value_head]`.
    pub dt_bias: Param<Tensor<1>>,
    /// Norm applied to each head's output; weight `[d_value]`.
    pub norm: Norm,
    /// Output projection, `[value_head * d_value, d_model]`.
    pub o: Linear,
}

impl GatedDeltaNet {
    /// Prefix of this mixer's weight names within a block.
    const NAME: &'static str = "linear_attn";

    /// Hook points of this mixer.
    pub(super) const KIND: MixerKind = MixerKind {
        sites: &[
            Site::QPreConv,
            Site::KPreConv,
            Site::VPreConv,
            Site::LinearQ,
            Site::LinearK,
            Site::LinearV,
            Site::BetaLogit,
            Site::Beta,
            Site::LogDecay,
            Site::RecurrenceOut,
            Site::GateInput,
            Site::LinearZ,
        ],
        is_in: |config, layer| config.gated_delta_of(layer).is_some(),
        absent: "this layer has no gated delta net",
        instead: "this layer has a gated delta net, not attention; use its points, such as linear_attn.hook_q",
    };

    /// Creates the mixer of the block named `block`, taking its weights from `source`.
    pub(super) fn build<S: WeightSource>(
        source: &mut S,
        block: &str,
        c: &TransformerConfig,
        sizes: GatedDelta,
    ) -> Result<Self, S::Error> {
        let name = format!("{block}.{}", Self::NAME);
        let heads = sizes.n_value_heads;
        let (keys, values) = (sizes.n_key_heads * sizes.d_key, heads * sizes.d_value);
        let mut linear = |part: &str, width| source.linear(&name, part, [c.d_model, width]);
        Ok(Self {
            q: linear("Q", keys)?,
            k: linear("K", keys)?,
            v: linear("V", values)?,
            gate: linear("gate", values)?,
            beta: linear("beta", heads)?,
            decay: linear("decay", heads)?,
            conv: source.filters(format!("{name}.conv"), [sizes.width, sizes.channels()])?,
            a_log: source.vector(format!("{name}.A_log"), heads, 0.0)?,
            dt_bias: source.vector(format!("{name}.dt_bias"), heads, 0.0)?,
            norm: source.norm(format!("{name}.norm"), NormKind::Rms, sizes.d_value, c.eps)?,
            o: source.linear(&name, "O", [values, c.d_model])?,
        })
    }

    /// Computes the mixer output from the normalized residual stream.
    ///
    /// # Shapes
    /// - input and output: `[batch, pos, d_model]`
    fn mix(
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
        let convolved = activation::silu(carried.convolved(self.conv.val()));
        let keys = n_key_heads * d_key;
        let part =
            |from: usize, heads: usize, width: usize| by_head(convolved.clone().narrow(2, from, heads * width), heads);
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

impl TokenMixer for GatedDeltaNet {
    fn forward(
        &self,
        layer: usize,
        inputs: AttentionInputs,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let sizes = sizes_of(pass.config.gated_delta_of(layer), layer)?;
        self.mix(layer, inputs.stream(), sizes, pass, run)
    }

    fn maps(&self) -> Vec<&Linear> {
        vec![&self.q, &self.k, &self.v, &self.gate, &self.beta, &self.decay, &self.o]
    }

    fn maps_mut(&mut self) -> Vec<&mut Linear> {
        let Self { q, k, v, gate, beta, decay, o, .. } = self;
        vec![q, k, v, gate, beta, decay, o]
    }

    fn readers_mut(&mut self) -> Vec<&mut Linear> {
        let Self { q, k, v, gate, beta, decay, .. } = self;
        vec![q, k, v, gate, beta, decay]
    }

    fn outputs(&self) -> Vec<(Site, &Linear)> {
        vec![(Site::LinearZ, &self.o)]
    }

    fn outputs_mut(&mut self) -> Vec<&mut Linear> {
        vec![&mut self.o]
    }

    fn each_weight(&self, block: &str, dtype: DType, see: &mut dyn FnMut(String, Weight<'_>)) {
        let name = format!("{block}.{}", Self::NAME);
        let maps = [("Q", &self.q), ("K", &self.k), ("V", &self.v), ("gate", &self.gate), ("beta", &self.beta)];
        for (letter, map) in maps.into_iter().chain([("decay", &self.decay), ("O", &self.o)]) {
            linear(&name, letter, map, dtype, see);
        }
        see(format!("{name}.conv"), Weight::Matrix(self.conv.val()));
        see(format!("{name}.A_log"), Weight::Vector(self.a_log.val()));
        see(format!("{name}.dt_bias"), Weight::Vector(self.dt_bias.val()));
        norm(&format!("{name}.norm"), Some(&self.norm), see);
    }
}
