//! [`Direction`]: logits and logit differences as directions in the residual stream.

use burn::tensor::Tensor;

use super::token_choice::{TokenChoice, residual_directions};
use hooklens_model::error::Result;
use hooklens_model::model::HookedTransformer;

/// A direction in the residual stream onto which the stream is projected to get a token's logit, or a difference of
/// logits.
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let cache = model.record("When Mary and John went to the store, John gave a drink to", Record::all())?;
/// let analysis = model.analyze(&cache)?.positions(-1)?;
/// let layers = analysis.decompose_resid(Stage::Final)?;
/// let mary = analysis.logit_attrs(&layers, "Mary")?; // a single token
/// let john = analysis.logit_attrs(&layers, "John")?;
/// let both = analysis.logit_attrs(&layers, Direction::token("Mary").minus("John"))?;
/// assert!((mary - john - both).abs().max().into_scalar::<f32>() < 1e-4);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Direction {
    token: TokenChoice,
    minus: Vec<TokenChoice>,
}

impl Direction {
    /// The logit of a token, given as text or id. Also accepts one token per row, or one per row and position.
    pub fn token(token: impl Into<TokenChoice>) -> Self {
        Self { token: token.into(), minus: Vec::new() }
    }

    /// Subtracts the logit of a second token.
    #[must_use]
    pub fn minus(mut self, wrong: impl Into<TokenChoice>) -> Self {
        self.minus.push(wrong.into());
        self
    }

    /// The direction as a vector, `[batch or 1, pos or 1, d_model]`.
    pub(super) fn vector(self, model: &HookedTransformer) -> Result<Tensor<3>> {
        let token = residual_directions(model, self.token)?;
        self.minus.into_iter().try_fold(token, |sum, wrong| Ok(sum - residual_directions(model, wrong)?))
    }
}

impl<T: Into<TokenChoice>> From<T> for Direction {
    fn from(token: T) -> Self {
        Direction::token(token)
    }
}
