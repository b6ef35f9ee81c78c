//! [`GrowingBatch`]: many patches run as one batch that grows from layer to layer.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::Tensor;
use hooklens_hooks::{Activation, Axis, BlockAccess, Catalog, Hook, PointId, PointInfo, at};

use super::base_run::BaseRun;
use hooklens_model::driver::HookedModel;
use hooklens_model::error::Result;
use hooklens_model::model::HookedTransformer;

/// One patch: replaces a block of one point's tensor, in its own row of the batch.
#[derive(Debug, Clone)]
pub(super) struct Patch {
    /// Index of the patch in the sweep.
    pub(super) number: usize,
    pub(super) point: PointId,
    /// Block in the tensor of a whole run, `[1, ...]`. The first range is the batch axis, `0..1`.
    pub(super) block: Vec<Range<usize>>,
    /// First position that the patch changes.
    pub(super) first: usize,
}

/// Patches that start at the same position, run from layer to layer as one batch. A row joins the batch at the layer of
/// its patch, starting from the unpatched stream; it is patched there and continues with the rows that joined earlier.
/// Keys and values of positions before the patch come from the unpatched run's key-value cache.
pub(super) struct GrowingBatch<'r> {
    pub(super) model: &'r HookedTransformer,
    pub(super) base: &'r mut BaseRun,
    /// Values to patch in, each the point's whole tensor in a run on the whole prompt.
    pub(super) values: &'r BTreeMap<PointId, Activation>,
    /// Points to freeze at their unpatched values in rows that joined the batch at an earlier layer. The flag says
    /// whether the point is also frozen in rows that join at the point's own layer.
    pub(super) frozen: &'r [(&'static str, bool)],
    /// Layers and points to record.
    pub(super) watch: &'r [(usize, PointId)],
}

/// The stream after the last layer, and the recorded rows of watched points, `[row, pos, d_model]`.
pub(super) type BatchOutput = (Tensor<3>, BTreeMap<PointId, Tensor<3>>);

impl GrowingBatch<'_> {
    /// Runs patches, which must be sorted by layer and have the same first position. Calls `see` before each layer with
    /// the stream of the patches that have joined so far.
    pub(super) fn run(&mut self, patches: &[Patch], see: &mut dyn FnMut(usize, &Tensor<3>)) -> Result<BatchOutput> {
        let catalog = self.model.catalog().clone();
        let layer_of = |patch: &Patch| catalog.info(patch.point).layer.unwrap_or(0);
        let first = patches[0].first;
        let mut before = self.base.before(first)?;
        let (mut rows, mut joined): (Option<Tensor<3>>, usize) = (None, 0);
        let mut seen = BTreeMap::new();
        for layer in layer_of(&patches[0])..self.model.config().n_layers() {
            let fresh = patches[joined..].iter().take_while(|patch| layer_of(patch) == layer).count();
            if let Some(rows) = &rows {
                see(layer, rows);
            }
            let batch = match (rows.take(), fresh) {
                (Some(rows), 0) => rows,
                (Some(rows), _) => {
                    let fresh = self.base.stream(layer, first, fresh);
                    // The previous layer may be on another device.
                    Tensor::cat(vec![rows.to_device(&fresh.device()), fresh], 0)
                }
                (None, _) => self.base.stream(layer, first, fresh),
            };
            let new = &patches[joined..joined + fresh];
            let mut hooks = self.holding(&catalog, layer, joined, first);
            hooks.extend(self.patching(&catalog, new, joined, first));
            joined += fresh;
            let mut options = self.base.options(layer..layer + 1, first, joined)?.hooks(hooks);
            if let Some(before) = &mut before {
                options = options.kv_cache(before);
            }
            let watched: Vec<PointId> = self.watch.iter().filter(|(of, _)| *of == layer).map(|(_, id)| *id).collect();
            let names: Vec<&str> = watched.iter().map(|id| &*catalog.info(*id).name).collect();
            let output = self.model.run(batch, options.record(names.as_slice()))?;
            for id in watched {
                seen.insert(id, output.cache.get(&*catalog.info(id).name)?);
            }
            rows = output.residual;
        }
        let rows = rows.unwrap_or_else(|| self.base.stream(0, first, 1));
        Ok((rows, seen))
    }

    /// One hook per patched point in a layer.
    fn patching<'p>(&'p self, catalog: &Catalog, new: &'p [Patch], joined: usize, first: usize) -> Vec<Hook<'p>> {
        let mut by_point: BTreeMap<PointId, Vec<(usize, &Patch)>> = BTreeMap::new();
        for (place, patch) in new.iter().enumerate() {
            by_point.entry(patch.point).or_default().push((joined + place, patch));
        }
        let hook = |(id, patches): (PointId, Vec<(usize, &'p Patch)>)| {
            let values = &self.values[&id];
            let axis = position_axis(catalog.info(id));
            at(&*catalog.info(id).name).edit_any(move |tensor, _| {
                let blocks = patches.iter().map(|(row, patch)| {
                    let mut source = patch.block.clone();
                    if let Some(axis) = axis {
                        source[axis].start = source[axis].start.max(first);
                    }
                    let mut place = source.clone();
                    place[0] = *row..row + 1;
                    // Rotated keys include the cached positions; other tensors do not.
                    if let Some(axis) = axis.filter(|axis| tensor.shape()[*axis] < values.shape()[*axis]) {
                        place[axis] = source[axis].start - first..source[axis].end - first;
                    }
                    (place, values.block(&source))
                });
                let blocks: Vec<_> = blocks.collect();
                Ok(Some(tensor.with_blocks(blocks)))
            })
        };
        by_point.into_iter().map(hook).collect()
    }

    /// Hooks that replace a layer's frozen activations with the unpatched values.
    fn holding<'p>(&'p self, catalog: &Catalog, layer: usize, joined: usize, first: usize) -> Vec<Hook<'p>> {
        let frozen = self.frozen.iter().filter_map(|(suffix, fresh)| {
            let id = catalog.find(&format!("blocks.{layer}.{suffix}")).ok()?;
            Some((id, *fresh))
        });
        let hook = |(id, fresh): (PointId, bool)| {
            let name = catalog.info(id).name.clone();
            let axis = position_axis(catalog.info(id)).unwrap_or(1);
            at(&*name.clone()).edit_any(move |tensor, _| {
                let unpatched = self.base.recorded.activation(&*name)?;
                let unpatched = unpatched.narrow(axis, first, unpatched.shape()[axis]);
                let rows = if fresh { tensor.shape()[0] } else { joined };
                let mut whole: Vec<Range<usize>> = unpatched.shape().iter().map(|len| 0..*len).collect();
                let blocks = (0..rows).map(|row| {
                    whole[0] = row..row + 1;
                    (whole.clone(), unpatched.clone())
                });
                Ok(Some(tensor.with_blocks(blocks)))
            })
        };
        frozen.map(hook).collect()
    }
}

/// The axis that indexes positions of the run.
pub(super) fn position_axis(point: &PointInfo) -> Option<usize> {
    point.axes.iter().position(|axis| matches!(axis, Axis::Pos | Axis::Query))
}
