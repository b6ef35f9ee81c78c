//! Gated short convolution, in place of attention.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use hooklens_hooks::{Halt, Run};

use super::attention::by_head;
use super::convolution::Carried;
use super::linear::Linear;
use super::norm::narrowed;
use super::pass::Pass;
use super::recurrence::flat;
use crate::config::ShortConv;
use crate::kv_cache::StateShape;
use crate::points::Site;

/// Weights of one short convolution.
///
/// ```
/// use hooklens::prelude::*;
/// use hooklens::{Mixer, ShortConv};
/// let mixers = vec![Mixer::ShortConv(ShortConv { width: 3 })];
/// let config = TransformerConfig { mixers, ..TransformerConfig::new(1, 32, 4, 100, 32) };
/// let model = HookedTransformer::random(config, 0, &Device::flex())?;
/// let own = model.weights.blocks[0].conv.as_ref().map(|conv| (conv.b.weight.val().dims(), conv.conv.val().dims()));
/// assert_eq!(own, Some(([32, 32], [3, 32])));
/// # Ok::<(), hooklens::Error>(())
/// ```
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
    /// All linear maps.
    pub(crate) fn maps(&self) -> impl Iterator<Item = &Linear> {
        [&self.b, &self.c, &self.x, &self.o].into_iter()
    }

    /// All linear maps, mutably.
    pub(crate) fn maps_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let Self { b, c, x, o, .. } = self;
        [b, c, x, o].into_iter()
    }

    /// The linear maps that read the residual stream, mutably.
    pub(crate) fn readers_mut(&mut self) -> [&mut Linear; 3] {
        let Self { b, c, x, .. } = self;
        [b, c, x]
    }

    /// Computes the mixer output from the normalized residual stream.
    ///
    /// # Shapes
    /// - input and output: `[batch, pos, d_model]`
    pub(crate) fn forward(
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
        let mut output_projection = carried.convolved(self.conv.val());
        if let Some(bias) = &self.conv_bias {
            output_projection = output_projection + narrowed(bias.val(), dtype).unsqueeze();
        }
        carried.keep(pass)?;
        let output_projection = run.fire(at(Site::ConvOut), output_projection)?;
        let c = run.fire(at(Site::ConvC), c)?;
        let z = run.fire(at(Site::ConvZ), by_head(c * output_projection, 1))?;
        Ok(self.o.forward(flat(z)))
    }
}
