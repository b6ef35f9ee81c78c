//! Inputs of an encoder: texts, pairs of texts, or tokens.

use crate::driver::Input;

/// Input of an encoder: texts, pairs of texts, or tokens.
///
/// - Anything that converts into an [`Input`]. Texts are tokenized with the tokenizer's special tokens and padded on
///   the right. Token ids have type 0 unless [`EncoderInput::token_types`] says otherwise. A residual stream is
///   rejected.
/// - [`EncoderInput::pairs`]: two texts per row; tokens of the second have type 1.
///
/// ```
/// # use hooklens::FromPretrained;
/// # use hooklens::encoder::{EncoderInput, HookedEncoder};
/// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
/// let one: EncoderInput = "It rains.".into();
/// let ids = model.to_tokens(vec![vec![2, 5, 9, 3]])?; // ids, all of type 0
/// assert_eq!(ids.types, [0, 0, 0, 0]);
/// assert!(model.to_tokens(one).is_err()); // this model has no tokenizer
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct EncoderInput {
    pub(super) input: Input,
    /// Second text of each pair, one per text in `input`.
    pub(super) seconds: Option<Vec<String>>,
    pub(super) token_types: Option<Vec<Vec<u32>>>,
}

impl EncoderInput {
    /// Creates an input of text pairs, such as a question and a passage, or two sentences.
    ///
    /// ```
    /// use hooklens::encoder::EncoderInput;
    /// let input = EncoderInput::pairs([("It rains.", "The street is wet.")]);
    /// ```
    pub fn pairs<A: Into<String>, B: Into<String>>(pairs: impl IntoIterator<Item = (A, B)>) -> Self {
        let (firsts, seconds) = pairs.into_iter().map(|(a, b)| (a.into(), b.into())).unzip();
        Self { input: Input::Text(firsts), seconds: Some(seconds), token_types: None }
    }

    /// Sets the type of each token, one row per batch row.
    ///
    /// ```
    /// # use hooklens::FromPretrained;
    /// # use hooklens::encoder::{EncoderInput, HookedEncoder};
    /// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
    /// let input = EncoderInput::from(vec![vec![2, 5, 3, 9, 3]]).token_types(vec![vec![0, 0, 0, 1, 1]]);
    /// assert_eq!(model.to_tokens(input)?.types, [0, 0, 0, 1, 1]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn token_types(mut self, types: Vec<Vec<u32>>) -> Self {
        self.token_types = Some(types);
        self
    }
}

impl<I: Into<Input>> From<I> for EncoderInput {
    fn from(input: I) -> Self {
        Self { input: input.into(), seconds: None, token_types: None }
    }
}
