//! Tokenization for encoders.

use super::HookedEncoder;
use super::input::EncoderInput;
use crate::driver::HookedModel;
use crate::error::{InputError, Result};
use crate::tokens::{PaddingSide, Tokens};

/// Tokens and the type of each token.
///
/// ```
/// # use hooklens::FromPretrained;
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
    /// Type of each token, row by row; 0 for single texts.
    pub types: Vec<u32>,
}

impl HookedEncoder {
    /// Tokenizes and checks an input. The tokenizer adds special tokens; padding is on the right.
    ///
    /// ```no_run
    /// # use hooklens::FromPretrained;
    /// use hooklens::encoder::{EncoderInput, HookedEncoder};
    /// let model = HookedEncoder::from_pretrained("bert-base-cased")?;
    /// let made = model.to_tokens(EncoderInput::pairs([("It rains.", "The street is wet.")]))?;
    /// assert_eq!((made.types[0], made.types.last()), (0, Some(&1)));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if there is no tokenizer, the input is empty, a token is outside the vocabulary, the model lacks a token
    /// type, or a text is longer than the model's context.
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
                let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
                let given = format!("of shape {:?}", [rows.len(), longest]);
                let allowed = format!("shape {shape:?} [batch, pos]");
                return Err(InputError::Setting { name: "token_types", given, allowed }.into());
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
            let (given, allowed) = (kind.to_string(), format!("a number below {count}"));
            return Err(InputError::Setting { name: "token_types", given, allowed }.into());
        }
        Ok(())
    }

    fn tokenized<'t>(&self, texts: impl Iterator<Item = (&'t str, Option<&'t str>)>) -> Result<EncoderTokens> {
        let tokenizer = self.tokenizer()?;
        let rows = texts.map(|(first, second)| tokenizer.encode_special(first, second));
        self.padded(rows.collect::<Result<_, _>>()?)
    }

    /// Tokenizes texts, each truncated to `longest` tokens including special tokens, and checks them.
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

    /// Pads rows of tokens and types to equal length.
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
        // A tokenizer may assign types even if the model has none.
        let types = padded.map(|kind| if self.config.token_types == 0 { 0 } else { kind }).collect();
        Ok(EncoderTokens { tokens, types })
    }
}
