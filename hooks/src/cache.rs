//! Recorded activations, by name.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};

use crate::activation::Activation;
use crate::catalog::{Catalog, PointId};
use crate::convert::write_safetensors;
use crate::error::HookError;
use crate::ordinal::Ordinal;
use crate::point::{Axis, Point};
use crate::selection::Selection;
use crate::suggest::nearest;

/// What a run recorded, in firing order.
///
/// Look activations up by typed point (`hook::pattern(5)`), full name
/// (`"blocks.6.attn.hook_k"`) or shorthand (`"k6"`, `("resid_post", -1)`): see [`Lookup`].
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// # let rows = Rows { batch: 1, len: 3, real: None, offset: 0 };
/// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
/// # for id in ids {
/// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
/// # }
/// # let cache = run.finish()?;
/// let resid: Tensor<3> = cache.get(("resid_post", -1))?; // [batch, pos, d_model]
/// assert_eq!(resid.dims(), [1, 3, 4]);
/// assert_eq!(cache.names().next(), Some("hook_embed"));
/// assert_eq!(cache.activation("blocks.0.hook_resid_post")?.to_ndarray()?[[0, 2, 1]], 1.0);
/// assert_eq!(cache.axes("resid_post0")?, [Axis::Batch, Axis::Pos, Axis::DModel]);
/// assert!(cache.contains("resid_post1") && !cache.contains("resid_post2"));
/// assert!(cache.iter().all(|(_, activation)| activation.shape() == [1, 3, 4]));
/// # Ok::<(), hooklens_hooks::HookError>(())
/// ```
#[derive(Clone)]
pub struct ActivationCache {
    catalog: Arc<Catalog>,
    held: BTreeMap<PointId, Activation>,
    gradients: BTreeMap<PointId, Activation>,
    has_batch: bool,
    /// Rows and positions recorded.
    rows: [usize; 2],
}

/// Names one point, for a look-up of rank `D`.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// # let rows = Rows { batch: 1, len: 3, real: None, offset: 0 };
/// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
/// # for id in ids {
/// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
/// # }
/// # let cache = run.finish()?;
/// // A typed point knows its rank; of a name, the type says it.
/// let typed = cache.get(Point::<3>::in_layer(1, "hook_resid_post"))?;
/// let by_name: Tensor<3> = cache.get("resid_post1")?;
/// assert_eq!(typed.dims(), by_name.dims());
/// assert!(cache.get::<2>("resid_post1").is_err());
/// # Ok::<(), hooklens_hooks::HookError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "a recorded point is looked up by a typed point or a name, and not by `{Self}`",
    label = "expected a typed point or a name",
    note = "write `cache.get(hook::pattern(1))?`, or by name, with the rank, `cache.get::<4>(\"pattern1\")?` or \
            `cache.get::<4>((\"pattern\", 1))?`"
)]
pub trait Lookup<const D: usize> {
    /// The request, before a catalog resolves it.
    fn selection(self) -> Selection;
}

impl<const D: usize> Lookup<D> for Point<D> {
    fn selection(self) -> Selection {
        self.into()
    }
}

impl<const D: usize> Lookup<D> for &Point<D> {
    fn selection(self) -> Selection {
        self.into()
    }
}

macro_rules! lookup_by_text {
    ($($text:ty),*) => { $(
        impl<const D: usize> Lookup<D> for $text {
            fn selection(self) -> Selection {
                self.into()
            }
        }
    )* };
}
lookup_by_text!(&str, String, &String);

impl<const D: usize, L: Ordinal> Lookup<D> for (&str, L) {
    fn selection(self) -> Selection {
        self.into()
    }
}

impl<const D: usize, L: Ordinal> Lookup<D> for (&str, L, &str) {
    fn selection(self) -> Selection {
        self.into()
    }
}

impl ActivationCache {
    pub(crate) fn new(catalog: Arc<Catalog>, batch_removed: bool, rows: [usize; 2]) -> Self {
        Self { catalog, held: BTreeMap::new(), gradients: BTreeMap::new(), has_batch: !batch_removed, rows }
    }

    /// Takes all recordings out, and leaves the cache empty.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let empty = Self::new(self.catalog.clone(), !self.has_batch, self.rows);
        std::mem::replace(self, empty)
    }

    pub(crate) fn insert(&mut self, id: PointId, activation: Activation) {
        self.held.insert(id, activation);
    }

    /// The activation at a point, as a tensor of rank `D`. A typed point knows its rank:
    /// `cache.get(hook::pattern(1))?`; with a name the caller gives it: `cache.get::<4>("pattern1")?`. A typed point's
    /// rank includes the batch axis: where that was dropped it comes back with length one.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows { batch: 1, len: 3, real: None, offset: 0 };
    /// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// let by_point = cache.get(Point::<3>::in_layer(1, "hook_resid_post"))?;
    /// let by_name = cache.get::<3>("resid_post1")?;
    /// let by_type: Tensor<3> = cache.get(("resid_post", 1))?;
    /// assert_eq!((by_point.dims(), by_name.dims(), by_type.dims()), ([1, 3, 4], [1, 3, 4], [1, 3, 4]));
    /// let told = cache.get::<3>("hook_embd").unwrap_err().to_string();
    /// assert!(told.contains("hook_embed"), "{told}"); // the name that was meant
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::NotRecorded`] with the nearest recorded names, an error of the name itself,
    /// or [`HookError::Rank`].
    pub fn get<const D: usize>(&self, point: impl Lookup<D>) -> Result<Tensor<D>, HookError> {
        let (id, held) = self.look_up(point.selection())?;
        let point = self.catalog.info(id);
        let dropped = !self.has_batch && point.axes.first() == Some(&Axis::Batch);
        if dropped && D == point.rank() {
            return held.reshape(&[&[1], held.shape()].concat()).into_tensor(&point.name);
        }
        held.clone().into_tensor(&point.name)
    }

    /// The activation at a point, whatever its rank and kind.
    ///
    /// # Errors
    /// As [`ActivationCache::get`].
    pub fn activation(&self, point: impl Into<Selection>) -> Result<&Activation, HookError> {
        Ok(self.look_up(point.into())?.1)
    }

    /// The gradient at a point, recorded by a run with gradients. By name it is also found as the
    /// point's own with `_grad` behind it.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows { batch: 1, len: 3, real: None, offset: 0 };
    /// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// # let mut cache = cache;
    /// cache.set_gradient(ids[0], cache.activation("hook_embed")?.zeros_like());
    /// let grad: Tensor<3> = cache.grad("hook_embed")?;
    /// assert_eq!(grad.max().into_scalar::<f32>(), 0.0);
    /// assert_eq!(cache.activation("hook_embed_grad")?.shape(), [1, 3, 4]); // the same, by name
    /// assert_eq!(cache.gradients().count(), 1);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// As [`ActivationCache::get`].
    pub fn grad<const D: usize>(&self, point: impl Lookup<D>) -> Result<Tensor<D>, HookError> {
        let id = point.selection().resolve_one(&self.catalog)?;
        self.gradient(id)?.clone().into_tensor(&self.catalog.info(id).name)
    }

    /// Keeps the gradient at a point.
    pub fn set_gradient(&mut self, id: PointId, gradient: Activation) {
        self.gradients.insert(id, gradient);
    }

    /// Names of the points whose gradients were recorded and the gradients, in firing order.
    pub fn gradients(&self) -> impl Iterator<Item = (&str, &Activation)> {
        self.gradients.iter().map(|(id, gradient)| (&*self.catalog.info(*id).name, gradient))
    }

    fn gradient(&self, id: PointId) -> Result<&Activation, HookError> {
        let name = || format!("{}_grad", self.catalog.info(id).name);
        self.gradients.get(&id).ok_or_else(|| HookError::NotRecorded {
            name: name(),
            held: self.gradients.len(),
            nearest: Vec::new(),
        })
    }

    fn look_up(&self, selection: Selection) -> Result<(PointId, &Activation), HookError> {
        if let Some(point) = selection.of_gradient() {
            let id = point.resolve_one(&self.catalog)?;
            return Ok((id, self.gradient(id)?));
        }
        let id = self.find(selection)?;
        Ok((id, &self.held[&id]))
    }

    /// Replaces every recorded tensor by what becomes of it.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows { batch: 1, len: 3, real: None, offset: 0 };
    /// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// let half = cache.map(|activation| activation.cast(DType::F16));
    /// assert_eq!(half.activation("hook_embed")?.dtype(), DType::F16.burn());
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    #[must_use]
    pub fn map(mut self, mut change: impl FnMut(Activation) -> Activation) -> Self {
        for held in self.held.values_mut().chain(self.gradients.values_mut()) {
            *held = change(held.clone());
        }
        self
    }

    /// Whether the point was recorded.
    pub fn contains(&self, point: impl Into<Selection>) -> bool {
        self.look_up(point.into()).is_ok()
    }

    fn find(&self, selection: Selection) -> Result<PointId, HookError> {
        let id = selection.resolve_one(&self.catalog)?;
        if self.held.contains_key(&id) {
            return Ok(id);
        }
        let name = self.catalog.info(id).name.to_string();
        let nearest = nearest(&name, self.names());
        Err(HookError::NotRecorded { name, held: self.held.len(), nearest })
    }

    /// Names of the recorded points, in firing order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.held.keys().map(|id| &*self.catalog.info(*id).name)
    }

    /// Names and activations, in firing order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Activation)> {
        self.held.iter().map(|(id, activation)| (&*self.catalog.info(*id).name, activation))
    }

    /// Number of recorded points.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether activations still have their batch axis.
    pub fn has_batch_dim(&self) -> bool {
        self.has_batch
    }

    /// Rows and positions recorded, `[batch, pos]`.
    pub fn rows_recorded(&self) -> [usize; 2] {
        self.rows
    }

    /// These rows of the batch; what has no rows of its own, such as a mixture's experts, is left
    /// out.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows { batch: 2, len: 3, real: None, offset: 0 };
    /// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([2, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// assert_eq!(cache.rows_recorded(), [2, 3]); // rows, positions
    /// let second = cache.rows(1..2)?;
    /// assert_eq!(second.activation("hook_embed")?.shape(), [1, 3, 4]);
    /// assert!(cache.rows(1..5).is_err());
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Rows`] if the batch has fewer rows or its axis is gone.
    pub fn rows(&self, rows: Range<usize>) -> Result<ActivationCache, HookError> {
        let [batch, len] = self.rows;
        if rows.is_empty() || rows.end > batch || !self.has_batch {
            return Err(HookError::Rows { asked: rows, batch });
        }
        let (mut held, mut gradients) = (BTreeMap::new(), BTreeMap::new());
        let all = self.held.iter().map(|entry| (false, entry)).chain(self.gradients.iter().map(|entry| (true, entry)));
        for (is_gradient, (id, activation)) in all {
            let inner = match self.catalog.info(*id).axes.first() {
                Some(Axis::Batch) => 1,
                Some(Axis::BatchPos | Axis::BatchPosHead) => activation.shape()[0] / batch.max(1),
                _ => continue,
            };
            let own = activation.narrow(0, rows.start * inner, rows.end * inner);
            if is_gradient {
                gradients.insert(*id, own)
            } else {
                held.insert(*id, own)
            };
        }
        Ok(Self { catalog: self.catalog.clone(), held, gradients, has_batch: true, rows: [rows.len(), len] })
    }

    /// The points of the model the recording was made with.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Meaning of each axis of a recorded point.
    ///
    /// # Errors
    /// As [`ActivationCache::get`].
    pub fn axes(&self, point: impl Into<Selection>) -> Result<&'static [Axis], HookError> {
        let axes = self.catalog.info(self.find(point.into())?).axes;
        let batch_gone = !self.has_batch && axes.first() == Some(&Axis::Batch);
        Ok(if batch_gone { &axes[1..] } else { axes })
    }

    /// Drops the batch axis of every activation. A second call does nothing.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows { batch: 1, len: 3, real: None, offset: 0 };
    /// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// let flat = cache.remove_batch_dim()?;
    /// assert_eq!(flat.activation("hook_embed")?.shape(), [3, 4]);
    /// assert!(!flat.has_batch_dim());
    /// // A typed point keeps its rank.
    /// assert_eq!(flat.get(Point::<3>::new("hook_embed"))?.dims(), [1, 3, 4]);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Batch`] if the batch has more than one row.
    pub fn remove_batch_dim(mut self) -> Result<Self, HookError> {
        if !self.has_batch {
            return Ok(self);
        }
        for (id, activation) in self.held.iter_mut().chain(&mut self.gradients) {
            if self.catalog.info(*id).axes.first() == Some(&Axis::Batch) {
                match activation.shape() {
                    [1, rest @ ..] => *activation = activation.reshape(rest),
                    [batch, ..] => return Err(HookError::Batch { batch: *batch }),
                    [] => {}
                }
            }
        }
        self.has_batch = false;
        Ok(self)
    }

    /// Concatenates this recording with that of the positions after it: what one run of both parts
    /// records. One row here goes before each row there. Scores and patterns of these
    /// positions get the later keys, which they don't see; rotated keys of the later run hold
    /// those of both.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows { batch: 1, len: 3, real: None, offset: 0 };
    /// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// let both = cache.stitched(&cache)?; // as if the second came three positions later
    /// assert_eq!(both.activation("hook_embed")?.shape(), [1, 6, 4]);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::NotRecorded`] if the two hold other points, [`HookError::Stitch`] for what
    /// has no positions or lost its batch axis, and for batches that differ.
    pub fn stitched(&self, after: &ActivationCache) -> Result<ActivationCache, HookError> {
        let name = |id: &PointId| self.catalog.info(*id).name.to_string();
        let only_one = self.held.keys().find(|id| !after.held.contains_key(id));
        if let Some(id) = only_one.or_else(|| after.held.keys().find(|id| !self.held.contains_key(id))) {
            return Err(HookError::NotRecorded { name: name(id), held: after.held.len(), nearest: Vec::new() });
        }
        let ([mine, before], [theirs, behind]) = (self.rows, after.rows);
        let fails = |point: String, reason| Err(HookError::Stitch { point, reason });
        let mut held = BTreeMap::new();
        for (id, first) in &self.held {
            let (axes, second) = (self.catalog.info(*id).axes, &after.held[id]);
            if !self.has_batch || !after.has_batch {
                return fails(name(id), "it has lost its batch axis");
            }
            if mine != theirs && mine != 1 {
                return fails(name(id), "the two have other numbers of rows");
            }
            // Batch and position in one axis are taken apart here and put together in the end.
            let together = matches!(axes.first(), Some(Axis::BatchPos | Axis::BatchPosHead));
            let apart = |activation: &Activation, [batch, len]: [usize; 2]| {
                let inner = activation.shape()[0] / (batch * len).max(1);
                activation.reshape(&[&[batch, len, inner], &activation.shape()[1..]].concat())
            };
            let (mut first, second) = if together {
                (apart(first, self.rows), apart(second, after.rows))
            } else {
                (first.clone(), second.clone())
            };
            if mine != theirs {
                first = first.repeat_row(theirs);
            }
            let joined = if together {
                let joined = Activation::cat(&[first, second], 1);
                let [batch, len, inner, rest @ ..] = joined.shape() else {
                    return fails(name(id), "it has no positions");
                };
                joined.reshape(&[&[batch * len * inner], rest].concat())
            } else if let Some(key) = axes.iter().position(|axis| *axis == Axis::Key) {
                let hidden = self.catalog.info(*id).filler.value();
                let missing = second.shape()[key].saturating_sub(first.shape()[key]);
                let query = axes.iter().position(|axis| *axis == Axis::Query).unwrap_or(key);
                Activation::cat(&[first.lengthened(key, missing, hidden), second], query)
            } else if let Some(axis) = axes.iter().position(|axis| *axis == Axis::Pos) {
                if second.shape()[axis] > behind { second } else { Activation::cat(&[first, second], axis) }
            } else {
                return fails(name(id), "it has no positions");
            };
            held.insert(*id, joined);
        }
        let gradients = BTreeMap::new();
        Ok(Self { catalog: self.catalog.clone(), held, gradients, has_batch: true, rows: [theirs, before + behind] })
    }

    /// The recordings of the first `count` positions, of one row; what has no positions is left
    /// out. More positions than there are are all of them.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows { batch: 1, len: 3, real: None, offset: 0 };
    /// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// assert_eq!(cache.first(2).activation("hook_embed")?.shape(), [1, 2, 4]);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    #[must_use]
    pub fn first(&self, count: usize) -> ActivationCache {
        let [batch, len] = self.rows;
        let count = count.min(len);
        let mut held = BTreeMap::new();
        for (id, activation) in &self.held {
            let axes = self.catalog.info(*id).axes;
            let (dropped, shape) = (usize::from(!self.has_batch), activation.shape());
            let cut = match axes.first() {
                Some(Axis::BatchPos | Axis::BatchPosHead) if batch == 1 => {
                    activation.narrow(0, 0, shape[0] / len.max(1) * count)
                }
                Some(Axis::Batch) => {
                    let places =
                        axes.iter().enumerate().filter(|(_, a)| matches!(a, Axis::Pos | Axis::Query | Axis::Key));
                    let shorter = |activation: Activation, (place, _): (usize, &Axis)| {
                        let axis = place - dropped;
                        // Keys include those of a cache before the positions recorded.
                        let before = activation.shape()[axis] - len.min(activation.shape()[axis]);
                        activation.narrow(axis, 0, before + count)
                    };
                    places.fold(activation.clone(), shorter)
                }
                _ => continue,
            };
            held.insert(*id, cut);
        }
        let gradients = BTreeMap::new();
        Self { catalog: self.catalog.clone(), held, gradients, has_batch: self.has_batch, rows: [batch, count] }
    }

    /// Copies every activation to a device.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows { batch: 1, len: 3, real: None, offset: 0 };
    /// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// let there = cache.to_device(&Device::flex());
    /// assert_eq!(there.activation("hook_embed")?.device(), Device::flex());
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    #[must_use]
    pub fn to_device(mut self, device: &Device) -> Self {
        for activation in self.held.values_mut().chain(self.gradients.values_mut()) {
            *activation = activation.to_device(device);
        }
        self
    }

    /// Writes one safetensors file with a tensor a point, named by it.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows { batch: 1, len: 3, real: None, offset: 0 };
    /// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("recorded.safetensors");
    /// cache.save(&path)?;
    /// let bytes = std::fs::read(&path)?;
    /// let read = safetensors::SafeTensors::deserialize(&bytes)?;
    /// assert_eq!(read.tensor("blocks.0.hook_resid_post")?.shape(), [1, 3, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Io`] naming the file or the point.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), HookError> {
        let named = self.iter().map(|(name, activation)| (name.to_string(), activation));
        let gradients = self.gradients().map(|(name, gradient)| (format!("{name}_grad"), gradient));
        let named = named.chain(gradients);
        write_safetensors(path.as_ref(), named, HashMap::new())
    }
}

impl fmt::Debug for ActivationCache {
    /// Names and shapes, never values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "ActivationCache of {} points:", self.len())?;
        for (name, activation) in self.iter() {
            writeln!(f, "  {name} {:?}", activation.shape())?;
        }
        for (name, gradient) in self.gradients() {
            writeln!(f, "  {name}_grad {:?}", gradient.shape())?;
        }
        Ok(())
    }
}
