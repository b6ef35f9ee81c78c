//! Converts the inputs of a decoder to tokens and checks them.

use super::transformer::HookedTransformer;
use crate::driver::{HookedModel, Input};
use crate::error::{InputError, Result};
use crate::tokens::Tokens;

/// Texts up to this many bytes are fully tokenized regardless of the model's limit, so that the error can report their
/// token count.
const LONG: usize = 1 << 20;

/// Conversion of inputs to tokens that a decoder can run on.
pub trait DecoderInput {
    /// Converts an input to validated tokens; a residual stream is an error.
    fn token_input(&self, input: Input) -> Result<Tokens>;

    /// Like [`token_input`](Self::token_input), for an input that follows cached tokens. `held` is the number of cached
    /// tokens in each row (or one number for all).
    fn token_input_after(&self, input: Input, held: &[usize]) -> Result<Tokens>;

    /// Token ids of one text. A beginning-of-sequence token is prepended if requested, or by default if the model does
    /// so, but never twice.
    fn token_row(&self, text: &str, prepend_bos: Option<bool>) -> Result<Vec<u32>>;

    /// At most the first `most` ids of [`token_row`](Self::token_row). Tokenizes only as much of a long text as
    /// needed.
    fn token_row_up_to(&self, text: &str, prepend_bos: Option<bool>, most: usize) -> Result<Vec<u32>>;

    /// The token that is prepended to texts, if any. `prepend_bos` overrides the model's default.
    fn prepended(&self, prepend_bos: Option<bool>) -> Result<Option<u32>>;

    /// Token ids of a prompt. A text that is far longer than the model's position table is rejected before it is fully
    /// tokenized.
    fn prompt_row(&self, text: &str, prepend_bos: Option<bool>) -> Result<Vec<u32>>;

    /// Checks that every id is within the vocabulary and that there is at least one token.
    fn check_tokens(&self, tokens: &Tokens) -> Result<(), InputError>;

    /// Checks that a learned position table covers the length, and that a query may attend to that many keys.
    fn check_length(&self, len: usize) -> Result<(), InputError>;
}

impl DecoderInput for HookedTransformer {
    fn token_input(&self, input: Input) -> Result<Tokens> {
        self.token_input_after(input, &[])
    }

    fn token_input_after(&self, input: Input, held: &[usize]) -> Result<Tokens> {
        let tokens = input.into_tokens(|texts| self.to_tokens_after(texts, held))?;
        self.check_tokens(&tokens)?;
        Ok(tokens)
    }

    fn token_row(&self, text: &str, prepend_bos: Option<bool>) -> Result<Vec<u32>> {
        self.token_row_up_to(text, prepend_bos, usize::MAX)
    }

    fn token_row_up_to(&self, text: &str, prepend_bos: Option<bool>, most: usize) -> Result<Vec<u32>> {
        let mut ids = self.tokenizer()?.encode_first(text, most)?;
        if ids.is_empty() {
            return Err(InputError::Empty { what: format!("the text {text:?}") }.into());
        }
        if let Some(bos) = self.first_token(prepend_bos)?.filter(|bos| ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        ids.truncate(most);
        Ok(ids)
    }

    fn prepended(&self, prepend_bos: Option<bool>) -> Result<Option<u32>> {
        self.first_token(prepend_bos)
    }

    fn prompt_row(&self, text: &str, prepend_bos: Option<bool>) -> Result<Vec<u32>> {
        let more = self.config.n_ctx.saturating_add(1);
        if text.len() > LONG
            && self.check_length(more).is_err()
            && self.tokenizer()?.encode_first(text, more)?.len() == more
        {
            return Err(InputError::TextTooLong { bytes: text.len(), n_ctx: self.config.n_ctx }.into());
        }
        self.token_row(text, prepend_bos)
    }

    fn check_tokens(&self, tokens: &Tokens) -> Result<(), InputError> {
        tokens.check(self.config.d_vocab)
    }

    fn check_length(&self, len: usize) -> Result<(), InputError> {
        if let Some(most) = self.config.most_keys.filter(|most| len > *most) {
            return Err(InputError::Sparse { len, most });
        }
        let n_ctx = self.config.n_ctx;
        if self.config.positional.has_table() && len > n_ctx { Err(InputError::TooLong { len, n_ctx }) } else { Ok(()) }
    }
}
