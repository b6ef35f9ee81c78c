//! Single tokens as text.

use super::tokenizer::Tokenizer;

/// A token as text. One that is part of a letter only is spelled as the vocabulary spells its byte, and a space before
/// a word is kept where decoding a token alone drops it. Without a vocabulary it is its id.
pub fn token_text(tokenizer: Option<&Tokenizer>, id: u32) -> String {
    let Some(tokenizer) = tokenizer else { return id.to_string() };
    let spelled = tokenizer.token(id).unwrap_or_default();
    match tokenizer.decode(&[id], false) {
        Ok(text) if text.contains('\u{fffd}') && spelled.starts_with("<0x") => spelled,
        Ok(text) if spelled.starts_with('▁') && !text.starts_with(' ') => format!(" {text}"),
        Ok(text) => text,
        Err(_) => id.to_string(),
    }
}
