//! Soft caps on scores and logits (Gemma 2).

use burn::tensor::Tensor;

/// `cap * tanh(x / cap)`, if there is a cap.
pub(crate) fn soft_capped<const D: usize>(x: Tensor<D>, cap: Option<f64>) -> Tensor<D> {
    match cap {
        Some(cap) => (x / cap).tanh() * cap,
        None => x,
    }
}
