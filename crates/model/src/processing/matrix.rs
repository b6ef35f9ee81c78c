//! In-place changes to a weight matrix, so that memory never contains it twice.

use burn::module::Param;
use burn::tensor::{DType, Tensor};

use crate::cpu;
use crate::model::{narrowed, widened};

/// Number of elements of a large matrix that are processed at a time.
pub(super) const PIECE: usize = 1 << 20;

/// A weight matrix `[in, out]` being changed, in its memory layout.
pub(super) struct Matrix {
    /// `[in, out]`, or `[out, in]` if `transposed`.
    stored: Tensor<2>,
    transposed: bool,
    /// Element type of the result.
    dtype: DType,
}

/// Changes a parameter's matrix and leaves it with element type `dtype`.
pub(super) fn change_matrix(param: &mut Param<Tensor<2>>, dtype: DType, change: impl FnOnce(&mut Matrix)) {
    // Release the parameter's tensor first, so that the change can happen in place.
    let empty = Param::from_tensor(Tensor::zeros([1, 1], &param.val().device()));
    let value = std::mem::replace(param, empty).into_value();
    let transposed = cpu::lies_transposed(&value);
    let stored = if transposed { value.transpose() } else { value };
    let mut matrix = Matrix { stored, transposed, dtype };
    change(&mut matrix);
    let stored = matrix.stored;
    *param = Param::from_tensor(if transposed { stored.transpose() } else { stored });
}

impl Matrix {
    /// Multiplies the row of each input coordinate by its factor.
    pub(super) fn scale_inputs(&mut self, factors: Tensor<1>) {
        let factors = widened(factors);
        let inputs = usize::from(self.transposed);
        self.by_pieces(1 - inputs, |piece| piece * factors.clone().unsqueeze_dim::<2>(1 - inputs));
    }

    /// Centers each column over the inputs.
    pub(super) fn center_inputs(&mut self) {
        self.center(usize::from(self.transposed));
    }

    /// Centers each row over the outputs.
    pub(super) fn center_outputs(&mut self) {
        self.center(1 - usize::from(self.transposed));
    }

    fn center(&mut self, over: usize) {
        self.by_pieces(1 - over, |piece| {
            let mean = piece.clone().mean_dim(over);
            piece - mean
        });
    }

    /// Applies a change that treats each index of `axis` independently, in at least `f32` precision. A 16-bit matrix is
    /// widened in pieces.
    fn by_pieces(&mut self, axis: usize, change: impl Fn(Tensor<2>) -> Tensor<2>) {
        let dims = self.stored.dims();
        let empty = Tensor::zeros([1, 1], &self.stored.device());
        let mut stored = std::mem::replace(&mut self.stored, empty);
        let dtype = self.dtype;
        if !matches!(dtype, DType::F16 | DType::BF16) {
            self.stored = change(widened(stored));
            return;
        }
        let step = (PIECE / dims[1 - axis].max(1)).max(1);
        for start in (0..dims[axis]).step_by(step) {
            let end = (start + step).min(dims[axis]);
            let piece = widened(stored.clone().narrow(axis, start, end - start));
            let piece = narrowed(change(piece), dtype);
            let mut ranges = [0..dims[0], 0..dims[1]];
            ranges[axis] = start..end;
            stored = stored.slice_assign(ranges, piece);
        }
        self.stored = stored;
    }
}
