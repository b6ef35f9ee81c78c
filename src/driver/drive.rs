//! One run of any model: plan and check it, run the forward pass, give the recordings.

use burn::tensor::{DType, Device};
use hooklens_hooks::{ActivationCache, Axis, Halt, Hook, Record, Rows, Run, Silent};

use crate::config::TransformerConfig;
use crate::device::{check_element_type, check_room};
use crate::error::Result;
use crate::points::Points;

/// Elements of scores below which a look for their watchers is not worth it.
const LARGE: usize = 1 << 26;

/// The plan of a run before its forward pass.
pub(crate) struct Plan<'p> {
    pub(crate) points: &'p Points,
    /// Where the run begins.
    pub(crate) device: Device,
    /// The element type of activations.
    pub(crate) dtype: DType,
    pub(crate) rows: Rows<'p>,
    /// Why a point does not fire in this run, if it does not.
    pub(crate) silent: Silent<'p>,
    /// Elements of the largest tensors that are alive at one time.
    pub(crate) at_once: usize,
    /// The shape of the blocks, the larger of two stacks.
    pub(crate) shape: &'p TransformerConfig,
    /// Whether the run ends with the last point that is watched.
    pub(crate) stop_when_done: bool,
}

/// Runs the forward pass under the plan's hooks, recordings and parts. A run that stops when it is done gives only its
/// recordings.
pub(crate) fn drive<T>(
    plan: Plan<'_>,
    hooks: &mut [Hook<'_>],
    record: Record,
    pass: impl FnOnce(&mut Run<'_, '_>) -> Result<T, Halt>,
) -> Result<(Option<T>, ActivationCache)> {
    let Plan { points, device, dtype, rows, silent, at_once, shape, stop_when_done } = plan;
    let length = |axis| length(shape, axis);
    check_element_type(&device, dtype)?;
    check_room(&device, at_once.saturating_mul(dtype.size()))?;
    let pattern = [rows.len, rows.len.saturating_add(rows.offset), length(Axis::Head)]
        .into_iter()
        .fold(rows.batch, usize::saturating_mul);
    let mut run = Run::new(&points.catalog, hooks, record, rows, silent)?.with(&points.splices, silent)?;
    // Scores are made whole only where they, or patterns, are watched: beside them stands their softmax.
    if pattern >= LARGE
        && points.catalog.ids().any(|id| points.catalog.info(id).axes.contains(&Axis::Key) && run.wants(Some(id)))
    {
        check_room(&device, pattern.saturating_mul(2 * dtype.size()))?;
    }
    // What the run keeps is known before it begins; recordings on another device, or of another type, are their own.
    let kept =
        run.elements_recorded(&length).saturating_mul(run.recorded_type().map_or(dtype.size(), |own| own.size()));
    check_room(&run.recorded_device().unwrap_or(device.clone()), kept)?;
    if stop_when_done {
        run.stop_when_done();
    }
    #[cfg(feature = "libtorch")]
    let _alone = crate::cpu::OneThread::for_kernels_on(&device, dtype);
    let given = match pass(&mut run) {
        Ok(given) => Some(given),
        Err(Halt::Done) => None,
        Err(halt) => return Err(halt.into()),
    };
    Ok((given, run.finish()?))
}

/// The length of a point's axis that is neither batch nor positions; 0 where it is known only in the run.
pub(crate) fn length(c: &TransformerConfig, axis: Axis) -> usize {
    match axis {
        Axis::Head => c.n_heads,
        Axis::KvHead => c.n_kv_heads,
        Axis::DHead => c.d_head,
        Axis::DValue => c.d_value(),
        Axis::QRank => c.latent.and_then(|latent| latent.q_rank).unwrap_or(0),
        Axis::KvRank => c.latent.map_or(0, |latent| latent.kv_rank),
        Axis::DRope => c.latent.map_or(0, |latent| latent.d_rope),
        Axis::DModel => c.d_model,
        Axis::DMlp => c.d_mlp,
        Axis::HeadDHead => c.n_heads.saturating_mul(c.d_head),
        Axis::Vocab => c.d_vocab_out,
        Axis::DShared => c.experts.and_then(|experts| experts.shared).map_or(0, |shared| shared.d_mlp),
        Axis::Expert => c.experts.map_or(0, |experts| experts.count),
        Axis::Choice => c.experts.map_or(0, |experts| experts.per_token),
        _ => 0,
    }
}
