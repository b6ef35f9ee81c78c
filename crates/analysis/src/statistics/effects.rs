//! Statistics of all sites of a sweep.

use ndarray::{ArrayD, Axis, IxDyn};
use rayon::prelude::*;

use super::{Interval, Statistics, benjamini_hochberg, mean, standard_error};
use crate::error::StatisticsError;
use crate::labeled::{LabeledArray, matching};

/// Statistics of effects over examples, each with one value per site.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EffectStatistics {
    /// Mean effect.
    pub mean: LabeledArray,
    /// Standard error of the mean.
    pub standard_error: LabeledArray,
    /// Lower bound of the confidence interval of the mean.
    pub low: LabeledArray,
    /// Upper bound of the confidence interval of the mean.
    pub high: LabeledArray,
    /// Two-sided p-value of the sign-flip test.
    pub p_value: LabeledArray,
    /// p-value adjusted for the number of sites ([`benjamini_hochberg`]).
    pub adjusted_p_value: LabeledArray,
}

impl EffectStatistics {
    /// Removes the p-values of places that are not sites, and recomputes the adjusted p-values of the sites.
    pub(crate) fn only(mut self, is_site: impl Fn(&IxDyn) -> bool) -> Self {
        let mut values = self.p_value.values().clone();
        values.indexed_iter_mut().filter(|(place, _)| !is_site(place)).for_each(|(_, p_value)| *p_value = f64::NAN);
        let mut adjusted = benjamini_hochberg(&values.iter().copied().collect::<Vec<_>>()).into_iter();
        self.adjusted_p_value = self.p_value.map(|_| adjusted.next().unwrap_or(f64::NAN));
        self.p_value = matching(self.p_value.axes().to_vec(), values);
        self
    }
}

impl Statistics {
    /// Statistics of the effects of each site, `[..., example]`.
    ///
    /// ```
    /// use hooklens::{LabeledArray, LabeledAxis};
    /// use hooklens::statistics::Statistics;
    /// let effects = ndarray::arr2(&[[0.9, 1.1, 1.4, 0.7, 1.2, 0.8], [0.1, -0.2, 0.3, -0.1, 0.0, -0.2]]);
    /// let axes = [LabeledAxis::new("head", ["L0H0", "L0H1"]), LabeledAxis::numbered("example", 6)];
    /// let found = Statistics::new().effects(&LabeledArray::new(axes, effects.into_dyn())?)?;
    /// assert!(found.low.values()[0] > 0.0 && found.low.values()[1] < 0.0);
    /// assert_eq!(found.p_value.values()[0], 2.0 / 64.0);
    /// assert_eq!(found.adjusted_p_value.values()[0], 4.0 / 64.0); // of two sites
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`StatisticsError::TooFew`] for fewer than 2 examples; [`StatisticsError::NotFinite`], with the site's labels;
    /// [`StatisticsError::Confidence`].
    pub fn effects(&self, effects: &LabeledArray) -> Result<EffectStatistics, StatisticsError> {
        let (axes, values) = (effects.axes(), effects.values());
        let Some(examples) = values.ndim().checked_sub(1) else {
            return Err(StatisticsError::TooFew { what: "an interval or a p-value", least: 2, given: 1 });
        };
        let count = values.shape()[examples];
        self.check_count(count)?;
        if let Some((place, value)) = values.indexed_iter().find(|(_, value)| !value.is_finite()) {
            let labels: Vec<&str> = (0..examples).map(|axis| &*axes[axis].labels[place[axis]]).collect();
            let site = if labels.is_empty() { String::new() } else { format!(" at {}", labels.join(", ")) };
            return Err(StatisticsError::NotFinite { example: place[examples], value: *value, place: site });
        }
        let (resamples, flips) = (self.bootstrap_resamples(count), self.flips(count));
        let sites: Vec<Vec<f64>> = values.lanes(Axis(examples)).into_iter().map(|lane| lane.to_vec()).collect();
        let of_site = |effects: &Vec<f64>| {
            let Interval { low, high } = self.bootstrap(effects, &resamples);
            [mean(effects), standard_error(effects), low, high, self.sign_flips(effects, &flips)]
        };
        let found: Vec<[f64; 5]> = sites.par_iter().map(of_site).collect();
        let column = |number: usize| found.iter().map(|site| site[number]).collect::<Vec<f64>>();
        let labeled = |values: Vec<f64>| {
            let mut values = values.into_iter();
            let shape = effects.values().shape()[..examples].to_vec();
            matching(
                axes[..examples].to_vec(),
                ArrayD::from_shape_simple_fn(shape, || values.next().unwrap_or(f64::NAN)),
            )
        };
        let p_values = column(4);
        Ok(EffectStatistics {
            adjusted_p_value: labeled(benjamini_hochberg(&p_values)),
            mean: labeled(column(0)),
            standard_error: labeled(column(1)),
            low: labeled(column(2)),
            high: labeled(column(3)),
            p_value: labeled(p_values),
        })
    }
}
