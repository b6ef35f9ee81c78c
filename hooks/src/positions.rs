//! Selections of token positions.

use std::fmt;
use std::ops::{Range, RangeFrom, RangeTo};
use std::str::FromStr;

use crate::error::HookError;
use crate::ordinal::Ordinal;

/// Token positions to keep of a recording. Negative numbers count from the end.
///
/// Padding takes no position: in a padded batch, -1 is each row's last real token, wherever it
/// stands.
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

/// Positions resolved for one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kept {
    /// All columns.
    All,
    /// The same columns of every row.
    Range(Range<usize>),
    /// Columns of each row, as many in each.
    ByRow(Vec<Vec<usize>>),
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
        self.rows_of([batch, len], None)
    }

    /// As [`Positions::rows`], counting over the real tokens of a padded batch.
    pub(crate) fn rows_of(
        &self,
        [batch, len]: [usize; 2],
        real: Option<&[bool]>,
    ) -> Result<Vec<Vec<usize>>, HookError> {
        Ok(match self.columns([batch, len], real)? {
            Kept::All => vec![(0..len).collect(); batch],
            Kept::Range(range) => vec![range.collect(); batch],
            Kept::ByRow(rows) => rows,
        })
    }

    fn outside(&self, row: Option<usize>, len: usize) -> HookError {
        HookError::Positions { asked: self.to_string(), row, len, cached: 0 }
    }

    /// The columns to keep of a batch of `batch` rows of `len`, of which `real` tells those that
    /// are no padding.
    pub(crate) fn columns(&self, [batch, len]: [usize; 2], real: Option<&[bool]>) -> Result<Kept, HookError> {
        let given = match self {
            Positions::Columns(rows) => rows.len(),
            Positions::OfRows(rows) => rows.len(),
            _ => batch,
        };
        if given != batch {
            return Err(HookError::PositionsOfRows { given, batch });
        }
        if let Positions::Columns(rows) = self {
            let width = rows.first().map_or(0, Vec::len);
            let sound = |row: &Vec<usize>| width > 0 && row.len() == width && row.iter().all(|column| *column < len);
            return match rows.iter().position(|row| !sound(row)) {
                Some(row) => Err(self.outside(Some(row), len)),
                None => Ok(Kept::ByRow(rows.clone())),
            };
        }
        let by_row = matches!(self, Positions::List(_) | Positions::OfRows(_));
        let real = real.filter(|_| *self != Positions::All);
        if !by_row && real.is_none() {
            let range = self.resolve(len)?;
            return Ok(if range == (0..len) { Kept::All } else { Kept::Range(range) });
        }
        let mut rows = Vec::with_capacity(batch);
        for number in 0..batch {
            let is_real = |column: &usize| real.is_none_or(|real| real[number * len + column]);
            let columns: Vec<usize> = (0..len).filter(is_real).collect();
            let places = match self {
                Positions::OfRows(of_rows) => Positions::At(of_rows[number]).places(columns.len()),
                _ => self.places(columns.len()),
            };
            let places = places.map_err(|error| error.of_row(number))?;
            rows.push(places.into_iter().map(|place| columns[place]).collect());
        }
        let widths = || rows.iter().map(Vec::len);
        match (widths().min(), widths().max()) {
            (Some(least), Some(most)) if least < most => {
                Err(HookError::UnevenPositions { asked: self.to_string(), least, most })
            }
            _ => Ok(Kept::ByRow(rows)),
        }
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
