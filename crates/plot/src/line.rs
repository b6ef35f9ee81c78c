//! [`Line`]: one line of a line plot.

/// A named line through points, with an optional band around it.
///
/// ```
/// use hooklens::plot::{Line, LinePlot, Picture};
/// // The mean for each layer, with a band for the standard error.
/// let mean = Line::banded("mean", (0..4).map(|layer| f64::from(layer)).map(|at| (at, at * 2.0, at * 2.0 - 0.5, at * 2.0 + 0.5)));
/// let svg = LinePlot::new("layer", "logit difference", [mean])?.to_svg()?;
/// assert!(svg.contains("logit difference"));
/// # Ok::<(), hooklens::plot::PlotError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    pub(super) name: String,
    pub(super) points: Vec<LinePoint>,
}

/// A point of a line, with the lower and upper end of the band there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LinePoint {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) band: Option<(f64, f64)>,
}

impl Line {
    /// A line through `(x, y)` points in this order, with a gap where a coordinate is not finite.
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let points = points.into_iter().map(|(x, y)| LinePoint { x, y, band: None });
        Self { name: name.into(), points: points.collect() }
    }

    /// A line through `(x, y)` points with a band from `low` to `high` around it, such as a mean and its error, or a
    /// median and quartiles. Points are given as `(x, y, low, high)`.
    pub fn banded(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64, f64, f64)>) -> Self {
        let band = |low: f64, high: f64| (low.is_finite() && high.is_finite()).then(|| (low.min(high), low.max(high)));
        let points = points.into_iter().map(|(x, y, low, high)| LinePoint { x, y, band: band(low, high) });
        Self { name: name.into(), points: points.collect() }
    }

    /// Runs of consecutive points without gaps.
    pub(super) fn runs(&self) -> impl Iterator<Item = &[LinePoint]> {
        let drawn = |place: &LinePoint| place.x.is_finite() && place.y.is_finite();
        self.points.split(move |place| !drawn(place)).filter(|run| !run.is_empty())
    }

    /// Runs of consecutive band points without gaps, as `(x, low, high)`.
    pub(super) fn bands(&self) -> impl Iterator<Item = Vec<(f64, f64, f64)>> {
        let edges =
            |place: &LinePoint| place.band.filter(|_| place.x.is_finite()).map(|(low, high)| (place.x, low, high));
        let runs = self.points.split(move |place| edges(place).is_none());
        runs.filter(|run| run.len() > 1).map(move |run| run.iter().filter_map(edges).collect())
    }
}

/// Splits a path into dashes of length `on` with gaps of length `off`.
pub(super) fn dashes(path: &[(f64, f64)], on: f64, off: f64) -> Vec<Vec<(f64, f64)>> {
    let (mut pieces, mut piece) = (Vec::new(), path.first().copied().into_iter().collect::<Vec<_>>());
    let (mut down, mut left) = (true, on);
    for pair in path.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let len = (to.0 - from.0).hypot(to.1 - from.1);
        let mut gone = 0.0;
        while len - gone > left {
            gone += left;
            let here = (from.0 + (to.0 - from.0) * gone / len, from.1 + (to.1 - from.1) * gone / len);
            if down {
                piece.push(here);
                pieces.push(std::mem::take(&mut piece));
            } else {
                piece = vec![here];
            }
            down = !down;
            left = if down { on } else { off };
        }
        left -= len - gone;
        if down {
            piece.push(to);
        }
    }
    pieces.extend((piece.len() > 1).then_some(piece));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_leaves_a_gap() {
        let nan = f64::NAN;
        let line =
            Line::banded("a", [(0.0, 1.0, 0.0, 2.0), (1.0, nan, 0.0, 2.0), (2.0, 1.0, nan, 2.0), (3.0, 2.0, 3.0, 1.0)]);
        let runs: Vec<usize> = line.runs().map(<[LinePoint]>::len).collect();
        assert_eq!(runs, [1, 2]);
        assert_eq!(line.bands().collect::<Vec<_>>(), [vec![(0.0, 0.0, 2.0), (1.0, 0.0, 2.0)]]);
        assert_eq!(line.points[3].band, Some((1.0, 3.0)));
    }

    #[test]
    fn dashes_go_round_corners() {
        let path = [(0.0, 0.0), (3.0, 0.0), (3.0, 5.0)];
        assert_eq!(dashes(&path, 4.0, 2.0), [vec![(0.0, 0.0), (3.0, 0.0), (3.0, 1.0)], vec![(3.0, 3.0), (3.0, 5.0)]]);
        assert!(dashes(&[], 4.0, 2.0).is_empty());
    }
}
