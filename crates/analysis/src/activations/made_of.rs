//! The rows and positions of a recording from which components were computed.

use std::fmt;
use std::ops::Range;

use hooklens_hooks::{ActivationCache, HookError, Origin, Positions, Provenance, RecordedRows, ResolvePositions};

/// Rows and positions of a recording.
#[derive(Debug, Clone)]
pub(crate) struct MadeOf {
    pub(super) origin: Origin,
    /// Row indices in the recording.
    pub(super) rows: Vec<usize>,
    /// Selected columns of these rows.
    columns: RecordedRows,
    /// Whether positions were already selected. If so, a further selection is relative to them.
    chosen: bool,
}

impl MadeOf {
    pub(super) fn new(origin: &Origin, rows: Range<usize>, columns: RecordedRows, chosen: bool) -> Self {
        Self { origin: origin.clone(), rows: rows.collect(), columns, chosen }
    }

    /// The whole recording.
    pub(crate) fn whole(cache: &ActivationCache) -> Result<Self, HookError> {
        let columns = cache.recorded_rows()?.clone();
        Ok(Self::new(cache.origin(), 0..columns.positions().len(), columns, false))
    }

    /// For each row, the position of each column in the row's text, `None` for padding.
    pub(super) fn positions(&self) -> Vec<Vec<Option<usize>>> {
        self.columns.positions()
    }

    /// Whether `self` and `other` select the same positions of the same texts.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.positions() == other.positions()
            && self.origin.is_of_the_same_texts(&self.rows, &other.origin, &other.rows)
    }

    /// The columns of each row that `positions` selects. Positions are relative to the row's text or, after an earlier
    /// selection, to the positions selected before.
    pub(crate) fn choose(&self, positions: &Positions) -> Result<Vec<Vec<usize>>, HookError> {
        match self.chosen {
            true => positions.rows([self.rows.len(), self.positions().first().map_or(0, Vec::len)]),
            false => self.columns.choose(positions),
        }
    }

    /// Narrows the selection to these columns of each row.
    pub(crate) fn at(&self, places: &[Vec<usize>]) -> Self {
        Self { columns: self.columns.columns(places), chosen: true, ..self.clone() }
    }

    /// Whether a row's text may be these tokens. This can be ruled out only if all positions of the text are selected.
    pub(crate) fn may_be_of(&self, row: usize, tokens: &[u32]) -> bool {
        let positions = self.columns.positions();
        let whole = self.columns.text_len(row) == Some(tokens.len())
            && positions.get(row).is_some_and(|own| own.iter().flatten().copied().eq(0..tokens.len()));
        !whole || self.origin.may_be_of(self.rows[row], hooklens_model::tokens::text_hash(tokens.iter().copied()))
    }
}

impl fmt::Display for MadeOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows {} at positions ", listed(self.rows.iter().copied().map(Some)))?;
        match self.positions().as_slice() {
            [first, others @ ..] if others.iter().all(|row| row == first) => {
                f.write_str(&listed(first.iter().copied()))
            }
            rows => {
                let each: Vec<String> = rows.iter().take(4).map(|row| listed(row.iter().copied())).collect();
                let more = if rows.len() > each.len() { ", ..." } else { "" };
                write!(f, "{}{more}", each.join(", "))
            }
        }
    }
}

/// Formats numbers as ranges, such as `[0..5, 7]`, with `-` for padding.
fn listed(numbers: impl Iterator<Item = Option<usize>>) -> String {
    let numbers: Vec<Option<usize>> = numbers.collect();
    let follows = |a: &Option<usize>, b: &Option<usize>| matches!((a, b), (Some(a), Some(b)) if a + 1 == *b);
    let range = |run: &[Option<usize>]| match (run.first().copied().flatten(), run.last().copied().flatten()) {
        (Some(first), Some(last)) if first < last => format!("{first}..{}", last + 1),
        (Some(only), _) => only.to_string(),
        _ => "-".to_string(),
    };
    let runs: Vec<String> = numbers.chunk_by(follows).map(range).collect();
    format!("[{}]", runs.join(", "))
}

#[cfg(test)]
mod tests {
    use super::listed;

    #[test]
    fn neighbors_are_ranges() {
        let numbers = [None, Some(0), Some(1), Some(2), Some(5), None, Some(7), Some(6)];
        assert_eq!(listed(numbers.into_iter()), "[-, 0..3, 5, -, 7, 6]");
    }
}
