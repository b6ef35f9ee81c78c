//! Keys of a cache with a run's own behind them.

use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::{elements, plain_whole, stride, tensor};

/// `past` with `new` behind it along the positions, one row of `past` before each row of `new` if
/// it has but one; `None` if a tensor is not plain.
///
/// # Shapes
/// - past `[1 or batch, past, head, d_head]`, new `[batch, new, head, d_head]`
/// - output `[batch, past + new, head, d_head]`
pub(crate) fn join(past: &Tensor<4>, new: &Tensor<4>) -> Option<Tensor<4>> {
    let ([rows, before, ..], [batch, count, heads, width]) = (past.dims(), new.dims());
    let token = heads * width;
    let (past, new) = (rows_in_one_run(past, token)?, plain_whole(new)?);
    let mut joined = vec![0.0; batch * (before + count) * token];
    joined.par_chunks_mut(((before + count) * token).max(1)).enumerate().for_each(|(row, out)| {
        let (head, tail) = out.split_at_mut(before * token);
        let from = if rows == 1 { 0 } else { row * stride(&past, 0) };
        head.copy_from_slice(&elements(&past)[from..from + before * token]);
        let from = row * count * token;
        tail.copy_from_slice(&elements(&new)[from..from + count * token]);
    });
    Some(tensor(joined, [batch, before + count, heads, width]))
}

/// The storage of a tensor whose tokens lie one behind the other within a row, as those of a
/// growing cache do.
fn rows_in_one_run(x: &Tensor<4>, token: usize) -> Option<FlexTensor> {
    let storage = super::plain(x)?;
    let strides = storage.layout().strides();
    let width = x.dims()[3];
    let in_one_run = strides[3] == 1 && strides[2] == width as isize && strides[1] == token as isize && strides[0] >= 0;
    Some(if in_one_run { storage } else { storage.to_contiguous() })
}
