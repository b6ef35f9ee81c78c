//! One pair from a combination of words.

use std::collections::BTreeMap;

use hooklens_model::tokens::{Tokenizer, single_token};

use super::PromptPair;
use super::choices::Choices;
use super::text::{Piece, filled, parse};
use crate::error::PromptSetError;

/// The pieces of a text, with slots for phrases replaced by the pieces of the phrase.
pub(super) fn expanded(
    text: &str,
    choices: &[Choices],
    words: &BTreeMap<&str, &str>,
) -> Result<Vec<Piece>, PromptSetError> {
    let is_phrase = |slot: &str| choices.iter().any(|own| own.are_phrases && own.slots.iter().any(|own| own == slot));
    let mut pieces = Vec::new();
    for piece in parse(text)? {
        match piece {
            Piece::Slot(slot) if is_phrase(&slot) => {
                pieces.extend(parse(words.get(slot.as_str()).copied().unwrap_or_default())?);
            }
            piece => pieces.push(piece),
        }
    }
    Ok(pieces)
}

/// The token of a word after a text, if the word is encoded as a single token that decodes to the word. Spaces at the
/// end of the text belong to the word.
pub(super) fn next_token(tokenizer: &Tokenizer, prefix: &str, word: &str) -> Option<u32> {
    let before = tokenizer.encode(prefix.trim_end_matches(' ')).ok()?;
    token_after(tokenizer, &before, prefix, word)
}

/// The token of a word after a text with these tokens, if the word is encoded as a single token that decodes to the
/// word.
fn token_after(tokenizer: &Tokenizer, before: &[u32], prefix: &str, word: &str) -> Option<u32> {
    let ids = tokenizer.encode(&format!("{prefix}{word}")).ok()?;
    let [id] = ids.strip_prefix(before)? else { return None };
    // A tokenizer with an unknown token encodes every unknown word as that single token, so decode it to compare.
    let text = tokenizer.decode(&[*id], false).ok()?;
    (text.trim().to_lowercase() == word.trim().to_lowercase()).then_some(*id)
}

/// Makes prompt pairs from combinations of words.
pub(super) struct Filler<'t> {
    pub(super) texts: [&'t str; 4],
    pub(super) choices: &'t [Choices],
    pub(super) tokenizer: &'t Tokenizer,
}

impl Filler<'_> {
    /// The pair for combination `number`, or the reason why the pair cannot be used with this tokenizer.
    pub(super) fn pair(&self, mut number: u128) -> Result<Result<PromptPair, String>, PromptSetError> {
        let mut words = BTreeMap::new();
        for own in self.choices {
            let draws = own.draws().max(1);
            words.extend(own.draw(number % draws));
            number /= draws;
        }
        let word = |slot: &str| words.get(slot).copied().unwrap_or_default();
        let [clean, corrupted, answer, wrong] =
            self.texts.map(|text| expanded(text, self.choices, &words).map(|pieces| filled(&pieces, word)));
        let (clean, corrupted, answer, wrong) = (clean?, corrupted?, answer?, wrong?);
        let encoded = |text: &str| {
            self.tokenizer.encode(text).map_err(|source| PromptSetError::Text { text: text.into(), source })
        };
        let (own, other) = (encoded(&clean)?, encoded(&corrupted)?);
        if own.len() != other.len() {
            let (own, other) = (own.len(), other.len());
            return Ok(Err(format!("`{clean}` has {own} tokens, but `{corrupted}` has {other}")));
        }
        let token = |text: &str| {
            let same = token_after(self.tokenizer, &own, &clean, text)
                .filter(|id| token_after(self.tokenizer, &other, &corrupted, text) == Some(*id));
            same.ok_or_else(|| format!("`{text}` is not a single token after `{clean}` and `{corrupted}`"))
        };
        let pair = || -> Result<PromptPair, String> {
            let (answer_id, wrong_id) = (token(&answer)?, token(&wrong)?);
            if answer_id == wrong_id {
                return Err(format!("the answer and the wrong answer after `{clean}` are both `{answer}`"));
            }
            let (answer, wrong) = (self.spelled(&answer, answer_id), self.spelled(&wrong, wrong_id));
            Ok(PromptPair { clean: clean.clone(), corrupted: corrupted.clone(), answer, answer_id, wrong, wrong_id })
        };
        Ok(pair())
    }

    /// The answer, without its leading space if the token is the same without it.
    fn spelled(&self, text: &str, id: u32) -> String {
        let bare = text.trim_start();
        match single_token(self.tokenizer, bare) {
            Ok(own) if own == id => bare.into(),
            _ => text.into(),
        }
    }
}
