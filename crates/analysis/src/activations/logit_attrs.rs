//! Direct logit attribution: the contribution of each component to a token's logit.

use burn::tensor::Tensor;

use super::analysis::Analysis;
use super::components::Components;
use super::direction::Direction;
use hooklens_model::error::Result;
use hooklens_model::model::ModelParts;

impl Analysis<'_> {
    /// The contribution of each component to the logit of a token, or to a logit difference ([`Direction`]),
    /// `[component, batch, pos]`, with the final norm's scale frozen at the recorded value. If no norm has been applied
    /// to the components yet, the final norm is applied first.
    ///
    /// If the components sum to the final stream, the contributions and [`Analysis::logit_bias`] sum to the logit
    /// before any soft cap.
    ///
    /// ```
    /// use hooklens::activations::Stage;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let prompt = "When Mary and John went to the store, John gave a drink to";
    /// let (logits, cache) = model.run_with_cache(prompt, Record::all())?;
    /// let analysis = model.analyze(&cache)?.positions(-1)?;
    /// let parts = analysis.decompose_resid(Stage::Final)?;
    /// let shares = analysis.logit_attrs(&parts, Direction::token("Mary").minus("John"))?; // [component, 1, 1]
    /// // The contributions sum to the difference of the two logits without their biases.
    /// let bias = analysis.logit_bias().unwrap_or_else(|| Tensor::zeros([61], &model.device()));
    /// let logits = logits.narrow(1, 14, 1).reshape([61]) - bias;
    /// let [mary, john] = [1, 2].map(|id| logits.clone().narrow(0, id, 1));
    /// assert!((shares.sum() - (mary - john)).abs().into_scalar::<f32>() < 1e-2);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Analysis::apply_ln`] and `tokens_to_residual_directions`;
    /// [`AnalysisError::Shape`](super::AnalysisError::Shape) if the tokens do not match the batch or the positions.
    pub fn logit_attrs(&self, components: &Components, direction: impl Into<Direction>) -> Result<Tensor<3>> {
        self.check_made_of(components)?;
        let direction = direction.into().vector(self.model)?;
        let normed = match components.is_normed() {
            true => components.clone(),
            false => self.apply_ln(components.clone().read_at_the_end(self.model.config().n_layers()))?,
        };
        Ok(normed.project(&direction)?)
    }

    /// The part of the logits that belongs to no component: the contributions of the final norm's bias and the
    /// unembedding bias, `[d_vocab_out]`. `None` if the model has neither.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", Record::all())?;
    /// let bias = model.analyze(&cache)?.logit_bias();
    /// assert_eq!(bias.map(|bias| bias.dims()), Some([61]));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn logit_bias(&self) -> Option<Tensor<1>> {
        if self.model.config().d_vocab_out() == 0 {
            return None;
        }
        let unembed = &self.model.parts().unembed;
        let of_norm = self.model.parts().ln_final.b.as_ref();
        let turned =
            of_norm.map(|b| b.val().unsqueeze::<2>().matmul(unembed.weight_in(b.val().dtype())).squeeze_dim::<1>(0));
        match (turned, unembed.bias.as_ref().map(|bias| bias.val())) {
            (Some(turned), Some(bias)) => Some(turned + bias),
            (turned, bias) => turned.or(bias),
        }
    }
}
