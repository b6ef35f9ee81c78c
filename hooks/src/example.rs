//! A small catalog shared by the documentation's examples.

use std::sync::Arc;

use crate::catalog::{Catalog, PointId};
use crate::point::{Axis, PointInfo};

/// A catalog of three points of shape `[batch, pos, d_model]` in two layers, and their ids.
pub fn points() -> (Arc<Catalog>, [PointId; 3]) {
    let mut points = Catalog::builder(2);
    let axes = &[Axis::Batch, Axis::Pos, Axis::DModel];
    let named = [("hook_embed", None), ("blocks.0.hook_resid_post", Some(0)), ("blocks.1.hook_resid_post", Some(1))];
    let ids = named.map(|(name, layer)| points.add(PointInfo::new(name, layer, axes)));
    (Arc::new(points.build()), ids)
}
