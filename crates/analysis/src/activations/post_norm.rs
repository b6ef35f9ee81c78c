//! Output norms (as in Gemma 2), applied to parts of an output with the recorded scale.

use burn::tensor::Tensor;
use hooklens_hooks::Point;

use super::analysis::Analysis;
use hooklens_model::error::Result;
use hooklens_model::model::Norm;

/// The norm layer between a layer's output and the stream, if there is one. With a frozen scale, it is linear, so it
/// can be folded into the factors of each part.
pub(super) struct PostNorm<'m> {
    norm: Option<(&'m Norm, Tensor<3>)>,
}

impl<'m> Analysis<'m> {
    pub(super) fn post_norm(&self, norm: Option<&'m Norm>, scale: Point<3>) -> Result<PostNorm<'m>> {
        let norm = match norm.filter(|norm| norm.is_norm()) {
            Some(norm) => Some((norm, self.recorded(scale)?)),
            None => None,
        };
        Ok(PostNorm { norm })
    }
}

impl PostNorm<'_> {
    /// Applies the norm layer, without the scale, to output vectors `[n, d_model]`.
    pub(super) fn outputs(&self, mut out: Tensor<2>) -> Tensor<2> {
        let Some((norm, _)) = &self.norm else { return out };
        if norm.centers() {
            out = out.clone() - out.mean_dim(1);
        }
        match &norm.w {
            Some(w) => out * w.val().unsqueeze(),
            None => out,
        }
    }

    /// Divides the coefficients of the output vectors, `[batch, pos, n]`, by the norm's scale.
    pub(super) fn factors(&self, factors: Tensor<3>) -> Tensor<3> {
        match &self.norm {
            Some((_, scale)) => factors / scale.clone(),
            None => factors,
        }
    }

    /// The layer's bias after the norm, `[batch or 1, pos or 1, d_model]`, including the norm's own bias.
    pub(super) fn bias(&self, bias: Option<Tensor<3>>) -> Option<Tensor<3>> {
        let Some((norm, scale)) = &self.norm else { return bias };
        let turned = bias.map(|bias| {
            let [rows, places, d_model] = bias.dims();
            let flat = self.outputs(bias.reshape([rows * places, d_model]));
            flat.reshape([rows, places, d_model]) / scale.clone()
        });
        plus(turned, norm.b.as_ref().map(|b| b.val().unsqueeze()))
    }
}

/// The sum of the given tensors, or `None` if both are `None`.
pub(super) fn plus(one: Option<Tensor<3>>, other: Option<Tensor<3>>) -> Option<Tensor<3>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one + other),
        (one, other) => one.or(other),
    }
}
