//! QK and OV circuits, bias sums, composition scores and singular directions as methods of a model.

use burn::tensor::Tensor;

use super::composition::{Composition, composition_scores};
#[cfg(feature = "decompositions")]
use super::directions::{Directions, WeightMatrix, singular_directions};
use super::factored_matrix::FactoredMatrix;
use crate::activations::Stage;
use crate::labeled::LabeledArray;
use hooklens_model::config::Settings;
use hooklens_model::driver::HookedModel;
use hooklens_model::error::{InputError, Result};
use hooklens_model::model::{DecoderChecks, HeadWeight, HookedTransformer, ModelParts, head_weights};

/// Which biases [`Circuits::accumulated_bias`] sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Biases {
    /// Biases of attention and MLPs.
    All,
    /// Biases of attention only.
    Attention,
}

/// Circuits in the weights of a model: QK and OV matrices, composition scores and singular directions. Part of the
/// prelude.
pub trait Circuits {
    /// The QK circuit of each head: `W_Q W_Kᵀ`, `[layer, head, d_model, d_model]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// // Attention scores of head 1 of layer 0 between all pairs of tokens, without positions.
    /// let scores = model.qk().at(0, 1)?.after_matrix(model.w_e())?.times_matrix(model.w_e().transpose())?;
    /// assert_eq!(scores.dims(), [61, 61]); // [query, key]
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    fn qk(&self) -> FactoredMatrix<4>;

    /// The OV circuit of each head: `W_V W_O`, `[layer, head, d_model, d_model]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let (w_v, w_o): (Tensor<4>, Tensor<4>) = (model.stacked("W_V")?, model.stacked("W_O")?);
    /// let gap = model.ov().ab() - w_v.matmul(w_o);
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-5);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    fn ov(&self) -> FactoredMatrix<4>;

    /// The sum of all biases added to the residual stream before a stage, `[d_model]`, with or without the MLPs'
    /// biases.
    ///
    /// ```
    /// use hooklens::circuits::Biases;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", Record::all())?;
    /// let parts = model.analyze(&cache)?.full_resid_decomposition(Stage::Final, Neurons::Apart)?;
    /// let bias = parts.vector("bias")?.narrow(1, 0, 1).reshape([64]);
    /// assert!((model.accumulated_bias(Stage::Final, Biases::All)? - bias).abs().max().into_scalar::<f32>() < 1e-5);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the model has no such layer, and for models that normalize the outputs of attention and MLPs, where the
    /// contribution of a bias depends on the activations.
    fn accumulated_bias(&self, stage: Stage, biases: Biases) -> Result<Tensor<1>>;

    /// Composition scores (Elhage et al. 2021): `‖OV · R‖ / (‖OV‖ ‖R‖)` for every earlier head's OV and every later
    /// head's R, which is QK, its transpose, or OV. Shape `[writer, reader]`, both labeled `L0H0`, ...; zero unless the
    /// reader is in a later layer.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let scores = model.composition_scores(hooklens::circuits::Composition::K)?;
    /// assert_eq!(scores.axes()[0].labels[4], "L1H0");
    /// assert_eq!(scores.values()[[4, 0]], 0.0); // a later head's output is not read by an earlier one
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the weights cannot be read from their device;
    /// [`InputError::NoAttention`](hooklens_model::error::InputError::NoAttention) if a layer has no attention.
    fn composition_scores(&self, composition: Composition) -> Result<LabeledArray>;

    /// The `count` singular directions of a matrix with the largest singular values (Millidge and Black 2022).
    ///
    /// ```
    /// use hooklens::circuits::WeightMatrix;
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let directions = model.singular_directions(WeightMatrix::Ov(3, 0), 4)?;
    /// assert_eq!(directions.logits.dims(), [4, model.config().d_vocab_out()]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the model has no such layer, head or MLP, or if `count` is 0 or exceeds the rank.
    #[cfg(feature = "decompositions")]
    fn singular_directions(&self, matrix: WeightMatrix, count: usize) -> Result<Directions>;
}

impl Circuits for HookedTransformer {
    fn qk(&self) -> FactoredMatrix<4> {
        FactoredMatrix { a: head_weights(self, HeadWeight::Q), b: head_weights(self, HeadWeight::K).swap_dims(2, 3) }
    }

    fn ov(&self) -> FactoredMatrix<4> {
        FactoredMatrix { a: head_weights(self, HeadWeight::V), b: head_weights(self, HeadWeight::O) }
    }

    fn accumulated_bias(&self, stage: Stage, biases: Biases) -> Result<Tensor<1>> {
        self.check_sums("the accumulated bias")?;
        self.check_plain_writes("the accumulated bias")?;
        if self.config().post_norms() {
            // Where outputs are normalized, the contribution of a bias depends on the activations.
            return Err(InputError::PostNorms { what: "the accumulated bias" }.into());
        }
        let (attn_layers, mlp_layers) = stage.layers_before(self.config())?;
        let (device, dtype) = (self.device(), self.dtype().burn());
        let mut sum = Tensor::zeros([self.config().d_model()], (&device, dtype));
        for (layer, block) in self.parts().blocks.iter().enumerate() {
            if layer < attn_layers
                && let Some(bias) = block.mixer_bias(dtype)
            {
                sum = sum + bias.to_device(&device);
            }
            if let Some(mlp) = block.dense_mlp().filter(|_| biases == Biases::All && layer < mlp_layers) {
                sum = sum + mlp.output.bias_or_zeros(dtype).to_device(&device);
            }
            // A shared expert without a gate adds its whole bias at every token.
            let shared = block.moe().and_then(|moe| moe.shared.as_ref()).filter(|own| own.share.is_none());
            if let Some(shared) = shared.filter(|_| biases == Biases::All && layer < mlp_layers) {
                sum = sum + shared.output.bias_or_zeros(dtype).to_device(&device);
            }
        }
        Ok(sum)
    }

    fn composition_scores(&self, composition: Composition) -> Result<LabeledArray> {
        composition_scores(self, composition)
    }

    #[cfg(feature = "decompositions")]
    fn singular_directions(&self, matrix: WeightMatrix, count: usize) -> Result<Directions> {
        singular_directions(self, matrix, count)
    }
}
