//! The token mixer of a block.

use burn::module::Module;
use burn::tensor::{DType, Tensor};
use hooklens_hooks::{Halt, Run};

use super::attention::{Attention, AttentionInputs};
use super::attention_and_mamba2::AttentionAndMamba2;
use super::each_weight::Weight;
use super::gated_delta_net::GatedDeltaNet;
use super::linear::Linear;
use super::mamba2::Mamba2;
use super::pass::Pass;
use super::short_convolution::ShortConvolution;
use super::source::WeightSource;
use crate::config::{MixerConfig, TransformerConfig};
use crate::error::InputError;
use crate::points::Site;

/// Weights of a block's token mixer, the part that moves information between positions.
#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "a model has one per layer, and `Box` is not a module")]
pub enum Mixer {
    /// Attention.
    Attention(Attention),
    /// A gated delta net.
    GatedDeltaNet(GatedDeltaNet),
    /// A Mamba 2 state space.
    Mamba2(Mamba2),
    /// A gated short convolution.
    ShortConvolution(ShortConvolution),
    /// Attention and a Mamba 2 state space that read the same stream.
    AttentionAndMamba2(AttentionAndMamba2),
}

/// What blocks, weight processing, and analyses need from a token mixer. To add a mixer, implement this trait in a new
/// file, and add a variant to [`Mixer`] and to [`MixerConfig`].
pub(crate) trait TokenMixer {
    /// Computes the output from the normalized residual stream.
    ///
    /// # Shapes
    /// - output: `[batch, pos, d_model]`
    fn forward(
        &self,
        layer: usize,
        inputs: AttentionInputs,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt>;

    /// All linear maps.
    fn maps(&self) -> Vec<&Linear>;

    /// All linear maps, mutably.
    fn maps_mut(&mut self) -> Vec<&mut Linear>;

    /// The linear maps that read the normalized residual stream, mutably.
    fn readers_mut(&mut self) -> Vec<&mut Linear>;

    /// The output projections, each with the hook point of its input, `[batch, pos, head, d_head]`.
    fn outputs(&self) -> Vec<(Site, &Linear)>;

    /// The output projections, mutably.
    fn outputs_mut(&mut self) -> Vec<&mut Linear>;

    /// Calls `see` with every weight and its full name, for the block named `block`.
    fn each_weight(&self, block: &str, dtype: DType, see: &mut dyn FnMut(String, Weight<'_>));
}

impl Mixer {
    /// Creates a layer's mixer, taking its weights from `source`. `block` is the name of the layer's block.
    pub fn build<S: WeightSource>(
        source: &mut S,
        block: &str,
        c: &TransformerConfig,
        layer: usize,
    ) -> Result<Option<Self>, S::Error> {
        let Some(own) = c.layers.get(layer) else { return Ok(None) };
        Ok(Some(match own.mixer {
            MixerConfig::Attention(_) => Self::Attention(source.attention(&format!("{block}.attn"), c, layer)?),
            MixerConfig::GatedDeltaNet(sizes) => Self::GatedDeltaNet(GatedDeltaNet::build(source, block, c, sizes)?),
            MixerConfig::Mamba2(sizes) => Self::Mamba2(Mamba2::build(source, block, c, sizes)?),
            MixerConfig::ShortConvolution(sizes) => {
                Self::ShortConvolution(ShortConvolution::build(source, block, c, sizes)?)
            }
            MixerConfig::AttentionAndMamba2(_, sizes) => Self::AttentionAndMamba2(AttentionAndMamba2 {
                attention: source.attention(&format!("{block}.attn"), c, layer)?,
                mamba2: Mamba2::build(source, block, c, sizes)?,
            }),
            MixerConfig::None => return Ok(None),
        }))
    }

    /// The mixer as a trait object.
    pub(crate) fn of_kind(&self) -> &dyn TokenMixer {
        match self {
            Self::Attention(own) => own,
            Self::GatedDeltaNet(own) => own,
            Self::Mamba2(own) => own,
            Self::ShortConvolution(own) => own,
            Self::AttentionAndMamba2(own) => own,
        }
    }

    /// Like [`Mixer::of_kind`], mutably.
    pub(crate) fn of_kind_mut(&mut self) -> &mut dyn TokenMixer {
        match self {
            Self::Attention(own) => own,
            Self::GatedDeltaNet(own) => own,
            Self::Mamba2(own) => own,
            Self::ShortConvolution(own) => own,
            Self::AttentionAndMamba2(own) => own,
        }
    }
}

/// Unwraps sizes that the configuration gives for a layer's mixer or MLP. They are `None`, which is an error, if the
/// layer's weights are of a different kind.
pub(super) fn sizes_of<T>(sizes: Option<T>, layer: usize) -> Result<T, InputError> {
    sizes.ok_or(InputError::OtherWeights { layer })
}

/// A kind of mixer that replaces attention, and the hook points that only it has.
pub(super) struct MixerKind {
    /// The hook points.
    pub(super) sites: &'static [Site],
    /// Whether a layer has this kind of mixer.
    pub(super) is_in: fn(&TransformerConfig, usize) -> bool,
    /// Reason why layers without this kind of mixer don't have the hook points.
    pub(super) absent: &'static str,
    /// Reason why a layer with only this mixer has no attention hook points.
    pub(super) instead: &'static str,
}

/// All kinds of mixers that replace attention.
pub(super) static KINDS: [&MixerKind; 3] = [&GatedDeltaNet::KIND, &Mamba2::KIND, &ShortConvolution::KIND];
