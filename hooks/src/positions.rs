//! Selections of token positions.

use std::fmt;
use std::ops::{Range, RangeFrom, RangeTo};
use std::str::FromStr;

use crate::error::HookError;
use crate::ordinal::Ordinal;
use crate::run::Rows;

/// Positions of tokens in the text of their row. Negative numbers count from its end.
///
/// Padding takes no position: in a padded batch, -1 is each row's last token, wherever its column is. The tokens of a
/// key-value cache are part of the text, which ends with the run's last token so far.
///
/// - `5`, `-1`: one position.
/// - `2..5`, `-3..`, `..2`: those from the first number up to, not including, the second.
/// - `[1, 1, 3]`, a vector or a slice of `usize`, `isize` or `i32`: these, in this order.
/// - [`Positions::of_rows`]: one position a row.
///
/// ```
/// use hooklens_hooks::Positions;
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
    /// One position; the axis stays, with length one.
    At(isize),
    /// From the first number up to, not including, the second; an end left out is the run's.
    Range(Option<isize>, Option<isize>),
    /// These, in this order; one may come several times.
    List(Vec<isize>),
    /// One position a row; the axis stays, with length one.
    OfRows(Vec<isize>),
    /// For each row of the batch the columns to keep, padding counted; as many in each row.
    Columns(Vec<Vec<usize>>),
}

/// What positions are counted over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Counting {
    /// The tokens of a row's whole text, including those in a key-value cache.
    #[default]
    Text,
    /// The tokens that the run computes.
    Run,
}

/// Positions resolved for one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kept {
    /// All columns.
    All,
    /// The same columns of every row.
    Range(Range<usize>),
    /// Columns of each row.
    ByRow(Vec<Vec<usize>>),
}

impl Kept {
    /// Number of columns kept per row, of `len`.
    pub(crate) fn width(&self, len: usize) -> usize {
        match self {
            Kept::All => len,
            Kept::Range(range) => range.len(),
            Kept::ByRow(rows) => rows.first().map_or(0, Vec::len),
        }
    }
}

impl Positions {
    /// One position for each row of a batch: the first row's, the second's, and so on.
    ///
    /// ```
    /// use hooklens_hooks::Positions;
    /// let second_names: Vec<usize> = vec![4, 2]; // where they stand in two prompts
    /// assert_eq!(Positions::of_rows(second_names), Positions::OfRows(vec![4, 2]));
    /// ```
    pub fn of_rows<P: Ordinal>(rows: impl IntoIterator<Item = P>) -> Self {
        Positions::OfRows(rows.into_iter().map(Ordinal::number).collect())
    }

    /// The positions as a range within a run of `len`.
    ///
    /// # Errors
    /// [`HookError::Positions`] if they lie outside the run or are empty, [`HookError::NoRange`] if they are a list or
    /// of each row its own.
    pub fn resolve(&self, len: usize) -> Result<Range<usize>, HookError> {
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

    /// The positions within a run of `len`, one by one.
    ///
    /// ```
    /// use hooklens_hooks::Positions;
    /// assert_eq!(Positions::from(vec![2usize, 0]).places(3)?, [2, 0]);
    /// assert_eq!(Positions::from(1..).places(3)?, [1, 2]);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Positions`] if they lie outside the run or are none, [`HookError::NoRange`] if each row has its own.
    pub fn places(&self, len: usize) -> Result<Vec<usize>, HookError> {
        let Positions::List(list) = self else { return Ok(self.resolve(len)?.collect()) };
        if list.is_empty() {
            return Err(self.outside(None, len));
        }
        list.iter().map(|position| Positions::At(*position).resolve(len).map(|range| range.start)).collect()
    }

    /// The positions within each row of a batch of `batch` rows of `len`, as many in each.
    ///
    /// ```
    /// use hooklens_hooks::Positions;
    /// assert_eq!(Positions::of_rows([4, -1]).rows([2, 5])?, [[4], [4]]);
    /// assert_eq!(Positions::from([0, 2]).rows([2, 5])?, [[0, 2], [0, 2]]);
    /// let told = Positions::of_rows([4, 5]).rows([2, 5]).unwrap_err().to_string();
    /// assert_eq!(told, "positions 5 are not within the 5 positions of row 1");
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Positions`] for what a row lacks, [`HookError::PositionsOfRows`] for another number of rows.
    pub fn rows(&self, [batch, len]: [usize; 2]) -> Result<Vec<Vec<usize>>, HookError> {
        Ok(match self.columns(&Rows::new(batch, len), Counting::Text, false)? {
            Kept::All => vec![(0..len).collect(); batch],
            Kept::Range(range) => vec![range.collect(); batch],
            Kept::ByRow(rows) => rows,
        })
    }

    fn outside(&self, row: Option<usize>, len: usize) -> HookError {
        HookError::Positions { asked: self.to_string(), row, len, cached: 0 }
    }

    /// Whether all count from the start of a text, so that they are the same places in texts of any length.
    pub(crate) fn count_from_the_start(&self) -> bool {
        let from_start = |n: &isize| *n >= 0;
        match self {
            Positions::At(n) => from_start(n),
            Positions::Range(a, b) => a.is_none_or(|a| a >= 0) && b.is_some_and(|b| b >= 0),
            Positions::List(list) | Positions::OfRows(list) => list.iter().all(from_start),
            Positions::All | Positions::Columns(_) => false,
        }
    }

    /// Whether some count from the end of a text, so that they are other places in a text of another length.
    pub(crate) fn count_from_the_end(&self) -> bool {
        let from_end = |n: &isize| *n < 0;
        match self {
            Positions::At(n) => from_end(n),
            Positions::Range(a, b) => a.as_ref().is_some_and(from_end) || b.as_ref().is_some_and(from_end),
            Positions::List(list) | Positions::OfRows(list) => list.iter().any(from_end),
            Positions::All | Positions::Columns(_) => false,
        }
    }

    /// Fails if a text of this many tokens will not have some of them.
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

    /// Like [`Positions::resolve`], except that an open text may not have some of the positions yet: these are left out.
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

    /// Like [`Positions::places`], except that an open text may not have some of the positions yet: these are left out.
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

    /// The run's columns at these positions. Rows may have different numbers of columns, or none. With `past`, a cache's
    /// columns are chosen too, and counted from its first.
    pub(crate) fn columns(&self, rows: &Rows<'_>, counting: Counting, past: bool) -> Result<Kept, HookError> {
        let in_cache = |error: HookError| match error {
            HookError::Positions { asked, row, len, .. } => {
                HookError::Positions { asked, row, len, cached: rows.offset.min(len) }
            }
            other => other,
        };
        let first = if past { 0 } else { rows.offset };
        let available = rows.columns() - first;
        match self {
            Positions::All => return Ok(Kept::All),
            Positions::Columns(given) => {
                if given.len() != rows.batch {
                    return Err(HookError::PositionsOfRows { given: given.len(), batch: rows.batch });
                }
                let width = given.first().map_or(0, Vec::len);
                let sound = |row: &Vec<usize>| width > 0 && row.len() == width && row.iter().all(|c| *c < rows.len);
                return match given.iter().position(|row| !sound(row)) {
                    Some(row) => Err(self.outside(Some(row), rows.len)),
                    None => Ok(Kept::ByRow(given.clone())),
                };
            }
            Positions::OfRows(of_rows) if of_rows.len() != rows.users_rows() => {
                return Err(HookError::PositionsOfRows { given: of_rows.len(), batch: rows.users_rows() });
            }
            _ => {}
        }
        let by_row = matches!(self, Positions::List(_) | Positions::OfRows(_));
        if !by_row && rows.is_plain() {
            // Where counting begins, among all columns.
            let begin = if counting == Counting::Run { rows.offset } else { 0 };
            let range = self.range_within(rows.columns() - begin, rows.open).map_err(in_cache)?;
            let place = |place: usize| (place + begin).max(first) - first;
            let range = place(range.start)..place(range.end);
            return Ok(if range == (0..available) { Kept::All } else { Kept::Range(range) });
        }
        let mut chosen = Vec::with_capacity(rows.batch);
        for row in 0..rows.batch {
            // The columns of the run's own tokens, where these are what is counted.
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
        Ok(Kept::ByRow(chosen))
    }

    /// Fails unless they are the same number in each row.
    pub(crate) fn check_even(&self, rows: &[Vec<usize>]) -> Result<(), HookError> {
        let widths = || rows.iter().map(Vec::len);
        match (widths().min(), widths().max()) {
            (Some(least), Some(most)) if least < most => {
                Err(HookError::UnevenPositions { asked: self.to_string(), least, most })
            }
            _ => Ok(()),
        }
    }

    /// The run's columns that a recording keeps, the same number for each row.
    pub(crate) fn recorded(&self, rows: &Rows<'_>, counting: Counting) -> Result<Kept, HookError> {
        let mut kept = self.columns(rows, counting, false)?;
        if let Kept::ByRow(chosen) = &mut kept {
            let width = chosen.iter().map(Vec::len).max().unwrap_or(0);
            let ended = |row: usize| (rows.offset..rows.columns()).all(|column| rows.position(row, column).is_none());
            // A row whose text has ended is padding in this run, and is recorded as that.
            for (_, columns) in chosen.iter_mut().enumerate().filter(|(row, _)| rows.offset > 0 && ended(*row)) {
                columns.resize(width, rows.len - 1);
            }
            self.check_even(chosen)?;
        }
        Ok(kept)
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

    /// Reads `A..B`, `A..`, `..B`, `..`, `N` or `-1`.
    fn from_str(text: &str) -> Result<Self, HookError> {
        let bad = || HookError::BadPattern {
            pattern: text.to_string(),
            reason: "positions are written A..B, A.., ..B, N or -1".to_string(),
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
