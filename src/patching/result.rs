//! What a sweep found.

use ndarray::{ArrayD, Axis};
use serde::Serialize;

use crate::labelled::{LabelledArray, LabelledAxis};

/// The metric with each place patched, for every example, and what it is without a patch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PatchingResult {
    pub(super) values: LabelledArray,
    pub(super) baseline: Vec<f64>,
    pub(super) source: Option<Vec<f64>>,
}

impl PatchingResult {
    /// The metric of every example, an axis a swept one and last `example`.
    pub fn values(&self) -> &LabelledArray {
        &self.values
    }

    /// The metric of every example without a patch.
    pub fn baseline(&self) -> &[f64] {
        &self.baseline
    }

    /// The metric of every example in the run the patches come from; `None` for ablations by
    /// zeros or means.
    pub fn source(&self) -> Option<&[f64]> {
        self.source.as_deref()
    }

    /// Mean over examples.
    pub fn mean(&self) -> LabelledArray {
        self.over_examples(|each| each.iter().sum::<f64>() / each.len() as f64)
    }

    /// Standard error of the mean over examples; no number for a single one.
    pub fn standard_error(&self) -> LabelledArray {
        self.over_examples(|each| {
            let count = each.len() as f64;
            let mean = each.iter().sum::<f64>() / count;
            let squares: f64 = each.iter().map(|value| (value - mean).powi(2)).sum();
            (squares / (count - 1.0) / count).sqrt()
        })
    }

    /// Mean over examples of what the patch changes.
    pub fn effect(&self) -> LabelledArray {
        let baseline = mean(&self.baseline);
        self.mean().map(|value| value - baseline)
    }

    /// The share of the way from the unpatched run to the source's that the patch goes: 0 is no
    /// effect, 1 all of it (means over examples). An ablation without a source run gives the
    /// change as a share of the baseline.
    pub fn normalized(&self) -> LabelledArray {
        let baseline = mean(&self.baseline);
        let way = match &self.source {
            Some(source) => mean(source) - baseline,
            None => baseline,
        };
        self.mean().map(|value| (value - baseline) / way)
    }

    /// A line a place: its labels, then the mean over examples, its standard error, the effect, and
    /// the normalised effect.
    pub fn to_csv(&self) -> String {
        let columns = [self.mean(), self.standard_error(), self.effect(), self.normalized()];
        let mut lines: Vec<String> = columns[0].to_csv().lines().map(str::to_string).collect();
        for column in &columns[1..] {
            for (line, value) in lines[1..].iter_mut().zip(column.values()) {
                line.push_str(&format!(",{value}"));
            }
        }
        let names: Vec<&str> = self.swept_axes().iter().map(|axis| axis.name.as_str()).collect();
        lines[0] = format!("{},mean,standard_error,effect,normalized", names.join(","));
        lines.join("\n") + "\n"
    }

    fn over_examples(&self, of: impl Fn(&[f64]) -> f64) -> LabelledArray {
        let values = self.values.values();
        let last = Axis(values.ndim() - 1);
        let over: ArrayD<f64> = values.map_axis(last, |each| of(&each.to_vec()));
        LabelledArray::of(self.swept_axes().to_vec(), over)
    }

    /// All axes but that of the examples.
    pub(super) fn swept_axes(&self) -> &[LabelledAxis] {
        let axes = self.values.axes();
        &axes[..axes.len() - 1]
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
