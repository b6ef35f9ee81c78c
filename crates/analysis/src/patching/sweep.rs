//! Patching sweeps, which reuse the unpatched run wherever possible.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use burn::tensor::Tensor;
use hooklens_hooks::{Activation, BlockAccess, Hook, PointId, Segment, at};

use super::backward::Backward;
use super::base_run::BaseRun;
use super::example::Example;
use super::growing_batch::{GrowingBatch, Patch};
use super::layout::{Found, Layout};
use super::metric::{Metric, read_values};
use super::model::Patchable;
use super::result::PatchingResult;
use super::sites::Sites;
use super::source::{Ablation, Source};
use crate::error::PatchError;
use hooklens_model::driver::{ForwardOptions, HookedModel, Logits, for_copies};
use hooklens_model::error::Result;
use hooklens_model::model::HookedTransformer;

/// Maximum number of tokens in one batch of patches.
const TOKENS_AT_ONCE: usize = 4096;
/// Maximum number of logits in one batch of patches: 1 GiB in f32.
const LOGITS_AT_ONCE: usize = 1 << 28;

type Progress<'m> = RefCell<Box<dyn FnMut(usize, usize) + 'm>>;

/// A patching experiment: prompts, the source of the patches, and a metric. See the [module](super).
///
/// ```
/// use hooklens::hook::Axis;
/// use hooklens::patching::{Metric, Patching, Sites};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let clean = ["When Mary and John went", "When Tom and Anna went"];
/// let corrupted = ["When Kate and John went", "When Kate and Anna went"];
/// let metric = Metric::logit_diff(&model, ["Mary", "Tom"], "Kate")?;
/// let patching = Patching::new(&model, clean, corrupted, metric)?;
/// let found = patching.sweep(&Sites::new("*hook_z").per([Axis::Pos, Axis::Head]))?;
/// assert_eq!(found.values.values().shape(), [4, 6, 4, 2]); // two examples
/// # Ok::<(), hooklens::Error>(())
/// ```
pub struct Patching<'m, M: Patchable = HookedTransformer> {
    model: &'m M,
    /// Prompts whose runs are patched, without padding.
    pub(crate) base: Vec<M::Prompt>,
    pub(crate) source: Source<M::Prompt>,
    pub(crate) metric: Metric,
    pub(crate) backward: Backward,
    progress: Option<Progress<'m>>,
}

impl<'m, M: Patchable> Patching<'m, M> {
    /// Patches activations of the clean prompts into runs on the corrupted prompts. The numbers of clean and corrupted
    /// prompts must be equal, and the two prompts of a pair must have the same length.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let patching = Patching::new(&model, [clean, clean], [corrupted, corrupted], metric)?;
    /// assert_eq!(patching.resid_pre()?.baseline.len(), 2); // one number per pair
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`PatchError::Examples`], [`PatchError::Lengths`], [`PatchError::MetricExamples`], or an error for tokens that
    /// the model cannot run on.
    pub fn new(
        model: &'m M,
        clean: impl Into<M::Input>,
        corrupted: impl Into<M::Input>,
        metric: Metric,
    ) -> Result<Self> {
        let (clean, base) = (model.prompts(clean.into())?, model.prompts(corrupted.into())?);
        if clean.len() != base.len() {
            return Err(PatchError::Examples { clean: clean.len(), corrupted: base.len() }.into());
        }
        check_lengths::<M>(&clean, &base)?;
        metric.check_model(model)?;
        metric.check_examples(base.len())?;
        Ok(Self { model, base, source: Source::Run(clean), metric, backward: Backward::default(), progress: None })
    }

    /// Ablates activations in runs on these prompts.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// // Which head matters most when its output is set to zero?
    /// let ablated = Patching::ablating(&model, clean, Ablation::Zero, metric)?.attn_head_out_all_pos()?;
    /// let lost = ablated.effect().map(|change| -change);
    /// assert!(lost.largest(1)[0].1 > 0.5); // in logits
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`PatchError::MetricExamples`]; for resampling, also the errors of [`Patching::new`].
    pub fn ablating(
        model: &'m M,
        prompts: impl Into<M::Input>,
        ablation: Ablation<M::Input>,
        metric: Metric,
    ) -> Result<Self> {
        let base = model.prompts(prompts.into())?;
        metric.check_model(model)?;
        metric.check_examples(base.len())?;
        let source = match ablation {
            Ablation::Zero => Source::Zero,
            Ablation::Mean(prompts) => Source::Mean { prompts: model.prompts(prompts)?, by_position: false },
            Ablation::MeanByPosition(prompts) => Source::Mean { prompts: model.prompts(prompts)?, by_position: true },
            Ablation::Resample(prompts) => {
                let others = model.prompts(prompts)?;
                if others.len() != base.len() {
                    return Err(PatchError::Examples { clean: base.len(), corrupted: others.len() }.into());
                }
                check_lengths::<M>(&base, &others)?;
                Source::Run(others)
            }
        };
        Ok(Self { model, base, source, metric, backward: Backward::default(), progress: None })
    }

    /// Swaps the runs: patches activations of the corrupted prompts into runs on the clean prompts. Has no effect on
    /// zero and mean ablations, which have no source run.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// # let patching = Patching::new(&model, clean, corrupted, metric)?;
    /// let there = patching.attn_head_out_all_pos()?;
    /// let back = patching.reversed().attn_head_out_all_pos()?;
    /// assert!((there.baseline[0] - back.source.map_or(f64::NAN, |run| run[0])).abs() < 1e-3);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn reversed(mut self) -> Self {
        if let Source::Run(source) = &mut self.source {
            std::mem::swap(source, &mut self.base);
        }
        self
    }

    /// Calls `tell` from time to time during a sweep, with the number of finished patches and the total.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let done = std::cell::Cell::new((0, 0));
    /// let patching = Patching::new(&model, clean, corrupted, metric)?;
    /// patching.on_progress(|now, all| done.set((now, all))).attn_head_out_all_pos()?;
    /// assert_eq!(done.get(), (16, 16));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn on_progress(mut self, tell: impl FnMut(usize, usize) + 'm) -> Self {
        self.progress = Some(RefCell::new(Box::new(tell)));
        self
    }

    /// Whether patches come from runs on other prompts.
    pub(crate) fn is_paired(&self) -> bool {
        matches!(self.source, Source::Run(_))
    }

    /// The model.
    pub(crate) fn model(&self) -> &'m M {
        self.model
    }

    /// Number of examples.
    pub fn examples(&self) -> usize {
        self.base.len()
    }

    /// Computes the metric with each of these sites patched, one at a time, `[layer, ...swept axes]`. If the points
    /// differ in more than the layer, the first axis is named `point` instead and labeled with the point names.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// # let patching = Patching::new(&model, clean, corrupted, metric)?;
    /// let keys = patching.sweep(&Sites::new(["k1", "k2"]).per([Axis::Head]))?;
    /// assert_eq!(keys.mean().values().shape(), [2, 4]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails for unknown points and axes, for points of different shapes, if a run fails, and with
    /// [`PatchError::NotANumber`] (which names the site) if the metric is NaN.
    pub fn sweep(&self, sites: &Sites) -> Result<PatchingResult> {
        self.sweep_from(sites, &self.source, true)
    }

    /// Runs a control sweep that patches every site with its unpatched value, without skipping sites at which nothing
    /// changes. All values equal the baseline, up to rounding.
    ///
    /// ```
    /// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
    /// # use hooklens::hook::Axis;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// # let patching = Patching::new(&model, clean, corrupted, metric)?;
    /// let control = patching.identity_control(&Sites::new("*hook_resid_pre").per([Axis::Pos]))?;
    /// assert!(control.effect().values().iter().all(|change| change.abs() < 1e-3));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Patching::sweep`].
    pub fn identity_control(&self, sites: &Sites) -> Result<PatchingResult> {
        self.sweep_from(sites, &Source::Run(self.base.clone()), false)
    }

    fn sweep_from(&self, sites: &Sites, source: &Source<M::Prompt>, skip: bool) -> Result<PatchingResult> {
        // A sweep is a sequence of many short runs, and LibTorch's idle threads would spin at the start of each one.
        #[cfg(feature = "libtorch")]
        let _alone = self.base.first().and_then(|prompt| self.model.restarts(prompt)).map(|(decoder, _)| {
            hooklens_model::cpu::OneThread::for_kernels_on(&decoder.device(), decoder.dtype().burn())
        });
        let points = sites.resolve(self.model.catalog())?;
        let ids: Vec<PointId> = points.iter().map(|(id, _)| *id).collect();
        let prompts: Vec<&M::Prompt> = self.base.iter().collect();
        let mut layout: Option<Layout> = None;
        let found = self.each_example_from(source, &ids, |example| {
            let mut base = example.base_run(sites.selection().clone())?;
            let baseline = example.read(base.logits.clone(), "without a patch")?;
            let from = example.source(&base.recorded, &ids)?;
            let recorded = base.recorded.clone();
            let shape_of = |id: PointId| Ok(recorded.activation(&*recorded.catalog().info(id).name)?.shape().to_vec());
            let layout = match &mut layout {
                Some(layout) => {
                    layout.check(example.number, &points, &shape_of)?;
                    layout
                }
                none => none.insert(Layout::new(self.model, &points, &prompts, &shape_of)?),
            };
            let mut values = vec![baseline; layout.len()];
            let patches = layout.patches(&points, &base.recorded, &from.values, base.is_causal(), skip)?;
            self.run(&mut base, patches, &from.values, &example, layout, &mut values)?;
            Ok(Found { baseline, source: from.metric, values })
        })?;
        let axes = layout.map(|layout| layout.axes).unwrap_or_default();
        Ok(PatchingResult::new(axes, &found))
    }

    /// Runs the patches of one example and stores each metric in `found` at the patch's number.
    fn run(
        &self,
        base: &mut BaseRun,
        patches: Vec<Patch>,
        values: &BTreeMap<PointId, Activation>,
        example: &Example<'_, M>,
        layout: &Layout,
        found: &mut [f64],
    ) -> Result<()> {
        let (total, prompt, example) = (layout.len(), example.prompt, example.number);
        let decoder = self.model.restarts(prompt).map(|(decoder, _)| decoder);
        let catalog = self.model.catalog();
        let (mut everywhere, in_blocks): (Vec<Patch>, Vec<Patch>) =
            patches.into_iter().partition(|patch| decoder.is_none() || catalog.info(patch.point).layer.is_none());
        let mut by_first: BTreeMap<usize, Vec<Patch>> = BTreeMap::new();
        for patch in in_blocks {
            by_first.entry(patch.first).or_default().push(patch);
        }
        let mut done = total * example + total - everywhere.len() - by_first.values().map(Vec::len).sum::<usize>();
        let all = total * self.base.len();
        let mut keep = |judged: Tensor<1>, patches: &[Patch]| -> Result<()> {
            let values =
                read_values(judged, example, |row| format!("with {} patched", layout.name(patches[row].number)))?;
            for (patch, value) in patches.iter().zip(values) {
                found[patch.number] = value;
            }
            done += patches.len();
            self.tell(done, all);
            Ok(())
        };
        if let Some(decoder) = decoder {
            for (first, mut patches) in by_first {
                patches.sort_by_key(|patch| catalog.info(patch.point).layer);
                for patches in patches.chunks(self.copies_at_once(base.len() - first, base.len())) {
                    let mut batch = GrowingBatch { model: decoder, base, values, frozen: &[], watch: &[] };
                    let (rows, _) = batch.run(patches, &mut |_, _| {})?;
                    keep(judge(&self.metric, decoder, rows, base, first, example)?, patches)?;
                }
            }
        }
        // Runs of an encoder-decoder are cheaper if only the decoder is patched, so patches are grouped by segment.
        everywhere.sort_by_key(|patch| patch.point);
        let in_encoder = |patch: &Patch| catalog.info(patch.point).segment == Segment::Encoder;
        for of_one_segment in everywhere.chunk_by(|a, b| in_encoder(a) == in_encoder(b)) {
            for patches in of_one_segment.chunks(self.copies_at_once(base.len(), base.len())) {
                keep(self.judge_whole(prompt, patches, values, example)?, patches)?;
            }
        }
        Ok(())
    }

    /// Runs the whole model on one batch of patches and computes their metrics.
    fn judge_whole(
        &self,
        prompt: &M::Prompt,
        patches: &[Patch],
        values: &BTreeMap<PointId, Activation>,
        example: usize,
    ) -> Result<Tensor<1>> {
        let catalog = self.model.catalog();
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
        self.judge_copies(prompt, example, patches.len(), &points, points.iter().map(|id| hook(*id)))
    }

    /// Runs copies of an example's prompt with hooks at these points, and computes the metric of each copy.
    pub(crate) fn judge_copies<'h>(
        &self,
        prompt: &M::Prompt,
        example: usize,
        count: usize,
        points: &[PointId],
        hooks: impl IntoIterator<Item = Hook<'h>>,
    ) -> Result<Tensor<1>> {
        let needs = self.metric.needs();
        let options = for_copies(ForwardOptions::new(), example, self.base.len());
        let output = self.model.run_copies(prompt, count, points, M::making(options.hooks(hooks), needs))?;
        Ok(self.metric.judge(self.model.read(M::scored(&output)?, prompt, needs)?, example)?)
    }

    /// Maximum number of copies of a prompt of `len` tokens in one batch, if each computes `tokens` of them.
    pub(crate) fn copies_at_once(&self, tokens: usize, len: usize) -> usize {
        let positions = if matches!(self.metric.needs(), Logits::All) { len } else { 1 };
        let logits = self.model.d_vocab_out().saturating_mul(positions);
        (TOKENS_AT_ONCE / tokens.max(1)).min(LOGITS_AT_ONCE / logits.max(1)).max(1)
    }

    pub(crate) fn tell(&self, done: usize, all: usize) {
        if let Some(progress) = &self.progress
            && let Ok(mut tell) = progress.try_borrow_mut()
        {
            tell(done, all);
        }
    }
}

impl<M: Patchable> fmt::Debug for Patching<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Patching({} examples, {:?})", self.base.len(), self.metric)
    }
}

/// Computes the metric from a decoder's residual stream after the last layer. `rows` starts at position `first`; logits
/// of earlier positions are taken from the unpatched run.
pub(super) fn judge(
    metric: &Metric,
    model: &HookedTransformer,
    rows: Tensor<3>,
    base: &BaseRun,
    first: usize,
    example: usize,
) -> Result<Tensor<1>> {
    let [count, len, _] = rows.dims();
    let logits = match metric.needs() {
        Logits::Last => model.unembed(rows.narrow(1, len - 1, 1))?,
        _ => {
            let own = model.unembed(rows)?;
            let [_, _, d_vocab] = own.dims();
            if first == 0 {
                own
            } else {
                let before = base.logits.clone().narrow(1, 0, first).expand([count, first, d_vocab]);
                Tensor::cat(vec![before, own], 1)
            }
        }
    };
    Ok(metric.judge(logits, example)?)
}

fn check_lengths<M: Patchable>(clean: &[M::Prompt], corrupted: &[M::Prompt]) -> Result<(), PatchError> {
    for (example, (clean, corrupted)) in clean.iter().zip(corrupted).enumerate() {
        for (clean, corrupted) in M::lengths(clean).into_iter().zip(M::lengths(corrupted)) {
            if clean != corrupted {
                return Err(PatchError::Lengths { example, clean, corrupted });
            }
        }
    }
    Ok(())
}
