//! [`Masks`]: which edges are ablated in each row of a run.

use burn::tensor::{DType, Device, Tensor, TensorData};
use ndarray::Array2;

use super::order::{Reads, RunOrder};
use crate::circuits::Circuit;

/// The mask of a circuit, `[sender, receiver]`: 1 for the edges outside it, which are ablated.
pub(in crate::circuits) fn mask_of(circuit: &Circuit) -> Array2<f32> {
    let mut ablated = Array2::zeros((circuit.graph().senders().len(), circuit.graph().receivers().len()));
    for place in circuit.graph().places().filter(|place| !circuit.keeps(*place)) {
        ablated[place] = 1.0;
    }
    ablated
}

/// Ablated fraction of each edge, from 0 (kept) to 1 (ablated): one matrix `[sender, receiver]` for all rows, or one
/// per row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Masks<'m>(pub(super) &'m [Array2<f32>]);

/// Ablated or kept fractions of the edges from some chunks of senders into some receivers.
pub(super) struct Part {
    /// Indices of the chunks with weights that are not all 0.
    pub(super) chunks: Vec<usize>,
    /// Whether the weights are kept fractions instead of ablated fractions.
    pub(super) kept: bool,
    /// The weights, `[row or 1, receiver, sender]`, flattened.
    pub(super) weights: Vec<f32>,
    pub(super) shape: [usize; 3],
}

impl Masks<'_> {
    /// Edge weights for a group of receivers that read together. They give either the ablated or the kept fraction of
    /// each edge, whichever is nonzero in fewer chunks. `None` if nothing is ablated.
    pub(super) fn part(&self, order: &RunOrder, reads: &Reads) -> Option<Part> {
        let chunks = &order.chunks[..reads.chunks];
        let any = |chunk: &[usize], is: fn(f32) -> bool| {
            let weights =
                |mask: &Array2<f32>| chunk.iter().any(|from| reads.receivers.clone().any(|to| is(mask[[*from, to]])));
            self.0.iter().any(weights)
        };
        let where_ = |is: fn(f32) -> bool| -> Vec<usize> {
            (0..chunks.len()).filter(|chunk| any(&chunks[*chunk], is)).collect()
        };
        let (ablated, kept) = (where_(|weight| weight != 0.0), where_(|weight| weight != 1.0));
        if ablated.is_empty() {
            return None;
        }
        let by_kept = kept.len() < ablated.len();
        let used = if by_kept { kept } else { ablated };
        let senders: Vec<usize> = used.iter().flat_map(|chunk| chunks[*chunk].iter().copied()).collect();
        let shape = [self.0.len(), reads.receivers.len(), senders.len()];
        let mut weights = Vec::with_capacity(shape.iter().product());
        for mask in self.0 {
            for to in reads.receivers.clone() {
                weights.extend(senders.iter().map(|from| {
                    let ablated = mask[[*from, to]];
                    if by_kept { 1.0 - ablated } else { ablated }
                }));
            }
        }
        Some(Part { chunks: used, kept: by_kept, weights, shape })
    }
}

impl Part {
    pub(super) fn tensor(self, device: &Device, dtype: DType) -> Tensor<3> {
        Tensor::from_data(TensorData::new(self.weights, self.shape), (device, dtype))
    }
}
