//! What an encoder can be run on.

use crate::tokens::Tokens;

/// Texts, pairs of texts, or tokens.
///
/// - `"text"`, `["one", "two"]`: tokenized with the tokenizer's own special tokens, padded at the right.
/// - [`EncoderInput::pairs`]: two texts a row, the second's tokens of type 1.
/// - [`Tokens`], `vec![vec![1, 2, 3]]`: token ids, all of type 0 unless
///   [`EncoderInput::token_types`] says otherwise.
#[derive(Debug, Clone)]
pub struct EncoderInput {
    pub(super) source: Source,
    pub(super) token_types: Option<Vec<Vec<u32>>>,
}

#[derive(Debug, Clone)]
pub(super) enum Source {
    Texts(Vec<String>),
    Pairs(Vec<(String, String)>),
    Tokens(Tokens),
    Rows(Vec<Vec<u32>>),
}

impl EncoderInput {
    fn of(source: Source) -> Self {
        Self { source, token_types: None }
    }

    /// Pairs of texts, such as a question and a passage, or two sentences.
    ///
    /// ```
    /// use hooklens::encoder::EncoderInput;
    /// let input = EncoderInput::pairs([("It rains.", "The street is wet.")]);
    /// ```
    pub fn pairs<A: Into<String>, B: Into<String>>(pairs: impl IntoIterator<Item = (A, B)>) -> Self {
        Self::of(Source::Pairs(pairs.into_iter().map(|(a, b)| (a.into(), b.into())).collect()))
    }

    /// The type of each token, a row a batch row.
    #[must_use]
    pub fn token_types(mut self, types: Vec<Vec<u32>>) -> Self {
        self.token_types = Some(types);
        self
    }
}

impl From<&str> for EncoderInput {
    fn from(text: &str) -> Self {
        Self::of(Source::Texts(vec![text.to_string()]))
    }
}

impl From<String> for EncoderInput {
    fn from(text: String) -> Self {
        Self::of(Source::Texts(vec![text]))
    }
}

impl From<Vec<String>> for EncoderInput {
    fn from(texts: Vec<String>) -> Self {
        Self::of(Source::Texts(texts))
    }
}

impl From<&[String]> for EncoderInput {
    fn from(texts: &[String]) -> Self {
        Self::of(Source::Texts(texts.to_vec()))
    }
}

impl From<Vec<&str>> for EncoderInput {
    fn from(texts: Vec<&str>) -> Self {
        Self::of(Source::Texts(texts.into_iter().map(str::to_string).collect()))
    }
}

impl<const N: usize> From<[&str; N]> for EncoderInput {
    fn from(texts: [&str; N]) -> Self {
        Self::of(Source::Texts(texts.map(str::to_string).to_vec()))
    }
}

impl From<Tokens> for EncoderInput {
    fn from(tokens: Tokens) -> Self {
        Self::of(Source::Tokens(tokens))
    }
}

impl From<&Tokens> for EncoderInput {
    fn from(tokens: &Tokens) -> Self {
        Self::of(Source::Tokens(tokens.clone()))
    }
}

impl From<Vec<Vec<u32>>> for EncoderInput {
    fn from(rows: Vec<Vec<u32>>) -> Self {
        Self::of(Source::Rows(rows))
    }
}
