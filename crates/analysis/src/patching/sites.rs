//! [`Sites`]: the points and axes of a sweep.

use hooklens_hooks::{Axis, Catalog, PointId, PointInfo, Selection};

use crate::error::PatchError;
use hooklens_model::error::Result;

/// Points and axes of a sweep. Each index along the swept axes is patched separately; each patch covers all other axes.
///
/// ```
/// use hooklens::hook::Axis;
/// use hooklens::patching::Sites;
/// let by_head = Sites::new("*attn.hook_z").per([Axis::Head]); // [layer, head]
/// let by_neuron = Sites::new("mlp_post1").per([Axis::Pos, Axis::DMlp]); // [layer, pos, d_mlp]
/// ```
#[derive(Debug, Clone)]
pub struct Sites {
    selection: Selection,
    axes: Vec<Axis>,
}

impl Sites {
    /// Patches each of these points as a whole.
    pub fn new(points: impl Into<Selection>) -> Self {
        Self { selection: points.into(), axes: Vec::new() }
    }

    /// Patches each index along these axes separately. [`Axis::Head`] means key/value heads at points that have them.
    /// In results, the axes keep the order they have at the point.
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
    /// let found = patching.sweep(&Sites::new("attn_out2").per([Axis::Pos]))?;
    /// assert_eq!(found.mean().values().len(), 15);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn per(mut self, axes: impl IntoIterator<Item = Axis>) -> Self {
        self.axes.extend(axes);
        self
    }

    /// The swept axes.
    pub(crate) fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// The selected points.
    pub(crate) fn selection(&self) -> &Selection {
        &self.selection
    }

    /// The selected points in firing order, each with the indices of its swept axes.
    pub(crate) fn resolve(&self, catalog: &Catalog) -> Result<Vec<(PointId, Vec<usize>)>> {
        let ids = self.selection.resolve(catalog)?;
        Ok(ids.into_iter().map(|id| Ok((id, self.swept(catalog.info(id))?))).collect::<Result<Vec<_>, PatchError>>()?)
    }

    fn swept(&self, point: &PointInfo) -> Result<Vec<usize>, PatchError> {
        let fails = |reason| Err(PatchError::Point { point: point.name.to_string(), reason });
        if point.integer {
            return fails("its values are integers");
        }
        if point.axes.first() != Some(&Axis::Batch) {
            return fails("its first axis is not the batch");
        }
        let mut places = Vec::new();
        for axis in &self.axes {
            let place = point.axes.iter().position(|own| own == axis);
            let kv_head = point.axes.iter().position(|own| *own == Axis::KvHead);
            match place.or(kv_head.filter(|_| *axis == Axis::Head)) {
                Some(place) if place > 0 => places.push(place),
                _ => {
                    let axes = point.axes_label();
                    return Err(PatchError::Axis { point: point.name.to_string(), axis: axis.name(), axes });
                }
            }
        }
        places.sort_unstable();
        places.dedup();
        Ok(places)
    }
}

/// The points that a sweep of these sites patches, in firing order.
pub fn points_of(sites: &Sites, catalog: &Catalog) -> Result<Vec<PointId>> {
    Ok(sites.resolve(catalog)?.into_iter().map(|(id, _)| id).collect())
}
