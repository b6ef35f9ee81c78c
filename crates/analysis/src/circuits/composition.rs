//! Composition scores between heads (Elhage et al. 2021).

use crate::circuits::Circuits;
use burn::tensor::Tensor;
use hooklens_hooks::Activation;
use ndarray::ArrayD;

use crate::labeled::{LabeledArray, LabeledAxis, matching};
use hooklens_model::error::Result;
use hooklens_model::model::{DecoderChecks, HookedTransformer};

/// Which input of the later head reads the earlier head's output.
///
/// ```
/// use hooklens::circuits::Composition;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let [q, k, v] = [Composition::Q, Composition::K, Composition::V].map(|how| model.composition_scores(how));
/// let best = |scores: &hooklens::LabeledArray| scores.largest(1)[0].1;
/// assert!([q?, k?, v?].iter().all(|scores| best(scores) > 0.0 && best(scores) < 1.0));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Composition {
    /// Query composition.
    Q,
    /// Key composition.
    K,
    /// Value composition.
    V,
}

/// Implements [`Circuits::composition_scores`](super::Circuits::composition_scores).
pub(super) fn composition_scores(model: &HookedTransformer, composition: Composition) -> Result<LabeledArray> {
    model.check_attends("composition of heads")?;
    let (layers, heads) = (model.config().n_layers(), model.config().n_heads());
    let writers = model.ov();
    let readers = match composition {
        Composition::Q => model.qk(),
        Composition::K => model.qk().transposed(),
        Composition::V => model.ov(),
    };
    let by_layer = |norms: Tensor<4>| norms.reshape([layers, heads]);
    let (written, read) = (by_layer(writers.norm()), by_layer(readers.norm()));
    let mut values = ArrayD::zeros(ndarray::IxDyn(&[layers * heads, layers * heads]));
    let [_, _, d_model, inner] = readers.a.dims();
    let [_, _, d_head, _] = writers.b.dims();
    for layer in 0..layers - 1 {
        let later = layers - 1 - layer;
        let count = later * heads;
        let of = |stack: &Tensor<4>| stack.clone().narrow(0, layer, 1).squeeze_dim::<3>(0);
        let after = |stack: &Tensor<4>| stack.clone().narrow(0, layer + 1, later);
        // With the product `M` of the inner factors, the squared norm of `A M D` is
        // `Σ (AᵀA M) ∘ (M DDᵀ)`, where every factor is only `d_head × d_head`.
        let out = of(&writers.b).reshape([heads * d_head, d_model]);
        let into =
            after(&readers.a).reshape([count, d_model, inner]).permute([1, 0, 2]).reshape([d_model, count * inner]);
        let between = out.matmul(into).reshape([heads, d_head, count, inner]).permute([0, 2, 1, 3]);
        let a = of(&writers.a);
        let left = a.clone().swap_dims(1, 2).matmul(a).unsqueeze_dim::<4>(1);
        let d = after(&readers.b).reshape([count, inner, d_model]);
        let right = d.clone().matmul(d.swap_dims(1, 2)).unsqueeze_dim::<4>(0);
        let square = left.matmul(between.clone()) * between.matmul(right);
        let size = square.sum_dim(3).sum_dim(2).reshape([heads, count]).clamp_min(0.0).sqrt();
        let ours = written.clone().narrow(0, layer, 1).reshape([heads, 1]);
        let theirs = read.clone().narrow(0, layer + 1, later).reshape([1, count]);
        let scores = Activation::from(size / (ours * theirs)).to_ndarray()?;
        for (at, score) in scores.indexed_iter() {
            values[[layer * heads + at[0], (layer + 1) * heads + at[1]]] = f64::from(*score);
        }
    }
    let axes = ["writer", "reader"].map(|name| LabeledAxis::new(name, model.head_labels()));
    Ok(matching(axes, values))
}
