//! The points that a model can fire, and their look-up by name.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::HookError;
use crate::point::PointInfo;
use crate::suggest::nearest;

/// Index of a point in a [`Catalog`]. Points are numbered in firing order.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// let id = catalog.find("blocks.-1.hook_resid_post")?;
/// assert_eq!((id.index(), &*catalog.info(id).name), (2, "blocks.1.hook_resid_post"));
/// # Ok::<(), hooklens_hooks::HookError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PointId(pub(crate) u32);

impl PointId {
    /// Index of the point in firing order.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// All points that a model can fire, in firing order, and the known points that it cannot fire.
///
/// ```
/// use hooklens_hooks::{Axis, Catalog, PointInfo};
/// let mut points = Catalog::builder(2);
/// let axes = &[Axis::Batch, Axis::Pos, Axis::DModel];
/// points.add(PointInfo::new("hook_embed", None, axes));
/// points.absent("hook_pos_embed", "its positions are rotary");
/// let catalog = points.build();
/// assert_eq!(catalog.points()[0].axes_label(), "[batch, pos, d_model]");
/// let message = catalog.find("hook_pos_embed").unwrap_err().to_string();
/// assert_eq!(message, "`hook_pos_embed` does not fire: its positions are rotary");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    points: Vec<PointInfo>,
    by_name: HashMap<Arc<str>, PointId>,
    absent: Vec<(String, &'static str)>,
    n_layers: usize,
    note: String,
}

impl Catalog {
    /// Starts an empty catalog for a model with `n_layers` blocks.
    pub fn builder(n_layers: usize) -> CatalogBuilder {
        CatalogBuilder(Catalog { n_layers, ..Catalog::default() })
    }

    /// All points in firing order.
    pub fn points(&self) -> &[PointInfo] {
        &self.points
    }

    /// The point with this id.
    pub fn info(&self, id: PointId) -> &PointInfo {
        &self.points[id.index()]
    }

    /// The ids of all points, in firing order.
    pub fn ids(&self) -> impl Iterator<Item = PointId> + use<> {
        (0..self.points.len() as u32).map(PointId)
    }

    /// Number of blocks in the model.
    pub fn n_layers(&self) -> usize {
        self.n_layers
    }

    /// A note on how to interpret the points' tensors (for example, how weights were processed). It is equal for models
    /// whose recordings are comparable.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// Known points that this model cannot fire, each with the reason.
    pub fn absent(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.absent.iter().map(|(name, why)| (name.as_str(), *why))
    }

    /// Looks up the point called `name`. Layers may be negative: `blocks.-1.hook_resid_post`. For shorthands and other
    /// ways to name a point, see [`ResolveOne::resolve_one`](crate::ResolveOne::resolve_one).
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// assert_eq!(catalog.find("blocks.1.hook_resid_post")?, catalog.find("blocks.-1.hook_resid_post")?);
    /// let message = catalog.find("blocks.1.hook_resid_pst").unwrap_err().to_string();
    /// assert!(message.contains("blocks.1.hook_resid_post"), "{message}");
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::UnknownPoint`] with the nearest names, [`HookError::Layer`] if the model has no such layer, or
    /// [`HookError::CannotFire`] if the point is known but this model does not fire it.
    pub fn find(&self, name: &str) -> Result<PointId, HookError> {
        let name = self.with_positive_layer(name);
        if let Some(id) = self.by_name.get(name.as_str()) {
            return Ok(*id);
        }
        if let Some((_, why)) = self.absent.iter().find(|(absent, _)| *absent == name) {
            return Err(HookError::CannotFire { point: name, reason: why });
        }
        if let Some(other_layer) = self.other_layer(&name) {
            return Err(other_layer);
        }
        let nearest = nearest(&name, self.points.iter().map(|p| &*p.name));
        Err(HookError::UnknownPoint { name, n_layers: self.n_layers, nearest })
    }

    /// Whether there is a point with exactly this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// A copy of the catalog with `new` points inserted before one of its points.
    pub(crate) fn with_inserted(&self, before: PointId, new: Vec<PointInfo>) -> Catalog {
        let mut points = self.points.clone();
        points.splice(before.index()..before.index(), new);
        let ids = points.iter().zip(0..).map(|(point, place)| (point.name.clone(), PointId(place))).collect();
        Catalog { points, by_name: ids, ..self.clone() }
    }

    /// The error for a name with a layer that the model does not have: `blocks.9.hook_z`, or `encoder.9` if there are
    /// two stacks.
    pub(crate) fn other_layer(&self, asked: &str) -> Option<HookError> {
        let (stack, rest) = asked.split_once('.')?;
        let layer: isize = rest.split('.').next()?.parse().ok()?;
        let n_layers = self.layers_of(stack)?;
        let lacks = !(-(n_layers as isize)..n_layers as isize).contains(&layer);
        lacks.then(|| HookError::Layer { asked: asked.to_string(), layer, n_layers })
    }

    /// Rewrites `blocks.-1.x` to `blocks.{n_layers - 1}.x`; returns other names unchanged.
    pub(crate) fn with_positive_layer(&self, name: &str) -> String {
        let positive = || {
            let (stack, rest) = name.split_once(".-")?;
            let (back, suffix) = rest.split_once('.')?;
            let n_layers = if stack == "blocks" { self.n_layers } else { self.layers_of(stack)? };
            let layer = n_layers.checked_sub(back.parse().ok().filter(|back| *back > 0)?)?;
            Some(format!("{stack}.{layer}.{suffix}"))
        };
        positive().unwrap_or_else(|| name.to_string())
    }

    /// Number of layers in a stack of blocks.
    fn layers_of(&self, stack: &str) -> Option<usize> {
        let of_stack = |name: &str| -> Option<usize> {
            name.strip_prefix(stack)?.strip_prefix('.')?.split('.').next()?.parse().ok()
        };
        let known = self.points.iter().map(|point| &*point.name).chain(self.absent.iter().map(|(name, _)| &**name));
        Some(known.filter_map(of_stack).max()? + 1)
    }
}

/// Builds a [`Catalog`] point by point, in firing order.
///
/// ```
/// use hooklens_hooks::{Axis, Catalog, PointInfo};
/// let mut points = Catalog::builder(1);
/// let axes = &[Axis::Batch, Axis::Pos];
/// let id = points.add(PointInfo::new("tokens", None, axes).integers());
/// points.note("weights as published");
/// let catalog = points.build();
/// assert_eq!((catalog.info(id).axes.len(), catalog.note()), (2, "weights as published"));
/// ```
#[derive(Debug)]
pub struct CatalogBuilder(Catalog);

impl CatalogBuilder {
    /// Adds a point. Its id is its index in firing order.
    pub fn add(&mut self, point: PointInfo) -> PointId {
        let id = PointId(self.0.points.len() as u32);
        self.0.by_name.insert(point.name.clone(), id);
        self.0.points.push(point);
        id
    }

    /// Declares a point that other models have but this one cannot fire, with the reason.
    pub fn absent(&mut self, name: impl Into<String>, reason: &'static str) {
        self.0.absent.push((name.into(), reason));
    }

    /// Sets the note on how to interpret the points' tensors: see [`Catalog::note`].
    pub fn note(&mut self, note: impl Into<String>) {
        self.0.note = note.into();
    }

    /// The finished catalog.
    pub fn build(self) -> Catalog {
        self.0
    }
}
