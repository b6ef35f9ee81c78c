//! Settings that determine the token ids of a corpus, recorded so that a resumed run notices changes.

use serde_json::{Map, Value, json};

use super::Failure;
use hooklens_model::driver::HookedModel;
use hooklens_model::error::Error;
use hooklens_model::tokens::tokenizer_fingerprint;

/// Describes the model's tokenizer, the token that is prepended to texts, and options of the command.
pub(super) fn tokenization<M: HookedModel>(
    model: &M,
    prepended: hooklens_model::error::Result<Option<u32>>,
    options: &[(&str, Option<Value>)],
) -> Result<Map<String, Value>, Failure> {
    let tokenizer = model.tokenizer().ok().map(tokenizer_fingerprint).transpose().map_err(Error::from)?;
    let options = options.iter().filter_map(|(name, value)| Some((*name, value.clone()?)));
    // Without a tokenizer, no token is prepended.
    let own = [("tokenizer", json!(tokenizer)), ("prepended_token", json!(prepended.unwrap_or_default()))];
    Ok(own.into_iter().chain(options).map(|(name, value)| (name.to_string(), value)).collect())
}
