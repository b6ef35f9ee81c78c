//! The points a model can fire, and what a request for points resolves to.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::HookError;
use crate::point::PointInfo;
use crate::suggest::nearest;

/// Number of a point within a [`Catalog`]: points are numbered in firing order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PointId(pub(crate) u32);

impl PointId {
    /// Place of the point in firing order.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Every point a model can fire, in firing order, and the known points it can't fire.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    points: Vec<PointInfo>,
    by_name: HashMap<Arc<str>, PointId>,
    absent: Vec<(String, &'static str)>,
    n_layers: usize,
    note: String,
}

impl Catalog {
    /// Starts an empty catalogue of a model with `n_layers` blocks.
    pub fn builder(n_layers: usize) -> CatalogBuilder {
        CatalogBuilder(Catalog { n_layers, ..Catalog::default() })
    }

    /// All points in firing order.
    pub fn points(&self) -> &[PointInfo] {
        &self.points
    }

    /// The point numbered `id`.
    pub fn info(&self, id: PointId) -> &PointInfo {
        &self.points[id.index()]
    }

    /// Number of blocks of the model.
    pub fn n_layers(&self) -> usize {
        self.n_layers
    }

    /// What else decides what the points' tensors mean, in words: equal for models whose recordings
    /// can be compared.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// Known points this model can't fire, each with the reason.
    pub fn absent(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.absent.iter().map(|(name, why)| (name.as_str(), *why))
    }

    /// The point called `name`. Layers may be negative: `blocks.-1.hook_resid_post`.
    ///
    /// # Errors
    /// [`HookError::UnknownPoint`] with the nearest names, or [`HookError::CannotFire`] if the
    /// point exists elsewhere but not in this model.
    pub fn find(&self, name: &str) -> Result<PointId, HookError> {
        let name = self.with_positive_layer(name);
        if let Some(id) = self.by_name.get(name.as_str()) {
            return Ok(*id);
        }
        if let Some((_, why)) = self.absent.iter().find(|(absent, _)| *absent == name) {
            return Err(HookError::CannotFire { point: name, reason: why });
        }
        let nearest = nearest(&name, self.points.iter().map(|p| &*p.name));
        Err(HookError::UnknownPoint { name, n_layers: self.n_layers, nearest })
    }

    /// `blocks.-1.x` as `blocks.{n_layers - 1}.x`; other names as they are.
    pub(crate) fn with_positive_layer(&self, name: &str) -> String {
        let Some(rest) = name.strip_prefix("blocks.-") else { return name.to_string() };
        let Some((back, suffix)) = rest.split_once('.') else { return name.to_string() };
        match back.parse::<usize>() {
            Ok(back) if (1..=self.n_layers).contains(&back) => format!("blocks.{}.{suffix}", self.n_layers - back),
            _ => name.to_string(),
        }
    }
}

/// Builds a [`Catalog`] point by point, in firing order.
#[derive(Debug)]
pub struct CatalogBuilder(Catalog);

impl CatalogBuilder {
    /// Adds a point; its id is its place in firing order.
    pub fn add(&mut self, point: PointInfo) -> PointId {
        let id = PointId(self.0.points.len() as u32);
        self.0.by_name.insert(point.name.clone(), id);
        self.0.points.push(point);
        id
    }

    /// Names a point that other models have and this one can't fire, and why.
    pub fn absent(&mut self, name: impl Into<String>, reason: &'static str) {
        self.0.absent.push((name.into(), reason));
    }

    /// Says what else decides what the points' tensors mean: see [`Catalog::note`].
    pub fn note(&mut self, note: impl Into<String>) {
        self.0.note = note.into();
    }

    /// The finished catalogue.
    pub fn build(self) -> Catalog {
        self.0
    }
}
