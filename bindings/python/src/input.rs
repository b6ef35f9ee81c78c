//! Inputs of runs: texts, token ids, or a residual stream.

use hooklens::{Input, Tokens};
use pyo3::prelude::*;

use crate::array::Array;

/// Input of a run, as passed from Python.
#[derive(FromPyObject)]
pub(crate) enum Given {
    /// One text.
    Text(String),
    /// One text per row.
    Texts(Vec<String>),
    /// Rows of token ids of equal length.
    Rows(Vec<Vec<u32>>),
    /// A residual stream, `[batch, pos, d_model]`.
    Residual(Py<Array>),
}

impl Given {
    /// The input, with a mask for ids that contain padding.
    pub(crate) fn into_input(self, mask: Option<Vec<Vec<bool>>>) -> hooklens::Result<Input> {
        Ok(match self {
            Given::Text(text) => text.into(),
            Given::Texts(texts) => texts.into(),
            Given::Rows(rows) => tokens_of(rows, mask)?.into(),
            Given::Residual(array) => array.get().tensor::<3>()?.into(),
        })
    }
}

/// Rows of ids with their mask.
pub(crate) fn tokens_of(rows: Vec<Vec<u32>>, mask: Option<Vec<Vec<bool>>>) -> hooklens::Result<Tokens> {
    let tokens = Tokens::new(rows)?;
    Ok(match mask {
        Some(mask) => tokens.with_mask(mask)?,
        None => tokens,
    })
}
