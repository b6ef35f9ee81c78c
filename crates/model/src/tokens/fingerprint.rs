//! Identity of a tokenizer.

use std::collections::BTreeMap;
use std::path::PathBuf;

use xxhash_rust::xxh3::xxh3_128;

use super::Tokenizer;
use crate::error::LoadError;

/// Hash of everything that determines the token ids of a text: the tokenizer with its special tokens, and the ids of a
/// separate vocabulary, if it has one (Marian).
///
/// # Errors
/// [`LoadError::Tokenizer`] if the tokenizer cannot be serialized.
pub fn tokenizer_fingerprint(tokenizer: &Tokenizer) -> Result<String, LoadError> {
    let inner = tokenizer.inner.to_string(false);
    let inner = inner.map_err(|source| LoadError::Tokenizer { path: PathBuf::from("the tokenizer"), source })?;
    let ids: BTreeMap<String, u32> = tokenizer.separate_ids();
    let special = [tokenizer.bos(), tokenizer.eos()];
    Ok(format!("{:032x}", xxh3_128(format!("{inner} {ids:?} {special:?}").as_bytes())))
}
