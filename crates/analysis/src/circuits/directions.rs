//! Singular directions of weight matrices, projected onto the vocabulary (Millidge and Black 2022).

use crate::circuits::Circuits;
use burn::tensor::{Tensor, TensorData};

use super::decompositions::{host, numeric};
use hooklens_model::error::{InputError, Result};
use hooklens_model::model::{HookedTransformer, ModelParts};

/// A weight matrix that reads from or writes to the residual stream.
///
/// ```
/// use hooklens::circuits::WeightMatrix;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// for matrix in [WeightMatrix::Ov(2, 1), WeightMatrix::MlpIn(0), WeightMatrix::MlpOut(3)] {
///     assert_eq!(model.singular_directions(matrix, 3)?.vectors.dims(), [3, 64]);
/// }
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightMatrix {
    /// OV matrix of a head: layer, head.
    Ov(usize, usize),
    /// Input weights of a layer's MLP, including the norm's weight if it was not folded.
    MlpIn(usize),
    /// Output weights of a layer's MLP.
    MlpOut(usize),
}

/// Singular directions of a matrix in the residual stream, in descending order of singular values.
///
/// ```
/// use hooklens::circuits::WeightMatrix;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let strongest = model.singular_directions(WeightMatrix::MlpOut(3), 1)?;
/// // The token that the last MLP's strongest output direction promotes.
/// let token = strongest.logits.argmax(1).into_scalar::<i64>() as u32;
/// println!("{:.1} {}", strongest.values.into_scalar::<f32>(), model.to_string(&[token])?);
/// let length = strongest.vectors.square().sum().into_scalar::<f32>();
/// assert!((length - 1.0).abs() < 1e-4);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Directions {
    /// Singular values, `[direction]`.
    pub values: Tensor<1>,
    /// Unit vectors, `[direction, d_model]`.
    pub vectors: Tensor<2>,
    /// Logits of each direction, `[direction, d_vocab_out]`. The sign of a direction is arbitrary.
    pub logits: Tensor<2>,
}

/// Implements [`Circuits::singular_directions`](super::Circuits::singular_directions).
pub(super) fn singular_directions(model: &HookedTransformer, matrix: WeightMatrix, count: usize) -> Result<Directions> {
    let n_layers = model.config().n_layers();
    let block = |layer: usize| {
        let lacks = InputError::Layer { layer: layer as isize, n_layers };
        model.parts().blocks.get(layer).ok_or(lacks)
    };
    let mlp = |layer: usize| {
        let lacks = InputError::NoMlp { layer: layer as isize };
        block(layer)?.dense_mlp().ok_or(lacks)
    };
    let written = match matrix {
        WeightMatrix::Ov(layer, head) => {
            let (_, s, vh) = model.ov().at(layer, head)?.svd()?;
            return leading(model, s.squeeze_dim(0), vh, count);
        }
        WeightMatrix::MlpOut(layer) => mlp(layer)?.output.weight_in(model.dtype().burn()),
        WeightMatrix::MlpIn(layer) => {
            let read = mlp(layer)?.input.weight_in(model.dtype().burn()).transpose();
            match block(layer)?.ln2.as_ref().and_then(|norm| norm.w.as_ref()) {
                Some(w) => read * w.val().unsqueeze(),
                None => read,
            }
        }
    };
    let stack = host(&written)?;
    let svd = stack[0].thin_svd().map_err(|e| numeric("singular values", e))?;
    let values: Vec<f64> = svd.S().column_vector().iter().copied().collect();
    let (rank, d_model) = (values.len(), written.dims()[1]);
    let vectors: Vec<f64> =
        (0..rank).flat_map(|i| (0..d_model).map(move |j| (i, j))).map(|(i, j)| svd.V()[(j, i)]).collect();
    let (device, dtype) = (written.device(), written.dtype());
    let values = Tensor::from_data(TensorData::new(values, [rank]), (&device, dtype));
    let vectors = Tensor::from_data(TensorData::new(vectors, [rank, d_model]), (&device, dtype));
    leading(model, values, vectors, count)
}

fn leading(model: &HookedTransformer, values: Tensor<1>, vectors: Tensor<2>, count: usize) -> Result<Directions> {
    let [rank] = values.dims();
    if count == 0 || count > rank {
        let allowed = format!("1 to {rank}");
        return Err(InputError::Setting { name: "count", given: count.to_string(), allowed }.into());
    }
    let vectors = vectors.narrow(0, 0, count);
    let logits = vectors.clone().matmul(model.w_u());
    Ok(Directions { values: values.narrow(0, 0, count), vectors, logits })
}
