//! Concatenating documents into rows of equal length.

use super::HookedTransformer;
use crate::driver::HookedModel;
use crate::error::{InputError, Result};
use crate::tokens::{Texts, Tokens};

impl HookedTransformer {
    /// Tokenizes texts into rows of `len` tokens without padding, as in training. Texts are concatenated with an
    /// end-of-sequence token in between (a beginning-of-sequence token if the tokenizer has no end-of-sequence token),
    /// and split where a row is full. Every row starts with a beginning-of-sequence token if `prepend_bos` is true or,
    /// when `None`, if the model does so by default; if a text ends exactly where its row does, this token is the only
    /// separator. Leftover tokens at the end are dropped.
    ///
    /// Each text is tokenized as a whole, whereas TransformerLens 2.16 first splits the combined text into twenty
    /// chunks, possibly inside words.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let tokens = model.tokenize_and_concatenate(["red fox", "tea owl sun", "star"], 4, None)?;
    /// assert_eq!(model.to_string(tokens.row(0))?, "<bos> red fox <bos>");
    /// assert_eq!(model.to_string(tokens.row(1))?, "<bos> tea owl sun"); // `star` does not fill a row
    /// assert_eq!(tokens.shape(), [2, 4]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedTransformer::to_tokens`]; also fails if rows are too short to hold any token of the texts, or if
    /// the texts are too short to fill a row.
    pub fn tokenize_and_concatenate(
        &self,
        texts: impl Into<Texts>,
        len: usize,
        prepend_bos: Option<bool>,
    ) -> Result<Tokens> {
        let tokenizer = self.tokenizer()?;
        let documents = texts.into().0.iter().map(|text| Ok(tokenizer.encode(text)?)).collect::<Result<Vec<_>>>()?;
        Ok(Tokens::new(concatenated(self, &documents, len, prepend_bos)?.0)?)
    }
}

/// Like [`HookedTransformer::tokenize_and_concatenate`], for token ids. Also returns the number of leftover tokens.
pub fn concatenated(
    model: &HookedTransformer,
    documents: &[Vec<u32>],
    len: usize,
    prepend_bos: Option<bool>,
) -> Result<(Vec<Vec<u32>>, usize)> {
    if documents.iter().all(Vec::is_empty) {
        return Err(InputError::Empty { what: "the list of texts".into() }.into());
    }
    let (rows, left) = concatenated_part(model, documents, len, prepend_bos)?;
    if rows.is_empty() {
        let allowed = format!("at most {}, the length of all texts together", left + first_len(model, prepend_bos)?);
        return Err(InputError::Setting { name: "len", given: len.to_string(), allowed }.into());
    }
    Ok((rows, left))
}

/// Number of tokens that begin every row.
fn first_len(model: &HookedTransformer, prepend_bos: Option<bool>) -> Result<usize> {
    Ok(usize::from(model.first_token(prepend_bos)?.is_some()))
}

/// Like [`concatenated`], for a part of the documents, which may be too short for a row.
pub fn concatenated_part(
    model: &HookedTransformer,
    documents: &[Vec<u32>],
    len: usize,
    prepend_bos: Option<bool>,
) -> Result<(Vec<Vec<u32>>, usize)> {
    let tokenizer = model.tokenizer()?;
    let first = model.first_token(prepend_bos)?;
    let added = usize::from(first.is_some());
    if len <= added {
        let allowed = format!("{} or more", added + 1);
        return Err(InputError::Setting { name: "len", given: len.to_string(), allowed }.into());
    }
    let (bos, between) = (tokenizer.bos(), tokenizer.eos().or(tokenizer.bos()));
    let mut rows = Vec::new();
    let begun = || first.into_iter().collect::<Vec<u32>>();
    let mut row = begun();
    for (number, document) in documents.iter().filter(|document| !document.is_empty()).enumerate() {
        // This loop adds the separators, so skip a document's own BOS token and never repeat one at the start of a row.
        let own = &document[usize::from(document.first().copied() == bos)..];
        for id in between.filter(|_| number > 0).iter().chain(own) {
            if first == Some(*id) && row.len() == 1 {
                continue;
            }
            row.push(*id);
            if row.len() == len {
                rows.push(std::mem::replace(&mut row, begun()));
            }
        }
    }
    Ok((rows, row.len() - added))
}
