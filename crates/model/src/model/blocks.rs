//! Weights that stay in the quantized blocks of their file until their values are needed, and weights whose products
//! round their inputs.

use burn::module::{Param, ParamId};
use burn::tensor::{DType, Device, Tensor};

use crate::cpu::Weight;
use crate::cpu::packed_matrix::PackedMatrix;

/// How a weight is stored and multiplied.
#[derive(Debug, Clone, Default)]
pub(crate) struct Blocks {
    /// The weight's quantized blocks.
    packed: Option<PackedMatrix>,
    /// Whether products round their inputs to `bf16` while the weight has this type.
    rounds_to_bf16: bool,
}

impl Blocks {
    /// Creates a parameter for a weight. A quantized weight is dequantized to `f32` on first access. `turned` is
    /// true for an embedding table, where each row of blocks is a row of the weight, and false for a linear map, where
    /// each row of blocks is a column of the weight.
    pub(super) fn param(weight: Weight, device: &Device, turned: bool) -> (Param<Tensor<2>>, Self) {
        let packed = match weight {
            Weight::Plain(weight) => return (Param::from_tensor(weight.detach()), Self::default()),
            Weight::RoundingInputs(weight) => {
                return (Param::from_tensor(weight.detach()), Self { packed: None, rounds_to_bf16: true });
            }
            Weight::Packed(packed) => packed,
        };
        let (rows, columns) = (packed.view().rows(), packed.view().cols());
        let shape = if turned { [columns, rows] } else { [rows, columns] };
        let own = packed.clone();
        let make = move |device: &Device, _: bool| {
            let table = own.widened(device, DType::F32);
            if turned { table } else { table.transpose() }
        };
        let param = Param::uninitialized(ParamId::new(), make, device.clone(), true, shape.into());
        (param, Self { packed: Some(packed), rounds_to_bf16: false })
    }

    /// The blocks, unless the parameter has been dequantized.
    pub(crate) fn of(&self, param: &Param<Tensor<2>>) -> Option<&PackedMatrix> {
        self.packed.as_ref().filter(|_| !param.is_initialized())
    }

    /// Whether products with the parameter round their inputs to `bf16`.
    pub(super) fn round_to_bf16(&self, param: &Param<Tensor<2>>) -> bool {
        self.rounds_to_bf16 && param.val().dtype() == DType::BF16
    }
}
