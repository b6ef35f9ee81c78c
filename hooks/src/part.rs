//! Parts: modules put at a point of a model, with points of their own.

use std::sync::Arc;

use burn::tensor::Tensor;

use crate::activation::Activation;
use crate::catalog::PointId;
use crate::error::HookError;
use crate::point::{Axis, Point, PointInfo};
use crate::run::{Halt, Run};
use crate::suggest::nearest;

/// A point that a [`Part`] fires: its name behind the name of the point the part is put at, and its axes.
///
/// ```
/// use hooklens_hooks::{Axis, PartPoint};
/// let acts = PartPoint::new("hook_sae_acts_post", &[Axis::Batch, Axis::Pos, Axis::Feature]);
/// assert!(!acts.on_request && acts.clone().on_request().on_request);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartPoint {
    /// Name, for instance `hook_sae_acts_post`.
    pub suffix: Arc<str>,
    /// Meaning of each axis, outermost first.
    pub axes: &'static [Axis],
    /// Whether the point fires only when it is asked for by its own name.
    pub on_request: bool,
    /// Length of its [`Axis::Feature`], if it has one: what a recording takes is known before a run by it.
    pub features: usize,
}

impl PartPoint {
    /// A point of floats.
    pub fn new(suffix: impl Into<Arc<str>>, axes: &'static [Axis]) -> Self {
        Self { suffix: suffix.into(), axes, on_request: false, features: 0 }
    }

    /// The same point with an [`Axis::Feature`] of this length.
    #[must_use]
    pub fn features(self, features: usize) -> Self {
        Self { features, ..self }
    }

    /// The same point, firing only when it is asked for by its own name.
    #[must_use]
    pub fn on_request(self) -> Self {
        Self { on_request: true, ..self }
    }

    /// The point as the catalog lists it: in the layer and the segment of its host.
    pub(crate) fn at(&self, host: &PointInfo) -> PointInfo {
        let name = format!("{}.{}", host.name, self.suffix);
        let info = PointInfo::new(name, host.layer, self.axes).in_segment(host.segment).features(self.features);
        if self.on_request { info.on_request() } else { info }
    }
}

/// A module put at a point of a model: a sparse autoencoder, a transcoder, an adapter.
///
/// It replaces the point's tensor and fires points of its own, named behind the point it is put at
/// (`blocks.7.hook_resid_pre.hook_sae_acts_post`). They are like the model's own: listed, selected, recorded, edited and
/// differentiated. The point itself fires after the part, with the tensor that the part gave.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use hooklens_hooks::*;
///
/// /// A dictionary of as many features as the stream is wide: the positive side of each coordinate.
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
///         Ok(inside.fire("hook_acts", acts)?.into()) // recorded here, and edited
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
    /// What caches and errors call it, for instance `sae`.
    fn name(&self) -> String;

    /// The points it fires, in firing order.
    fn points(&self) -> Vec<PartPoint>;

    /// Names of earlier points whose tensors it sees too, by [`Inside::also`]: the tokens, points of other parts.
    fn also_reads(&self) -> Vec<String> {
        Vec::new()
    }

    /// A hash of what it computes with, where it can tell: two parts of one name and one hash compute the same. Dumps note it,
    /// so that none is gone on with by another part of the same name.
    ///
    /// # Errors
    /// What keeps it from reading that.
    fn fingerprint(&self) -> Result<Option<String>, Halt> {
        Ok(None)
    }

    /// The tensor that goes on from the point, of the shape, element type and device of the one it replaces
    /// ([`Inside::replaced`]); `x` is the tensor read, which is the same unless the part reads another point.
    ///
    /// # Errors
    /// Whatever the part reports (`?` takes any error); it ends the run.
    fn forward(&self, x: Activation, inside: &mut Inside<'_, '_, '_>) -> Result<Activation, Halt>;
}

/// What a [`Part`] sees of the run it is in.
#[derive(Debug)]
pub struct Inside<'p, 'r, 'h> {
    pub(crate) run: &'p mut Run<'r, 'h>,
    pub(crate) host: PointId,
    pub(crate) points: &'p [PointId],
    pub(crate) replaced: Activation,
    pub(crate) also: &'p [Activation],
}

impl Inside<'_, '_, '_> {
    /// The point the part is put at.
    pub fn host(&self) -> &PointInfo {
        self.run.info(self.host)
    }

    /// The point's tensor, which the part replaces.
    pub fn replaced(&self) -> &Activation {
        &self.replaced
    }

    /// The tensors of the points that [`Part::also_reads`] names, in its order, as their hooks left them.
    pub fn also(&self) -> &[Activation] {
        self.also
    }

    /// Shows a tensor to the hooks of one of the part's points, records it, and returns it as the hooks left it.
    ///
    /// # Errors
    /// [`HookError::UnknownPoint`] for a point the part has not listed, [`HookError::Rank`], and as [`Run::fire`].
    pub fn fire<const D: usize>(&mut self, suffix: &str, tensor: Tensor<D>) -> Result<Tensor<D>, Halt> {
        let id = self.id(suffix)?;
        let info = self.run.info(id);
        if info.rank() != D {
            let (point, rank, axes) = (info.name.to_string(), info.rank(), info.axes_label());
            return Err(HookError::Rank { point, rank, axes, asked: D }.into());
        }
        self.run.fire(Some(id), tensor)
    }

    /// Whether a hook or a recording watches one of the part's points: what only serves to show need not be made
    /// otherwise.
    ///
    /// # Errors
    /// [`HookError::UnknownPoint`] for a point the part has not listed.
    pub fn wants(&self, suffix: &str) -> Result<bool, HookError> {
        Ok(self.run.wants(Some(self.id(suffix)?)))
    }

    /// Whether a hook may change the tensor of one of the part's points.
    ///
    /// # Errors
    /// [`HookError::UnknownPoint`] for a point the part has not listed.
    pub fn edits(&self, suffix: &str) -> Result<bool, HookError> {
        Ok(self.run.edits(Some(self.id(suffix)?)))
    }

    fn id(&self, suffix: &str) -> Result<PointId, HookError> {
        let of = |id: &PointId| &*self.run.info(*id).name;
        let is = |id: &&PointId| of(id).strip_suffix(suffix).is_some_and(|host| host.ends_with('.'));
        self.points.iter().find(is).copied().ok_or_else(|| {
            let name = Point::<1>::new(self.host().name.clone()).inner::<1>(suffix).name();
            let nearest = nearest(&name, self.points.iter().map(of));
            HookError::UnknownPoint { name, n_layers: self.run.n_layers(), nearest }
        })
    }
}
