//! A tokenized text: every token with its byte range in the text.

use std::fmt;
use std::ops::Range;

use crate::error::InputError;

/// The tokens of one text, in order, each with its text and its byte range.
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let tokenized = model.tokenize("king drum sun king")?;
/// assert_eq!(tokenized.to_string(), "<bos>|king|drum|sun|king");
/// assert_eq!(tokenized.positions("drum sun"), [2..4]);
/// assert_eq!(tokenized.positions("king"), [1..2, 4..5]);
/// assert_eq!(tokenized.position("sun")?, 3..4);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tokenized {
    /// The text.
    pub text: String,
    /// The ids, a beginning-of-sequence token included if the model gets one.
    pub ids: Vec<u32>,
    /// Each token as text.
    pub tokens: Vec<String>,
    /// The bytes of the text each token stands for; none for a token that was added.
    pub spans: Vec<Range<usize>>,
}

impl Tokenized {
    /// For each occurrence of `part` in the text the positions of the tokens it touches.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let tokenized = model.tokenize("Mary and Mary")?;
    /// assert_eq!(tokenized.positions("and Mary"), [2..4]);
    /// assert!(tokenized.positions("Tom").is_empty());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn positions(&self, part: &str) -> Vec<Range<usize>> {
        if part.is_empty() {
            return Vec::new();
        }
        let of = |(start, _): (usize, &str)| self.positions_of_bytes(start..start + part.len());
        self.text.match_indices(part).filter_map(of).collect()
    }

    /// The positions of the tokens the one occurrence of `part` touches.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let tokenized = model.tokenize("Mary and Mary")?;
    /// assert_eq!(tokenized.position("and")?, 2..3);
    /// let told = tokenized.position("Mary").unwrap_err().to_string();
    /// assert_eq!(told, "`Mary` is 2 times in `Mary and Mary`, not once");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::NotOnce`] if it is not in the text or is there several times.
    pub fn position(&self, part: &str) -> Result<Range<usize>, InputError> {
        match &self.positions(part)[..] {
            [one] => Ok(one.clone()),
            several => Err(InputError::NotOnce { part: part.into(), text: self.text.clone(), count: several.len() }),
        }
    }

    /// The positions of the tokens that some bytes of the text touch.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let tokenized = model.tokenize("Mary and Tom")?;
    /// assert_eq!(tokenized.positions_of_bytes(5..8), Some(2..3)); // `and`
    /// assert_eq!(tokenized.spans[3], 9..12);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn positions_of_bytes(&self, bytes: Range<usize>) -> Option<Range<usize>> {
        let touched = |span: &&Range<usize>| span.start < bytes.end && span.end > bytes.start;
        let first = self.spans.iter().position(|span| touched(&span))?;
        let last = self.spans.iter().rposition(|span| touched(&span))?;
        Some(first..last + 1)
    }
}

impl fmt::Display for Tokenized {
    /// The tokens with bars between them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.tokens.join("|"))
    }
}
