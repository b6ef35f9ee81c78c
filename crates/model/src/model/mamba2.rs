//! Mamba 2 mixer: convolved inputs, decaying states, and a gated norm.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor, activation};
use hooklens_hooks::{Halt, Run};

use super::attention::{AttentionInputs, by_head};
use super::convolution::Carried;
use super::each_weight::{Weight, filters, linear, norm};
use super::linear::Linear;
use super::mixer::{MixerKind, TokenMixer, sizes_of};
use super::norm::{Norm, NormPoints, narrowed, widened};
use super::pass::Pass;
use super::recurrence::{Steps, flat, for_each_head, softplus};
use super::source::WeightSource;
use crate::config::{GatedNorm, Layers, NormKind, StateSpace, TransformerConfig};
use crate::kv_cache::StateShape;
use crate::points::Site;

/// Weights of one Mamba 2 mixer.
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
    /// Projection to the step sizes `dt`, `[d_model, head]`.
    pub dt: Linear,
    /// Convolution filters of all channels (inputs, then `B`, then `C`), `[width, channel]`, oldest position first.
    pub conv: Param<Tensor<2>>,
    /// Convolution bias, `[channel]`: inputs, then `B`, then `C`.
    pub conv_bias: Option<Param<Tensor<1>>>,
    /// Logarithm of each head's decay rate, `[head]`.
    pub a_log: Param<Tensor<1>>,
    /// Bias of the step sizes before softplus, `[head]`.
    pub dt_bias: Param<Tensor<1>>,
    /// Skip connection: each head's input, multiplied by this factor, is added to the head's output, `[head]`.
    pub d: Param<Tensor<1>>,
    /// Norm applied to the head outputs, before or after they are gated; weight `[head * d_head]`.
    pub norm: Norm,
    /// Output projection, `[head * d_head, d_model]`.
    pub o: Linear,
}

impl Mamba2 {
    /// Prefix of this mixer's weight names within a block.
    const NAME: &'static str = "ssm";

    /// Hook points of this mixer.
    pub(super) const KIND: MixerKind = MixerKind {
        sites: &[
            Site::SsmPreConv,
            Site::SsmX,
            Site::SsmB,
            Site::SsmC,
            Site::SsmDt,
            Site::SsmLogDecay,
            Site::SsmOut,
            Site::SsmGate,
            Site::SsmZ,
        ],
        is_in: |config, layer| config.state_space_of(layer).is_some(),
        absent: "this layer has no Mamba 2 state space",
        instead: "this layer has a Mamba 2 state space, not attention; use its points, such as ssm.hook_x",
    };

    /// Creates the mixer of the block named `block`, taking its weights from `source`.
    pub(super) fn build<S: WeightSource>(
        source: &mut S,
        block: &str,
        c: &TransformerConfig,
        sizes: StateSpace,
    ) -> Result<Self, S::Error> {
        let name = format!("{block}.{}", Self::NAME);
        let (heads, all, shared) = (sizes.n_heads, sizes.n_heads * sizes.d_head, sizes.n_groups * sizes.d_state);
        let kind = if sizes.norm == GatedNorm::None { NormKind::None } else { NormKind::Rms };
        let mut linear = |part: &str, width| source.linear(&name, part, [c.d_model, width]);
        Ok(Self {
            x: linear("x", all)?,
            b: linear("B", shared)?,
            c: linear("C", shared)?,
            gate: linear("gate", all)?,
            dt: linear("dt", heads)?,
            conv: source.filters(format!("{name}.conv"), [sizes.width, sizes.channels()])?,
            conv_bias: source.optional_vector(format!("{name}.conv_bias"), sizes.channels())?,
            a_log: source.vector(format!("{name}.A_log"), heads, 0.0)?,
            dt_bias: source.vector(format!("{name}.dt_bias"), heads, 0.0)?,
            d: source.vector(format!("{name}.D"), heads, 1.0)?,
            norm: source.norm(format!("{name}.norm"), kind, all, c.eps)?,
            o: source.linear(&name, "O", [all, c.d_model])?,
        })
    }

    /// Computes the mixer output from the normalized residual stream.
    ///
    /// # Shapes
    /// - input and output: `[batch, pos, d_model]`
    fn mix(
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
        let mut convolved = carried.convolved(self.conv.val());
        if let Some(bias) = &self.conv_bias {
            convolved = convolved + narrowed(bias.val(), dtype).unsqueeze();
        }
        let convolved = activation::silu(convolved);
        let (all, shared) = (n_heads * d_head, n_groups * d_state);
        let part = |from: usize, width: usize, heads: usize| by_head(convolved.clone().narrow(2, from, width), heads);
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
        let (read, gate) = (flat(widened(read)), activation::silu(flat(widened(gate))));
        let z = match sizes.norm {
            GatedNorm::AfterGate => self.normed(read * gate, sizes.norm_groups, run)?,
            GatedNorm::BeforeGate => self.normed(read, sizes.norm_groups, run)? * gate,
            GatedNorm::None => read * gate,
        };
        let z = narrowed(z, dtype);
        let z = run.fire(at(Site::SsmZ), by_head(z, n_heads))?;
        Ok(self.o.forward(flat(z)))
    }

    /// Normalizes `x`, `[batch, pos, head * d_head]`, in groups of channels.
    fn normed(&self, x: Tensor<3>, groups: usize, run: &mut Run<'_, '_>) -> Result<Tensor<3>, Halt> {
        let none = NormPoints { scale: None, normalized: None };
        match groups {
            1 => Ok(self.norm.without_hooks(x)),
            groups => Ok(flat(self.norm.forward_by_head(by_head(x, groups), none, run)?)),
        }
    }
}

impl TokenMixer for Mamba2 {
    fn forward(
        &self,
        layer: usize,
        inputs: AttentionInputs,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let sizes = sizes_of(pass.config.state_space_of(layer), layer)?;
        self.mix(layer, inputs.stream(), sizes, pass, run)
    }

    fn maps(&self) -> Vec<&Linear> {
        vec![&self.x, &self.b, &self.c, &self.gate, &self.dt, &self.o]
    }

    fn maps_mut(&mut self) -> Vec<&mut Linear> {
        let Self { x, b, c, gate, dt, o, .. } = self;
        vec![x, b, c, gate, dt, o]
    }

    fn readers_mut(&mut self) -> Vec<&mut Linear> {
        let Self { x, b, c, gate, dt, .. } = self;
        vec![x, b, c, gate, dt]
    }

    fn outputs(&self) -> Vec<(Site, &Linear)> {
        vec![(Site::SsmZ, &self.o)]
    }

    fn outputs_mut(&mut self) -> Vec<&mut Linear> {
        vec![&mut self.o]
    }

    fn each_weight(&self, block: &str, dtype: DType, see: &mut dyn FnMut(String, Weight<'_>)) {
        let name = format!("{block}.{}", Self::NAME);
        let maps = [("x", &self.x), ("B", &self.b), ("C", &self.c), ("gate", &self.gate), ("dt", &self.dt)];
        for (letter, map) in maps.into_iter().chain([("O", &self.o)]) {
            linear(&name, letter, map, dtype, see);
        }
        filters(&name, &self.conv, self.conv_bias.as_ref(), dtype, see);
        for (part, own) in [("A_log", &self.a_log), ("dt_bias", &self.dt_bias), ("D", &self.d)] {
            see(format!("{name}.{part}"), Weight::Vector(own.val()));
        }
        norm(&format!("{name}.norm"), Some(&self.norm), see);
    }
}
