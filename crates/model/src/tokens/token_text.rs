//! Text of single tokens.

use super::tokenizer::Tokenizer;

/// Text of a token. A byte token such as `<0xE2>`, which is only part of a character, is shown as it is spelled in the
/// vocabulary. A leading space is kept, although decoding the token alone would drop it. Without a tokenizer, or if the
/// id has no token, the id is shown.
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
