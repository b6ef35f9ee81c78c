//! A tokenized text, with the byte range of every token.

use std::fmt;
use std::ops::Range;

use crate::error::InputError;

/// Tokens of one text, in order, each with its text and byte range.
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
    /// The original text.
    pub(crate) text: String,
    /// Token ids, including the beginning-of-sequence token if the model prepends one.
    pub ids: Vec<u32>,
    /// Text of each token.
    pub tokens: Vec<String>,
    /// Byte range of each token in the text; empty for a prepended token.
    pub spans: Vec<Range<usize>>,
}

impl Tokenized {
    /// Positions of the tokens that overlap each occurrence of `part` in the text.
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

    /// Positions of the tokens that overlap the only occurrence of `part`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let tokenized = model.tokenize("Mary and Mary")?;
    /// assert_eq!(tokenized.position("and")?, 2..3);
    /// let message = tokenized.position("Mary").unwrap_err().to_string();
    /// assert_eq!(message, "`Mary` occurs 2 times in `Mary and Mary`; expected exactly once");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::NotOnce`] if `part` does not occur exactly once.
    pub fn position(&self, part: &str) -> Result<Range<usize>, InputError> {
        match &self.positions(part)[..] {
            [one] => Ok(one.clone()),
            several => Err(InputError::NotOnce { part: part.into(), text: self.text.clone(), count: several.len() }),
        }
    }

    /// Positions of the tokens that overlap a byte range of the text; `None` if there are none.
    fn positions_of_bytes(&self, bytes: Range<usize>) -> Option<Range<usize>> {
        let touched = |span: &&Range<usize>| span.start < bytes.end && span.end > bytes.start;
        let first = self.spans.iter().position(|span| touched(&span))?;
        let last = self.spans.iter().rposition(|span| touched(&span))?;
        Some(first..last + 1)
    }
}

impl fmt::Display for Tokenized {
    /// Formats the tokens, separated by bars.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.tokens.join("|"))
    }
}
