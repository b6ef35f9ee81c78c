//! Gated short convolution, in place of attention.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use hooklens_hooks::{Halt, Run};

use super::attention::{AttentionInputs, by_head};
use super::convolution::Carried;
use super::each_weight::{Weight, filters, linear};
use super::linear::Linear;
use super::mixer::{MixerKind, TokenMixer, sizes_of};
use super::norm::narrowed;
use super::pass::Pass;
use super::recurrence::flat;
use super::source::WeightSource;
use crate::config::{ShortConv, TransformerConfig};
use crate::kv_cache::StateShape;
use crate::points::Site;

/// Weights of one short convolution.
#[derive(Module, Debug)]
pub struct ShortConvolution {
    /// Input gate projection, `[d_model, d_model]`; multiplies the input before the convolution.
    pub b: Linear,
    /// Output gate projection, `[d_model, d_model]`; multiplies the output of the convolution.
    pub c: Linear,
    /// Input projection, `[d_model, d_model]`.
    pub x: Linear,
    /// Convolution filters of all channels, `[width, d_model]`, oldest position first.
    pub conv: Param<Tensor<2>>,
    /// Convolution bias, `[d_model]`.
    pub conv_bias: Option<Param<Tensor<1>>>,
    /// Output projection, `[d_model, d_model]`.
    pub o: Linear,
}

impl ShortConvolution {
    /// Prefix of this mixer's weight names within a block.
    const NAME: &'static str = "conv";

    /// Hook points of this mixer.
    pub(super) const KIND: MixerKind = MixerKind {
        sites: &[Site::ConvB, Site::ConvX, Site::ConvPre, Site::ConvOut, Site::ConvC, Site::ConvZ],
        is_in: |config, layer| config.short_conv_of(layer).is_some(),
        absent: "this layer has no short convolution",
        instead: "this layer has a short convolution, not attention; use its points, such as conv.hook_x",
    };

    /// Creates the mixer of the block named `block`, taking its weights from `source`.
    pub(super) fn build<S: WeightSource>(
        source: &mut S,
        block: &str,
        c: &TransformerConfig,
        sizes: ShortConv,
    ) -> Result<Self, S::Error> {
        let (name, d_model) = (format!("{block}.{}", Self::NAME), c.d_model);
        let mut linear = |part: &str| source.linear(&name, part, [d_model, d_model]);
        Ok(Self {
            b: linear("B")?,
            c: linear("C")?,
            x: linear("x")?,
            conv: source.filters(format!("{name}.conv"), [sizes.width, d_model])?,
            conv_bias: source.optional_vector(format!("{name}.conv_bias"), d_model)?,
            o: source.linear(&name, "O", [d_model, d_model])?,
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
        sizes: ShortConv,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let at = |site| pass.points.at(layer, site);
        let dtype = stream.dtype();
        let shape = StateShape::of_convolution(sizes, pass.config.d_model);
        let [b, c, x] = Linear::forward_each([&self.b, &self.c, &self.x], stream);
        let b = run.fire(at(Site::ConvB), b)?;
        let x = run.fire(at(Site::ConvX), x)?;
        let new = run.fire(at(Site::ConvPre), b * x)?;
        let carried = Carried::on(layer, shape, new, pass)?;
        let mut convolved = carried.convolved(self.conv.val());
        if let Some(bias) = &self.conv_bias {
            convolved = convolved + narrowed(bias.val(), dtype).unsqueeze();
        }
        carried.keep(pass)?;
        let convolved = run.fire(at(Site::ConvOut), convolved)?;
        let c = run.fire(at(Site::ConvC), c)?;
        let z = run.fire(at(Site::ConvZ), by_head(c * convolved, 1))?;
        Ok(self.o.forward(flat(z)))
    }
}

impl TokenMixer for ShortConvolution {
    fn forward(
        &self,
        layer: usize,
        inputs: AttentionInputs,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let sizes = sizes_of(pass.config.short_conv_of(layer), layer)?;
        self.mix(layer, inputs.stream(), sizes, pass, run)
    }

    fn maps(&self) -> Vec<&Linear> {
        vec![&self.b, &self.c, &self.x, &self.o]
    }

    fn maps_mut(&mut self) -> Vec<&mut Linear> {
        let Self { b, c, x, o, .. } = self;
        vec![b, c, x, o]
    }

    fn readers_mut(&mut self) -> Vec<&mut Linear> {
        let Self { b, c, x, .. } = self;
        vec![b, c, x]
    }

    fn outputs(&self) -> Vec<(Site, &Linear)> {
        vec![(Site::ConvZ, &self.o)]
    }

    fn outputs_mut(&mut self) -> Vec<&mut Linear> {
        vec![&mut self.o]
    }

    fn each_weight(&self, block: &str, dtype: DType, see: &mut dyn FnMut(String, Weight<'_>)) {
        let name = format!("{block}.{}", Self::NAME);
        for (letter, map) in [("B", &self.b), ("C", &self.c), ("x", &self.x), ("O", &self.o)] {
            linear(&name, letter, map, dtype, see);
        }
        filters(&name, &self.conv, self.conv_bias.as_ref(), dtype, see);
    }
}
