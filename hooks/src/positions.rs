//! Selections of token positions.

use std::fmt;
use std::ops::{Range, RangeFrom, RangeTo};
use std::str::FromStr;

use crate::error::HookError;
use crate::ordinal::Ordinal;
use crate::rows::Rows;

/// Token positions within each row's text. Negative numbers count from the end.
///
/// Padding does not count as a position: in a padded batch, -1 is each row's last token, whichever column holds it.
/// Tokens in a key-value cache are part of the text, which ends with the last token that the model has processed.
///
/// - `5`, `-1`: one position.
/// - `2..5`, `-3..`, `..2`: a half-open range.
/// - `[1, 1, 3]`, a vector, or a slice of `usize`, `isize`, or `i32`: these positions, in this order.
/// - [`Positions::of_rows`]: one position per row.
///
/// ```
/// use hooklens_hooks::{Positions, ResolvePositions};
/// assert_eq!(Positions::from(-1).resolve(7)?, 6..7);
/// assert_eq!(Positions::from(2..5).resolve(7)?, 2..5);
/// assert_eq!(Positions::from(-3..).resolve(7)?, 4..7);
/// assert_eq!("-3..".parse::<Positions>()?.resolve(7)?, 4..7);
/// assert_eq!(Positions::from([1, 1, -1]).places(7)?, [1, 1, 6]);
/// assert!(Positions::from(9).resolve(7).is_err());
/// # Ok::<(), hooklens_hooks::HookError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Positions {
    /// Every position.
    #[default]
    All,
    /// One position. The axis is kept, with length one.
    At(isize),
    /// Half-open range. Without a lower bound, it starts at the first position; without an upper bound, it ends after
    /// the last.
    Range(Option<isize>, Option<isize>),
    /// These positions, in this order. Repeats are allowed.
    List(Vec<isize>),
    /// One position per row. The axis is kept, with length one.
    OfRows(Vec<isize>),
    /// Columns to keep in each row of the batch, counting padding. Every row must have the same number of columns.
    Columns(Vec<Vec<usize>>),
}

/// The tokens among which positions are counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Counting {
    /// A row's whole text, including tokens in a key-value cache.
    #[default]
    Text,
    /// The tokens that the run computes.
    Run,
}

/// Positions resolved for one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PositionSlice {
    /// All columns.
    All,
    /// The same columns of every row.
    Range(Range<usize>),
    /// Columns of each row.
    ByRow(Vec<Vec<usize>>),
}

impl PositionSlice {
    /// Number of columns kept per row, out of `len`.
    pub(crate) fn width(&self, len: usize) -> usize {
        match self {
            PositionSlice::All => len,
            PositionSlice::Range(range) => range.len(),
            PositionSlice::ByRow(rows) => rows.first().map_or(0, Vec::len),
        }
    }
}

impl Positions {
    /// One position for each row of a batch, in row order.
    ///
    /// ```
    /// use hooklens_hooks::Positions;
    /// let second_names: Vec<usize> = vec![4, 2]; // their positions in two prompts
    /// assert_eq!(Positions::of_rows(second_names), Positions::OfRows(vec![4, 2]));
    /// ```
    pub fn of_rows<P: Ordinal>(rows: impl IntoIterator<Item = P>) -> Self {
        Positions::OfRows(rows.into_iter().map(Ordinal::number).collect())
    }

    fn outside(&self, row: Option<usize>, len: usize) -> HookError {
        HookError::Positions { asked: self.to_string(), row, len, cached: 0 }
    }

    /// Whether all positions count from the start, so that they mean the same in texts of any length.
    pub(crate) fn count_from_the_start(&self) -> bool {
        let from_start = |n: &isize| *n >= 0;
        match self {
            Positions::At(n) => from_start(n),
            Positions::Range(a, b) => a.is_none_or(|a| a >= 0) && b.is_some_and(|b| b >= 0),
            Positions::List(list) | Positions::OfRows(list) => list.iter().all(from_start),
            Positions::All | Positions::Columns(_) => false,
        }
    }

    /// Whether any position counts from the end, so that it depends on the length of the text.
    pub(crate) fn count_from_the_end(&self) -> bool {
        let from_end = |n: &isize| *n < 0;
        match self {
            Positions::At(n) => from_end(n),
            Positions::Range(a, b) => a.as_ref().is_some_and(from_end) || b.as_ref().is_some_and(from_end),
            Positions::List(list) | Positions::OfRows(list) => list.iter().any(from_end),
            Positions::All | Positions::Columns(_) => false,
        }
    }

    /// Fails if a text of `len` tokens does not have all positions.
    pub(crate) fn check_reach(&self, len: usize) -> Result<(), HookError> {
        let end = |n: &isize| usize::try_from(*n).map_or(0, |n| n.saturating_add(1));
        let needed = match self {
            Positions::At(n) => end(n),
            Positions::Range(a, _) => a.as_ref().map_or(0, end),
            Positions::List(list) | Positions::OfRows(list) => list.iter().map(end).max().unwrap_or(0),
            Positions::All | Positions::Columns(_) => 0,
        };
        if needed > len { Err(self.outside(None, len)) } else { Ok(()) }
    }

    /// Like [`Positions::resolve`], but if the text is `open`, positions that do not exist yet are left out.
    fn range_within(&self, len: usize, open: bool) -> Result<Range<usize>, HookError> {
        if !open {
            return self.resolve(len);
        }
        let place = |n: isize| if n < 0 { n + len as isize } else { n };
        let (start, end) = match *self {
            Positions::At(n) => (place(n), place(n).saturating_add(1)),
            Positions::Range(a, b) if a.is_none_or(|a| a >= 0) && b.is_none_or(|b| b >= 0) => {
                let (start, end) = (a.unwrap_or(0), b.unwrap_or(isize::MAX));
                if start >= end {
                    return Err(self.outside(None, len));
                }
                (start, end)
            }
            Positions::Range(a, b) => (a.map_or(0, place), b.map_or(len as isize, place)),
            _ => return self.resolve(len),
        };
        if start < 0 || end < 0 {
            return Err(self.outside(None, len));
        }
        let (start, end) = ((start as usize).min(len), (end as usize).min(len));
        Ok(start..end.max(start))
    }

    /// Like [`Positions::places`], but if the text is `open`, positions that do not exist yet are left out.
    fn places_within(&self, len: usize, open: bool) -> Result<Vec<usize>, HookError> {
        let Positions::List(list) = self else { return Ok(self.range_within(len, open)?.collect()) };
        if list.is_empty() {
            return Err(self.outside(None, len));
        }
        let mut places = Vec::with_capacity(list.len());
        for position in list {
            places.extend(Positions::At(*position).range_within(len, open)?);
        }
        Ok(places)
    }

    /// The run's columns at these positions. Rows may have different numbers of columns, or none. With `past`, columns
    /// of the key-value cache are included, and columns are counted from the cache's first column.
    pub(crate) fn columns(&self, rows: &Rows<'_>, counting: Counting, past: bool) -> Result<PositionSlice, HookError> {
        let in_cache = |error: HookError| match error {
            HookError::Positions { asked, row, len, .. } => {
                HookError::Positions { asked, row, len, cached: rows.offset.min(len) }
            }
            other => other,
        };
        let first = if past { 0 } else { rows.offset };
        let available = rows.columns() - first;
        match self {
            // A tensor with cached columns has more than the run's own.
            Positions::All if counting == Counting::Run && rows.offset > 0 => {
                return Ok(PositionSlice::Range(rows.offset - first..available));
            }
            Positions::All => return Ok(PositionSlice::All),
            Positions::Columns(given) => {
                if given.len() != rows.batch {
                    return Err(HookError::PositionsOfRows { given: given.len(), batch: rows.batch });
                }
                let width = given.first().map_or(0, Vec::len);
                let sound = |row: &Vec<usize>| width > 0 && row.len() == width && row.iter().all(|c| *c < rows.len);
                return match given.iter().position(|row| !sound(row)) {
                    Some(row) => Err(self.outside(Some(row), rows.len)),
                    None => Ok(PositionSlice::ByRow(given.clone())),
                };
            }
            Positions::OfRows(of_rows) if of_rows.len() != rows.users_rows() => {
                return Err(HookError::PositionsOfRows { given: of_rows.len(), batch: rows.users_rows() });
            }
            _ => {}
        }
        let by_row = matches!(self, Positions::List(_) | Positions::OfRows(_));
        if !by_row && rows.is_plain() {
            // Column that position 0 refers to, counting cached columns.
            let begin = if counting == Counting::Run { rows.offset } else { 0 };
            let range = self.range_within(rows.columns() - begin, rows.open).map_err(in_cache)?;
            let place = |place: usize| (place + begin).max(first) - first;
            let range = place(range.start)..place(range.end);
            let all = range == (0..available) && rows.offset == 0;
            return Ok(if all { PositionSlice::All } else { PositionSlice::Range(range) });
        }
        let mut chosen = Vec::with_capacity(rows.batch);
        for row in 0..rows.batch {
            // Columns of the tokens that the run computes, needed if positions are counted within the run.
            let own: Vec<usize> = match counting {
                Counting::Run => {
                    (rows.offset..rows.columns()).filter(|column| rows.position(row, *column).is_some()).collect()
                }
                Counting::Text => Vec::new(),
            };
            let (count, column_of): (usize, &dyn Fn(usize) -> Option<usize>) = match counting {
                Counting::Run => (own.len(), &|place| own.get(place).copied()),
                Counting::Text => (rows.text_len(row), &|position| rows.column(row, position)),
            };
            let places = match self {
                Positions::OfRows(of_rows) => {
                    Positions::At(of_rows[rows.users_row(row)]).places_within(count, rows.open)
                }
                _ => self.places_within(count, rows.open),
            };
            let places = places.map_err(|error| in_cache(error.of_row(row)))?;
            let column = |place: usize| column_of(place).filter(|column| *column >= first).map(|column| column - first);
            chosen.push(places.into_iter().filter_map(column).collect());
        }
        Ok(PositionSlice::ByRow(chosen))
    }

    /// Fails unless all rows have the same number of positions.
    pub(crate) fn check_even(&self, rows: &[Vec<usize>]) -> Result<(), HookError> {
        let widths = || rows.iter().map(Vec::len);
        match (widths().min(), widths().max()) {
            (Some(least), Some(most)) if least < most => {
                Err(HookError::UnevenPositions { asked: self.to_string(), least, most })
            }
            _ => Ok(()),
        }
    }

    /// The run's columns that a recording keeps, with the same number in each row.
    pub(crate) fn recorded(&self, rows: &Rows<'_>, counting: Counting) -> Result<PositionSlice, HookError> {
        let mut kept = self.columns(rows, counting, false)?;
        if let PositionSlice::ByRow(chosen) = &mut kept {
            let width = chosen.iter().map(Vec::len).max().unwrap_or(0);
            let ended = |row: usize| (rows.offset..rows.columns()).all(|column| rows.position(row, column).is_none());
            // A row whose text has ended is padding in this run, so record padding for it.
            for (_, columns) in chosen.iter_mut().enumerate().filter(|(row, _)| rows.offset > 0 && ended(*row)) {
                columns.resize(width, rows.len - 1);
            }
            self.check_even(chosen)?;
        }
        Ok(kept)
    }
}

/// Resolves [`Positions`] to indices in a run of known length.
pub trait ResolvePositions {
    /// Resolves the positions to a range in a run of `len` tokens.
    ///
    /// # Errors
    /// [`HookError::Positions`] if the range is empty or out of bounds, or [`HookError::NoRange`] for a list or for
    /// per-row positions.
    fn resolve(&self, len: usize) -> Result<Range<usize>, HookError>;

    /// Resolves the positions to a list of indices in a run of `len` tokens.
    ///
    /// ```
    /// use hooklens_hooks::{Positions, ResolvePositions};
    /// assert_eq!(Positions::from(vec![2usize, 0]).places(3)?, [2, 0]);
    /// assert_eq!(Positions::from(1..).places(3)?, [1, 2]);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Positions`] if a position is out of bounds or there are none, or [`HookError::NoRange`] for per-row
    /// positions.
    fn places(&self, len: usize) -> Result<Vec<usize>, HookError>;

    /// Resolves the positions to a list of indices for each row of a batch, given its shape `[batch, len]`. All lists
    /// have the same length.
    ///
    /// ```
    /// use hooklens_hooks::{Positions, ResolvePositions};
    /// assert_eq!(Positions::of_rows([4, -1]).rows([2, 5])?, [[4], [4]]);
    /// assert_eq!(Positions::from([0, 2]).rows([2, 5])?, [[0, 2], [0, 2]]);
    /// let message = Positions::of_rows([4, 5]).rows([2, 5]).unwrap_err().to_string();
    /// assert_eq!(message, "position 5 is not within the 5 positions of row 1 (0 to 4)");
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Positions`] if a position is out of range for its row, or [`HookError::PositionsOfRows`] if the
    /// number of rows does not match the batch.
    fn rows(&self, shape: [usize; 2]) -> Result<Vec<Vec<usize>>, HookError>;
}

impl ResolvePositions for Positions {
    fn resolve(&self, len: usize) -> Result<Range<usize>, HookError> {
        let place = |n: isize| if n < 0 { n + len as isize } else { n };
        let (start, end) = match *self {
            Positions::All => (0, len as isize),
            Positions::At(n) => (place(n), place(n).saturating_add(1)),
            Positions::Range(a, b) => (a.map_or(0, place), b.map_or(len as isize, place)),
            _ => return Err(HookError::NoRange { asked: self.to_string() }),
        };
        let outside = start < 0 || end > len as isize || start >= end;
        if outside && *self != Positions::All {
            return Err(self.outside(None, len));
        }
        Ok(start as usize..end as usize)
    }

    fn places(&self, len: usize) -> Result<Vec<usize>, HookError> {
        let Positions::List(list) = self else { return Ok(self.resolve(len)?.collect()) };
        if list.is_empty() {
            return Err(self.outside(None, len));
        }
        list.iter().map(|position| Positions::At(*position).resolve(len).map(|range| range.start)).collect()
    }

    fn rows(&self, [batch, len]: [usize; 2]) -> Result<Vec<Vec<usize>>, HookError> {
        Ok(match self.columns(&Rows::new(batch, len), Counting::Text, false)? {
            PositionSlice::All => vec![(0..len).collect(); batch],
            PositionSlice::Range(range) => vec![range.collect(); batch],
            PositionSlice::ByRow(rows) => rows,
        })
    }
}

impl fmt::Display for Positions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |n: &Option<isize>| n.map_or(String::new(), |n| n.to_string());
        match self {
            Positions::All => f.write_str(".."),
            Positions::At(n) => write!(f, "{n}"),
            Positions::Range(a, b) => write!(f, "{}..{}", end(a), end(b)),
            Positions::List(list) => write!(f, "{list:?}"),
            Positions::OfRows(rows) => write!(f, "{rows:?} of the rows"),
            Positions::Columns(rows) => write!(f, "{rows:?}"),
        }
    }
}

impl<P: Ordinal> From<P> for Positions {
    fn from(position: P) -> Self {
        Positions::At(position.number())
    }
}

impl<P: Ordinal> From<Range<P>> for Positions {
    fn from(range: Range<P>) -> Self {
        Positions::Range(Some(range.start.number()), Some(range.end.number()))
    }
}

impl<P: Ordinal> From<RangeFrom<P>> for Positions {
    fn from(range: RangeFrom<P>) -> Self {
        Positions::Range(Some(range.start.number()), None)
    }
}

impl<P: Ordinal> From<RangeTo<P>> for Positions {
    fn from(range: RangeTo<P>) -> Self {
        Positions::Range(None, Some(range.end.number()))
    }
}

impl<P: Ordinal> From<&[P]> for Positions {
    fn from(positions: &[P]) -> Self {
        Positions::List(positions.iter().map(|position| position.number()).collect())
    }
}

impl<P: Ordinal> From<Vec<P>> for Positions {
    fn from(positions: Vec<P>) -> Self {
        positions.as_slice().into()
    }
}

impl<P: Ordinal> From<&Vec<P>> for Positions {
    fn from(positions: &Vec<P>) -> Self {
        positions.as_slice().into()
    }
}

impl<P: Ordinal, const N: usize> From<[P; N]> for Positions {
    fn from(positions: [P; N]) -> Self {
        positions.as_slice().into()
    }
}

impl FromStr for Positions {
    type Err = HookError;

    /// Parses `A..B`, `A..`, `..B`, `..`, `N`, or `-1`.
    fn from_str(text: &str) -> Result<Self, HookError> {
        let bad = || HookError::BadPattern {
            pattern: text.to_string(),
            reason: "positions are written A..B, A.., ..B or N, and -1 is the last".to_string(),
        };
        let number = |t: &str| t.trim().parse::<isize>().map_err(|_| bad());
        let end = |t: &str| if t.trim().is_empty() { Ok(None) } else { number(t).map(Some) };
        match text.split_once("..") {
            Some((a, b)) => match (end(a)?, end(b)?) {
                (None, None) => Ok(Positions::All),
                (a, b) => Ok(Positions::Range(a, b)),
            },
            None => Ok(Positions::At(number(text)?)),
        }
    }
}
