//! From texts to an encoder's tokens.

use super::HookedEncoder;
use super::input::{EncoderInput, Source};
use crate::error::{InputError, Result};
use crate::tokens::{PaddingSide, Tokens};

/// Tokens and the type of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncoderTokens {
    /// Token ids with their mask.
    pub tokens: Tokens,
    /// The type of each token, row by row; for a text alone 0.
    pub types: Vec<u32>,
}

impl HookedEncoder {
    /// Tokens of an input, checked: special tokens as the tokenizer adds them, padding at the right.
    ///
    /// # Errors
    /// No tokenizer, nothing to run on, a token outside the vocabulary, a type the model lacks, a text longer
    /// than the model's context.
    pub fn to_tokens(&self, input: impl Into<EncoderInput>) -> Result<EncoderTokens> {
        let EncoderInput { source, token_types } = input.into();
        let mut made = match source {
            Source::Texts(texts) => self.tokenized(texts.iter().map(|text| (text.as_str(), None)))?,
            Source::Pairs(pairs) => self.tokenized(pairs.iter().map(|(a, b)| (a.as_str(), Some(b.as_str()))))?,
            Source::Tokens(tokens) => EncoderTokens { types: vec![0; tokens.ids().len()], tokens },
            Source::Rows(rows) => {
                let tokens = Tokens::new(rows)?;
                EncoderTokens { types: vec![0; tokens.ids().len()], tokens }
            }
        };
        let shape @ [batch, len] = made.tokens.shape();
        if let Some(rows) = token_types {
            if rows.len() != batch || rows.iter().any(|row| row.len() != len) {
                let given = [rows.len(), rows.iter().map(Vec::len).max().unwrap_or(0)];
                return Err(InputError::MaskShape { given, expected: shape }.into());
            }
            made.types = rows.concat();
        }
        self.check(&made)?;
        Ok(made)
    }

    fn check(&self, EncoderTokens { tokens, types }: &EncoderTokens) -> Result<()> {
        tokens.check(self.config.d_vocab)?;
        let count = self.config.token_types.max(1);
        if let Some(kind) = types.iter().find(|kind| **kind as usize >= count) {
            let (given, allowed) = (kind.to_string(), format!("below {count}"));
            return Err(InputError::Setting { name: "token_types", given, allowed }.into());
        }
        Ok(())
    }

    fn tokenized<'t>(&self, texts: impl Iterator<Item = (&'t str, Option<&'t str>)>) -> Result<EncoderTokens> {
        let tokenizer = self.tokenizer()?;
        let rows = texts.map(|(first, second)| tokenizer.encode_special(first, second));
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        if rows.is_empty() {
            return Err(InputError::Empty { what: "the list of texts".into() }.into());
        }
        let (ids, types): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let tokens = Tokens::padded(&ids, tokenizer.pad(), PaddingSide::Right)?;
        let len = tokens.shape()[1];
        let padded = types.into_iter().flat_map(|mut row: Vec<u32>| {
            row.resize(len, 0);
            row
        });
        // A tokenizer tells types even where the model has none.
        let types = padded.map(|kind| if self.config.token_types == 0 { 0 } else { kind }).collect();
        Ok(EncoderTokens { tokens, types })
    }

    /// Texts cut to at most `longest` tokens, special ones kept.
    pub(super) fn truncated(&self, texts: &[String], longest: usize) -> Result<EncoderTokens> {
        let tokenizer = self.tokenizer()?;
        let row = |text: &String| tokenizer.encode_special_truncated(text, longest);
        let rows = texts.iter().map(row).collect::<Result<Vec<_>, _>>()?;
        if rows.is_empty() {
            return Err(InputError::Empty { what: "the list of texts".into() }.into());
        }
        let tokens = Tokens::padded(&rows, tokenizer.pad(), PaddingSide::Right)?;
        Ok(EncoderTokens { types: vec![0; tokens.ids().len()], tokens })
    }
}
