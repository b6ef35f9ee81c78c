//! Token and position embeddings.

use burn::tensor::{DType, Int, Tensor, TensorData};
use hooklens_hooks::upload;

use super::norm::narrowed;
use super::sequence::{Sequence, position_ids};
use crate::tokens::Tokens;

/// Token embeddings, `[batch, pos, d_model]`.
///
/// # Shapes
/// - table: `[d_vocab, d_model]`
pub(crate) fn token_vectors(table: Tensor<2>, tokens: &Tokens, dtype: DType) -> Tensor<3> {
    let ([batch, len], d_model) = (tokens.shape(), table.dims()[1]);
    narrowed(rows_of(table, tokens.ids()), dtype).reshape([batch, len, d_model])
}

/// Looks up rows of a table by id, `[id, d_model]`.
pub(crate) fn rows_of(table: Tensor<2>, ids: &[u32]) -> Tensor<2> {
    let ids: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
    let ids = upload::<1, Int>(TensorData::new(ids.clone(), [ids.len()]), &table.device());
    table.select(0, ids)
}

/// Position embeddings, zero at padding, `[batch or 1, pos, d_model]`.
///
/// # Shapes
/// - table: `[n_ctx, d_model]`
pub(crate) fn position_vectors(table: Tensor<2>, sequence: &Sequence, dtype: DType) -> Tensor<3> {
    let (rows, len, d_model) = (sequence.position_rows(), sequence.len, table.dims()[1]);
    let vectors = if sequence.is_plain() {
        table.narrow(0, sequence.past, len)
    } else {
        let ids = position_ids(sequence, &table.device());
        table.select(0, ids)
    }
    .reshape([rows, len, d_model]);
    let vectors = narrowed(vectors, dtype);
    match sequence.real_as_float(&vectors.device()) {
        Some(real) => vectors * narrowed(real, dtype),
        None => vectors,
    }
}
