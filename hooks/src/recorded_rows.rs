//! Mapping from a recording's columns to tokens.

use std::ops::Range;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use crate::error::HookError;
use crate::positions::{PositionSlice, Positions, ResolvePositions};
use crate::rows::Rows;

/// Token position of each column; `None` for padding.
type Columns = Arc<[Option<usize>]>;

/// The rows of a recording: for each column, the position of its token in the row's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedRows {
    /// For each row, the text position of each recorded column.
    pub(crate) kept: Vec<Columns>,
    /// For each row, the text positions of all keys, cached keys first.
    pub(crate) keys: Vec<Columns>,
    /// Number of tokens in each row's text, including cached tokens.
    pub(crate) text_lens: Vec<usize>,
}

impl RecordedRows {
    /// The rows recorded by a run over `rows` that keeps the columns `kept`.
    pub(crate) fn of(rows: &Rows<'_>, kept: &PositionSlice) -> Self {
        let text_lens = (0..rows.batch).map(|row| rows.text_len(row)).collect();
        let row = |row: usize| -> Columns { (0..rows.columns()).map(|column| rows.position(row, column)).collect() };
        let keys: Vec<Columns> = match rows.is_plain() {
            true => vec![row(0); rows.batch],
            false => (0..rows.batch).map(row).collect(),
        };
        let kept = match kept {
            PositionSlice::All => Self::cut(&keys, rows.offset..rows.columns()),
            PositionSlice::Range(range) => Self::cut(&keys, rows.offset + range.start..rows.offset + range.end),
            PositionSlice::ByRow(places) => {
                let of_row = |(keys, places): (&Columns, &Vec<usize>)| {
                    places.iter().map(|place| keys[rows.offset + place]).collect()
                };
                keys.iter().zip(places).map(of_row).collect()
            }
        };
        Self { kept, keys, text_lens }
    }

    /// Slices each row to a range of columns. Rows that share an allocation still share one afterwards.
    fn cut(rows: &[Columns], range: Range<usize>) -> Vec<Columns> {
        let mut cut: Vec<Columns> = Vec::with_capacity(rows.len());
        for (number, row) in rows.iter().enumerate() {
            let own = match cut.last().filter(|_| number > 0 && Arc::ptr_eq(row, &rows[number - 1])) {
                Some(before) => before.clone(),
                None if range == (0..row.len()) => row.clone(),
                None => row[range.clone()].into(),
            };
            cut.push(own);
        }
        cut
    }

    /// Adds the rows to a hash.
    pub(crate) fn add_to_hash(&self, hash: &mut Xxh3) {
        let mut add = |number: usize| hash.update(&(number as u64).to_le_bytes());
        for rows in [&self.kept, &self.keys] {
            add(rows.len());
            for row in rows {
                add(row.len());
                row.iter().for_each(|position| add(position.unwrap_or(usize::MAX)));
            }
        }
        self.text_lens.iter().for_each(|len| add(*len));
    }

    pub(crate) fn batch(&self) -> usize {
        self.kept.len()
    }

    /// Number of recorded columns per row.
    pub(crate) fn len(&self) -> usize {
        self.kept.first().map_or(0, |row| row.len())
    }

    /// Text position of each recorded column's token; `None` for padding.
    pub fn positions(&self) -> Vec<Vec<Option<usize>>> {
        self.kept.iter().map(|row| row.to_vec()).collect()
    }

    /// Number of tokens in a row's text, including cached tokens.
    pub fn text_len(&self, row: usize) -> Option<usize> {
        self.text_lens.get(row).copied()
    }

    /// A range of the rows.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        Self {
            kept: self.kept[rows.clone()].to_vec(),
            keys: self.keys[rows.clone()].to_vec(),
            text_lens: self.text_lens[rows].to_vec(),
        }
    }

    /// Selects columns of each row, by index among the recorded columns.
    ///
    /// # Panics
    /// If an index is out of bounds.
    pub fn columns(&self, places: &[Vec<usize>]) -> Self {
        let of_row =
            |(kept, places): (&Columns, &Vec<usize>)| -> Columns { places.iter().map(|place| kept[*place]).collect() };
        Self { kept: self.kept.iter().zip(places).map(of_row).collect(), ..self.clone() }
    }

    /// Keeps the first `count` columns, and truncates the keys and text lengths to match.
    pub(crate) fn first(&self, count: usize) -> Self {
        let missing = self.len().saturating_sub(count);
        let keys = self.keys.first().map_or(0, |row| row.len()).saturating_sub(missing);
        let keys = Self::cut(&self.keys, 0..keys);
        let text_lens = keys.iter().map(|row| row.iter().flatten().max().map_or(0, |last| last + 1)).collect();
        Self { kept: Self::cut(&self.kept, 0..self.len().min(count)), keys, text_lens }
    }

    /// These rows, followed by the columns of a later recording. A single row is repeated for each row of `after`.
    pub(crate) fn stitched(&self, after: &Self) -> Self {
        let of_row = |(row, after): (usize, &Columns)| -> Columns {
            let before = &self.kept[row.min(self.kept.len() - 1)];
            before.iter().chain(after.iter()).copied().collect()
        };
        let kept = after.kept.iter().enumerate().map(of_row).collect();
        Self { kept, keys: after.keys.clone(), text_lens: after.text_lens.clone() }
    }

    /// For each row, the indices of the given positions among the recorded columns. All rows have the same number of
    /// indices.
    ///
    /// # Errors
    /// [`HookError::NoPosition`] for a position that was not recorded, [`HookError::Positions`] for a position outside
    /// a row's text, [`HookError::PositionsOfRows`] if positions are given for a different number of rows, or
    /// [`HookError::UnevenPositions`] if rows have different numbers of these positions.
    pub fn choose(&self, positions: &Positions) -> Result<Vec<Vec<usize>>, HookError> {
        if let Positions::OfRows(of_rows) = positions
            && of_rows.len() != self.batch()
        {
            return Err(HookError::PositionsOfRows { given: of_rows.len(), batch: self.batch() });
        }
        if let Positions::Columns(given) = positions {
            if given.len() != self.batch() {
                return Err(HookError::PositionsOfRows { given: given.len(), batch: self.batch() });
            }
            return match given.iter().position(|row| row.iter().any(|column| *column >= self.len())) {
                Some(row) => {
                    let (asked, len) = (positions.to_string(), self.len());
                    Err(HookError::Positions { asked, row: Some(row), len, cached: 0 })
                }
                None => Ok(given.clone()),
            };
        }
        let mut chosen = Vec::with_capacity(self.batch());
        for row in 0..self.batch() {
            let of_row = match positions {
                Positions::OfRows(of_rows) => &Positions::At(of_rows[row]),
                other => other,
            };
            if *of_row == Positions::All {
                chosen.push((0..self.len()).collect());
                continue;
            }
            let asked = of_row.places(self.text_lens[row]).map_err(|error| error.of_row(row))?;
            let column = |position: usize| {
                let found = self.kept[row].iter().position(|held| *held == Some(position));
                found.ok_or(HookError::NoPosition { position, row })
            };
            chosen.push(asked.into_iter().map(column).collect::<Result<Vec<_>, _>>()?);
        }
        positions.check_even(&chosen)?;
        Ok(chosen)
    }
}
