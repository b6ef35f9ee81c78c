//! Text of single tokens.

use super::tokenizer::Tokenizer;

/// Text of a token. A token that is only part of a character is shown as the vocabulary spells its byte, and a leading
/// space that decoding a single token would drop is kept. Without a tokenizer, the id is shown.
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
