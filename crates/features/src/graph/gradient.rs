//! Gradients of several targets with respect to the residual stream.

/// Gradients of targets with respect to the residual stream at one point of the model. Targets are ordered by position,
/// and only positions up to a target's own affect it.
#[derive(Debug)]
pub(super) enum Gradient {
    /// At each target's own position only, `[target, d_model]`: the gradient has not passed through attention yet.
    Own(Vec<f32>),
    /// At all positions up to the last target, `[target, pos, d_model]`.
    Spread(Vec<f32>),
}

/// The positions of a batch of targets, in order.
#[derive(Debug)]
pub(super) struct Targets<'t> {
    pub(super) positions: &'t [usize],
    pub(super) width: usize,
}

impl Targets<'_> {
    /// Number of positions up to the last target.
    pub(super) fn len(&self) -> usize {
        self.positions.last().map_or(0, |last| last + 1)
    }

    pub(super) fn count(&self) -> usize {
        self.positions.len()
    }

    /// Targets at or after a position.
    pub(super) fn from(&self, pos: usize) -> std::ops::Range<usize> {
        self.positions.partition_point(|own| *own < pos)..self.count()
    }

    /// Targets at a position.
    pub(super) fn at(&self, pos: usize) -> std::ops::Range<usize> {
        self.positions.partition_point(|own| *own < pos)..self.positions.partition_point(|own| *own <= pos)
    }
}

impl Gradient {
    pub(super) fn values(&self) -> &[f32] {
        match self {
            Gradient::Own(values) | Gradient::Spread(values) => values,
        }
    }

    /// The position of a row.
    pub(super) fn position(&self, row: usize, targets: &Targets<'_>) -> usize {
        match self {
            Gradient::Own(_) => targets.positions[row],
            Gradient::Spread(_) => row % targets.len().max(1),
        }
    }

    /// Rows, at a position, of the targets that the position affects: the first row, the stride between rows, and the
    /// targets.
    pub(super) fn rows_at(&self, pos: usize, targets: &Targets<'_>) -> (usize, usize, std::ops::Range<usize>) {
        match self {
            Gradient::Own(_) => {
                let own = targets.at(pos);
                (own.start, 1, own)
            }
            Gradient::Spread(_) => {
                let (own, len) = (targets.from(pos), targets.len());
                (own.start * len + pos, len, own)
            }
        }
    }

    /// Adds values with the same layout.
    pub(super) fn add(&mut self, more: &[f32]) {
        match self {
            Gradient::Own(values) | Gradient::Spread(values) => {
                values.iter_mut().zip(more).for_each(|(x, more)| *x += more);
            }
        }
    }
}
