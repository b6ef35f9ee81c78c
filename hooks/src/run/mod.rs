//! The plan of one run: which hooks, recordings and parts act at each point, resolved before anything is computed.

mod check;
mod halt;
mod keep;
mod rows;

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor};

pub(crate) use check::{check_edit, check_rank};
pub use halt::Halt;
pub(crate) use rows::OwnedRows;
pub use rows::Rows;

use crate::activation::Activation;
use crate::cache::{ActivationCache, LeftOut, TextHashes};
use crate::catalog::{Catalog, PointId};
use crate::convert::DType;
use crate::error::HookError;
use crate::hook::{At, Hook, NotesPanic};
use crate::model_identity::ModelIdentity;
use crate::part::Inside;
use crate::point::{Axis, PointInfo, Segment};
use crate::positions::Kept;
use crate::record::Record;
use crate::recorded_rows::RecordedRows;
use crate::selection::Silent;
use crate::splice::{Spliced, Splices};
use keep::kept;

/// One run's hooks and recordings, resolved against a model's points.
///
/// The model calls [`Run::fire`] where a point's tensor is made, and asks [`Run::wants`] or
/// [`Run::edits`] before it makes a tensor only a hook would need.
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
    /// One entry a point, or empty when nothing is watched at all.
    slots: Vec<Slot>,
    hooks: &'r mut [Hook<'h>],
    record: Record,
    rows: OwnedRows,
    /// The rows of the encoder that a decoder reads.
    encoder: Option<OwnedRows>,
    kept: Kept,
    cache: ActivationCache,
    /// Watched points that have not fired yet.
    remaining: usize,
    stop_when_done: bool,
    parts: &'r [Spliced],
    /// What each part that reads another point than it writes has read, until it is needed.
    read: Vec<Option<Activation>>,
    /// What parts see besides, by point.
    seen: BTreeMap<PointId, Activation>,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    /// Places in `hooks`, in the order given.
    hooks: Vec<usize>,
    edited: bool,
    /// Whether a hook of the user's may change it.
    intervened: bool,
    recorded: bool,
    fired: bool,
    /// Parts that read the point and write a later one.
    readers: Vec<usize>,
    /// Whether a later part sees it too.
    seen: bool,
    /// Parts put at the point.
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
    /// Resolves hooks and recordings for a run over these rows. `silent` tells why a point does
    /// not fire in this run, for instance because the run stops before its layer.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows::new(1, 3);
    /// // What is wrong is known before anything is computed.
    /// let silent = |point: &PointInfo| (point.layer == Some(1)).then_some("the run stops before its layer");
    /// let told = Run::new(&catalog, &mut [], Record::new("resid_post1"), rows, &silent).map(drop);
    /// assert_eq!(
    ///     told.unwrap_err().to_string(),
    ///     "`blocks.1.hook_resid_post` does not fire: the run stops before its layer",
    /// );
    /// ```
    ///
    /// # Errors
    /// Everything that can be known before the run: see [`Selection::resolve`](crate::Selection::resolve),
    /// [`HookError::Rank`], [`HookError::Batch`], [`HookError::Positions`].
    pub fn new(
        catalog: &Arc<Catalog>,
        hooks: &'r mut [Hook<'h>],
        record: Record,
        rows: Rows<'_>,
        silent: &dyn Fn(&PointInfo) -> Option<&'static str>,
    ) -> Result<Self, HookError> {
        let kept = kept(&record, &rows)?;
        let unsliced = |point: &PointInfo| match point.axes.first() {
            Some(Axis::Routed) if kept != Kept::All => Some("its rows are tokens routed to it, not positions"),
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
                check_rank(hook, point)?;
                // A model of two stacks runs over the encoder's rows first, and over these later.
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
            let none = kept != Kept::All && kept.width(rows.len) == 0;
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

    /// Names the model that runs, and the hashes of its texts, one per row. Recordings keep both.
    ///
    /// # Errors
    /// [`HookError::OtherModel`] if a hook uses a recording of another model, [`HookError::MadeForOtherModel`] if it uses
    /// something else of one.
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

    /// Whether anything is recorded, or changed by a recording: such runs need to know their model.
    pub fn needs_model(&self) -> bool {
        self.slots.iter().any(|slot| slot.recorded)
            || self.hooks.iter().any(|hook| hook.recording.is_some() || hook.model.is_some())
    }

    /// The same run of a model with parts in it; the catalog is the one that the parts came with.
    ///
    /// # Errors
    /// [`HookError::CannotFire`] for a part whose read point the run leaves out although it comes to the point that the
    /// part writes.
    pub fn with(mut self, splices: &'r Splices, silent: Silent<'_>) -> Result<Self, HookError> {
        self.parts = splices.all();
        if !self.parts.is_empty() && self.slots.is_empty() {
            self.slots = vec![Slot::default(); self.catalog.points().len()];
        }
        self.read = vec![None; self.parts.len()];
        for (place, one) in self.parts.iter().enumerate() {
            self.slots[one.write.index()].parts.push(place);
            if silent(self.info(one.write)).is_some() {
                continue;
            }
            for also in &one.also {
                let point = self.catalog.info(*also);
                if let Some(reason) = silent(point) {
                    return Err(HookError::CannotFire { point: point.name.to_string(), reason });
                }
                self.slots[also.index()].seen = true;
            }
            if one.read == one.write {
                continue;
            }
            let read = self.catalog.info(one.read);
            if let Some(reason) = silent(read) {
                return Err(HookError::CannotFire { point: read.name.to_string(), reason });
            }
            self.slots[one.read.index()].readers.push(place);
        }
        Ok(self)
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

    /// Goes on over other rows: a model of two stacks, each with its own tokens, tells which it runs. The
    /// recordings' own rows stay those the run began with.
    ///
    /// # Errors
    /// [`HookError::Batch`], [`HookError::Positions`] and [`HookError::UnevenPositions`], as for the first.
    pub fn over(&mut self, rows: Rows<'_>, of_encoder: bool) -> Result<(), HookError> {
        self.kept = kept(&self.record, &rows)?;
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

    /// Sets the rows of the encoder that a run of a decoder alone reads.
    pub fn reads_from(&mut self, rows: Rows<'_>) {
        if self.cache.origin.has_rows() {
            self.cache.origin.set_rows(true, RecordedRows::of(&rows, &Kept::All));
        }
        self.encoder = Some(OwnedRows::of(&rows, true));
    }

    /// Makes the run end, with [`Halt::Done`], as soon as every watched point has fired.
    pub fn stop_when_done(&mut self) {
        self.stop_when_done = true;
    }

    /// The element type that recordings are kept in, if one was asked for.
    pub fn recorded_type(&self) -> Option<DType> {
        self.record.dtype
    }

    /// Where recordings are kept, if another place was asked for.
    pub fn recorded_device(&self) -> Option<Device> {
        self.record.device.clone()
    }

    /// Elements of everything that is to be recorded, where `length` tells the lengths of the other axes than batch and
    /// positions. Of axes whose length is known only in the run (routed tokens) it is told 0. Points that fire on request
    /// are left out: what heads read may be one tensor seen from each.
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

    /// Whether a hook, a recording or a part wants the point's tensor. A point the model lacks is never wanted.
    #[inline]
    pub fn wants(&self, id: Option<PointId>) -> bool {
        self.slot(id).is_some()
    }

    /// Whether a hook or a part may change the point's tensor.
    #[inline]
    pub fn edits(&self, id: Option<PointId>) -> bool {
        self.slot(id).is_some_and(|slot| slot.edited || !slot.parts.is_empty())
    }

    /// Whether the run stops when it is done, and is.
    pub fn ends_here(&self) -> bool {
        self.stop_when_done && self.is_done()
    }

    /// Whether every watched point has fired, or none is watched.
    pub fn is_done(&self) -> bool {
        self.remaining == 0
    }

    #[inline]
    fn slot(&self, id: Option<PointId>) -> Option<&Slot> {
        self.slots.get(id?.index()).filter(|slot| !slot.idle())
    }

    /// Shows a tensor to the point's hooks, records it, and returns it as the hooks left it.
    ///
    /// # Errors
    /// [`Halt::Error`] if a hook fails or returns another shape or element type;
    /// [`Halt::Done`] after the last watched point of a run that ends there.
    #[inline]
    pub fn fire<const D: usize>(&mut self, id: Option<PointId>, tensor: Tensor<D>) -> Result<Tensor<D>, Halt> {
        match id {
            Some(id) if self.wants(Some(id)) => {
                let seen = self.observe(id, tensor.into())?;
                Ok(seen.into_tensor(&self.catalog.info(id).name)?)
            }
            _ => Ok(tensor),
        }
    }

    /// [`Run::fire`] for a point that holds integers.
    ///
    /// # Errors
    /// As [`Run::fire`].
    pub fn fire_int<const D: usize>(
        &mut self,
        id: Option<PointId>,
        tensor: Tensor<D, Int>,
    ) -> Result<Tensor<D, Int>, Halt> {
        match id {
            Some(id) if self.wants(Some(id)) => Ok(self.observe(id, tensor.into())?.to_int_tensor()?),
            _ => Ok(tensor),
        }
    }

    /// Counts a watched point as seen although it has nothing to show, such as an expert no
    /// token was routed to.
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
    /// [`Halt::Done`] if it was the last one of a run that ends there.
    pub fn skip(&mut self, id: Option<PointId>) -> Result<(), Halt> {
        match id {
            Some(id) if self.slot(Some(id)).is_some_and(Slot::is_watched) => self.count_down(id),
            _ => Ok(()),
        }
    }

    #[inline(never)]
    fn observe(&mut self, id: PointId, mut tensor: Activation) -> Result<Activation, Halt> {
        for place in 0..self.slots[id.index()].parts.len() {
            tensor = self.through_part(self.slots[id.index()].parts[place], id, tensor)?;
        }
        let point = self.catalog.info(id);
        let slot = &self.slots[id.index()];
        // Rotated keys begin with those of a cache.
        let cached = self.positions_before(point, tensor.shape()).unwrap_or(0);
        let (rows, encoder) = (self.rows.get(), self.encoder.as_ref().map(OwnedRows::get));
        let at = At { point, offset: rows.offset.saturating_sub(cached), rows: Some(rows), encoder, cached };
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

    /// What a part makes of the tensor of the point it is put at.
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

    /// The recordings, in firing order.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows::new(1, 3);
    /// let run = Run::new(&catalog, &mut [], Record::new("hook_embed"), rows, &|_| None)?;
    /// let told = run.finish().map(drop).unwrap_err().to_string();
    /// assert_eq!(told, "the run ended without firing `hook_embed`, which it was to watch");
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::NotFired`] if a watched point was passed over: a mistake of the model.
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

/// Whether a point is computed over the encoder's rows, or over the decoder's, in a model of both; in all other models
/// there are no rows but the run's.
fn is_over(catalog: &Catalog, point: &PointInfo, of_encoder: bool) -> bool {
    let reads_encoder = |point: &PointInfo| matches!(point.segment, Segment::Encoder | Segment::CrossKeys);
    reads_encoder(point) == of_encoder || (!of_encoder && !catalog.points().iter().any(reads_encoder))
}
