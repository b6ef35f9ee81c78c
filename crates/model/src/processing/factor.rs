//! Refactors each head's products `W_Q W_Kᵀ` and `W_V W_O` into orthogonal factors and singular values, which makes the
//! basis of a head's coordinates unique.

use burn::module::Param;
use burn::tensor::{Tensor, TensorData};
use faer::Mat;

use super::Step;
use crate::config::{Layers, Positional, TransformerConfig};
use crate::error::{BoxError, ProcessingError};
use crate::model::{HookedTransformer, Linear};

const STEP: &str = "refactor_factored_attn_matrices";

/// Reason why the step would change this model's outputs, if it would.
pub(super) fn obstacle(c: &TransformerConfig) -> Option<&'static str> {
    match c.positional {
        // Value biases must be folded first.
        _ if Step::FoldValueBiases.obstacle(c).is_some() => Step::FoldValueBiases.obstacle(c),
        Positional::Rotary(_) => {
            Some("rotary embeddings act between queries and keys, so their product is not a single matrix")
        }
        Positional::Shortformer => Some("queries and keys read a different input than values"),
        _ if c.qk_norm.is_some() => Some("queries and keys are normalized"),
        _ if (0..c.n_layers()).any(|layer| c.n_kv_heads_of(layer) != c.n_heads) => Some("heads share keys and values"),
        _ => None,
    }
}

pub(super) fn apply(model: &mut HookedTransformer) -> Result<(), ProcessingError> {
    let heads = model.config.n_heads;
    // Fold the value biases into the output bias first, because `W_V` and `W_O` are refactored.
    super::fold_values::apply(model);
    for (layer, block) in model.weights.parts.blocks.iter_mut().enumerate() {
        let Some(attn) = block.attn_mut() else { continue };
        let lost = |source: BoxError| ProcessingError::Unreadable { step: STEP, layer, source };
        let read = || Ok((PerHead::with_bias(&attn.q, heads)?, PerHead::with_bias(&attn.k, heads)?));
        let (mut q, mut k) = read().map_err(lost)?;
        let read = || Ok((PerHead::columns(&attn.v, heads)?, PerHead::rows(&attn.o, heads)?));
        let (mut v, mut o) = read().map_err(lost)?;
        for head in 0..heads {
            let failed = |reason: String| ProcessingError::Numeric { step: STEP, layer, head, reason };
            let (left, right) = split(&q.0[head], &k.0[head], true).map_err(failed)?;
            (q.0[head], k.0[head]) = (left, right);
            let transposed = o.0[head].transpose().to_owned();
            let (left, right) = split(&v.0[head], &transposed, false).map_err(failed)?;
            (v.0[head], o.0[head]) = (left, right.transpose().to_owned());
        }
        q.write_with_bias(&mut attn.q);
        k.write_with_bias(&mut attn.k);
        v.write_columns(&mut attn.v);
        o.write_rows(&mut attn.o);
    }
    Ok(())
}

/// Factors of `left · rightᵀ` that are orthogonal up to the singular values. If `even`, both factors are multiplied by
/// the square roots of the singular values; otherwise, only the left factor is multiplied, by the singular values.
fn split(left: &Mat<f64>, right: &Mat<f64>, even: bool) -> Result<(Mat<f64>, Mat<f64>), String> {
    // `left = Q_l R_l`, `right = Q_r R_r`: only the small `R_l R_rᵀ` needs a decomposition.
    let (ql, qr) = (left.qr(), right.qr());
    let core = ql.thin_R() * qr.thin_R().transpose();
    let svd = core.svd().map_err(|e| format!("{e:?}"))?;
    let (mut u, mut v) = (ql.compute_thin_Q() * svd.U(), qr.compute_thin_Q() * svd.V());
    for (column, value) in svd.S().column_vector().iter().enumerate() {
        let (on_left, on_right) = if even { (value.sqrt(), value.sqrt()) } else { (*value, 1.0) };
        u.col_mut(column).iter_mut().for_each(|x| *x *= on_left);
        v.col_mut(column).iter_mut().for_each(|x| *x *= on_right);
    }
    // Heads that are wider than the model have fewer singular values than columns.
    let width = left.ncols();
    let padded =
        |part: Mat<f64>| Mat::from_fn(part.nrows(), width, |i, j| if j < part.ncols() { part[(i, j)] } else { 0.0 });
    Ok((padded(u), padded(v)))
}

/// One matrix per head.
struct PerHead(Vec<Mat<f64>>);

impl PerHead {
    /// Per-head matrices `[d_model + 1, d_head]`: the weight's columns, with the bias as the last row.
    fn with_bias(linear: &Linear, heads: usize) -> Result<Self, BoxError> {
        let (weight, [rows, columns]) = host(linear.weight.val())?;
        let bias = match &linear.bias {
            Some(bias) => host(bias.val().unsqueeze::<2>())?.0,
            None => vec![0.0; columns],
        };
        let width = columns / heads;
        Ok(Self(
            (0..heads)
                .map(|h| {
                    let at = |i: usize, j: usize| {
                        if i < rows { weight[i * columns + h * width + j] } else { bias[h * width + j] }
                    };
                    Mat::from_fn(rows + 1, width, at)
                })
                .collect(),
        ))
    }

    /// Per-head matrices `[d_model, d_head]`.
    fn columns(linear: &Linear, heads: usize) -> Result<Self, BoxError> {
        let (weight, [rows, columns]) = host(linear.weight.val())?;
        let width = columns / heads;
        let head = |h: usize| Mat::from_fn(rows, width, |i, j| weight[i * columns + h * width + j]);
        Ok(Self((0..heads).map(head).collect()))
    }

    /// Per-head matrices `[d_head, d_model]`.
    fn rows(linear: &Linear, heads: usize) -> Result<Self, BoxError> {
        let (weight, [rows, columns]) = host(linear.weight.val())?;
        let height = rows / heads;
        let head = |h: usize| Mat::from_fn(height, columns, |i, j| weight[(h * height + i) * columns + j]);
        Ok(Self((0..heads).map(head).collect()))
    }

    fn write_with_bias(&self, linear: &mut Linear) {
        let (rows, width) = (self.0[0].nrows() - 1, self.0[0].ncols());
        let at = |i: usize| self.0.iter().flat_map(move |m| (0..width).map(move |j| m[(i, j)]));
        let columns = width * self.0.len();
        write(&mut linear.weight, (0..rows).flat_map(at).collect(), [rows, columns]);
        let device = linear.weight.val().device();
        let bias = TensorData::new(at(rows).collect::<Vec<f64>>(), [columns]);
        linear.bias = Some(Param::from_tensor(Tensor::from_data(bias, (&device, linear.weight.val().dtype()))));
    }

    fn write_columns(&self, linear: &mut Linear) {
        let (rows, width) = (self.0[0].nrows(), self.0[0].ncols());
        let at = |i: usize| self.0.iter().flat_map(move |m| (0..width).map(move |j| m[(i, j)]));
        write(&mut linear.weight, (0..rows).flat_map(at).collect(), [rows, width * self.0.len()]);
    }

    fn write_rows(&self, linear: &mut Linear) {
        let (height, columns) = (self.0[0].nrows(), self.0[0].ncols());
        let all = self.0.iter().flat_map(|m| (0..height).flat_map(move |i| (0..columns).map(move |j| m[(i, j)])));
        write(&mut linear.weight, all.collect(), [height * self.0.len(), columns]);
    }
}

fn host(matrix: Tensor<2>) -> Result<(Vec<f64>, [usize; 2]), BoxError> {
    let dims = matrix.dims();
    let data = hooklens_hooks::read(matrix)?;
    Ok((data.iter::<f64>().collect(), dims))
}

fn write(param: &mut Param<Tensor<2>>, values: Vec<f64>, shape: [usize; 2]) {
    let old = param.val();
    let new = Tensor::from_data(TensorData::new(values, shape), (&old.device(), old.dtype()));
    *param = Param::from_tensor(new);
}
