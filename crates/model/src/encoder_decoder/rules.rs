//! Tokens that generation is forced or forbidden to produce, according to a model's files.

use serde::{Deserialize, Serialize};

use crate::error::ConfigError;

/// Tokens that generation is forced or forbidden to produce, as set in a model's files and applied by Hugging Face's
/// `generate`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRules {
    /// Forced first token (`forced_bos_token_id`), such as the target language of a translation.
    pub first: Option<u32>,
    /// Forced last token of a text that reaches the maximum length (`forced_eos_token_id`).
    pub last: Option<u32>,
    /// Forbidden tokens (`bad_words_ids`), such as padding.
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
