//! Moving weights to a device: tracked parameters on one with autodiff, plain tensors on others.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, GradientCheckpointingStrategy, Tensor};

use super::weights::Weights;

/// Weights on this device: leaves that gradients are kept for if it differentiates, plain tensors if not. Those that
/// were set to have no gradients have none; each keeps its id and, on the same device, its memory.
pub fn placed<M: Module>(weights: M, device: &Device) -> M {
    let mut plain = weights.valid();
    // What is moved can be freed tensor by tensor.
    drop(weights);
    if plain.devices().iter().any(|own| own != device) {
        plain = plain.to_device(&device.clone().without_autodiff());
    }
    match device.gradient_checkpointing_strategy() {
        Some(strategy) => plain.train().map(&mut Checkpointing(strategy)),
        None => plain,
    }
}

impl Weights {
    /// The same weights, all in this element type.
    pub(crate) fn in_type(self, dtype: DType) -> Self {
        self.map(&mut Typed(dtype))
    }

    /// Each part on its device, as by [`placed`].
    pub(crate) fn placed(self, first: &Device, of_layer: impl Fn(usize) -> Device, last: &Device) -> Self {
        let Weights { embed, per_layer_embed, blocks, ln_final, unembed } = self;
        Weights {
            embed: placed(embed, first),
            per_layer_embed: per_layer_embed.map(|own| placed(own, first)),
            blocks: blocks.into_iter().enumerate().map(|(layer, block)| placed(block, &of_layer(layer))).collect(),
            ln_final: placed(ln_final, last),
            unembed: placed(unembed, last),
        }
    }
}

struct Typed(DType);

impl ModuleMapper for Typed {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if param.val().dtype() == self.0 { param } else { Param::from_tensor(param.val().cast(self.0)) }
    }
}

/// `Module::train` drops the device's checkpointing strategy, and tensors that differ in it can't be used together.
struct Checkpointing(GradientCheckpointingStrategy);

impl ModuleMapper for Checkpointing {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.with_gradient_checkpointing_strategy(self.0))
    }
}
