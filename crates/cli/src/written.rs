//! Options for the decoder input of an encoder-decoder.

use clap::Args;

use super::Failure;
use super::args::{TokenRows, token_rows};
use hooklens_model::encoder_decoder::{HookedEncoderDecoder, decoder_tokens};

#[derive(Debug, Args)]
pub(super) struct WrittenArg {
    /// Text that the decoder of an encoder-decoder has produced so far, after its start token
    #[arg(long, value_name = "TEXT")]
    decoder_prompt: Option<String>,
    /// Tokens that the decoder has produced so far, as ids, without the start token
    #[arg(long, value_name = "IDS", value_parser = token_rows, conflicts_with = "decoder_prompt")]
    decoder_tokens: Option<TokenRows>,
}

impl WrittenArg {
    /// Whether either option is given.
    pub(super) fn is_given(&self) -> bool {
        self.decoder_prompt.is_some() || self.decoder_tokens.is_some()
    }

    /// The decoder's token ids: the start token, followed by the given tokens.
    pub(super) fn row(&self, model: &HookedEncoderDecoder) -> Result<Vec<u32>, Failure> {
        let start = model.decoder_start_token();
        match &self.decoder_tokens {
            Some(rows) => Ok([vec![start], rows.one("--decoder-tokens")?].concat()),
            None => Ok(decoder_tokens(model, self.decoder_prompt.as_deref())?),
        }
    }

    /// The options as a setting, which must be the same in all shards.
    pub(super) fn described(&self) -> Option<String> {
        let text = self.decoder_prompt.as_ref().map(|text| format!("{text:?} written"));
        text.or_else(|| self.decoder_tokens.as_ref().map(|rows| format!("{:?} written", rows.0)))
    }
}
