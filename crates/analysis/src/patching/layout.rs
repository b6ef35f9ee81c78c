//! [`Layout`]: numbers and labels the sites of a sweep.

use std::collections::BTreeMap;
use std::ops::Range;

use hooklens_hooks::{Activation, ActivationCache, Axis, Catalog, PointId, PointInfo};
use ndarray::{ArrayD, IxDyn};

use super::growing_batch::{Patch, position_axis};
use super::model::Patchable;
use super::result::PatchingResult;
use crate::error::PatchError;
use crate::labeled::{LabeledAxis, matching};
use hooklens_model::error::{InputError, Result};
use hooklens_model::tokens::{Tokenizer, token_text};

/// Results of one example: the metric without a patch, the metric in the source run if there is one, and the metric per
/// site.
pub(crate) struct Found {
    pub(crate) baseline: f64,
    pub(crate) source: Option<f64>,
    pub(crate) values: Vec<f64>,
}

impl PatchingResult {
    /// Builds the labeled result from per-example values.
    pub(crate) fn new(mut axes: Vec<LabeledAxis>, found: &[Found]) -> Self {
        axes.push(LabeledAxis::numbered("example", found.len()));
        let shape: Vec<usize> = axes.iter().map(|axis| axis.labels.len()).collect();
        let per_site = found.len();
        let mut values = ArrayD::zeros(IxDyn(&shape));
        for (place, value) in values.iter_mut().enumerate() {
            *value = found[place % per_site].values[place / per_site];
        }
        let source = found.iter().map(|found| found.source).collect();
        let baseline = found.iter().map(|found| found.baseline).collect();
        Self { values: matching(axes, values), baseline, source }
    }
}

/// The sites of a sweep, grouped by point.
pub(crate) struct Layout {
    pub(crate) axes: Vec<LabeledAxis>,
    /// Number of sites per point.
    per_point: usize,
    /// Lengths of the swept axes, the same for each point.
    shape: Vec<usize>,
    points: Vec<String>,
}

impl Layout {
    /// Lays out the sites at these points. `shape_of` returns the shape of a point's tensor in a run on the first
    /// prompt.
    pub(crate) fn new<M: Patchable>(
        model: &M,
        points: &[(PointId, Vec<usize>)],
        prompts: &[&M::Prompt],
        shape_of: &dyn Fn(PointId) -> Result<Vec<usize>>,
    ) -> Result<Self> {
        let catalog = model.catalog();
        let swept = |(id, places): &(PointId, Vec<usize>)| -> Result<Vec<usize>> {
            let shape = shape_of(*id)?;
            Ok(places.iter().map(|place| shape[*place]).collect())
        };
        let Some((first, places)) = points.first() else {
            return Err(InputError::Empty { what: "the list of points".into() }.into());
        };
        let shape = swept(&points[0])?;
        let per_point = shape.iter().product();
        let names: Vec<String> = points.iter().map(|(id, _)| catalog.info(*id).name.to_string()).collect();
        for (point, name) in points.iter().zip(&names) {
            let given = swept(point)?;
            if given != shape {
                let given = given.iter().product();
                let (first, point) = (names[0].clone(), name.clone());
                return Err(PatchError::Shapes { first, expected: per_point, point, given }.into());
            }
        }
        let mut axes = vec![first_axis(points, catalog)];
        for (place, len) in places.iter().zip(&shape) {
            let axis = catalog.info(*first).axes[*place];
            axes.push(match axis {
                Axis::Pos | Axis::Query | Axis::Key => {
                    let rows: Vec<&[u32]> =
                        prompts.iter().map(|prompt| model.tokens_along(prompt, *first, axis)).collect();
                    LabeledAxis::new(axis_name(axis), position_labels(model.tokenizer().ok(), &rows, *len))
                }
                _ => LabeledAxis::numbered(axis_name(axis), *len),
            });
        }
        Ok(Self { axes, per_point, shape, points: names })
    }

    /// Checks that the sites of another example have the same shape.
    pub(crate) fn check(
        &self,
        example: usize,
        points: &[(PointId, Vec<usize>)],
        shape_of: &dyn Fn(PointId) -> Result<Vec<usize>>,
    ) -> Result<()> {
        let (id, places) = &points[0];
        let held = shape_of(*id)?;
        match places.iter().zip(&self.shape).position(|(place, expected)| held[*place] != *expected) {
            Some(at) => {
                let axis = self.axes[at + 1].name.clone();
                Err(PatchError::Uneven { axis, example, expected: self.shape[at], given: held[places[at]] }.into())
            }
            None => Ok(()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.points.len() * self.per_point
    }

    /// Indices of a site along the swept axes.
    fn places(&self, number: usize) -> Vec<usize> {
        let mut rest = number % self.per_point.max(1);
        let mut places: Vec<usize> = self
            .shape
            .iter()
            .rev()
            .map(|len| {
                let place = rest % len;
                rest /= len;
                place
            })
            .collect();
        places.reverse();
        places
    }

    pub(super) fn name(&self, number: usize) -> String {
        let mut name = self.points[number / self.per_point.max(1)].clone();
        for (place, axis) in self.places(number).iter().zip(&self.axes[1..]) {
            name.push_str(&format!(" {} {}", axis.name, axis.labels[*place]));
        }
        name
    }

    /// One patch per site. With `skip`, patches that would change nothing are omitted.
    pub(super) fn patches(
        &self,
        points: &[(PointId, Vec<usize>)],
        recorded: &ActivationCache,
        values: &BTreeMap<PointId, Activation>,
        causal: bool,
        skip: bool,
    ) -> Result<Vec<Patch>> {
        let catalog = recorded.catalog();
        let mut patches = Vec::new();
        for (place, (id, swept)) in points.iter().enumerate() {
            let point = catalog.info(*id);
            let unpatched = recorded.activation(&*point.name)?.to_ndarray()?;
            let patched = values[id].to_ndarray()?;
            // Equal values and matching NaNs do not count as a difference.
            let differ =
                ndarray::Zip::from(&unpatched).and(&patched).map_collect(|a, b| a != b && !(a.is_nan() && b.is_nan()));
            let positions = position_axis(point);
            for site in 0..self.per_point {
                let number = place * self.per_point + site;
                let mut block: Vec<Range<usize>> = unpatched.shape().iter().map(|len| 0..*len).collect();
                for (axis, at) in swept.iter().zip(self.places(number)) {
                    block[*axis] = at..at + 1;
                }
                let within = differ.slice_each_axis(|axis| ndarray::Slice::from(block[axis.axis.index()].clone()));
                let first = match positions {
                    Some(axis) => {
                        let along = ndarray::Axis(axis);
                        let places = within.axis_iter(along).position(|at| at.iter().any(|differs| *differs));
                        places.map(|place| place + block[axis].start)
                    }
                    None => within.iter().any(|differs| *differs).then_some(0),
                };
                let first = match first {
                    None if skip => continue,
                    None => positions.map_or(0, |axis| block[axis].start),
                    Some(first) => first,
                };
                let first = if causal { first } else { 0 };
                patches.push(Patch { number, point: *id, block, first });
            }
        }
        Ok(patches)
    }
}

/// The axis that distinguishes points: `layer` if they differ only by layer, otherwise `point`.
fn first_axis(points: &[(PointId, Vec<usize>)], catalog: &Catalog) -> LabeledAxis {
    let infos: Vec<_> = points.iter().map(|(id, _)| catalog.info(*id)).collect();
    // The point's name without the layer.
    let of_stack = |point: &&PointInfo| {
        let (stack, site) = point.name.split_once(&format!(".{}.", point.layer?))?;
        Some((stack.to_string(), site.to_string()))
    };
    let first = of_stack(&infos[0]);
    if first.is_some() && infos.iter().all(|point| of_stack(point) == first) {
        return LabeledAxis::new("layer", infos.iter().filter_map(|point| point.layer).map(|layer| layer.to_string()));
    }
    LabeledAxis::new("point", infos.iter().map(|point| point.name.to_string()))
}

/// The name of an axis in sweep results.
fn axis_name(axis: Axis) -> &'static str {
    match axis {
        Axis::Query => "dest_pos",
        Axis::Key => "src_pos",
        Axis::KvHead => "kv_head",
        other => other.name(),
    }
}

/// Labels such as `3 gave`, or plain numbers if there is no tokenizer or the prompts differ.
pub fn position_labels(tokenizer: Option<&Tokenizer>, prompts: &[&[u32]], len: usize) -> Vec<String> {
    let label = |place: usize| {
        let first = prompts.first()?.get(place)?;
        let same = prompts.iter().all(|prompt| prompt.get(place) == Some(first));
        let tokenizer = tokenizer.filter(|_| same)?;
        Some(format!("{place} {}", token_text(Some(tokenizer), *first)))
    };
    (0..len).map(|place| label(place).unwrap_or_else(|| place.to_string())).collect()
}
