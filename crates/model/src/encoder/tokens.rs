//! Tokenization for encoders.

use super::HookedEncoder;
use super::input::EncoderInput;
use crate::driver::HookedModel;
use crate::error::{InputError, Result};
use crate::tokens::{PaddingSide, Tokens};

/// Tokens and the type of each.
///
/// ```
/// # use hooklens::encoder::HookedEncoder;
/// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
/// let made = model.to_tokens(vec![vec![2, 5, 9, 3], vec![2, 6, 7, 3]])?;
/// assert_eq!((made.tokens.shape(), made.types.len()), ([2, 4], 8));
/// # Ok::<(), hooklens::Error>(())
/// ```
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
    /// ```no_run
    /// use hooklens::encoder::{EncoderInput, HookedEncoder};
    /// let model = HookedEncoder::from_pretrained("bert-base-cased")?;
    /// let made = model.to_tokens(EncoderInput::pairs([("It rains.", "The street is wet.")]))?;
    /// assert_eq!((made.types[0], made.types.last()), (0, Some(&1)));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// No tokenizer, nothing to run on, a token outside the vocabulary, a type the model lacks, a text longer
    /// than the model's context.
    pub fn to_tokens(&self, input: impl Into<EncoderInput>) -> Result<EncoderTokens> {
        let EncoderInput { input, seconds, token_types } = input.into();
        let mut types = None;
        let tokens = input.into_tokens(|texts| {
            let second = |row: usize| seconds.as_ref().map(|seconds| seconds[row].as_str());
            let made = self.tokenized(texts.iter().enumerate().map(|(row, text)| (text.as_str(), second(row))))?;
            types = Some(made.types);
            Ok(made.tokens)
        })?;
        let mut made = EncoderTokens { types: types.unwrap_or_else(|| vec![0; tokens.ids().len()]), tokens };
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
        self.padded(rows.collect::<Result<_, _>>()?)
    }

    /// Texts cut to at most `longest` tokens, special ones kept; checked.
    pub(super) fn truncated(&self, texts: &[String], longest: usize) -> Result<EncoderTokens> {
        let tokenizer = self.tokenizer()?;
        let rows = texts.iter().map(|text| {
            let ids = tokenizer.encode_special_truncated(text, longest)?;
            let types = vec![0; ids.len()];
            Ok((ids, types))
        });
        let made = self.padded(rows.collect::<Result<_>>()?)?;
        self.check(&made)?;
        Ok(made)
    }

    /// Rows of tokens and their types, made equally long.
    fn padded(&self, rows: Vec<(Vec<u32>, Vec<u32>)>) -> Result<EncoderTokens> {
        if rows.is_empty() {
            return Err(InputError::Empty { what: "the list of texts".into() }.into());
        }
        let (ids, types): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let tokens = Tokens::padded(&ids, self.tokenizer()?.pad(), PaddingSide::Right)?;
        let len = tokens.shape()[1];
        let padded = types.into_iter().flat_map(|mut row: Vec<u32>| {
            row.resize(len, 0);
            row
        });
        // A tokenizer tells types even where the model has none.
        let types = padded.map(|kind| if self.config.token_types == 0 { 0 } else { kind }).collect();
        Ok(EncoderTokens { tokens, types })
    }
}
