//! Sweeps: one patch after the other, as few computations as will do.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use burn::tensor::Tensor;
use hooklens_hooks::{Activation, ActivationCache, Axis, Catalog, PointId, Selection, at};
use ndarray::{ArrayD, IxDyn};

use super::base_run::BaseRun;
use super::error::PatchError;
use super::metric::{Metric, read_values};
use super::result::PatchingResult;
use super::sites::Sites;
use super::source::{Ablation, Means, Source, mean_like, means};
use super::staircase::{Patch, Staircase, position_axis};
use crate::error::{InputError, Result};
use crate::labelled::{LabelledArray, LabelledAxis};
use crate::model::{ForwardOptions, HookedTransformer, Input, Logits};
use crate::tokens::Tokens;

/// Tokens that run together in one batch of patches.
const TOKENS_AT_ONCE: usize = 4096;

type Progress<'m> = RefCell<Box<dyn FnMut(usize, usize) + 'm>>;

/// Pairs of prompts and what is asked of them. See the [module](super).
pub struct Patching<'m> {
    pub(super) model: &'m HookedTransformer,
    /// Prompts whose runs are patched, without padding.
    pub(super) base: Vec<Vec<u32>>,
    pub(super) source: Source,
    pub(super) metric: Metric,
    progress: Option<Progress<'m>>,
}

impl<'m> Patching<'m> {
    /// Patches of what the clean prompts make, into the runs on the corrupted ones. The two are of
    /// the same number and, pair by pair, the same length.
    ///
    /// # Errors
    /// [`PatchError::Examples`], [`PatchError::Lengths`], [`PatchError::MetricExamples`], or tokens
    /// the model can't be run on.
    pub fn new(
        model: &'m HookedTransformer,
        clean: impl Into<Input>,
        corrupted: impl Into<Input>,
        metric: Metric,
    ) -> Result<Self> {
        let (clean, base) = (rows(model, clean.into())?, rows(model, corrupted.into())?);
        if clean.len() != base.len() {
            return Err(PatchError::Examples { clean: clean.len(), corrupted: base.len() }.into());
        }
        check_lengths(&clean, &base)?;
        metric.check_examples(base.len())?;
        Ok(Self { model, base, source: Source::Run(clean), metric, progress: None })
    }

    /// Ablations in the runs on these prompts.
    ///
    /// # Errors
    /// As [`Patching::new`], of resampling.
    pub fn ablating(
        model: &'m HookedTransformer,
        prompts: impl Into<Input>,
        ablation: Ablation,
        metric: Metric,
    ) -> Result<Self> {
        let base = rows(model, prompts.into())?;
        metric.check_examples(base.len())?;
        let source = match ablation {
            Ablation::Zero => Source::Zero,
            Ablation::Mean(prompts) => Source::Mean { prompts: model.token_input(prompts)?, by_position: false },
            Ablation::MeanByPosition(prompts) => {
                Source::Mean { prompts: model.token_input(prompts)?, by_position: true }
            }
            Ablation::Resample(prompts) => {
                let others = rows(model, prompts)?;
                if others.len() != base.len() {
                    return Err(PatchError::Examples { clean: base.len(), corrupted: others.len() }.into());
                }
                check_lengths(&base, &others)?;
                Source::Run(others)
            }
        };
        Ok(Self { model, base, source, metric, progress: None })
    }

    /// The same pairs the other way round: what the corrupted prompts make, patched into the runs
    /// on the clean ones. Ablations stay as they are.
    #[must_use]
    pub fn reversed(mut self) -> Self {
        if let Source::Run(source) = &mut self.source {
            std::mem::swap(source, &mut self.base);
        }
        self
    }

    /// Tells how many of how many patches are done, from time to time during a sweep.
    #[must_use]
    pub fn on_progress(mut self, tell: impl FnMut(usize, usize) + 'm) -> Self {
        self.progress = Some(RefCell::new(Box::new(tell)));
        self
    }

    /// Number of examples.
    pub fn examples(&self) -> usize {
        self.base.len()
    }

    /// The metric with each of these sites patched, one at a time, `[layer, ...swept axes]`. Points
    /// that are not one a layer are labelled by their names on an axis `point`.
    ///
    /// # Errors
    /// Unknown points and axes, shapes that fit no array, [`PatchError::NotANumber`] naming the
    /// site, and whatever a run reports.
    pub fn sweep(&self, sites: &Sites) -> Result<PatchingResult> {
        self.sweep_from(sites, &self.source, true)
    }

    /// The sweep with every site patched by what is there already, nothing left out: the control.
    /// All its values are the baseline's, but for rounding.
    ///
    /// # Errors
    /// As [`Patching::sweep`].
    pub fn identity_control(&self, sites: &Sites) -> Result<PatchingResult> {
        self.sweep_from(sites, &Source::Run(self.base.clone()), false)
    }

    fn sweep_from(&self, sites: &Sites, source: &Source, skip: bool) -> Result<PatchingResult> {
        let catalog = self.model.catalog();
        let points = sites.resolve(catalog)?;
        let ids: Vec<PointId> = points.iter().map(|(id, _)| *id).collect();
        let mean = match source {
            Source::Mean { prompts, by_position } => Some(means(self.model, prompts, *by_position, &ids)?),
            _ => None,
        };
        let mut layout: Option<Layout> = None;
        let (mut by_example, mut baseline, mut of_source) = (Vec::new(), Vec::new(), Vec::new());
        for (example, tokens) in self.base.iter().enumerate() {
            let mut base = BaseRun::new(self.model, tokens, sites.selection().clone(), self.metric.needs())?;
            let unpatched = self.metric.judge(base.logits.clone(), example)?;
            let unpatched = read_values(unpatched, example, |_| "without a patch".into())?[0];
            let (values, clean) = self.values(source, mean.as_ref(), &ids, &base, example)?;
            if let Some(clean) = clean {
                let judged = self.metric.judge(clean, example)?;
                of_source.push(read_values(judged, example, |_| "in the source's run".into())?[0]);
            }
            let layout = match &mut layout {
                Some(layout) => {
                    layout.check(example, &points, &base, catalog, &self.base)?;
                    layout
                }
                none => none.insert(Layout::new(self.model, &points, &base, catalog)?),
            };
            let mut found = vec![unpatched; layout.len()];
            let patches = layout.patches(&points, &base, &values, catalog, skip)?;
            let name = |number: usize| layout.name(number);
            self.run(&mut base, patches, &values, example, layout.len(), &name, &mut found)?;
            by_example.push(found);
            baseline.push(unpatched);
        }
        let Some(layout) = layout else { return Err(InputError::Empty { what: "the list of examples".into() }.into()) };
        let examples = by_example.len();
        let values = (0..layout.len()).flat_map(|site| by_example.iter().map(move |found| found[site])).collect();
        let mut axes = layout.axes;
        axes.push(LabelledAxis::numbered("example", examples));
        let shape: Vec<usize> = axes.iter().map(|axis| axis.labels.len()).collect();
        let values = ArrayD::from_shape_vec(IxDyn(&shape), values).unwrap_or_else(|_| ArrayD::zeros(IxDyn(&shape)));
        let source = (of_source.len() == examples).then_some(of_source);
        Ok(PatchingResult { values: LabelledArray::new(axes, values), baseline, source })
    }

    /// What is patched in, as the points' tensors of a whole run, and the logits of the run it is of.
    pub(super) fn values(
        &self,
        source: &Source,
        mean: Option<&Means>,
        ids: &[PointId],
        base: &BaseRun,
        example: usize,
    ) -> Result<(BTreeMap<PointId, Activation>, Option<Tensor<3>>)> {
        let catalog = self.model.catalog();
        let of = |recorded: &ActivationCache, id: PointId| -> Result<Activation> {
            Ok(recorded.activation(&*catalog.info(id).name)?.clone())
        };
        match source {
            Source::Run(prompts) => {
                let names: Vec<&str> = ids.iter().map(|id| &*catalog.info(*id).name).collect();
                let options =
                    ForwardOptions::new().logits(self.metric.needs()).record(Selection::from(names.as_slice()));
                let output = self.model.run(&prompts[example], options)?;
                let values = ids.iter().map(|id| Ok((*id, of(&output.cache, *id)?)));
                Ok((values.collect::<Result<_>>()?, output.logits))
            }
            Source::Zero => {
                let zero = |id: PointId| {
                    let like = of(&base.recorded, id)?;
                    let rank = like.shape().to_vec();
                    let flat: Tensor<1> = like.reshape(&[like.len()]).to_tensor()?;
                    // Where a query may not look, its score stays minus infinity.
                    let hidden = flat.clone().equal_elem(f32::NEG_INFINITY);
                    let zero = flat.zeros_like().mask_fill(hidden, f32::NEG_INFINITY);
                    Ok((id, Activation::from(zero).reshape(&rank)))
                };
                Ok((ids.iter().map(|id| zero(*id)).collect::<Result<_>>()?, None))
            }
            Source::Mean { .. } => {
                let own = |id: &PointId| {
                    let like = of(&base.recorded, *id)?;
                    let mean = mean.and_then(|means| means.get(id)).cloned().unwrap_or_else(|| like.clone());
                    Ok((*id, mean_like(&mean, &like, catalog.info(*id))?))
                };
                Ok((ids.iter().map(own).collect::<Result<_>>()?, None))
            }
        }
    }

    /// Runs patches of one example and puts the metric of each where its number says.
    #[allow(clippy::too_many_arguments)]
    fn run(
        &self,
        base: &mut BaseRun,
        patches: Vec<Patch>,
        values: &BTreeMap<PointId, Activation>,
        example: usize,
        total: usize,
        name: &dyn Fn(usize) -> String,
        found: &mut [f64],
    ) -> Result<()> {
        let catalog = self.model.catalog();
        let (everywhere, in_blocks): (Vec<Patch>, Vec<Patch>) =
            patches.into_iter().partition(|patch| catalog.info(patch.point).layer.is_none());
        let mut by_first: BTreeMap<usize, Vec<Patch>> = BTreeMap::new();
        for patch in in_blocks {
            by_first.entry(patch.first).or_default().push(patch);
        }
        let mut done = total * example + total - everywhere.len() - by_first.values().map(Vec::len).sum::<usize>();
        let all = total * self.base.len();
        let mut keep = |judged: Tensor<1>, patches: &[Patch]| -> Result<()> {
            let values = read_values(judged, example, |row| format!("with {} patched", name(patches[row].number)))?;
            for (patch, value) in patches.iter().zip(values) {
                found[patch.number] = value;
            }
            done += patches.len();
            self.tell(done, all);
            Ok(())
        };
        for (first, mut patches) in by_first {
            patches.sort_by_key(|patch| catalog.info(patch.point).layer);
            for patches in patches.chunks((TOKENS_AT_ONCE / (base.len() - first)).max(1)) {
                let mut stairs = Staircase { model: self.model, base, values, held: &[], watch: &[] };
                let (rows, _) = stairs.climb(patches, &mut |_, _| {})?;
                keep(self.judge(rows, base, first, example)?, patches)?;
            }
        }
        for patches in everywhere.chunks((TOKENS_AT_ONCE / base.len()).max(1)) {
            keep(self.judge_whole(base, patches, values, example)?, patches)?;
        }
        Ok(())
    }

    /// The metric of streams that have passed the last layer, from position `first` on.
    pub(super) fn judge(&self, rows: Tensor<3>, base: &BaseRun, first: usize, example: usize) -> Result<Tensor<1>> {
        let [count, len, _] = rows.dims();
        let logits = match self.metric.needs() {
            Logits::Last => self.model.unembed(rows.narrow(1, len - 1, 1))?,
            _ => {
                let own = self.model.unembed(rows)?;
                let [_, _, d_vocab] = own.dims();
                if first == 0 {
                    own
                } else {
                    let before = base.logits.clone().narrow(1, 0, first).expand([count, first, d_vocab]);
                    Tensor::cat(vec![before, own], 1)
                }
            }
        };
        Ok(self.metric.judge(logits, example)?)
    }

    /// Patches outside the blocks: whole runs, as one batch.
    fn judge_whole(
        &self,
        base: &BaseRun,
        patches: &[Patch],
        values: &BTreeMap<PointId, Activation>,
        example: usize,
    ) -> Result<Tensor<1>> {
        let catalog = self.model.catalog();
        let tokens = Tokens::new(vec![base.tokens.clone(); patches.len()])?;
        let mut points: Vec<PointId> = patches.iter().map(|patch| patch.point).collect();
        points.dedup();
        let hook = |id: PointId| {
            at(&*catalog.info(id).name).edit_any(move |tensor, _| {
                let rows = patches.iter().enumerate().filter(|(_, patch)| patch.point == id);
                let blocks = rows.map(|(row, patch)| {
                    let mut place = patch.block.clone();
                    place[0] = row..row + 1;
                    (place, values[&id].block(&patch.block))
                });
                Ok(Some(tensor.with_blocks(blocks)))
            })
        };
        let options = ForwardOptions::new().logits(self.metric.needs()).hooks(points.into_iter().map(hook));
        let logits = self.model.run(tokens, options)?.logits.ok_or(InputError::Options("the run gave no logits"))?;
        Ok(self.metric.judge(logits, example)?)
    }

    /// Patches of whole prompts that run together.
    pub(super) fn rows_at_once(&self, base: &BaseRun) -> usize {
        (TOKENS_AT_ONCE / base.len()).max(1)
    }

    pub(super) fn tell(&self, done: usize, all: usize) {
        if let Some(progress) = &self.progress
            && let Ok(mut tell) = progress.try_borrow_mut()
        {
            tell(done, all);
        }
    }
}

impl fmt::Debug for Patching<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Patching({} examples, {:?})", self.base.len(), self.metric)
    }
}

/// Rows of tokens without their padding.
pub(crate) fn rows(model: &HookedTransformer, input: Input) -> Result<Vec<Vec<u32>>> {
    let tokens = model.token_input(input)?;
    let [batch, _] = tokens.shape();
    let rows: Vec<Vec<u32>> = (0..batch).map(|row| tokens.real(row)).collect();
    match rows.iter().position(Vec::is_empty) {
        Some(row) => Err(InputError::Empty { what: format!("row {row}") }.into()),
        None => Ok(rows),
    }
}

pub(crate) fn check_lengths(clean: &[Vec<u32>], corrupted: &[Vec<u32>]) -> Result<(), PatchError> {
    for (example, (clean, corrupted)) in clean.iter().zip(corrupted).enumerate() {
        if clean.len() != corrupted.len() {
            return Err(PatchError::Lengths { example, clean: clean.len(), corrupted: corrupted.len() });
        }
    }
    Ok(())
}

/// How the sites of a sweep are numbered and labelled.
struct Layout {
    axes: Vec<LabelledAxis>,
    /// Sites a point.
    per_point: usize,
    /// Shape of each point's swept axes.
    shape: Vec<usize>,
    points: Vec<String>,
}

impl Layout {
    fn new(
        model: &HookedTransformer,
        points: &[(PointId, Vec<usize>)],
        base: &BaseRun,
        catalog: &Catalog,
    ) -> Result<Self> {
        let shape_of = |(id, places): &(PointId, Vec<usize>)| -> Result<Vec<usize>> {
            let held = base.recorded.activation(&*catalog.info(*id).name)?;
            Ok(places.iter().map(|place| held.shape()[*place]).collect())
        };
        let shape = shape_of(&points[0])?;
        let per_point = shape.iter().product();
        let names: Vec<String> = points.iter().map(|(id, _)| catalog.info(*id).name.to_string()).collect();
        for (point, name) in points.iter().zip(&names) {
            let given = shape_of(point)?;
            if given != shape {
                let given = given.iter().product();
                let (first, point) = (names[0].clone(), name.clone());
                return Err(PatchError::Shapes { first, expected: per_point, point, given }.into());
            }
        }
        let mut axes = vec![first_axis(points, catalog)];
        let (first, places) = &points[0];
        for (place, len) in places.iter().zip(&shape) {
            let axis = catalog.info(*first).axes[*place];
            axes.push(match axis {
                Axis::Pos | Axis::Query | Axis::Key => {
                    LabelledAxis::new(axis_name(axis), position_labels(model, &base.tokens, *len))
                }
                _ => LabelledAxis::numbered(axis_name(axis), *len),
            });
        }
        Ok(Self { axes, per_point, shape, points: names })
    }

    /// Whether another example's sites have the same places.
    fn check(
        &self,
        example: usize,
        points: &[(PointId, Vec<usize>)],
        base: &BaseRun,
        catalog: &Catalog,
        all: &[Vec<u32>],
    ) -> Result<()> {
        let (id, places) = &points[0];
        let held = base.recorded.activation(&*catalog.info(*id).name)?;
        let given: Vec<usize> = places.iter().map(|place| held.shape()[*place]).collect();
        match given.iter().zip(&self.shape).position(|(given, expected)| given != expected) {
            Some(at) => {
                let axis = axis_name(catalog.info(*id).axes[places[at]]);
                Err(PatchError::Uneven { axis, example, expected: all[0].len(), given: base.len() }.into())
            }
            None => Ok(()),
        }
    }

    fn len(&self) -> usize {
        self.points.len() * self.per_point
    }

    /// The places of a site along the swept axes.
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

    fn name(&self, number: usize) -> String {
        let mut name = self.points[number / self.per_point.max(1)].clone();
        for (place, axis) in self.places(number).iter().zip(&self.axes[1..]) {
            name.push_str(&format!(" {} {}", axis.name, axis.labels[*place]));
        }
        name
    }

    /// A patch for every site; with `skip` those that would change nothing are left out.
    fn patches(
        &self,
        points: &[(PointId, Vec<usize>)],
        base: &BaseRun,
        values: &BTreeMap<PointId, Activation>,
        catalog: &Catalog,
        skip: bool,
    ) -> Result<Vec<Patch>> {
        let mut patches = Vec::new();
        for (place, (id, swept)) in points.iter().enumerate() {
            let point = catalog.info(*id);
            let unpatched = base.recorded.activation(&*point.name)?.to_ndarray()?;
            let patched = values[id].to_ndarray()?;
            // Minus infinity in both is no difference.
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
                let first = if base.is_causal() { first } else { 0 };
                patches.push(Patch { number, point: *id, block, first });
            }
        }
        Ok(patches)
    }
}

/// The axis that tells points apart: layers, if there is one point a layer.
pub(super) fn first_axis(points: &[(PointId, Vec<usize>)], catalog: &Catalog) -> LabelledAxis {
    let infos: Vec<_> = points.iter().map(|(id, _)| catalog.info(*id)).collect();
    let suffix =
        |name: &str| name.strip_prefix("blocks.").and_then(|rest| rest.split_once('.')).map(|s| s.1.to_string());
    let first = suffix(&infos[0].name);
    if first.is_some() && infos.iter().all(|point| suffix(&point.name) == first) {
        return LabelledAxis::new("layer", infos.iter().filter_map(|point| point.layer).map(|layer| layer.to_string()));
    }
    LabelledAxis::new("point", infos.iter().map(|point| point.name.to_string()))
}

/// An axis in the words of a sweep.
fn axis_name(axis: Axis) -> &'static str {
    match axis {
        Axis::Query => "dest_pos",
        Axis::Key => "src_pos",
        Axis::KvHead => "kv_head",
        other => other.name(),
    }
}

/// `3: gave`, or numbers where there is no tokenizer.
pub(crate) fn position_labels(model: &HookedTransformer, tokens: &[u32], len: usize) -> Vec<String> {
    (0..len)
        .map(|place| {
            let text = tokens.get(place).and_then(|id| model.to_string(&[*id]).ok());
            text.map_or_else(|| place.to_string(), |text| format!("{place}: {text}"))
        })
        .collect()
}
