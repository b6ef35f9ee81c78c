//! Recorded activations, by name.

mod batch;
mod gradients;
mod lookup;
mod origin;
mod positions;
mod provenance;
mod stack;
mod stitch;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};

pub use lookup::Lookup;
pub(crate) use origin::LeftOut;
pub use origin::{Origin, TextHashes};
pub(crate) use positions::apart;
pub use provenance::Provenance;
pub use stack::Stackable;
pub use stitch::truncated;

use crate::activation::{Activation, Detach};
use crate::catalog::{Catalog, PointId};
use crate::convert::write_safetensors;
use crate::device_label::device_label;
use crate::error::HookError;
use crate::point::Axis;
use crate::selection::{ResolveOne, Selection};
use crate::suggest::nearest;

/// The activations a run recorded, in firing order.
///
/// Look activations up by typed point (`hook::pattern(5)`), full name
/// (`"blocks.6.attn.hook_k"`) or shorthand (`"k6"`, `("resid_post", -1)`): see [`Lookup`].
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// # let rows = Rows::new(1, 3);
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
    /// Number of recorded rows and positions, `[batch, pos]`.
    rows: [usize; 2],
    pub(crate) origin: Origin,
}

impl ActivationCache {
    pub(crate) fn new(catalog: Arc<Catalog>, batch_removed: bool, rows: [usize; 2]) -> Self {
        let (held, gradients, origin) = (BTreeMap::new(), BTreeMap::new(), Origin::default());
        Self { catalog, held, gradients, has_batch: !batch_removed, rows, origin }
    }

    pub(crate) fn insert(&mut self, id: PointId, activation: Activation) {
        self.held.insert(id, activation);
    }

    /// The activation at a point, as a tensor of rank `D`. A typed point knows its rank:
    /// `cache.get(hook::pattern(1))?`. For a name, the caller specifies it: `cache.get::<4>("pattern1")?`. A typed
    /// point's rank includes the batch axis, which is restored with length one if it was dropped.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows::new(1, 3);
    /// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// let by_point = cache.get(Point::<3>::in_layer(1, "hook_resid_post"))?;
    /// let by_name = cache.get::<3>("resid_post1")?;
    /// let by_type: Tensor<3> = cache.get(("resid_post", 1))?;
    /// assert_eq!((by_point.dims(), by_name.dims(), by_type.dims()), ([1, 3, 4], [1, 3, 4], [1, 3, 4]));
    /// let message = cache.get::<3>("hook_embd").unwrap_err().to_string();
    /// assert!(message.contains("hook_embed"), "{message}"); // suggests the intended name
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::NotRecorded`] with the nearest recorded names, [`HookError::Rank`] if the point has a different
    /// rank, or an error from resolving the name.
    pub fn get<const D: usize>(&self, point: impl Lookup<D>) -> Result<Tensor<D>, HookError> {
        let (id, held) = self.look_up(point.selection())?;
        let point = self.catalog.info(id);
        let dropped = !self.has_batch && point.axes.first() == Some(&Axis::Batch);
        if dropped && D == point.axes.len() {
            return held.reshape(&[&[1], held.shape()].concat()).into_tensor(&point.name);
        }
        held.clone().into_tensor(&point.name)
    }

    /// The activation at a point, of any rank and element kind.
    ///
    /// # Errors
    /// Same as [`ActivationCache::get`].
    pub fn activation(&self, point: impl Into<Selection>) -> Result<&Activation, HookError> {
        Ok(self.look_up(point.into())?.1)
    }

    fn look_up(&self, selection: Selection) -> Result<(PointId, &Activation), HookError> {
        if let Some(point) = selection.of_gradient() {
            let id = point.resolve_one(&self.catalog)?;
            return Ok((id, self.gradient(id)?));
        }
        let id = self.find(selection)?;
        Ok((id, &self.held[&id]))
    }

    /// Applies `change` to every recorded activation. It must keep shapes.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows::new(1, 3);
    /// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
    /// # for id in ids {
    /// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
    /// # }
    /// # let cache = run.finish()?;
    /// let half = cache.map(|activation| activation.cast(DType::F16))?;
    /// assert_eq!(half.activation("hook_embed")?.dtype(), DType::F16.burn());
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Shape`] if `change` returns another shape.
    pub fn map(mut self, mut change: impl FnMut(Activation) -> Activation) -> Result<Self, HookError> {
        self.origin = self.origin.changed();
        for (id, held) in self.held.iter_mut().chain(&mut self.gradients) {
            let changed = change(held.clone());
            if changed.shape() != held.shape() {
                let info = self.catalog.info(*id);
                let (point, axes) = (info.name.to_string(), info.axes_label());
                let (expected, given) = (held.shape().to_vec(), changed.shape().to_vec());
                return Err(HookError::Shape { point, expected, given, axes });
            }
            *held = changed;
        }
        Ok(self)
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
        if let Some(left_out) = self.origin.left_out.as_ref().filter(|left_out| left_out.points.contains(&id)) {
            let (asked, cached) = (left_out.asked.clone(), left_out.cached);
            return Err(HookError::NotComputed { name, asked, cached });
        }
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

    /// The catalog of the model that made the recording.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Meaning of each axis of a recorded point.
    ///
    /// # Errors
    /// Same as [`ActivationCache::get`].
    pub fn axes(&self, point: impl Into<Selection>) -> Result<&'static [Axis], HookError> {
        let axes = self.catalog.info(self.find(point.into())?).axes;
        let batch_gone = !self.has_batch && axes.first() == Some(&Axis::Batch);
        Ok(if batch_gone { &axes[1..] } else { axes })
    }

    /// Copies every activation to `device`.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows::new(1, 3);
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

    /// Writes all activations to a file, keyed by point name; gradients get the suffix `_grad`. If the path ends in
    /// `.npz`, the file is an uncompressed archive for `numpy.load` (arrays in the format of [`Activation::save_npy`]);
    /// otherwise, it is a safetensors file. The write is atomic.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// # let rows = Rows::new(1, 3);
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
    /// # let path = folder.path().join("recorded.npz");
    /// cache.save(&path)?;
    /// let file = zip::ZipArchive::new(std::fs::File::open(&path)?)?;
    /// assert!(file.index_for_name("blocks.0.hook_resid_post.npy").is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Io`] naming the file or point.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), HookError> {
        let path = path.as_ref();
        if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npz")) {
            return self.save_npz(path);
        }
        let named = self.iter().map(|(name, activation)| (name.to_string(), activation));
        let gradients = self.gradients().map(|(name, gradient)| (format!("{name}_grad"), gradient));
        let named = named.chain(gradients);
        write_safetensors(path, named, HashMap::new())
    }
}

impl Default for ActivationCache {
    /// An empty recording of a model without points.
    fn default() -> Self {
        Self::new(Arc::default(), false, [0, 0])
    }
}

impl Detach for ActivationCache {
    fn detached(mut self) -> Self {
        for held in self.held.values_mut().chain(self.gradients.values_mut()) {
            *held = held.clone().detached();
        }
        self
    }
}

/// Number of points that `{:?}` lists.
const SHOWN: usize = 3;

impl fmt::Debug for ActivationCache {
    /// Formats a summary in one line: the numbers of points, rows and positions, element type and device of the first
    /// point, and the first names with their shapes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, positions] = self.rows;
        write!(f, "ActivationCache({} points, {rows} rows, {positions} positions", self.len())?;
        if !self.gradients.is_empty() {
            write!(f, ", {} gradients", self.gradients.len())?;
        }
        if let Some((_, first)) = self.iter().next() {
            let dtype = format!("{:?}", first.dtype()).to_lowercase();
            write!(f, ", {dtype} on {}: ", device_label(&first.device()))?;
        }
        let shown = self.iter().take(SHOWN).map(|(name, activation)| format!("{name} {:?}", activation.shape()));
        f.write_str(&shown.collect::<Vec<_>>().join(", "))?;
        f.write_str(if self.len() > SHOWN { ", ...)" } else { ")" })
    }
}
