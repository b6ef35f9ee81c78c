//! Tokenizing and decoding with a model's own tokenizer and defaults.

use super::HookedTransformer;
use super::input::DecoderInput;
use crate::driver::HookedModel;
use crate::error::{InputError, Result};
use crate::tokens::{PaddingSide, Texts, TokenizeOptions, Tokenized, Tokens, single_token};

impl HookedTransformer {
    /// Tokenizes one or several texts, padded on the right.
    ///
    /// # Errors
    /// Fails if there is no tokenizer, no text, or a text that the tokenizer rejects. [`InputError::UnknownWords`]
    /// names the words missing from the vocabulary.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let tokens = model.to_tokens(["red fox", "red fox blue"])?;
    /// assert_eq!(tokens.shape(), [2, 4]); // a beginning-of-sequence token and up to three words
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn to_tokens(&self, text: impl Into<Texts>) -> Result<Tokens> {
        self.to_tokens_with(text, TokenizeOptions::default())
    }

    /// Like [`HookedTransformer::to_tokens`], with options.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # use hooklens::{PaddingSide, TokenizeOptions};
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let padding_side = PaddingSide::Left;
    /// let options = TokenizeOptions { prepend_bos: Some(false), padding_side, ..Default::default() };
    /// let tokens = model.to_tokens_with(["red fox", "red"], options)?;
    /// assert_eq!((tokens.real(0), tokens.real(1)), (vec![1, 9], vec![1])); // no beginning-of-sequence token
    /// assert_eq!(tokens.mask().map(|mask| mask[2..].to_vec()), Some(vec![false, true]));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedTransformer::to_tokens`]; [`InputError::NoBos`] if `prepend_bos` is set to true but the
    /// tokenizer has no beginning-of-sequence token; [`InputError::Setting`] if texts are truncated to nothing.
    pub fn to_tokens_with(&self, text: impl Into<Texts>, options: TokenizeOptions) -> Result<Tokens> {
        let texts = text.into().0;
        if texts.is_empty() {
            return Err(InputError::Empty { what: "the list of texts".into() }.into());
        }
        let most = options.truncate.unwrap_or(usize::MAX);
        if most == 0 {
            let allowed = "1 or more".to_string();
            return Err(InputError::Setting { name: "truncate", given: "0".into(), allowed }.into());
        }
        let row = |text| self.token_row_up_to(text, options.prepend_bos, most);
        let rows = texts.iter().map(|text| row(text)).collect::<Result<Vec<_>>>()?;
        Ok(Tokens::padded(&rows, self.tokenizer()?.pad(), options.padding_side)?)
    }

    /// Like [`HookedTransformer::to_tokens`], for texts that follow cached tokens. `held` is the number of cached
    /// tokens in each row (or one number for all). A row that continues a text gets no beginning-of-sequence token.
    pub(super) fn to_tokens_after(&self, texts: impl Into<Texts>, held: &[usize]) -> Result<Tokens> {
        let texts = texts.into().0;
        if texts.is_empty() {
            return Err(InputError::Empty { what: "the list of texts".into() }.into());
        }
        let row = |(row, text): (usize, &String)| {
            let goes_on = held.get(if held.len() == 1 { 0 } else { row }).is_some_and(|held| *held > 0);
            self.token_row(text, goes_on.then_some(false))
        };
        let rows = texts.iter().enumerate().map(row).collect::<Result<Vec<_>>>()?;
        Ok(Tokens::padded(&rows, self.tokenizer()?.pad(), PaddingSide::Right)?)
    }

    /// The token to prepend to each row, if requested or by default.
    pub(super) fn first_token(&self, prepend_bos: Option<bool>) -> Result<Option<u32>> {
        match (prepend_bos, self.tokenizer()?.bos()) {
            (Some(true), None) => Err(InputError::NoBos.into()),
            (Some(true), bos) => Ok(bos),
            (Some(false), _) => Ok(None),
            (None, bos) => Ok(bos.filter(|_| self.config.default_prepend_bos)),
        }
    }

    /// Tokenizes a text and returns every token with its string and its span in the text.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let tokenized = model.tokenize("When Mary went, Mary met")?;
    /// assert_eq!((tokenized.positions("Mary"), tokenized.position("went")?), (vec![2..3, 5..6], 3..4));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedTransformer::to_tokens`].
    pub fn tokenize(&self, text: &str) -> Result<Tokenized> {
        let ids = self.token_row(text, None)?;
        let tokenizer = self.tokenizer()?;
        let own = tokenizer.encode_with_spans(text)?;
        // Prepended tokens have empty spans.
        let added = ids.len() - own.len();
        let spans = std::iter::repeat_n(0..0, added).chain(own.into_iter().map(|(_, span)| span)).collect();
        let tokens = ids.iter().map(|id| tokenizer.decode(&[*id], false)).collect::<Result<_, _>>()?;
        Ok(Tokenized { text: text.into(), ids, tokens, spans })
    }

    /// Position of the first or last occurrence of `token` in `text`. `token` must be exactly one token. Counts the
    /// beginning-of-sequence token if the model prepends one.
    ///
    /// # Errors
    /// [`InputError::NotOneToken`] if `token` is not exactly one token, or [`InputError::NotOnce`] if it does not
    /// occur.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// use hooklens::Occurrence;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// assert_eq!(model.get_token_position("king", "king drum king", Occurrence::Last)?, 3);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn get_token_position(&self, token: &str, text: &str, occurrence: Occurrence) -> Result<usize> {
        let id = self.to_single_token(token)?;
        let ids = self.token_row(text, None)?;
        let place = match occurrence {
            Occurrence::First => ids.iter().position(|other| *other == id),
            Occurrence::Last => ids.iter().rposition(|other| *other == id),
        };
        Ok(place.ok_or_else(|| InputError::NotOnce { part: token.into(), text: text.into(), count: 0 })?)
    }

    /// Decodes token ids to text, including special tokens.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// assert_eq!(model.to_string(&[0, 1, 9])?, "<bos> red fox");
    /// assert!(model.to_string(&[999]).is_err()); // no token has this id
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if there is no tokenizer, or with the error of [`Tokenizer::decode`](crate::tokens::Tokenizer::decode):
    /// [`InputError::NoToken`] if the tokenizer has no token with a given id, even if the model's vocabulary includes
    /// the id.
    pub fn to_string(&self, ids: &[u32]) -> Result<String> {
        Ok(self.tokenizer()?.decode(ids, false)?)
    }

    /// Decodes each token of a text separately. Includes the beginning-of-sequence token if the model prepends one.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// assert_eq!(model.to_str_tokens("red fox")?, ["<bos>", "red", "fox"]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedTransformer::to_tokens`].
    pub fn to_str_tokens(&self, text: &str) -> Result<Vec<String>> {
        let tokenizer = self.tokenizer()?;
        let row = self.token_row(text, None)?;
        Ok(row.iter().map(|id| tokenizer.decode(&[*id], false)).collect::<Result<_, _>>()?)
    }

    /// The id of a text that is exactly one token.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// assert_eq!(model.to_single_token("fox")?, 9);
    /// let message = model.to_single_token("red fox").unwrap_err().to_string();
    /// assert_eq!(message, "`red fox` is 2 tokens, not one");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::NotOneToken`] if the text is not exactly one token.
    pub fn to_single_token(&self, text: &str) -> Result<u32> {
        Ok(single_token(self.tokenizer()?, text)?)
    }
}

/// Which occurrence of a token to find.
///
/// ```
/// use hooklens::Occurrence;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let place = |which| model.get_token_position("king", "king drum sun king", which);
/// assert_eq!((place(Occurrence::First)?, place(Occurrence::Last)?), (1, 4));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Occurrence {
    /// The first occurrence.
    First,
    /// The last occurrence.
    Last,
}
