//! Weights that stay in the quantized blocks of their file until their values are needed.

use burn::module::{Param, ParamId};
use burn::tensor::{DType, Device, Tensor};

use crate::cpu::Weight;
use crate::cpu::packed_matrix::PackedMatrix;

/// The quantized blocks of a weight, if any.
#[derive(Debug, Clone, Default)]
pub(crate) struct Blocks(Option<PackedMatrix>);

impl Blocks {
    /// Creates a parameter for a weight. A quantized weight is dequantized to `f32` on first access. `turned` is
    /// true for an embedding table, where each row of blocks is a row of the weight, and false for a linear map, where
    /// each row of blocks is a column of the weight.
    pub(super) fn param(weight: Weight, device: &Device, turned: bool) -> (Param<Tensor<2>>, Self) {
        let packed = match weight {
            Weight::Plain(weight) => return (Param::from_tensor(weight.detach()), Self::default()),
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
        (param, Self(Some(packed)))
    }

    /// The blocks, unless the parameter has been dequantized.
    pub(crate) fn of(&self, param: &Param<Tensor<2>>) -> Option<&PackedMatrix> {
        self.0.as_ref().filter(|_| !param.is_initialized())
    }
}
