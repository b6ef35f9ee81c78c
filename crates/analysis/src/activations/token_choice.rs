//! [`TokenChoice`]: the tokens whose logits are attributed.

use burn::tensor::{Int, Tensor, TensorData};

use crate::error::AnalysisError;
use hooklens_model::error::{InputError, Result};
use hooklens_model::model::{DecoderChecks, HookedTransformer, ModelParts, narrowed};

/// One token for all rows and positions, one per row, or one per row and position.
///
/// ```
/// use hooklens_analysis::activations::TokenChoice;
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

/// Implements [`Analyze::tokens_to_residual_directions`](super::Analyze::tokens_to_residual_directions).
pub(super) fn residual_directions(model: &HookedTransformer, tokens: TokenChoice) -> Result<Tensor<3>> {
    let rows = match tokens {
        TokenChoice::Text(text) => vec![vec![model.to_single_token(&text)?]],
        TokenChoice::Texts(texts) => {
            texts.iter().map(|text| Ok(vec![model.to_single_token(text)?])).collect::<Result<_>>()?
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
    model.check_head()?;
    let d_vocab = model.config().d_vocab_out();
    let (batch, ids) = (rows.len(), rows.concat());
    if let Some(at) = ids.iter().position(|id| *id as usize >= d_vocab) {
        let token = i64::from(ids[at]);
        return Err(InputError::Token { token, row: at / pos, position: at % pos, d_vocab }.into());
    }
    let unembed = model.parts().unembed.matrix();
    let ids: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
    let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [batch * pos]), &unembed.device());
    let d_model = unembed.dims()[0];
    Ok(narrowed(unembed.select(1, ids), model.dtype().burn()).transpose().reshape([batch, pos, d_model]))
}
