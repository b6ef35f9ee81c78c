//! Which token positions of a run to keep.

use std::fmt;
use std::ops::{Range, RangeFrom, RangeTo};
use std::str::FromStr;

use crate::error::HookError;

/// Token positions to keep of a recording. Negative numbers count from the end.
///
/// Padding takes no position: in a padded batch, -1 is each row's last real token, wherever it
/// stands.
///
/// ```
/// use hooklens_hooks::Positions;
/// assert_eq!(Positions::from(-1).resolve(7)?, 6..7);
/// assert_eq!(Positions::from(2..5).resolve(7)?, 2..5);
/// assert_eq!(Positions::from(-3..).resolve(7)?, 4..7);
/// assert_eq!("-3..".parse::<Positions>()?.resolve(7)?, 4..7);
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
    /// For each row of the batch the columns to keep, padding counted; as many in each row.
    Columns(Vec<Vec<usize>>),
}

/// What positions come to in one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Every column.
    All,
    /// The same columns of every row.
    Range(Range<usize>),
    /// Columns of each row, as many in each.
    ByRow(Vec<Vec<usize>>),
}

impl Positions {
    /// The positions as a range within a run of `len`.
    ///
    /// # Errors
    /// [`HookError::Positions`] if they lie outside the run or are empty.
    pub fn resolve(&self, len: usize) -> Result<Range<usize>, HookError> {
        let place = |n: isize| if n < 0 { n + len as isize } else { n };
        let (start, end) = match *self {
            Positions::All => (0, len as isize),
            Positions::At(n) => (place(n), place(n) + 1),
            Positions::Range(a, b) => (a.map_or(0, place), b.map_or(len as isize, place)),
            Positions::Columns(_) => return Err(HookError::Positions { asked: self.to_string(), len, cached: 0 }),
        };
        let outside = start < 0 || end > len as isize || start >= end;
        if outside && *self != Positions::All {
            return Err(HookError::Positions { asked: self.to_string(), len, cached: 0 });
        }
        Ok(start as usize..end as usize)
    }

    /// The columns to keep of a batch of `batch` rows of `len`, of which `real` tells those that
    /// are no padding.
    pub(crate) fn columns(&self, [batch, len]: [usize; 2], real: Option<&[bool]>) -> Result<Kept, HookError> {
        if let Positions::Columns(rows) = self {
            let width = rows.first().map_or(0, Vec::len);
            let sound = |row: &Vec<usize>| row.len() == width && row.iter().all(|column| *column < len);
            if rows.len() != batch || width == 0 || !rows.iter().all(sound) {
                return Err(HookError::Positions { asked: self.to_string(), len, cached: 0 });
            }
            return Ok(Kept::ByRow(rows.clone()));
        }
        let Some(real) = real.filter(|_| *self != Positions::All) else {
            let range = self.resolve(len)?;
            return Ok(if range == (0..len) { Kept::All } else { Kept::Range(range) });
        };
        let mut rows = Vec::with_capacity(batch);
        for row in real.chunks(len.max(1)) {
            let columns: Vec<usize> = (0..len).filter(|column| row[*column]).collect();
            rows.push(columns[self.resolve(columns.len())?].to_vec());
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
            Positions::Columns(rows) => write!(f, "{rows:?}"),
        }
    }
}

macro_rules! from_numbers {
    ($($number:ty),*) => { $(
        impl From<$number> for Positions {
            fn from(position: $number) -> Self {
                Positions::At(position as isize)
            }
        }

        impl From<Range<$number>> for Positions {
            fn from(range: Range<$number>) -> Self {
                Positions::Range(Some(range.start as isize), Some(range.end as isize))
            }
        }

        impl From<RangeFrom<$number>> for Positions {
            fn from(range: RangeFrom<$number>) -> Self {
                Positions::Range(Some(range.start as isize), None)
            }
        }

        impl From<RangeTo<$number>> for Positions {
            fn from(range: RangeTo<$number>) -> Self {
                Positions::Range(None, Some(range.end as isize))
            }
        }
    )* };
}
from_numbers!(isize, i32);

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
