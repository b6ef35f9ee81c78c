//! Documents concatenated into rows of one length.

use super::HookedTransformer;
use crate::driver::HookedModel;
use crate::error::{InputError, Result};
use crate::tokens::{Texts, Tokens};

impl HookedTransformer {
    /// Texts as rows of `len` tokens without padding, as models are trained on: texts concatenated with an
    /// end-of-sequence token between two (a beginning-of-sequence token if the tokenizer has no other), cut where a row
    /// is full. Every row gets a beginning-of-sequence token of its own if `prepend_bos` or, unless said, the model's
    /// habit says so; where a text ends with the row before, that one separates them. What is left at the end fills no
    /// row and is dropped.
    ///
    /// Each text is tokenized whole, where TransformerLens 2.16 cuts all text into twenty pieces first, in the middle of
    /// words.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let tokens = model.tokenize_and_concatenate(["red fox", "tea owl sun", "star"], 4, None)?;
    /// assert_eq!(model.to_string(tokens.row(0))?, "<bos> red fox <bos>");
    /// assert_eq!(model.to_string(tokens.row(1))?, "<bos> tea owl sun"); // `star` fills no row
    /// assert_eq!(tokens.shape(), [2, 4]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedTransformer::to_tokens`]; also rows too short for a token of the texts, and texts too short for a row.
    pub fn tokenize_and_concatenate(
        &self,
        texts: impl Into<Texts>,
        len: usize,
        prepend_bos: Option<bool>,
    ) -> Result<Tokens> {
        let tokenizer = self.tokenizer()?;
        let documents = texts.into().0.iter().map(|text| Ok(tokenizer.encode(text)?)).collect::<Result<Vec<_>>>()?;
        Ok(Tokens::new(self.concatenated(&documents, len, prepend_bos)?.0)?)
    }

    /// [`HookedTransformer::tokenize_and_concatenate`] of ids; also how many are left over.
    pub fn concatenated(
        &self,
        documents: &[Vec<u32>],
        len: usize,
        prepend_bos: Option<bool>,
    ) -> Result<(Vec<Vec<u32>>, usize)> {
        if documents.iter().all(Vec::is_empty) {
            return Err(InputError::Empty { what: "the list of texts".into() }.into());
        }
        let tokenizer = self.tokenizer()?;
        let first = self.first_token(prepend_bos)?;
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
            // What separates documents is ours, and no token that begins a sequence is doubled.
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
        if rows.is_empty() {
            let allowed = format!("{} at most: all texts together", row.len());
            return Err(InputError::Setting { name: "len", given: len.to_string(), allowed }.into());
        }
        Ok((rows, row.len() - added))
    }
}
