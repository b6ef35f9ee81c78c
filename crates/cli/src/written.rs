//! What the decoder of an encoder-decoder has written.

use clap::Args;

use super::Failure;
use super::args::{TokenRows, token_rows};
use hooklens_model::encoder_decoder::HookedEncoderDecoder;

#[derive(Debug, Args)]
pub(super) struct WrittenArg {
    /// What the decoder of an encoder-decoder has written, after its start token
    #[arg(long, value_name = "TEXT")]
    decoder_prompt: Option<String>,
    /// The same as token ids, without the start token
    #[arg(long, value_name = "IDS", value_parser = token_rows, conflicts_with = "decoder_prompt")]
    decoder_tokens: Option<TokenRows>,
}

impl WrittenArg {
    /// Whether anything is given.
    pub(super) fn is_given(&self) -> bool {
        self.decoder_prompt.is_some() || self.decoder_tokens.is_some()
    }

    /// The decoder's tokens: its start token, and those that are given.
    pub(super) fn row(&self, model: &HookedEncoderDecoder) -> Result<Vec<u32>, Failure> {
        let start = model.config().decoder_start_token;
        match &self.decoder_tokens {
            Some(rows) => Ok([vec![start], rows.one("--decoder-tokens")?].concat()),
            None => Ok(model.written(self.decoder_prompt.as_deref())?),
        }
    }

    /// The text or the ids as a setting of a shard, by which shards are compared.
    pub(super) fn described(&self) -> Option<String> {
        let text = self.decoder_prompt.as_ref().map(|text| format!("{text:?} written"));
        text.or_else(|| self.decoder_tokens.as_ref().map(|rows| format!("{:?} written", rows.0)))
    }
}
