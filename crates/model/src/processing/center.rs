//! Centering: removes means that layer norms and the softmax ignore.

use burn::tensor::DType;

use super::change_vector;
use super::matrix::{Matrix, change_matrix};
use crate::config::Positional;
use crate::model::{HookedTransformer, Linear, Mlp};

/// Centers every weight that writes to the residual stream; layer norms ignore the mean.
pub(super) fn writing_weights(model: &mut HookedTransformer) {
    // Shortformer's position embeddings never enter the residual stream.
    let positions_written = model.config.positional == Positional::Learned;
    let dtype = model.compute_type();
    let weights = &mut model.weights.parts;
    change_matrix(&mut weights.embed.tokens, dtype, Matrix::center_outputs);
    if let (true, Some(positions)) = (positions_written, &mut weights.embed.positions) {
        change_matrix(positions, dtype, Matrix::center_outputs);
    }
    for block in &mut weights.blocks {
        block.mixer_outputs_mut().for_each(|map| output(map, dtype));
        block.mlp.iter_mut().flat_map(Mlp::outputs_mut).for_each(|map| output(map, dtype));
    }
}

/// Centers the unembedding over the vocabulary; the softmax ignores a constant added to all logits.
pub(super) fn unembed(model: &mut HookedTransformer) {
    let dtype = model.compute_type();
    output(&mut model.weights.parts.unembed, dtype);
}

fn output(linear: &mut Linear, dtype: DType) {
    change_matrix(&mut linear.weight, dtype, Matrix::center_outputs);
    if let Some(bias) = &mut linear.bias {
        change_vector(bias, |b| b.clone() - b.mean());
    }
}
