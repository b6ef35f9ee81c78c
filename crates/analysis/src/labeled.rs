//! N-dimensional arrays with named axes and labeled indices.

use hooklens_hooks::{ActivationCache, HookError, Selection};
use ndarray::{ArrayD, Axis, Dimension, IxDyn};
use serde::{Deserialize, Serialize};

use crate::nested_lists::NestedLists;
use hooklens_io::csv_text::{CsvLabels, CsvTable};
use hooklens_model::error::InputError;

/// An array whose axes have names and whose indices have labels.
///
/// ```
/// use hooklens::{LabeledArray, LabeledAxis};
/// use ndarray::arr2;
/// let layers = LabeledAxis::numbered("layer", 2);
/// let heads = LabeledAxis::new("head", ["a", "b"]);
/// let array = LabeledArray::new([layers, heads], arr2(&[[1.0, 2.0], [3.0, 4.0]]).into_dyn())?;
/// assert_eq!(array.largest(1), [(vec!["1", "b"], 4.0)]);
/// assert_eq!(array.to_csv(), "layer,head,value\n0,a,1\n0,b,2\n1,a,3\n1,b,4\n");
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored")]
pub struct LabeledArray {
    axes: Vec<LabeledAxis>,
    #[serde(serialize_with = "nested")]
    values: ArrayD<f64>,
}

/// One axis of a [`LabeledArray`].
///
/// ```
/// use hooklens::LabeledAxis;
/// let layers = LabeledAxis::numbered("layer", 3);
/// assert_eq!((layers.name.as_str(), layers.labels.join(" ")), ("layer", "0 1 2".to_string()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabeledAxis {
    /// Name of the axis: `layer`, `pos`, `head`, ...
    pub name: String,
    /// Label of each index.
    pub labels: Vec<String>,
}

impl LabeledAxis {
    /// Creates an axis with these labels.
    pub fn new(name: impl Into<String>, labels: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { name: name.into(), labels: labels.into_iter().map(Into::into).collect() }
    }

    /// Creates an axis labeled with numbers from 0.
    pub fn numbered(name: impl Into<String>, len: usize) -> Self {
        Self::new(name, (0..len).map(|place| place.to_string()))
    }

    /// The first index at which another axis of the same length has a different label. Position labels, such as
    /// `3 gave`, are compared without their token.
    pub(crate) fn differs_at(&self, other: &Self) -> Option<usize> {
        let differ = |(place, (own, other)): (usize, (&String, &String))| {
            let number = place.to_string();
            let is_position = |label: &str| label == number || label.starts_with(&format!("{number} "));
            own != other && !(is_position(own) && is_position(other))
        };
        self.labels.iter().zip(&other.labels).enumerate().position(differ)
    }
}

impl LabeledArray {
    /// Creates an array with these axes and values.
    ///
    /// ```
    /// use hooklens::{LabeledArray, LabeledAxis};
    /// let three = ndarray::arr1(&[1.0, 2.0, 3.0]).into_dyn();
    /// let message = LabeledArray::new([LabeledAxis::numbered("pos", 2)], three).unwrap_err().to_string();
    /// assert_eq!(message, "the labels are for shape [2], but the array has shape [3]");
    /// ```
    ///
    /// # Errors
    /// [`InputError::Labels`] if the number of labels of an axis differs from its size in the array.
    pub fn new(axes: impl IntoIterator<Item = LabeledAxis>, values: ArrayD<f64>) -> Result<Self, InputError> {
        let made = Self { axes: axes.into_iter().collect(), values };
        let labels = made.label_counts();
        let places = made.values.shape().to_vec();
        if labels == places { Ok(made) } else { Err(InputError::Labels { labels, places }) }
    }

    /// Creates an array from values in row-major order.
    ///
    /// ```
    /// use hooklens::{LabeledArray, LabeledAxis};
    /// let axes = [LabeledAxis::numbered("layer", 2), LabeledAxis::numbered("head", 2)];
    /// let scores = LabeledArray::from_values(axes, [0.1f32, 0.2, 0.7, 0.4])?;
    /// assert_eq!(scores.largest(1)[0].0, ["1", "0"]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::Labels`] if the number of values does not match the axes.
    pub fn from_values(
        axes: impl IntoIterator<Item = LabeledAxis>,
        values: impl IntoIterator<Item = impl Into<f64>>,
    ) -> Result<Self, InputError> {
        let axes: Vec<LabeledAxis> = axes.into_iter().collect();
        let labels: Vec<usize> = axes.iter().map(|axis| axis.labels.len()).collect();
        let values: Vec<f64> = values.into_iter().map(Into::into).collect();
        let places = vec![values.len()];
        let values =
            ArrayD::from_shape_vec(labels.clone(), values).map_err(|_| InputError::Labels { labels, places })?;
        Ok(matching(axes, values))
    }

    /// Creates an array from a recorded activation, with the hook point's axis names, such as `batch`, `head`, `query`
    /// and `key`. Use [`LabeledArray::at`] to select from the array; it can also be plotted or written as CSV.
    ///
    /// ```
    /// use hooklens::plot::Heatmap;
    /// use hooklens::prelude::*;
    /// use hooklens::LabeledArray;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let cache = model.record("king drum sun king", "*hook_pattern")?;
    /// let head = LabeledArray::recorded(&cache, hook::pattern(1))?.at("batch", 0)?.at("head", 2)?;
    /// assert!(head.to_csv().starts_with("query,key,value\n0,0,1\n"));
    /// let svg = Heatmap::of(&head)?.to_svg()?;
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`ActivationCache::get`](hooklens_hooks::ActivationCache::get).
    pub fn recorded(cache: &ActivationCache, point: impl Into<Selection>) -> Result<Self, HookError> {
        let point = point.into();
        let axes = cache.axes(point.clone())?;
        let values = cache.activation(point)?.to_ndarray()?.mapv(f64::from);
        let named = axes.iter().zip(values.shape()).map(|(axis, len)| LabeledAxis::numbered(axis.name(), *len));
        Ok(matching(named.collect::<Vec<_>>(), values))
    }

    fn label_counts(&self) -> Vec<usize> {
        self.axes.iter().map(|axis| axis.labels.len()).collect()
    }

    /// Axes, outermost first.
    pub fn axes(&self) -> &[LabeledAxis] {
        &self.axes
    }

    /// Values, with one array axis per labeled axis.
    pub fn values(&self) -> &ArrayD<f64> {
        &self.values
    }

    /// Selects one index along an axis and removes that axis. Negative indices count from the end.
    ///
    /// ```
    /// use hooklens::{LabeledArray, LabeledAxis};
    /// let axes = [LabeledAxis::numbered("layer", 2), LabeledAxis::numbered("head", 3)];
    /// let scores = LabeledArray::from_values(axes, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    /// assert_eq!(scores.at("layer", -1)?.values().as_slice(), Some(&[4.0, 5.0, 6.0][..]));
    /// let message = scores.at("head", 3).unwrap_err().to_string();
    /// assert_eq!(message, "index 3 is out of range for axis `head`; the axes are layer (2), head (3)");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::Axis`] if the array has no such axis, [`InputError::Place`] if the index is out of range.
    pub fn at(&self, axis: &str, place: isize) -> Result<LabeledArray, InputError> {
        let absent = || InputError::Place { axis: axis.into(), place, axes: self.sizes() };
        let number = self.axis(axis)?;
        let len = self.axes[number].labels.len();
        let from = if place < 0 { len.checked_add_signed(place) } else { usize::try_from(place).ok() };
        let index = from.filter(|index| *index < len).ok_or_else(absent)?;
        let mut axes = self.axes.clone();
        axes.remove(number);
        Ok(Self { axes, values: self.values.index_axis(Axis(number), index).to_owned() })
    }

    /// Applies `change` to each value, keeping the labels.
    ///
    /// ```
    /// use hooklens::{LabeledArray, LabeledAxis};
    /// let values = ndarray::arr1(&[-3.0, 1.0]).into_dyn();
    /// let array = LabeledArray::new([LabeledAxis::numbered("pos", 2)], values)?;
    /// assert_eq!(array.map(|value| value.abs()).largest(1), [(vec!["0"], 3.0)]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn map(&self, change: impl FnMut(&f64) -> f64) -> LabeledArray {
        Self { axes: self.axes.clone(), values: self.values.map(change) }
    }

    /// Averages over an axis and removes that axis. The mean over an empty axis is NaN.
    ///
    /// ```
    /// use hooklens::{LabeledArray, LabeledAxis};
    /// let axes = [LabeledAxis::numbered("layer", 2), LabeledAxis::new("head", ["a", "b"])];
    /// let scores = LabeledArray::from_values(axes, [0.25, 0.5, 0.75, 1.0])?;
    /// assert_eq!(scores.mean("layer")?.to_csv(), "head,value\na,0.5\nb,0.75\n");
    /// assert_eq!(scores.mean("pos").unwrap_err().to_string(), "there is no axis `pos`; the axes are layer (2), head (2)");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::Axis`] if the array has no such axis.
    pub fn mean(&self, axis: &str) -> Result<LabeledArray, InputError> {
        let number = self.axis(axis)?;
        let mut axes = self.axes.clone();
        let count = axes.remove(number).labels.len() as f64;
        Ok(Self { axes, values: self.values.sum_axis(Axis(number)) / count })
    }

    /// Subtracts an array with the same axes and labels, such as the result of the same sweep on a different model.
    ///
    /// ```
    /// use hooklens::{LabeledArray, LabeledAxis};
    /// let array = |labels, values: [f64; 2]| LabeledArray::from_values([LabeledAxis::new("head", labels)], values);
    /// let (before, after) = (array(["a", "b"], [0.25, 0.5])?, array(["a", "b"], [0.25, 1.0])?);
    /// assert_eq!(after.subtract(&before)?.largest(1), [(vec!["b"], 0.5)]);
    /// let message = after.subtract(&array(["a", "c"], [0.0, 0.0])?).unwrap_err().to_string();
    /// assert_eq!(message, "the arrays have different labels: index 1 of axis `head` is `b` in one and `c` in the other");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::OtherAxes`] if the axes differ, [`InputError::OtherLabels`] with the first label that differs.
    pub fn subtract(&self, other: &LabeledArray) -> Result<LabeledArray, InputError> {
        check_same_axes(&self.axes, &other.axes)?;
        Ok(Self { axes: self.axes.clone(), values: &self.values - &other.values })
    }

    /// Sorts the indices of an axis by their values, averaged over the other axes, largest first. Equal values keep
    /// their order, and NaN comes last.
    ///
    /// ```
    /// use hooklens::{LabeledArray, LabeledAxis};
    /// let axes = [LabeledAxis::numbered("layer", 2), LabeledAxis::new("head", ["a", "b", "c"])];
    /// let scores = LabeledArray::from_values(axes, [0.1, 0.9, 0.3, 0.2, 0.5, 0.4])?;
    /// let sorted = scores.sort_values("head")?;
    /// assert_eq!(sorted.axes()[1].labels, ["b", "c", "a"]);
    /// assert_eq!(sorted.at("layer", 0)?.values().as_slice(), Some(&[0.9, 0.3, 0.1][..]));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::Axis`] if the array has no such axis.
    pub fn sort_values(&self, axis: &str) -> Result<LabeledArray, InputError> {
        let number = self.axis(axis)?;
        let means: Vec<f64> =
            self.values.axis_iter(Axis(number)).map(|part| part.sum() / part.len().max(1) as f64).collect();
        let mut order: Vec<usize> = (0..means.len()).collect();
        order.sort_by(|a, b| rank(means[*b]).total_cmp(&rank(means[*a])));
        let mut axes = self.axes.clone();
        axes[number].labels = order.iter().map(|place| self.axes[number].labels[*place].clone()).collect();
        Ok(Self { axes, values: self.values.select(Axis(number), &order) })
    }

    /// Returns the `count` largest values with their labels, one label per axis, largest first. NaN comes last. For the
    /// largest magnitudes, use [`LabeledArray::map`] first.
    #[doc(alias("nlargest", "topk"))]
    pub fn largest(&self, count: usize) -> Vec<(Vec<&str>, f64)> {
        let mut all: Vec<_> = self.values.indexed_iter().collect();
        all.sort_by(|(_, a), (_, b)| rank(**b).total_cmp(&rank(**a)));
        all.truncate(count);
        all.into_iter().map(|(place, value)| (self.labels(&place), *value)).collect()
    }

    /// Index of the axis with this name.
    fn axis(&self, name: &str) -> Result<usize, InputError> {
        let absent = || InputError::Axis { axis: name.into(), axes: self.sizes() };
        self.axes.iter().position(|own| own.name == name).ok_or_else(absent)
    }

    /// Name and size of each axis.
    fn sizes(&self) -> Vec<(String, usize)> {
        self.axes.iter().map(|axis| (axis.name.clone(), axis.labels.len())).collect()
    }

    pub(crate) fn labels(&self, place: &IxDyn) -> Vec<&str> {
        self.axes.iter().zip(place.as_array_view()).map(|(axis, at)| axis.labels[*at].as_str()).collect()
    }

    /// Formats the array as CSV with one row per value: its labels, then the value. Labels that contain a comma, quote
    /// or line break are quoted (RFC 4180).
    ///
    /// ```
    /// use hooklens::{LabeledArray, LabeledAxis};
    /// let array = LabeledArray::from_values([LabeledAxis::new("token", ["a", ",\n"])], [1.0, 2.5])?;
    /// assert_eq!(array.to_csv(), "token,value\na,1\n\",\n\",2.5\n");
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn to_csv(&self) -> String {
        self.csv(CsvLabels::Exact)
    }
}

/// Fails unless two arrays have the same axes and labels.
///
/// # Errors
/// [`InputError::OtherAxes`] if the axes differ, [`InputError::OtherLabels`] with the first label that differs.
pub fn check_same_axes(one: &[LabeledAxis], other: &[LabeledAxis]) -> Result<(), InputError> {
    let [own, others] = [one, other].map(|axes| axes.iter().map(|axis| axis.name.clone()).collect::<Vec<_>>());
    if own != others {
        return Err(InputError::OtherAxes { one: own, other: others });
    }
    for (axis, other) in one.iter().zip(other) {
        let longest = axis.labels.len().max(other.labels.len());
        if let Some(place) = (0..longest).find(|place| axis.labels.get(*place) != other.labels.get(*place)) {
            let [one, other] = [axis, other].map(|axis| axis.labels.get(place).cloned());
            return Err(InputError::OtherLabels { axis: axis.name.clone(), place, one, other });
        }
    }
    Ok(())
}

/// Like [`LabeledArray::new`], for labels that are known to match.
pub fn matching(axes: impl IntoIterator<Item = LabeledAxis>, values: ArrayD<f64>) -> LabeledArray {
    let made = LabeledArray { axes: axes.into_iter().collect(), values };
    debug_assert_eq!(made.label_counts(), made.values.shape());
    made
}

/// Value to sort by: NaN counts as smallest.
fn rank(value: f64) -> f64 {
    if value.is_nan() { f64::NEG_INFINITY } else { value }
}

/// CSV output in which labels can be written in different ways. Used by the command line.
pub trait CsvText {
    /// Formats the table as CSV. `labels` selects how labels are written.
    fn csv(&self, labels: CsvLabels) -> String;
}

impl CsvText for LabeledArray {
    fn csv(&self, labels: CsvLabels) -> String {
        let names = self.axes.iter().map(|axis| axis.name.as_str());
        let mut table = CsvTable::new(names.chain(["value"]), labels);
        for (place, value) in self.values.indexed_iter() {
            table.row(self.labels(&place), [value.to_string()]);
        }
        table.finish()
    }
}

/// Serializes the values as nested lists.
fn nested<S: serde::Serializer>(values: &ArrayD<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    fn lists(values: ndarray::ArrayViewD<'_, f64>) -> serde_json::Value {
        match values.ndim() {
            0 => values.first().copied().map_or(serde_json::Value::Null, serde_json::Value::from),
            _ => values.outer_iter().map(lists).collect(),
        }
    }
    lists(values.view()).serialize(serializer)
}

/// Serialized form: values in nested lists, with null for non-finite values.
#[derive(Deserialize)]
struct Stored {
    axes: Vec<LabeledAxis>,
    values: NestedLists,
}

impl TryFrom<Stored> for LabeledArray {
    type Error = InputError;

    fn try_from(stored: Stored) -> Result<Self, InputError> {
        let lengths: Vec<usize> = stored.axes.iter().map(|axis| axis.labels.len()).collect();
        let (fits, places) = (stored.values.fit(&lengths), stored.values.numbers.len());
        let values = ArrayD::from_shape_vec(IxDyn(&lengths), stored.values.numbers).ok().filter(|_| fits);
        let values = values.ok_or(InputError::Labels { labels: lengths, places: vec![places] })?;
        Self::new(stored.axes, values)
    }
}
