//! Conversion of texts to tokens and back.

use hooklens::{HookedModel, PaddingSide, TokenizeOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::raise;
use crate::model::Model;

/// Rows of ids, and their mask if any id is padding.
type Batch = (Vec<Vec<u32>>, Option<Vec<Vec<bool>>>);

#[pymethods]
impl Model {
    /// Token ids of texts, one row per text, with the mask of the padding.
    #[pyo3(signature = (texts, *, prepend_bos=None, padding_side=None, truncate=None))]
    fn to_tokens(
        &self,
        py: Python<'_>,
        texts: Vec<String>,
        prepend_bos: Option<bool>,
        padding_side: Option<&str>,
        truncate: Option<usize>,
    ) -> PyResult<Batch> {
        let side = padding_side.map(str::parse::<PaddingSide>).transpose().map_err(PyValueError::new_err)?;
        let options = TokenizeOptions { prepend_bos, padding_side: side.unwrap_or_default(), truncate };
        let tokens = self.shared().to_tokens_with(texts, options).map_err(|error| raise(py, error))?;
        let [batch, len] = tokens.shape();
        let rows = (0..batch).map(|row| tokens.row(row).to_vec()).collect();
        let mask = tokens.mask().map(|mask| mask.chunks(len).map(<[bool]>::to_vec).collect());
        Ok((rows, mask))
    }

    /// Text of token ids.
    fn to_string(&self, py: Python<'_>, ids: Vec<u32>) -> PyResult<String> {
        self.shared().to_string(&ids).map_err(|error| raise(py, error))
    }

    /// The id of a text that is a single token.
    fn to_single_token(&self, py: Python<'_>, text: &str) -> PyResult<u32> {
        self.shared().to_single_token(text).map_err(|error| raise(py, error))
    }

    /// Ids of the beginning-of-sequence, end-of-sequence and padding tokens.
    fn special_tokens(&self) -> (Option<u32>, Option<u32>, Option<u32>) {
        match self.shared().tokenizer() {
            Ok(tokenizer) => (tokenizer.bos(), tokenizer.eos(), Some(tokenizer.pad())),
            Err(_) => (self.shared().bos_token(), self.shared().eos_tokens().first().copied(), None),
        }
    }

    /// Whether the model has a tokenizer.
    #[getter]
    fn has_tokenizer(&self) -> bool {
        self.shared().tokenizer().is_ok()
    }
}
