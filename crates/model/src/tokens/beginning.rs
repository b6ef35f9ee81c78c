//! Tokenizes only the beginning of a long text: a tokenizer takes about 200 bytes of memory per byte of text.

use super::tokenizer::Tokenizer;
use crate::error::InputError;

/// Number of bytes of context that are tokenized after the requested tokens. In human-written text, no word, special
/// token or normalizer context is longer; for other text, see [`Tokenizer::enough`].
const BEHIND: usize = 1 << 12;
/// Maximum length in bytes of all but a few tokens.
const BYTES: usize = 16;

impl Tokenizer {
    /// Returns the first ids of a text, at most `most`: the same ids that [`Tokenizer::encode`] starts with.
    pub(crate) fn encode_first(&self, text: &str, most: usize) -> Result<Vec<u32>, InputError> {
        let mut ids = self.encode(self.enough(text, most)?)?;
        ids.truncate(most);
        Ok(ids)
    }

    /// Returns a prefix of the text with the same first `most` tokens. A long text is cut twice, at different places
    /// well after those tokens. If both prefixes start with the same tokens, the rest of the text does not affect those
    /// tokens.
    pub(crate) fn enough<'t>(&self, text: &'t str, most: usize) -> Result<&'t str, InputError> {
        let mut len = most.saturating_mul(BYTES).saturating_add(BEHIND);
        // Above a quarter of the text, a prefix that turns out too short costs more time than a sufficient one saves.
        while len < text.len() / 4 {
            let shorter = beginning(text, len);
            let ids = self.encode(shorter)?;
            let first = ids.get(..most).filter(|_| ids.len() > most + BEHIND / BYTES);
            if let Some(first) = first
                && self.encode(beginning(text, len + BEHIND))?.starts_with(first)
            {
                return Ok(shorter);
            }
            len = len.saturating_mul(4);
        }
        Ok(text)
    }
}

/// Prefix of about `len` bytes, ending at a word boundary if one is near.
fn beginning(text: &str, len: usize) -> &str {
    let cut = &text[..text.floor_char_boundary(len)];
    let near = cut.floor_char_boundary(len.saturating_sub(BEHIND / 2));
    let word_end = |(at, letter): (usize, char)| {
        (letter.is_whitespace() && !cut[..near + at].ends_with(char::is_whitespace)).then_some(near + at)
    };
    cut[near..].char_indices().rev().find_map(word_end).map_or(cut, |end| &cut[..end])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tokens::tokenizer_of_parts;

    /// Byte-pair tokenizer for a text of few letters, with spaces but no pre-tokenizer, so that any cut falls within a
    /// word.
    fn unparted() -> Tokenizer {
        let letters = ["a", "b", "\u{2581}"];
        let pairs = [
            ("a", "a"),
            ("aa", "aa"),
            ("a", "b"),
            ("ab", "ab"),
            ("\u{2581}", "a"),
            ("\u{2581}a", "b"),
            ("b", "\u{2581}"),
        ];
        let tokens = letters.iter().map(ToString::to_string).chain(pairs.iter().map(|(a, b)| format!("{a}{b}")));
        let vocabulary: serde_json::Map<_, _> = tokens.enumerate().map(|(id, token)| (token, id.into())).collect();
        let merges: Vec<_> = pairs.iter().map(|(a, b)| format!("{a} {b}")).collect();
        let spaces = serde_json::json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
        let model = serde_json::json!({"type": "BPE", "vocab": vocabulary, "merges": merges});
        let json = serde_json::json!({"version": "1.0", "added_tokens": [], "normalizer": spaces, "model": model});
        tokenizer_of_parts(json.to_string().as_bytes(), &[], "tokenizer.json".as_ref()).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

        #[test]
        fn first_tokens_are_those_of_the_whole(
            unit in "[ab ]{1,9}", other in "[ab ]{1,9}", at in 0..30_000usize, most in 0..200usize, len in 20_000..60_000usize,
        ) {
            let tokenizer = unparted();
            let text: String = unit.chars().cycle().take(at).chain(other.chars().cycle()).take(len).collect();
            let mut whole = tokenizer.encode(&text).unwrap();
            whole.truncate(most);
            prop_assert_eq!(tokenizer.encode_first(&text, most).unwrap(), whole);
        }
    }

    #[test]
    fn no_more_is_tokenized_than_is_needed() {
        let json = include_bytes!("../../../loading/src/embedded/induction/tokenizer.json");
        let tokenizer = tokenizer_of_parts(json, &[], "tokenizer.json".as_ref()).unwrap();
        // End with a word that the vocabulary lacks.
        let text = format!("{}foxes", "king fox ".repeat(100_000));
        assert!(tokenizer.encode(&text).is_err());
        assert_eq!(tokenizer.encode_first(&text, 3).unwrap(), [51, 9, 51]);
    }
}
