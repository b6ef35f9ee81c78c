//! Histograms.

mod bins;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::draw::FINE;
use super::frame::{Frame, FrameAxis, HEIGHT, SWATCH, Ticks, WIDTH, framed};
use super::pen::{COLOURS, color, path, polygon};
use super::ticks::Span;
use crate::error::PlotError;

/// Maximum number of bins in a histogram.
const MOST_BINS: usize = 2_000;

/// A histogram of values such as norms, losses or attention weights, in bins of equal width. Several series use the
/// same bins and are drawn on top of each other, with their names in a legend.
///
/// Unless set with [`Histogram::bins`], the bin width follows the Freedman-Diaconis rule over all values: twice the
/// interquartile range divided by the cube root of the count. If the interquartile range is zero, the number of bins
/// follows Sturges's rule, one more than the binary logarithm of the count. There are at most 200 bins, and one bin if
/// all values are equal.
///
/// ```
/// use hooklens::plot::Histogram;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("norms.svg");
/// let early = [1.0, 1.2, 1.1, 0.9, 1.4];
/// let late = vec![2.1, 2.6, 1.9, 2.2];
/// let picture = Histogram::new("norm", [("layer 0", early.to_vec()), ("layer 5", late)])?.bins(6)?;
/// assert_eq!(hooklens_plot::HistogramBins::counts(&picture), [[3, 2, 0, 0, 0, 0], [0, 0, 0, 1, 2, 1]]);
/// picture.title("of the stream").save(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    title: String,
    x: String,
    series: Vec<(String, Vec<f64>)>,
    /// Lower edges of the bins, followed by the upper edge of the last.
    edges: Vec<f64>,
}

impl Histogram {
    /// Creates a histogram of named series of values. `x` is the name of the horizontal axis.
    ///
    /// # Errors
    /// [`PlotError::Nothing`] without values; [`PlotError::NotFinite`] for a value that is not finite;
    /// [`PlotError::TooManySeries`] for more than seven series.
    pub fn new(
        x: impl Into<String>,
        series: impl IntoIterator<Item = (impl Into<String>, impl IntoIterator<Item = impl Into<f64>>)>,
    ) -> Result<Self, PlotError> {
        let numbers = |(name, values): (_, _)| numbered(name, values);
        let series: Vec<(String, Vec<f64>)> = series.into_iter().map(numbers).collect();
        for (name, values) in &series {
            let of = |number| {
                if name.is_empty() { format!("value {number}") } else { format!("value {number} of `{name}`") }
            };
            for (number, value) in values.iter().enumerate() {
                PlotError::finite(*value, || format!("{}, counted from 0,", of(number)))?;
            }
        }
        if series.iter().all(|(_, values)| values.is_empty()) {
            return Err(PlotError::Nothing);
        }
        if series.len() > COLOURS.len() {
            return Err(PlotError::TooManySeries { what: "series", given: series.len(), most: COLOURS.len() });
        }
        let mut all: Vec<f64> = series.iter().flat_map(|(_, values)| values).copied().collect();
        all.sort_by(f64::total_cmp);
        let edges = bins::edges(&all, bins::count(&all));
        Ok(Self { title: String::new(), x: x.into(), series, edges })
    }

    /// Creates a histogram of a single series.
    ///
    /// ```
    /// use hooklens::plot::Histogram;
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let pattern = model.record("When Mary and John", hook::pattern(0))?.get(hook::pattern(0))?;
    /// let picture = Histogram::of("attention", pattern.to_vec()?)?;
    /// assert_eq!(hooklens_plot::HistogramBins::counts(&picture)[0].iter().sum::<usize>(), 4 * 5 * 5);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Histogram::new`].
    pub fn of(x: impl Into<String>, values: impl IntoIterator<Item = impl Into<f64>>) -> Result<Self, PlotError> {
        Self::new(x, [("", values)])
    }

    /// Sets the number of bins between the minimum and the maximum.
    ///
    /// # Errors
    /// [`PlotError::Bins`] for 0 bins or more than 2,000.
    pub fn bins(mut self, bins: usize) -> Result<Self, PlotError> {
        if bins == 0 || bins > MOST_BINS {
            return Err(PlotError::Bins { given: bins, most: MOST_BINS });
        }
        let ends = [self.edges[0], self.edges[self.edges.len() - 1]];
        self.edges = bins::between(ends, bins);
        Ok(self)
    }

    fn frame(&self) -> Frame {
        let most = self.counts().into_iter().flatten().max().unwrap_or(1);
        let x = FrameAxis {
            name: &self.x,
            span: Span::of(self.edges.iter().copied()).widened(0.02),
            ticks: Ticks::Numbers { whole: false },
            ruled: false,
        };
        let y = FrameAxis {
            name: "count",
            span: Span { least: 0.0, most: most.max(1) as f64 * 1.05 },
            ticks: Ticks::Numbers { whole: true },
            ruled: true,
        };
        let legend = self.series.len() > 1 || self.series.iter().any(|(name, _)| !name.is_empty());
        let names: Vec<&str> = self.series.iter().filter(|_| legend).map(|(name, _)| name.as_str()).collect();
        Frame::new(&self.title, (WIDTH, HEIGHT), &x, &y, &names)
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>, frame: &Frame) -> Result<(), PlotError> {
        frame.begin(area)?;
        let shade = if self.series.len() > 1 { 0.35 } else { 0.6 };
        for (number, counts) in self.counts().iter().enumerate() {
            // The outline along the tops of the bins, starting and ending at zero.
            let mut outline = vec![(frame.x(self.edges[0]), frame.y(0.0))];
            for (ends, count) in self.edges.windows(2).zip(counts) {
                let top = frame.y(*count as f64);
                outline.extend([(frame.x(ends[0]), top), (frame.x(ends[1]), top)]);
                if *count > 0 {
                    let (left, right) = (frame.x(ends[0]), frame.x(ends[1]));
                    let corners = [(left, frame.y(0.0)), (left, top), (right, top), (right, frame.y(0.0))];
                    polygon(area, corners, color(number).mix(shade))?;
                }
            }
            outline.push((frame.x(self.edges[self.edges.len() - 1]), frame.y(0.0)));
            path(area, &outline, color(number), FINE)?;
        }
        frame.end(area, |number, (x, y)| {
            let (left, right) = (x + 3.0, x + SWATCH - 3.0);
            let corners = [(left, y - 5.0), (right, y - 5.0), (right, y + 5.0), (left, y + 5.0)];
            polygon(area, corners, color(number).mix(shade))?;
            path(area, &[corners[0], corners[1], corners[2], corners[3], corners[0]], color(number), FINE)
        })
    }
}

framed!(Histogram);

fn numbered(name: impl Into<String>, values: impl IntoIterator<Item = impl Into<f64>>) -> (String, Vec<f64>) {
    (name.into(), values.into_iter().map(Into::into).collect())
}

/// The bins of a histogram.
pub trait HistogramBins {
    /// The lower edge of each bin, followed by the upper edge of the last. A value on an edge counts in the bin above
    /// the edge, except that the last bin includes its upper edge.
    fn edges(&self) -> &[f64];

    /// The counts in each bin, for each series.
    fn counts(&self) -> Vec<Vec<usize>>;
}

impl HistogramBins for Histogram {
    fn edges(&self) -> &[f64] {
        &self.edges
    }

    fn counts(&self) -> Vec<Vec<usize>> {
        self.series.iter().map(|(_, values)| bins::counted(values, &self.edges)).collect()
    }
}
