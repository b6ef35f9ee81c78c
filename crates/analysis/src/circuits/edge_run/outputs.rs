//! What each head writes to the residual stream.

use burn::tensor::Tensor;

use hooklens_model::error::Result;
use hooklens_model::model::{Block, HookedTransformer, ModelParts, narrowed, widened};

/// The output of each head, `[head, row, pos * d_model]`, computed from `z`, `[row, pos, head, d_head]`. If the layer
/// has an output norm, `scale` is the scale of this norm, `[row, pos, 1]`.
///
/// With an output norm, the bias of the output projection is divided among the heads, because the norm scales the bias
/// by a factor that depends on all heads.
pub(super) fn head_outputs(
    model: &HookedTransformer,
    layer: usize,
    z: Tensor<4>,
    scale: Option<Tensor<3>>,
) -> Result<Tensor<3>> {
    let block: &Block = &model.parts().blocks[layer];
    let [rows, pos, heads, d_head] = z.dims();
    let dtype = z.dtype();
    let Some((_, projection)) = block.mixer_outputs().next() else {
        let what = "heads without an output projection";
        return Err(hooklens_model::error::InputError::NotDefined { what: "a circuit", with: what }.into());
    };
    let weight = projection.weight_in(dtype);
    let [_, d_model] = weight.dims();
    let z = z.permute([2, 0, 1, 3]).reshape([heads, rows * pos, d_head]);
    let mut out = z.matmul(weight.reshape([heads, d_head, d_model]));
    if let (Some(norm), Some(scale)) = (block.ln1_post.as_ref().filter(|norm| norm.is_norm()), scale) {
        out = widened(out);
        if let Some(bias) = &projection.bias {
            out = out + widened(bias.val()).unsqueeze::<3>() / heads as f64;
        }
        if norm.centers() {
            out = out.clone() - out.mean_dim(2);
        }
        if let Some(w) = &norm.w {
            out = out * widened(w.val()).unsqueeze::<3>();
        }
        out = narrowed(out / widened(scale).reshape([1, rows * pos, 1]), dtype);
    }
    Ok(out.reshape([heads, rows, pos * d_model]))
}
