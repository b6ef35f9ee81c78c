//! Moving weights between devices: tracked parameters on devices with autodiff, plain tensors on others.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, GradientCheckpointingStrategy, Tensor};

use super::weights::DecoderWeights;

/// Moves weights to a device. On a device with autodiff, they become leaf parameters that collect gradients; otherwise,
/// plain tensors. Parameters with gradients disabled keep that setting; all keep their ids and, on the same device,
/// their memory.
pub fn placed<M: Module>(weights: M, device: &Device) -> M {
    let mut plain = weights.valid();
    // Release the originals, so that each tensor can be freed once it is moved.
    drop(weights);
    if plain.devices().iter().any(|own| own != device) {
        plain = plain.to_device(&device.clone().without_autodiff());
    }
    match device.gradient_checkpointing_strategy() {
        Some(strategy) => plain.train().map(&mut Checkpointing(strategy)),
        None => plain,
    }
}

impl DecoderWeights {
    /// Casts all weights to this element type.
    pub(crate) fn in_type(self, dtype: DType) -> Self {
        self.map(&mut Typed(dtype))
    }

    /// Moves each part to its device, using [`placed`].
    pub(crate) fn placed(self, first: &Device, of_layer: impl Fn(usize) -> Device, last: &Device) -> Self {
        let DecoderWeights { embed, per_layer_embed, blocks, ln_final, unembed } = self;
        DecoderWeights {
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

/// Restores the device's gradient checkpointing strategy, which `Module::train` drops. Tensors with different
/// strategies can't be used together.
struct Checkpointing(GradientCheckpointingStrategy);

impl ModuleMapper for Checkpointing {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.with_gradient_checkpointing_strategy(self.0))
    }
}
