//! The rows and positions of a recording that an analysis uses.

use std::ops::Range;

use burn::tensor::{Int, Tensor, TensorData};
use hooklens_hooks::{HookError, Origin, Positions, RecordedRows, ResolvePositions};

use super::made_of::MadeOf;

/// A selection of rows and positions from a recording of shape `[batch, pos]`.
#[derive(Debug, Clone)]
pub(super) struct Cut {
    recorded: [usize; 2],
    rows: Range<usize>,
    positions: Chosen,
    /// Text positions of the recorded columns of the selected rows.
    columns: RecordedRows,
    /// Whether positions were already selected. If so, a further selection is relative to them.
    chosen: bool,
}

#[derive(Debug, Clone)]
enum Chosen {
    /// The same contiguous range of positions in every row.
    Range(Range<usize>),
    /// A list of positions for each row, all of the same length.
    ByRow(Vec<Vec<usize>>),
}

impl Cut {
    /// Selects the whole recording.
    pub(super) fn whole([batch, len]: [usize; 2], columns: RecordedRows) -> Self {
        let positions = Chosen::Range(0..len);
        Self { recorded: [batch, len], rows: 0..batch, positions, columns, chosen: false }
    }

    /// The selected rows and positions.
    pub(super) fn made_of(&self, origin: &Origin) -> MadeOf {
        let places = match &self.positions {
            Chosen::Range(range) => vec![range.clone().collect(); self.rows.len()],
            Chosen::ByRow(rows) => rows.clone(),
        };
        MadeOf::new(origin, self.rows.clone(), self.columns.columns(&places), self.chosen)
    }

    /// `[batch, pos]` of the selection.
    pub(super) fn shape(&self) -> [usize; 2] {
        let len = match &self.positions {
            Chosen::Range(range) => range.len(),
            Chosen::ByRow(rows) => rows.first().map_or(0, Vec::len),
        };
        [self.rows.len(), len]
    }

    /// Narrows the selection to `rows`, which are relative to the rows selected so far.
    pub(super) fn rows(mut self, rows: Range<usize>) -> Self {
        if let Chosen::ByRow(each) = &mut self.positions {
            *each = each[rows.clone()].to_vec();
        }
        self.columns = self.columns.rows(rows.clone());
        self.rows = self.rows.start + rows.start..self.rows.start + rows.end;
        self
    }

    /// Narrows the selection to `positions`, which are relative to the positions selected so far.
    pub(super) fn positions(mut self, positions: &Positions) -> Result<Self, HookError> {
        let shape = self.shape();
        if !std::mem::replace(&mut self.chosen, true) {
            // The first selection counts positions by the tokens of each row's text.
            let rows = self.columns.choose(positions)?;
            let same = rows.windows(2).all(|pair| pair[0] == pair[1]);
            let run = rows.first().filter(|first| same && first.windows(2).all(|pair| pair[0] + 1 == pair[1]));
            self.positions = match run.and_then(|run| Some(*run.first()?..run.last()? + 1)) {
                Some(range) => Chosen::Range(range),
                None => Chosen::ByRow(rows),
            };
            return Ok(self);
        }
        self.positions = match (&self.positions, positions.resolve(shape[1])) {
            (Chosen::Range(own), Ok(range)) => Chosen::Range(own.start + range.start..own.start + range.end),
            (_, Err(error)) if !matches!(error, HookError::NoRange { .. }) => return Err(error),
            (own, _) => {
                let within = |(row, places): (usize, Vec<usize>)| match own {
                    Chosen::Range(own) => places.into_iter().map(|place| own.start + place).collect(),
                    Chosen::ByRow(own) => places.into_iter().map(|place| own[row][place]).collect(),
                };
                Chosen::ByRow(positions.rows(shape)?.into_iter().enumerate().map(within).collect())
            }
        };
        Ok(self)
    }

    /// Cuts a recorded tensor, whose first axes are batch and position, to the selection.
    pub(super) fn of<const D: usize>(&self, mut held: Tensor<D>) -> Tensor<D> {
        let [batch, len] = self.recorded;
        if self.rows != (0..batch) {
            held = held.narrow(0, self.rows.start, self.rows.len());
        }
        let device = held.device();
        let select = |rows: Tensor<D>, places: &[usize]| {
            let places: Vec<i32> = places.iter().map(|place| *place as i32).collect();
            let count = places.len();
            rows.select(1, Tensor::<1, Int>::from_data(TensorData::new(places, [count]), &device))
        };
        let rows = match &self.positions {
            Chosen::Range(range) if *range == (0..len) => return held,
            Chosen::Range(range) => return held.narrow(1, range.start, range.len()),
            Chosen::ByRow(rows) => rows.as_slice(),
        };
        match rows {
            [first, others @ ..] if others.iter().all(|row| row == first) => select(held, first),
            _ => {
                let of_row = |(row, places): (usize, &Vec<usize>)| select(held.clone().narrow(0, row, 1), places);
                Tensor::cat(rows.iter().enumerate().map(of_row).collect(), 0)
            }
        }
    }
}
