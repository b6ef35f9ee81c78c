//! The hook points of a part.

use std::sync::Arc;

use crate::point::{Axis, PointInfo};

/// A hook point of a [`Part`](crate::Part): its axes, and its name, which is appended to the name of the point where the
/// part is spliced in.
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
    /// Whether the point fires only when it is requested by name.
    pub on_request: bool,
    /// Length of the point's [`Axis::Feature`]; 0 if it has no such axis. Used to estimate the size of a recording
    /// before a run.
    pub features: usize,
}

impl PartPoint {
    /// Creates a point whose tensor holds floats.
    pub fn new(suffix: impl Into<Arc<str>>, axes: &'static [Axis]) -> Self {
        Self { suffix: suffix.into(), axes, on_request: false, features: 0 }
    }

    /// Sets the length of the point's [`Axis::Feature`].
    #[must_use]
    pub fn features(self, features: usize) -> Self {
        Self { features, ..self }
    }

    /// Makes the point fire only when it is requested by name.
    #[must_use]
    pub fn on_request(self) -> Self {
        Self { on_request: true, ..self }
    }

    /// The catalog entry of the point, in the layer and segment of the point `host`, where the part is spliced in.
    pub(crate) fn at(&self, host: &PointInfo) -> PointInfo {
        let name = format!("{}.{}", host.name, self.suffix);
        PointInfo {
            segment: host.segment,
            on_request: self.on_request,
            features: self.features,
            ..PointInfo::new(name, host.layer, self.axes)
        }
    }
}
