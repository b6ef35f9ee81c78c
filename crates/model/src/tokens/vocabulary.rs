//! A tokenizer's vocabulary, and errors that name missing words.

use tokenizers::tokenizer::{Model, OffsetReferential, OffsetType, PreTokenizer};

use super::tokenizer::Tokenizer;
use crate::error::{InputError, UNKNOWN_WORDS};
use hooklens_io::caught::caught;

/// Maximum number of similar words named in an error.
const NEAREST: usize = 5;

impl Tokenizer {
    /// All tokens as spelled in the vocabulary, including special tokens, with their ids; in id order.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let tokenizer = model.tokenizer()?;
    /// let tokens = tokenizer.vocabulary();
    /// assert_eq!((tokens.len(), &tokens[9]), (tokenizer.vocab_size(), &(9, "fox".to_string())));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn vocabulary(&self) -> Vec<(u32, String)> {
        let mut tokens: Vec<(u32, String)> = self.all_ids().into_iter().map(|(token, id)| (id, token)).collect();
        tokens.sort_unstable();
        tokens
    }

    /// Explains why a text was rejected, naming the words that the vocabulary lacks if that is the reason.
    pub(super) fn refused(&self, text: &str, source: tokenizers::Error) -> InputError {
        // If the library panicked the first time, it panics again.
        let words = caught(|| self.unknown_words(text)).unwrap_or_default();
        if words.is_empty() {
            return InputError::Tokenize { source };
        }
        let vocabulary = self.vocabulary();
        let tokens = || vocabulary.iter().map(|(_, token)| token.as_str());
        let mut nearest: Vec<String> = Vec::new();
        for near in words.iter().flat_map(|word| hooklens_hooks::nearest(word, tokens())) {
            if nearest.len() < NEAREST && !nearest.contains(&near) {
                nearest.push(near);
            }
        }
        let special = self.inner.get_added_vocabulary();
        let own = tokens().filter(|token| !special.is_special_token(token));
        let first = own.take(NEAREST).map(String::from).collect();
        InputError::UnknownWords { words, vocabulary: vocabulary.len(), nearest, first }
    }

    /// The first words of a text that are not in the vocabulary, without duplicates.
    fn unknown_words(&self, text: &str) -> Vec<String> {
        let added = self.inner.get_added_vocabulary();
        let mut pieces = added.extract_and_normalize(self.inner.get_normalizer(), text);
        if let Some(splitter) = self.inner.get_pre_tokenizer()
            && splitter.pre_tokenize(&mut pieces).is_err()
        {
            return Vec::new();
        }
        let mut words: Vec<String> = Vec::new();
        for (word, _, known) in pieces.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            let unknown = known.is_none() && self.inner.get_model().tokenize(word).is_err();
            if unknown && !words.iter().any(|other| other == word) {
                words.push(word.to_string());
            }
            if words.len() == UNKNOWN_WORDS {
                break;
            }
        }
        words
    }
}
