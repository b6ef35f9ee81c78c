//! The plan of one run: the hooks, recordings, and parts at each point, resolved before anything is computed.

mod halt;
mod inside;
mod keep;
mod splices;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor};

pub use halt::Halt;
pub use splices::{Shift, Splices};

use crate::activation::Activation;
use crate::cache::{ActivationCache, LeftOut, Provenance, TextHashes};
use crate::catalog::{Catalog, PointId};
use crate::dtype::DType;
use crate::error::HookError;
use crate::hook::{At, Hook, NotesPanic, SomeHeads, check_edit, check_rank};
use crate::model_identity::ModelIdentity;
use crate::part_point::PartPoint;
use crate::point::{Axis, PointInfo, Segment};
use crate::positions::PositionSlice;
use crate::record::Record;
use crate::recorded_rows::RecordedRows;
use crate::rows::{OwnedRows, Rows};

/// The hooks and recordings of one run, resolved against a model's points.
///
/// The model calls [`Run::fire`] at each point, and checks [`Run::wants`] or [`Run::edits`] before computing a tensor
/// that only a hook would need.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// # let rows = Rows::new(1, 3);
/// let mut hooks = [at("hook_embed").edit(|x: Tensor<3>, _| x * 2.0)];
/// let mut run = Run::new(&catalog, &mut hooks, Record::new("resid_post1"), rows, &|_| None)?;
/// assert!(run.edits(Some(ids[0])) && run.wants(Some(ids[2])) && !run.wants(Some(ids[1])));
/// let doubled = run.fire(Some(ids[0]), Tensor::<3>::ones([1, 3, 4], &Device::flex()));
/// assert_eq!(doubled.map(|x| x.max().into_scalar::<f32>()).ok(), Some(2.0));
/// # run.fire(Some(ids[2]), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
/// assert_eq!(run.finish()?.len(), 1);
/// # Ok::<(), hooklens_hooks::HookError>(())
/// ```
#[derive(Debug)]
pub struct Run<'r, 'h> {
    catalog: Arc<Catalog>,
    /// One entry per point; empty if nothing is watched.
    slots: Vec<Slot>,
    hooks: &'r mut [Hook<'h>],
    record: Record,
    rows: OwnedRows,
    /// The encoder's rows, in an encoder-decoder model.
    encoder: Option<OwnedRows>,
    kept: PositionSlice,
    cache: ActivationCache,
    /// Watched points that have not fired yet.
    remaining: usize,
    stop_when_done: bool,
    parts: &'r [Spliced],
    /// For each part that reads one point and writes a later one: the tensor that the part has read, until it runs.
    read: Vec<Option<Activation>>,
    /// Additional tensors that parts need, by point.
    seen: BTreeMap<PointId, Activation>,
}

// A run computes its parts, and a part fires points through `Inside`, which holds the run: these types refer to each
// other, so they share a file.

/// A module spliced in at a point of a model: a sparse autoencoder, a transcoder, an adapter.
///
/// It replaces the point's tensor and fires hook points of its own, whose names are appended to the host point's name
/// (`blocks.7.hook_resid_pre.hook_sae_acts_post`). They behave like the model's points: they can be listed, selected,
/// recorded, edited, and differentiated. The host point itself fires after the part, with the part's output.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use hooklens_hooks::*;
///
/// /// A dictionary with one feature per dimension of the stream: the positive part of each coordinate.
/// struct Positive;
///
/// impl Part for Positive {
///     fn name(&self) -> String {
///         "positive".into()
///     }
///
///     fn points(&self) -> Vec<PartPoint> {
///         vec![PartPoint::new("hook_acts", &[Axis::Batch, Axis::Pos, Axis::Feature])]
///     }
///
///     fn forward(&self, x: Activation, inside: &mut Inside<'_, '_, '_>) -> Result<Activation, Halt> {
///         let acts = x.to_tensor::<3>()?.clamp_min(0.0);
///         Ok(inside.fire("hook_acts", acts)?.into()) // recorded and edited here
///     }
/// }
/// # let (catalog, ids) = example::points();
///
/// let (catalog, splices, shift) = Splices::default().with(&catalog, None, "resid_post0", Positive)?;
/// # let rows = Rows::new(1, 3);
/// let mut run = Run::new(&catalog, &mut [], Record::new("resid_post0.hook_acts"), rows, &|_| None)?.with(&splices, &|_| None)?;
/// let stream = Tensor::<3>::ones([1, 3, 4], &Device::flex()).neg();
/// let seen = run.fire(Some(shift.moved(ids[1])), stream).map(|x| x.max().into_scalar::<f32>());
/// assert_eq!(seen.ok(), Some(0.0));
/// assert_eq!(run.finish()?.activation("resid_post0.hook_acts")?.shape(), [1, 3, 4]);
/// # Ok::<(), hooklens_hooks::HookError>(())
/// ```
pub trait Part: Send + Sync {
    /// Name of the part in point names and errors, for instance `sae`.
    fn name(&self) -> String;

    /// The points that the part fires, in firing order.
    fn points(&self) -> Vec<PartPoint>;

    /// Names of earlier points whose tensors the part also needs, such as the tokens or points of other parts. They are
    /// available through [`Inside::also`].
    fn also_reads(&self) -> Vec<String> {
        Vec::new()
    }

    /// Hash of the part's weights and settings, if available: two parts with the same name and hash compute the same
    /// function. Dumps store it, so that a dump is not resumed with a different part of the same name.
    ///
    /// # Errors
    /// If the hash can't be computed.
    fn fingerprint(&self) -> Result<Option<String>, Halt> {
        Ok(None)
    }

    /// Computes the tensor that replaces the point's tensor ([`Inside::replaced`]). It must have the same shape,
    /// element type, and device. `x` is the tensor that the part reads. Unless the part reads a different point, this
    /// is also the tensor that it replaces.
    ///
    /// # Errors
    /// Any error from the part (`?` converts it), which ends the run.
    fn forward(&self, x: Activation, inside: &mut Inside<'_, '_, '_>) -> Result<Activation, Halt>;
}

/// The view of the current run that is passed to a [`Part`].
#[derive(Debug)]
pub struct Inside<'p, 'r, 'h> {
    run: &'p mut Run<'r, 'h>,
    host: PointId,
    points: &'p [PointId],
    replaced: Activation,
    also: &'p [Activation],
}

/// One part and where it is spliced in.
#[derive(Clone)]
pub(crate) struct Spliced {
    part: Arc<dyn Part>,
    /// The point that the part reads; by default, the one it writes.
    read: PointId,
    write: PointId,
    /// Further points whose tensors the part reads.
    also: Vec<PointId>,
    points: Vec<PointId>,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    /// Hooks of this point, as indices into the run's `hooks`, in the order given.
    hooks: Vec<usize>,
    edited: bool,
    /// Whether a user's hook may change the tensor.
    intervened: bool,
    recorded: bool,
    fired: bool,
    /// Parts that read this point and write a later one.
    readers: Vec<usize>,
    /// Whether a later part also needs this tensor.
    seen: bool,
    /// Parts spliced in at this point.
    parts: Vec<usize>,
}

impl Slot {
    fn is_watched(&self) -> bool {
        !self.hooks.is_empty() || self.recorded
    }

    fn idle(&self) -> bool {
        !self.is_watched() && self.parts.is_empty() && self.readers.is_empty() && !self.seen
    }
}

impl<'r, 'h> Run<'r, 'h> {
    /// Resolves hooks and recordings for a run over these rows. `silent` returns the reason why a point does not fire
    /// in this run, for instance because the run stops before its layer.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows::new(1, 3);
    /// // Errors are reported before anything is computed.
    /// let silent = |point: &PointInfo| (point.layer == Some(1)).then_some("the run stops before its layer");
    /// let message = Run::new(&catalog, &mut [], Record::new("resid_post1"), rows, &silent).map(drop);
    /// assert_eq!(
    ///     message.unwrap_err().to_string(),
    ///     "`blocks.1.hook_resid_post` does not fire: the run stops before its layer",
    /// );
    /// ```
    ///
    /// # Errors
    /// Everything that can be detected before the run: the errors of [`Selection::resolve`](crate::Selection::resolve),
    /// [`HookError::Rank`] if a hook expects a different rank, [`HookError::Batch`] if the record drops the batch axis
    /// of several rows, and [`HookError::Positions`] if a row does not have a requested position.
    pub fn new(
        catalog: &Arc<Catalog>,
        hooks: &'r mut [Hook<'h>],
        record: Record,
        rows: Rows<'_>,
        silent: &dyn Fn(&PointInfo) -> Option<&'static str>,
    ) -> Result<Self, HookError> {
        let kept = record.columns(&rows)?;
        let unsliced = |point: &PointInfo| match point.axes.first() {
            Some(Axis::Routed) if kept != PositionSlice::All => Some("positions can't be selected among routed tokens"),
            _ => silent(point),
        };
        let recorded = record.selection.resolve_in(catalog, &unsliced)?;
        let mut slots = Vec::new();
        if !hooks.is_empty() || !recorded.is_empty() {
            slots = vec![Slot::default(); catalog.points().len()];
        }
        for id in recorded {
            slots[id.index()].recorded = true;
        }
        for (place, hook) in hooks.iter().enumerate() {
            if hook.backward {
                return Err(HookError::Backward { hook: format!("{hook:?}") });
            }
            for id in hook.target.resolve_in(catalog, silent)? {
                let point = catalog.info(id);
                check_rank(hook.rank, point)?;
                // An encoder-decoder model runs over the encoder's rows first, and over these rows later.
                if let Some(check) = hook.check.as_ref().filter(|_| is_over(catalog, point, false)) {
                    check(point, &rows)?;
                }
                slots[id.index()].hooks.push(place);
                slots[id.index()].edited |= hook.edits;
                slots[id.index()].intervened |= hook.edits && !hook.neutral;
            }
        }
        let remaining = slots.iter().filter(|slot| slot.is_watched()).count();
        let mut cache = ActivationCache::new(catalog.clone(), record.remove_batch, [rows.batch, kept.width(rows.len)]);
        if slots.iter().any(|slot| slot.recorded) {
            cache.origin.set_rows(false, RecordedRows::of(&rows, &kept));
            let none = kept != PositionSlice::All && kept.width(rows.len) == 0;
            cache.origin.left_out = none.then(|| LeftOut {
                asked: record.positions.to_string(),
                cached: rows.offset,
                points: catalog.ids().zip(&slots).filter(|(_, slot)| slot.recorded).map(|(id, _)| id).collect(),
            });
        }
        let with_masks = hooks.iter().any(|hook| hook.by_position);
        Ok(Self {
            catalog: catalog.clone(),
            slots,
            hooks,
            record,
            rows: OwnedRows::of(&rows, with_masks),
            encoder: None,
            kept,
            cache,
            remaining,
            stop_when_done: false,
            parts: &[],
            read: Vec::new(),
            seen: BTreeMap::new(),
        })
    }

    /// Sets the model and the text hashes, one per row. Recordings store both.
    ///
    /// # Errors
    /// [`HookError::OtherModel`] if a hook uses a recording of a different model, or [`HookError::MadeForOtherModel`]
    /// if a hook uses any other value made by a different model.
    pub fn made_by(mut self, model: Arc<ModelIdentity>, texts: Option<Vec<TextHashes>>) -> Result<Self, HookError> {
        for hook in self.hooks.iter() {
            if let Some(recording) = hook.recording {
                recording.check_model(&model)?;
            }
            if let Some(own) = hook.model.as_ref().filter(|own| !own.is(&model)) {
                let (given, model) = (own.label().to_string(), model.label().to_string());
                return Err(HookError::MadeForOtherModel { hook: format!("{hook:?}"), given, model });
            }
        }
        self.cache.origin.made_by(model, texts);
        Ok(self)
    }

    /// Whether anything is recorded, or a hook is tied to a model. Such runs need [`Run::made_by`].
    pub fn needs_model(&self) -> bool {
        self.slots.iter().any(|slot| slot.recorded)
            || self.hooks.iter().any(|hook| hook.recording.is_some() || hook.model.is_some())
    }

    fn rows(&self) -> Rows<'_> {
        self.rows.get()
    }

    pub(crate) fn info(&self, id: PointId) -> &PointInfo {
        self.catalog.info(id)
    }

    pub(crate) fn n_layers(&self) -> usize {
        self.catalog.n_layers()
    }

    /// Switches to different rows, because an encoder-decoder model runs each stack over its own tokens. With
    /// `of_encoder`, the recording stores them as the encoder's rows, otherwise as its own rows.
    ///
    /// # Errors
    /// [`HookError::Batch`], [`HookError::Positions`], and [`HookError::UnevenPositions`], as for the first rows.
    pub fn over(&mut self, rows: Rows<'_>, of_encoder: bool) -> Result<(), HookError> {
        self.kept = self.record.columns(&rows)?;
        for (id, slot) in self.catalog.ids().zip(&self.slots) {
            let point = self.catalog.info(id);
            for hook in slot.hooks.iter().map(|place| &self.hooks[*place]) {
                if let Some(check) =
                    hook.check.as_ref().filter(|_| !slot.fired && is_over(&self.catalog, point, of_encoder))
                {
                    check(point, &rows)?;
                }
            }
        }
        if self.cache.origin.has_rows() {
            self.cache.origin.set_rows(of_encoder, RecordedRows::of(&rows, &self.kept));
        }
        let with_masks = self.hooks.iter().any(|hook| hook.by_position);
        self.rows = OwnedRows::of(&rows, with_masks);
        if of_encoder {
            self.encoder = Some(self.rows.clone());
        }
        Ok(())
    }

    /// Sets the encoder rows for a run of the decoder alone.
    pub fn reads_from(&mut self, rows: Rows<'_>) {
        if self.cache.origin.has_rows() {
            self.cache.origin.set_rows(true, RecordedRows::of(&rows, &PositionSlice::All));
        }
        self.encoder = Some(OwnedRows::of(&rows, true));
    }

    /// Ends the run with [`Halt::Done`] as soon as every watched point has fired.
    pub fn stop_when_done(&mut self) {
        self.stop_when_done = true;
    }

    /// The element type of the recordings, if one was requested.
    pub fn recorded_type(&self) -> Option<DType> {
        self.record.dtype
    }

    /// The device for the recordings, if one was requested.
    pub fn recorded_device(&self) -> Option<Device> {
        self.record.device.clone()
    }

    /// Total number of elements to record. `length` returns the length of an axis other than batch and positions; for
    /// axes whose length is known only during the run (routed tokens), it should return 0. Points that fire only on
    /// request are not counted, because the tensors of some points, such as the inputs of all heads, may be views of
    /// one tensor.
    pub fn elements_recorded(&self, length: &dyn Fn(Option<usize>, Axis) -> usize) -> usize {
        let [batch, kept] = self.cache.rows_recorded();
        let of_axis = |layer: Option<usize>, axis: Axis| match axis {
            Axis::Batch => batch,
            Axis::Pos | Axis::Query => kept,
            Axis::Key => self.rows().columns(),
            Axis::BatchPos => batch.saturating_mul(kept),
            Axis::BatchPosHead => batch.saturating_mul(kept).saturating_mul(length(layer, Axis::Head)),
            Axis::One => 1,
            other => length(layer, other),
        };
        let slots = self.catalog.ids().zip(&self.slots).filter(|(_, slot)| slot.recorded);
        let recorded = slots.map(|(id, _)| self.catalog.info(id)).filter(|point| !point.on_request);
        let elements = recorded.map(|point| {
            let of = |axis: &Axis| if *axis == Axis::Feature { point.features } else { of_axis(point.layer, *axis) };
            point.axes.iter().map(of).fold(1, usize::saturating_mul)
        });
        elements.fold(0, usize::saturating_add)
    }

    /// Whether a hook, a recording, or a part uses the point's tensor. Always false for a point that the model does not
    /// have.
    #[inline]
    pub fn wants(&self, id: Option<PointId>) -> bool {
        self.slot(id).is_some()
    }

    /// Whether a hook or a part may change the point's tensor.
    #[inline]
    pub fn edits(&self, id: Option<PointId>) -> bool {
        self.slot(id).is_some_and(|slot| slot.edited || !slot.parts.is_empty())
    }

    /// Whether the run is set to stop when done, and is done.
    pub fn ends_here(&self) -> bool {
        self.stop_when_done && self.is_done()
    }

    /// Whether no watched point is left to fire.
    pub fn is_done(&self) -> bool {
        self.remaining == 0
    }

    #[inline]
    fn slot(&self, id: Option<PointId>) -> Option<&Slot> {
        self.slots.get(id?.index()).filter(|slot| !slot.idle())
    }

    /// Passes a tensor through the point's parts and hooks, records it, and returns the result.
    ///
    /// # Errors
    /// [`Halt::Error`] if a hook fails or returns a different shape or element type, or [`Halt::Done`] after the last
    /// watched point if the run ends there.
    #[inline]
    pub fn fire<const D: usize>(&mut self, id: Option<PointId>, tensor: Tensor<D>) -> Result<Tensor<D>, Halt> {
        self.fire_heads(id, tensor, None)
    }

    /// Like [`Run::fire`], for the point with this full name. It is convenient for small models; a model with many
    /// points should keep the ids that [`CatalogBuilder::add`](crate::CatalogBuilder::add) returns, because a look-up
    /// by name costs more than an unused point.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows::new(1, 3);
    /// let mut hooks = [at("hook_embed").edit(|x: Tensor<3>, _| x * 2.0)];
    /// let mut run = Run::new(&catalog, &mut hooks, Record::default(), rows, &|_| None)?;
    /// let ones = Tensor::<3>::ones([1, 3, 4], &Device::flex());
    /// let doubled = run.fire_named("hook_embed", ones.clone()).map(|x| x.max().into_scalar::<f32>());
    /// assert_eq!(doubled.ok(), Some(2.0));
    /// assert!(matches!(run.fire_named("hook_embd", ones), Err(Halt::Error(HookError::UnknownPoint { .. }))));
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Run::fire`], [`HookError::UnknownPoint`] for a name that is not in the model's catalog, and
    /// [`HookError::Rank`] if the catalog lists a different rank.
    pub fn fire_named<const D: usize>(&mut self, name: &str, tensor: Tensor<D>) -> Result<Tensor<D>, Halt> {
        self.fire_checked(self.catalog.find(name)?, tensor)
    }

    /// Like [`Run::fire`], for a point that was found by name, so that its rank must be checked.
    fn fire_checked<const D: usize>(&mut self, id: PointId, tensor: Tensor<D>) -> Result<Tensor<D>, Halt> {
        let info = self.info(id);
        if info.axes.len() != D {
            let (point, rank, axes) = (info.name.to_string(), info.axes.len(), info.axes_label());
            return Err(HookError::Rank { point, rank, axes, asked: D }.into());
        }
        self.fire(Some(id), tensor)
    }

    /// Like [`Run::fire`], for an integer tensor.
    ///
    /// # Errors
    /// Same as [`Run::fire`].
    pub fn fire_int<const D: usize>(
        &mut self,
        id: Option<PointId>,
        tensor: Tensor<D, Int>,
    ) -> Result<Tensor<D, Int>, Halt> {
        match id {
            Some(id) if self.wants(Some(id)) => Ok(self.observe(id, tensor.into(), None)?.to_int_tensor()?),
            _ => Ok(tensor),
        }
    }

    /// Marks a watched point as fired although it has no tensor, such as an expert that no token was routed to.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows::new(1, 3);
    /// let mut run = Run::new(&catalog, &mut [], Record::new("hook_embed"), rows, &|_| None)?;
    /// run.skip(Some(ids[0])).ok(); // nothing to show this time
    /// assert!(run.is_done() && run.finish()?.is_empty());
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`Halt::Done`] after the last watched point if the run ends there.
    pub fn skip(&mut self, id: Option<PointId>) -> Result<(), Halt> {
        match id {
            Some(id) if self.slot(Some(id)).is_some_and(Slot::is_watched) => self.count_down(id),
            _ => Ok(()),
        }
    }

    /// The heads, out of `count`, that hooks use at these points, in ascending order. `None` if all heads are needed,
    /// because a recording or a part uses one of the points, or a hook there is not restricted to heads that exist.
    ///
    /// A model that can compute heads separately need only compute the returned heads, and pass them to
    /// [`Run::fire_heads`].
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let mut builder = Catalog::builder(1);
    /// # let id = builder.add(PointInfo::new("hook_pattern", None, &[Axis::Batch, Axis::Head, Axis::Query, Axis::Key]));
    /// # let catalog = std::sync::Arc::new(builder.build());
    /// # let rows = Rows::new(1, 2);
    /// let pattern = Point::<4>::new("hook_pattern");
    /// let mut hooks = [pattern.head(-1).zero(), pattern.heads([3, 1]).scale(2.0)];
    /// let mut run = Run::new(&catalog, &mut hooks, Record::default(), rows, &|_| None)?;
    /// let heads = run.heads(&[Some(id)], 5).unwrap_or_default();
    /// assert_eq!(heads, [1, 3, 4]);
    /// let ones = Tensor::<4>::ones([1, 3, 2, 2], &Device::flex());
    /// let fired = run.fire_heads(Some(id), ones, Some(SomeHeads { heads: &heads, of: 5 }));
    /// assert_eq!(fired.map(|x| x.max_dims(&[0, 2, 3]).into_data().to_vec::<f32>().ok()).ok().flatten(), Some(vec![2.0, 2.0, 0.0]));
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    pub fn heads(&self, ids: &[Option<PointId>], count: usize) -> Option<Vec<usize>> {
        let mut heads = BTreeSet::new();
        for slot in ids.iter().filter_map(|id| self.slot(*id)) {
            if slot.recorded || slot.seen || !slot.parts.is_empty() || !slot.readers.is_empty() {
                return None;
            }
            for hook in slot.hooks.iter().map(|place| &self.hooks[*place]) {
                for head in hook.heads.as_ref()? {
                    let from_start = if *head < 0 { head.checked_add_unsigned(count)? } else { *head };
                    heads.insert(usize::try_from(from_start).ok().filter(|head| *head < count)?);
                }
            }
        }
        Some(heads.into_iter().collect())
    }

    /// Like [`Run::fire`], for a tensor that may have only the heads that the point's hooks use ([`Run::heads`]).
    ///
    /// # Errors
    /// Same as [`Run::fire`].
    #[inline]
    pub fn fire_heads<const D: usize>(
        &mut self,
        id: Option<PointId>,
        tensor: Tensor<D>,
        heads: Option<SomeHeads<'_>>,
    ) -> Result<Tensor<D>, Halt> {
        match id {
            Some(id) if self.wants(Some(id)) => {
                let seen = self.observe(id, tensor.into(), heads)?;
                Ok(seen.into_tensor(&self.catalog.info(id).name)?)
            }
            _ => Ok(tensor),
        }
    }

    #[inline(never)]
    fn observe(
        &mut self,
        id: PointId,
        mut tensor: Activation,
        heads: Option<SomeHeads<'_>>,
    ) -> Result<Activation, Halt> {
        for place in 0..self.slots[id.index()].parts.len() {
            tensor = self.through_part(self.slots[id.index()].parts[place], id, tensor)?;
        }
        let point = self.catalog.info(id);
        let slot = &self.slots[id.index()];
        // Rotated keys start with the cached keys.
        let cached = self.positions_before(point, tensor.shape()).unwrap_or(0);
        let (rows, encoder) = (self.rows.get(), self.encoder.as_ref().map(OwnedRows::get));
        let at = At { point, offset: rows.offset.saturating_sub(cached), rows: Some(rows), encoder, cached, heads };
        for place in &slot.hooks {
            let hook = &mut self.hooks[*place];
            if hook.edits {
                if let Some(edited) = hook.act(tensor.clone(), &at)? {
                    check_edit(point, &tensor, &edited)?;
                    tensor = edited;
                }
            } else {
                hook.act(tensor.clone(), &at)?;
            }
        }
        if slot.recorded && self.cache.origin.left_out.is_none() {
            let stored = self.stored(point, &tensor);
            self.cache.insert(id, stored);
        }
        if slot.seen {
            self.seen.insert(id, tensor.clone());
        }
        for reader in &slot.readers {
            self.read[*reader] = Some(tensor.clone());
        }
        if slot.is_watched() {
            self.count_down(id)?;
        }
        Ok(tensor)
    }

    /// Runs the part at `place` on the tensor of the point where it is spliced in.
    fn through_part(&mut self, place: usize, host: PointId, tensor: Activation) -> Result<Activation, Halt> {
        let parts = self.parts;
        let Some(one) = parts.get(place) else { return Ok(tensor) };
        let read = self.read[place].take().unwrap_or_else(|| tensor.clone());
        let also: Vec<Activation> = one.also.iter().filter_map(|id| self.seen.get(id).cloned()).collect();
        let mut inside = Inside { run: self, host, points: &one.points, replaced: tensor.clone(), also: &also };
        let noted = NotesPanic;
        let given = one.part.forward(read, &mut inside).map_err(|halt| match halt {
            Halt::Failed(source) => {
                let point = self.catalog.info(host).name.to_string();
                Halt::Error(HookError::Part { part: one.part.name(), point, source })
            }
            known => known,
        })?;
        drop(noted);
        check_edit(self.catalog.info(host), &tensor, &given)?;
        Ok(given)
    }

    fn count_down(&mut self, id: PointId) -> Result<(), Halt> {
        let slot = &mut self.slots[id.index()];
        self.remaining -= usize::from(!slot.fired);
        slot.fired = true;
        if self.remaining == 0 && self.stop_when_done { Err(Halt::Done) } else { Ok(()) }
    }

    /// Ends the run and returns the recordings, in firing order.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows::new(1, 3);
    /// let run = Run::new(&catalog, &mut [], Record::new("hook_embed"), rows, &|_| None)?;
    /// let message = run.finish().map(drop).unwrap_err().to_string();
    /// assert_eq!(message, "the run ended without firing `hook_embed`, which a hook, recording or part uses");
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::NotFired`] if a watched point never fired, which is a bug in the model.
    pub fn finish(mut self) -> Result<ActivationCache, HookError> {
        let changed = |slot: &Slot| slot.intervened || !slot.parts.is_empty();
        self.cache.origin.edited =
            self.catalog.ids().zip(&self.slots).filter(|(_, slot)| changed(slot)).map(|(id, _)| id).collect();
        match self.slots.iter().position(|slot| slot.is_watched() && !slot.fired) {
            Some(place) => Err(HookError::NotFired { point: self.catalog.points()[place].name.to_string() }),
            None => Ok(self.cache),
        }
    }
}

/// Whether a point is computed over the encoder's rows (or the decoder's, if `of_encoder` is false). In a model with
/// one stack, all points are over the run's rows.
fn is_over(catalog: &Catalog, point: &PointInfo, of_encoder: bool) -> bool {
    let reads_encoder = |point: &PointInfo| matches!(point.segment, Segment::Encoder | Segment::CrossKeys);
    reads_encoder(point) == of_encoder || (!of_encoder && !catalog.points().iter().any(reads_encoder))
}
