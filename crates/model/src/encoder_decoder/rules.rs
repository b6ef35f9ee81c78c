//! Tokens that a model's files say generation must or must not write.

use serde::{Deserialize, Serialize};

use crate::error::ConfigError;

/// Tokens that generation must or must not write, as the files of a model say and Hugging Face's `generate` does.
///
/// ```
/// # use hooklens::prelude::*;
/// use hooklens::encoder_decoder::TokenRules;
/// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
/// assert_eq!(model.config().token_rules, TokenRules::default()); // T5's say nothing
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRules {
    /// The first token written (`forced_bos_token_id`), such as the language of a translation.
    pub first: Option<u32>,
    /// The last one of a text that is as long as may be (`forced_eos_token_id`).
    pub last: Option<u32>,
    /// Tokens never written (`bad_words_ids`), such as padding.
    pub never: Vec<u32>,
}

impl TokenRules {
    pub(super) fn validate(&self, d_vocab: usize) -> Result<(), ConfigError> {
        match self.first.iter().chain(&self.last).chain(&self.never).find(|token| **token as usize >= d_vocab) {
            Some(token) => {
                let reason = format!("token {token} is outside the vocabulary");
                Err(ConfigError::Contradiction { field: "token_rules", reason })
            }
            None => Ok(()),
        }
    }
}
