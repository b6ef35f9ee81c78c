//! Weights that stay in the blocks of a quantized file until somebody asks for their value.

use burn::module::{Param, ParamId};
use burn::tensor::{DType, Device, Tensor};

use crate::cpu::Weight;
use crate::cpu::packed_matrix::PackedMatrix;

/// The blocks a weight is made from, if it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Blocks(Option<PackedMatrix>);

impl Blocks {
    /// A parameter that is this weight: of blocks its value is made, in `f32`, when it is first asked for. `turned`: a
    /// table of rows, not a map whose columns the rows of blocks are.
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

    /// The blocks, as long as they are what the parameter holds.
    pub(crate) fn of(&self, param: &Param<Tensor<2>>) -> Option<&PackedMatrix> {
        self.0.as_ref().filter(|_| !param.is_initialized())
    }
}
