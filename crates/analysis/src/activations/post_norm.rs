//! Output norms (Gemma 2) applied to the parts of an output, with the scale frozen at that of the run.

use burn::tensor::Tensor;
use hooklens_hooks::Point;

use super::analysis::Analysis;
use hooklens_model::error::Result;
use hooklens_model::model::Norm;

/// A norm between a layer's output and the stream, or none. Its scale given it is linear, so it
/// can be moved into the factors of each part.
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
    /// Output vectors `[n, d_model]`, but for the scale.
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

    /// What the output vectors are multiplied by, `[batch, pos, n]`, with the scale.
    pub(super) fn factors(&self, factors: Tensor<3>) -> Tensor<3> {
        match &self.norm {
            Some((_, scale)) => factors / scale.clone(),
            None => factors,
        }
    }

    /// The layer's bias after the norm, `[batch or 1, pos or 1, d_model]`, the norm's own bias added.
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

/// The sum of what there is.
pub(super) fn plus(one: Option<Tensor<3>>, other: Option<Tensor<3>>) -> Option<Tensor<3>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one + other),
        (one, other) => one.or(other),
    }
}
