//! Inputs of a run: text, tokens, or a residual stream.

use burn::tensor::{Int, Tensor};

use crate::error::{InputError, Result};
use crate::tokens::{Texts, Tokens};

/// The input of a run: text, tokens, or a residual stream. Other types convert into it:
///
/// - `"text"`, `["one", "two"]`, `String`, `Vec<String>`, and similar types: tokenized by the model's tokenizer.
/// - [`Tokens`], `vec![vec![1, 2, 3]]`, `[1, 2, 3]`, `Tensor<2, Int>`: token ids.
/// - `Tensor<3>`: a residual stream `[batch, pos, d_model]`, with
///   [`ForwardOptions::start_at_layer`](crate::driver::ForwardOptions::start_at_layer).
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let ids = model.to_tokens("When Mary")?;
/// let by_text = model.forward("When Mary")?;
/// for input in [hooklens::Input::from(&ids), [0, 21, 1].into(), ids.to_tensor(&model.device()).into()] {
///     let gap = model.forward(input)? - by_text.clone();
///     assert_eq!(gap.abs().max().into_scalar::<f32>(), 0.0);
/// }
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Input {
    /// One text per row.
    Text(Vec<String>),
    /// Token ids with their attention mask.
    Tokens(Tokens),
    /// Rows of token ids of equal length.
    Rows(Vec<Vec<u32>>),
    /// Token ids on a device.
    Ids(Tensor<2, Int>),
    /// The residual stream before a layer.
    Residual(Tensor<3>),
}

impl Input {
    /// Converts the input to tokens, using `tokenize` for text. Fails for a residual stream.
    pub(crate) fn into_tokens(self, tokenize: impl FnOnce(Vec<String>) -> Result<Tokens>) -> Result<Tokens> {
        match self {
            Input::Text(texts) => tokenize(texts),
            Input::Tokens(tokens) => Ok(tokens),
            Input::Rows(rows) => Ok(Tokens::new(rows)?),
            Input::Ids(ids) => Ok(Tokens::try_from(ids)?),
            Input::Residual(_) => Err(InputError::NeedsTokens.into()),
        }
    }
}

impl From<Tokens> for Input {
    fn from(tokens: Tokens) -> Self {
        Input::Tokens(tokens)
    }
}

impl From<&Tokens> for Input {
    fn from(tokens: &Tokens) -> Self {
        Input::Tokens(tokens.clone())
    }
}

impl From<Vec<Vec<u32>>> for Input {
    fn from(rows: Vec<Vec<u32>>) -> Self {
        Input::Rows(rows)
    }
}

impl From<Vec<u32>> for Input {
    fn from(row: Vec<u32>) -> Self {
        Input::Rows(vec![row])
    }
}

impl From<&Vec<u32>> for Input {
    fn from(row: &Vec<u32>) -> Self {
        Input::Rows(vec![row.clone()])
    }
}

impl From<&Vec<Vec<u32>>> for Input {
    fn from(rows: &Vec<Vec<u32>>) -> Self {
        Input::Rows(rows.clone())
    }
}

impl From<&[u32]> for Input {
    fn from(row: &[u32]) -> Self {
        Input::Rows(vec![row.to_vec()])
    }
}

impl<const N: usize> From<[u32; N]> for Input {
    fn from(row: [u32; N]) -> Self {
        Input::Rows(vec![row.to_vec()])
    }
}

impl From<Tensor<2, Int>> for Input {
    fn from(ids: Tensor<2, Int>) -> Self {
        Input::Ids(ids)
    }
}

impl From<&Tensor<2, Int>> for Input {
    fn from(ids: &Tensor<2, Int>) -> Self {
        Input::Ids(ids.clone())
    }
}

impl From<Tensor<3>> for Input {
    fn from(residual: Tensor<3>) -> Self {
        Input::Residual(residual)
    }
}

impl From<&Tensor<3>> for Input {
    fn from(residual: &Tensor<3>) -> Self {
        Input::Residual(residual.clone())
    }
}

macro_rules! input_from_texts {
    ($($given:ty;)*) => { $(
        impl From<$given> for Input {
            fn from(text: $given) -> Self {
                Input::Text(Texts::from(text).0)
            }
        }
    )* };
}

input_from_texts! {
    &str;
    &&str;
    &String;
    String;
    Vec<String>;
    &Vec<String>;
    &[String];
    &[&str];
    Vec<&str>;
    &Vec<&str>;
}

impl<const N: usize> From<[&str; N]> for Input {
    fn from(texts: [&str; N]) -> Self {
        texts.as_slice().into()
    }
}

impl From<&[Vec<u32>]> for Input {
    fn from(rows: &[Vec<u32>]) -> Self {
        Input::Rows(rows.to_vec())
    }
}

impl<const N: usize> From<&[Vec<u32>; N]> for Input {
    fn from(rows: &[Vec<u32>; N]) -> Self {
        Input::Rows(rows.to_vec())
    }
}
