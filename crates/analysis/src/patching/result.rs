//! The result of a patching sweep.

use ndarray::{ArrayD, Axis};
use serde::{Deserialize, Serialize};

use crate::error::{PatchError, StatisticsError};
use crate::labeled::{CsvText, LabeledArray, LabeledAxis, matching};
use crate::statistics::{EffectStatistics, Statistics, mean, standard_error};
use hooklens_io::csv_text::{CsvLabels, CsvTable};

/// Metric values of every example, with each site patched and without a patch.
///
/// ```
/// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
/// # use hooklens::hook::Axis;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// # let clean = "When Mary and John went to the store, John gave a drink to";
/// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
/// let found = Patching::new(&model, clean, corrupted, metric)?.attn_out()?;
/// assert_eq!(found.values.values().shape(), [4, 15, 1]); // layer, position, example
/// assert_eq!(found.mean().values().shape(), [4, 15]);
/// let shares = found.normalized()?;
/// let (places, share) = &shares.largest(1)[0];
/// println!("attention of layer {} at {} restores {:.0} %", places[0], places[1], share * 100.0);
/// assert!(*share > 0.2);
/// assert!(found.source.is_some_and(|clean| clean[0] > found.baseline[0])); // one example
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PatchingResult {
    /// The metric of every example, with one axis per swept axis and a last axis `example`.
    pub values: LabeledArray,
    /// The metric of every example without a patch.
    pub baseline: Vec<f64>,
    /// The metric of every example in the run that patches come from; `None` for zero and mean ablations.
    pub source: Option<Vec<f64>>,
}

impl PatchingResult {
    /// Concatenates the results of sweeps over the same sites along the example axis, in order. If the tokens at a
    /// position differ, the position is labeled with its number only.
    ///
    /// ```
    /// # use hooklens::patching::{Metric, Patching, PatchingResult};
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let share = || Patching::new(&model, clean, corrupted, metric.clone())?.attn_out();
    /// let both = PatchingResult::joined([share()?, share()?])?;
    /// assert_eq!(both.values.values().shape(), [4, 15, 2]); // layer, position, example
    /// assert_eq!(both.mean(), share()?.mean());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`PatchError::Shares`] if there are no results or if the sweeps differ.
    pub fn joined(results: impl IntoIterator<Item = Self>) -> Result<Self, PatchError> {
        let wrong = |what: &'static str| PatchError::Shares { what };
        let mut results = results.into_iter();
        let Self { values, mut baseline, mut source } = results.next().ok_or_else(|| wrong("no results were given"))?;
        let (mut axes, mut arrays) = (values.axes().to_vec(), vec![values.values().clone()]);
        for result in results {
            let others = result.values.axes();
            let alike = |(one, other): (&LabeledAxis, &LabeledAxis)| one.name == other.name;
            if axes.len() != others.len() || !axes.iter().zip(others).all(alike) {
                return Err(wrong("their axes differ"));
            }
            let swept = axes.len() - 1;
            for (axis, other) in axes[..swept].iter_mut().zip(others) {
                if axis.labels.len() != other.labels.len() {
                    return Err(wrong("their axis lengths differ"));
                }
                if axis.differs_at(other).is_some() {
                    return Err(wrong("their axis labels differ"));
                }
                for (place, (label, other)) in axis.labels.iter_mut().zip(&other.labels).enumerate() {
                    if label != other {
                        *label = place.to_string();
                    }
                }
            }
            match (&mut source, result.source) {
                (Some(all), Some(own)) => all.extend(own),
                (None, None) => {}
                _ => return Err(wrong("some took patches from source runs and others did not")),
            }
            baseline.extend(result.baseline);
            arrays.push(result.values.values().clone());
        }
        let last = axes.len() - 1;
        let views: Vec<_> = arrays.iter().map(|array| array.view()).collect();
        let values = ndarray::concatenate(Axis(last), &views).map_err(|_| wrong("their axis lengths differ"))?;
        let examples = values.shape()[last];
        axes[last] = LabeledAxis::numbered(axes[last].name.clone(), examples);
        Ok(Self { values: matching(axes, values), baseline, source })
    }

    /// Mean over examples.
    pub fn mean(&self) -> LabeledArray {
        self.over_examples(mean)
    }

    /// Standard error of the mean over examples; NaN for a single example.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let one = Patching::new(&model, clean, corrupted, metric.clone())?.attn_out()?;
    /// assert!(one.standard_error().values()[[0, 0]].is_nan());
    /// let other = "When Mary and John went to the park, John gave a drink to";
    /// let two = Patching::new(&model, [clean, other], [corrupted, corrupted], metric)?.attn_out()?;
    /// assert!(two.standard_error().values()[[1, 14]] > 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn standard_error(&self) -> LabeledArray {
        self.over_examples(standard_error)
    }

    /// Change in the metric of each example at each site, with the axes of [`PatchingResult::values`].
    ///
    /// ```
    /// # use hooklens::patching::{Metric, Patching};
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let found = Patching::new(&model, [clean, clean], [corrupted, corrupted], metric)?.attn_out()?;
    /// let effects = found.effects();
    /// assert_eq!(effects.values().shape(), [4, 15, 2]); // layer, position, example
    /// assert_eq!(effects.mean("example")?.values()[[1, 10]], found.effect().values()[[1, 10]]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn effects(&self) -> LabeledArray {
        let mut values = self.values.values().clone();
        let last = Axis(values.ndim() - 1);
        for (mut example, baseline) in values.axis_iter_mut(last).zip(&self.baseline) {
            example.mapv_inplace(|value| value - baseline);
        }
        matching(self.values.axes().to_vec(), values)
    }

    /// Intervals and p-values of the effects at each site.
    ///
    /// ```
    /// # use hooklens::patching::{Metric, Patching};
    /// # use hooklens::prelude::*;
    /// use hooklens::experiments::ioi_prompts;
    /// use hooklens::statistics::Statistics;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let prompts = ioi_prompts(12, 0);
    /// let [clean, corrupted]: [Vec<&str>; 2] = [
    ///     prompts.iter().map(|prompt| &*prompt.text).collect(),
    ///     prompts.iter().map(|prompt| &*prompt.corrupted).collect(),
    /// ];
    /// let [answers, wrong]: [Vec<&str>; 2] = [
    ///     prompts.iter().map(|prompt| prompt.answer).collect(),
    ///     prompts.iter().map(|prompt| prompt.wrong).collect(),
    /// ];
    /// let metric = Metric::logit_diff(&model, answers, wrong)?;
    /// let found = Patching::new(&model, clean, corrupted, metric)?.attn_head_out_all_pos()?;
    /// let statistics = found.statistics(&Statistics::new())?;
    /// let effects = found.effect();
    /// let (head, effect) = &effects.largest(1)[0];
    /// println!("layer {} head {}: {effect:+.2}", head[0], head[1]);
    /// assert!(statistics.adjusted_p_value.values().iter().any(|p| *p < 0.01));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Statistics::effects`].
    pub fn statistics(&self, settings: &Statistics) -> Result<EffectStatistics, StatisticsError> {
        settings.effects(&self.effects())
    }

    /// Statistics of the paired differences between the effects of this result and the effects of a second result for
    /// the same examples and sites, for instance with a different ablation.
    ///
    /// # Errors
    /// [`StatisticsError::Compared`] if the sites or the unpatched metrics of the examples differ; also the errors of
    /// [`Statistics::effects`].
    pub fn compared_with(&self, other: &Self, settings: &Statistics) -> Result<EffectStatistics, StatisticsError> {
        let different = |what: String| Err(StatisticsError::Compared { what });
        if self.swept_axes() != other.swept_axes() {
            return different("their sites differ".into());
        }
        if self.baseline.len() != other.baseline.len() {
            return different(format!("they have {} and {} examples", self.baseline.len(), other.baseline.len()));
        }
        // The same prompts and metric give the same value without a patch, up to rounding.
        let far = |(own, other): (&f64, &f64)| (own - other).abs() > 1e-3 * own.abs().max(1.0);
        if let Some(example) = self.baseline.iter().zip(&other.baseline).position(far) {
            let (own, other) = (self.baseline[example], other.baseline[example]);
            return different(format!(
                "without a patch, the metric of example {example} is {own} in one result and {other} in the other, so \
                 their prompts or metrics differ"
            ));
        }
        let gaps = self.effects().values() - other.effects().values();
        settings.effects(&matching(self.values.axes().to_vec(), gaps))
    }

    /// Mean change in the metric over examples.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let found = Patching::new(&model, clean, corrupted, metric)?.attn_out()?;
    /// let (effect, mean) = (found.effect(), found.mean());
    /// assert!((effect.values()[[1, 10]] - (mean.values()[[1, 10]] - found.baseline[0])).abs() < 1e-9);
    /// assert_eq!(effect.values()[[0, 0]], 0.0); // the first token is the same in both runs
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn effect(&self) -> LabeledArray {
        let baseline = mean(&self.baseline);
        self.mean().map(|value| value - baseline)
    }

    /// The effect as a fraction of the difference between the unpatched run and the source run, both averaged over
    /// examples: 0 is no effect, 1 is the whole difference. For an ablation without a source run, the change as a
    /// fraction of the baseline.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let shares = Patching::new(&model, clean, corrupted, metric)?.resid_pre()?.normalized()?;
    /// assert!((shares.values()[[0, 10]] - 1.0).abs() < 1e-3); // the only token that differs accounts for all of it
    /// assert_eq!(shares.values()[[0, 3]], 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`PatchError::NoDifference`] if the metrics of the two runs are equal (or, without a source run, if the baseline
    /// is 0).
    pub fn normalized(&self) -> Result<LabeledArray, PatchError> {
        let unpatched = mean(&self.baseline);
        let clean = self.source.as_deref().map(mean);
        let way = clean.map_or(unpatched, |clean| clean - unpatched);
        if way == 0.0 {
            return Err(PatchError::NoDifference { unpatched, clean });
        }
        Ok(self.mean().map(|value| (value - unpatched) / way))
    }

    /// Formats the result as CSV with one row per site: the site's labels, the mean over examples, the standard error
    /// of the mean, the effect, and the normalized effect (empty if [`PatchingResult::normalized`] fails). Four columns
    /// from [`PatchingResult::statistics`] follow, which are empty for a single example: the lower and upper bounds of
    /// the effect's 95 % interval, the p-value and the adjusted p-value.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let csv = Patching::new(&model, clean, corrupted, metric)?.attn_head_out_all_pos()?.to_csv();
    /// assert_eq!(csv.lines().count(), 1 + 16);
    /// assert!(csv.starts_with("layer,head,"));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn to_csv(&self) -> String {
        self.csv(CsvLabels::Exact)
    }

    fn over_examples(&self, of: impl Fn(&[f64]) -> f64) -> LabeledArray {
        let values = self.values.values();
        let last = Axis(values.ndim() - 1);
        let over: ArrayD<f64> = values.map_axis(last, |each| of(&each.to_vec()));
        matching(self.swept_axes().to_vec(), over)
    }

    /// All axes except the example axis.
    pub(crate) fn swept_axes(&self) -> &[LabeledAxis] {
        let axes = self.values.axes();
        &axes[..axes.len() - 1]
    }
}

impl CsvText for PatchingResult {
    fn csv(&self, labels: CsvLabels) -> String {
        let names = self.swept_axes().iter().map(|axis| axis.name.as_str());
        let columns = ["mean", "standard_error", "effect", "normalized", "low", "high", "p_value", "adjusted_p_value"];
        let columns = names.chain(columns);
        let mut table = CsvTable::new(columns, labels);
        let (mean, error, effect) = (self.mean(), self.standard_error(), self.effect());
        let (normalized, statistics) = (self.normalized().ok(), self.statistics(&Statistics::new()).ok());
        let statistics = statistics.as_ref();
        for (place, value) in mean.values().indexed_iter() {
            let all = [
                Some(&error),
                Some(&effect),
                normalized.as_ref(),
                statistics.map(|found| &found.low),
                statistics.map(|found| &found.high),
                statistics.map(|found| &found.p_value),
                statistics.map(|found| &found.adjusted_p_value),
            ];
            let cells = all.map(|column| column.map_or(String::new(), |column| column.values()[&place].to_string()));
            table.row(mean.labels(&place), std::iter::once(value.to_string()).chain(cells));
        }
        table.finish()
    }
}
