//! [`TokenChoice`]: the tokens whose logits are attributed.

use burn::tensor::{Int, Tensor, TensorData};

use crate::error::AnalysisError;
use hooklens_model::error::{InputError, Result};
use hooklens_model::model::{DecoderChecks, HookedTransformer, ModelParts, narrowed};

/// One token for all places, one per row, or one per row and position.
///
/// ```
/// use hooklens::activations::TokenChoice;
/// assert_eq!(TokenChoice::from("Mary"), TokenChoice::Text("Mary".into())); // one token everywhere
/// assert_eq!(TokenChoice::from(["Mary", "Tom"]), TokenChoice::Texts(vec!["Mary".into(), "Tom".into()]));
/// assert_eq!(TokenChoice::from(vec![1, 3]), TokenChoice::Rows(vec![1, 3])); // one per row
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenChoice {
    /// A text that is a single token, used everywhere.
    Text(String),
    /// One text per row, each a single token.
    Texts(Vec<String>),
    /// One token id, used everywhere.
    Id(u32),
    /// One token id per row.
    Rows(Vec<u32>),
    /// One token id per row and position.
    Places(Vec<Vec<u32>>),
}

impl From<&str> for TokenChoice {
    fn from(text: &str) -> Self {
        TokenChoice::Text(text.into())
    }
}

impl From<&String> for TokenChoice {
    fn from(text: &String) -> Self {
        TokenChoice::Text(text.clone())
    }
}

impl From<&[&str]> for TokenChoice {
    fn from(texts: &[&str]) -> Self {
        TokenChoice::Texts(texts.iter().map(|text| text.to_string()).collect())
    }
}

impl<const N: usize> From<[&str; N]> for TokenChoice {
    fn from(texts: [&str; N]) -> Self {
        texts.as_slice().into()
    }
}

impl From<Vec<&str>> for TokenChoice {
    fn from(texts: Vec<&str>) -> Self {
        texts.as_slice().into()
    }
}

impl From<Vec<String>> for TokenChoice {
    fn from(texts: Vec<String>) -> Self {
        TokenChoice::Texts(texts)
    }
}

impl From<u32> for TokenChoice {
    fn from(id: u32) -> Self {
        TokenChoice::Id(id)
    }
}

impl From<Vec<u32>> for TokenChoice {
    fn from(rows: Vec<u32>) -> Self {
        TokenChoice::Rows(rows)
    }
}

impl From<&[u32]> for TokenChoice {
    fn from(rows: &[u32]) -> Self {
        TokenChoice::Rows(rows.to_vec())
    }
}

impl From<Vec<Vec<u32>>> for TokenChoice {
    fn from(places: Vec<Vec<u32>>) -> Self {
        TokenChoice::Places(places)
    }
}

/// Directions of the residual stream that raise the logits of tokens. In the prelude.
pub trait ResidualDirections {
    /// The residual stream direction of a token's logit: the token's column of the unembedding,
    /// `[batch or 1, pos or 1, d_model]`. Does not include the final norm.
    ///
    /// # Errors
    /// Fails for text that is not a single token, for an id that has no logit, and with [`AnalysisError::Shape`] for
    /// rows of unequal length.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// assert_eq!(model.tokens_to_residual_directions("Mary")?.dims(), [1, 1, 64]);
    /// assert_eq!(model.tokens_to_residual_directions(vec![3, 4])?.dims(), [2, 1, 64]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    fn tokens_to_residual_directions(&self, tokens: impl Into<TokenChoice>) -> Result<Tensor<3>>;
}

impl ResidualDirections for HookedTransformer {
    fn tokens_to_residual_directions(&self, tokens: impl Into<TokenChoice>) -> Result<Tensor<3>> {
        let rows = match tokens.into() {
            TokenChoice::Text(text) => vec![vec![self.to_single_token(&text)?]],
            TokenChoice::Texts(texts) => {
                texts.iter().map(|text| Ok(vec![self.to_single_token(text)?])).collect::<Result<_>>()?
            }
            TokenChoice::Id(id) => vec![vec![id]],
            TokenChoice::Rows(rows) => rows.into_iter().map(|id| vec![id]).collect(),
            TokenChoice::Places(places) => places,
        };
        let pos = rows.first().map_or(0, Vec::len);
        if pos == 0 || rows.iter().any(|row| row.len() != pos) {
            let given = rows.iter().map(Vec::len).collect();
            let expected = "equal lengths of at least one token".into();
            return Err(AnalysisError::Shape { what: "the list of row lengths".into(), given, expected }.into());
        }
        self.check_head()?;
        let d_vocab = self.config().d_vocab_out;
        let (batch, ids) = (rows.len(), rows.concat());
        if let Some(at) = ids.iter().position(|id| *id as usize >= d_vocab) {
            let token = i64::from(ids[at]);
            return Err(InputError::Token { token, row: at / pos, position: at % pos, d_vocab }.into());
        }
        let unembed = self.parts().unembed.matrix();
        let ids: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
        let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [batch * pos]), &unembed.device());
        let d_model = unembed.dims()[0];
        Ok(narrowed(unembed.select(1, ids), self.dtype().burn()).transpose().reshape([batch, pos, d_model]))
    }
}
