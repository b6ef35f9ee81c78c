//! Running any model: plans and checks a run, calls the forward pass, and collects the recordings.

use std::sync::Arc;

use burn::tensor::{DType, Device};
use hooklens_hooks::{ActivationCache, Axis, Halt, Hook, ModelIdentity, Record, Rows, Run, Silent, TextHashes};

use crate::config::{Layers, MixerConfig, TransformerConfig};
use crate::device::{check_element_type, check_room};
use crate::error::Result;
use crate::points::Points;

/// Minimum number of attention score elements for which memory is checked. For fewer, it is not worth the time to find
/// out whether the scores are observed.
const LARGE: usize = 1 << 26;

/// What [`execute`] needs to know about a run before the forward pass.
pub struct Plan<'p> {
    pub(crate) points: &'p Points,
    /// The device on which the run starts.
    pub(crate) device: Device,
    /// The element type of activations.
    pub(crate) dtype: DType,
    pub(crate) rows: Rows<'p>,
    /// Returns the reason why a point does not fire in this run.
    pub(crate) silent: Silent<'p>,
    /// Maximum number of elements in activations that are alive at the same time.
    pub(crate) at_once: usize,
    /// Configuration of the blocks. For a model with two stacks, the configuration of the larger stack.
    pub(crate) shape: &'p TransformerConfig,
    /// Returns the model's identity, for recordings and for hooks tied to a model.
    pub(crate) model: &'p dyn Fn() -> Arc<ModelIdentity>,
    /// Returns a hash of each row's text, if the tokens are known.
    pub(crate) texts: &'p dyn Fn() -> Option<Vec<TextHashes>>,
    /// Whether the run ends after the last watched point.
    pub(crate) stop_when_done: bool,
}

impl std::fmt::Debug for Plan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").finish_non_exhaustive()
    }
}

/// Runs the forward pass with the plan's hooks, recordings, and parts. With `stop_when_done`, returns only the
/// recordings.
pub fn execute<T>(
    plan: Plan<'_>,
    hooks: &mut [Hook<'_>],
    record: Record,
    pass: impl FnOnce(&mut Run<'_, '_>) -> Result<T, Halt>,
) -> Result<(Option<T>, ActivationCache)> {
    let Plan { points, device, dtype, rows, silent, at_once, shape, model, texts, stop_when_done } = plan;
    let length = |layer, axis| length(shape, layer, axis);
    check_element_type(&device, dtype)?;
    check_room(&device, at_once.saturating_mul(dtype.size()))?;
    let pattern = [rows.len, rows.len.saturating_add(rows.offset), length(None, Axis::Head)]
        .into_iter()
        .fold(rows.batch, usize::saturating_mul);
    let mut run = Run::new(&points.catalog, hooks, record, rows, silent)?.with(&points.splices, silent)?;
    if run.needs_model() {
        run = run.made_by(model(), texts())?;
    }
    // Scores are materialized only if they or the patterns are observed. The factor of two accounts for the softmax.
    if pattern >= LARGE
        && points.catalog.ids().any(|id| points.catalog.info(id).axes.contains(&Axis::Key) && run.wants(Some(id)))
    {
        check_room(&device, pattern.saturating_mul(2 * dtype.size()))?;
    }
    // The size of the recordings is known before the run. Recordings may have their own device and element type.
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

/// Length of an axis other than batch and positions, at a point of the given layer, or outside the blocks if `layer` is
/// `None`. The length is 0 if it is known only during the run.
pub fn length(c: &TransformerConfig, layer: Option<usize>, axis: Axis) -> usize {
    let [widest, widest_value] = c.widest_heads();
    let d_head = layer.map_or(widest, |layer| c.d_head_of(layer));
    let state = layer.and_then(|layer| StateAxes::of(c, layer));
    if let Some(length) = state.and_then(|own| own.length(axis)) {
        return length;
    }
    match axis {
        Axis::Head => c.n_heads,
        Axis::KvHead => layer.map_or(c.n_kv_heads(), |layer| c.n_kv_heads_of(layer)),
        Axis::DHead => d_head,
        Axis::DValue => layer.map_or(widest_value, |layer| c.d_value_of(layer)),
        Axis::QRank => c.latent.and_then(|latent| latent.q_rank).unwrap_or(0),
        Axis::KvRank => c.latent.map_or(0, |latent| latent.kv_rank),
        Axis::DRope => c.latent.map_or(0, |latent| latent.d_rope),
        Axis::DModel => c.d_model,
        Axis::DMlp => layer.map_or(c.d_mlp(), |layer| c.d_mlp_of(layer)),
        Axis::HeadDHead => c.n_heads.saturating_mul(d_head),
        Axis::Vocab => c.d_vocab_out,
        Axis::DShared => c.experts().and_then(|experts| experts.shared).map_or(0, |shared| shared.d_mlp),
        Axis::DPerLayer => c.per_layer_inputs.map_or(0, |own| own.width),
        Axis::Expert => c.experts().map_or(0, |experts| experts.count),
        Axis::AttnExpert => c.attn_experts.map_or(0, |experts| experts.count),
        Axis::Choice => c.experts().map_or(0, |experts| experts.per_token),
        _ => 0,
    }
}

/// Axis lengths of a layer with a recurrent state.
#[derive(Debug, Clone, Copy)]
struct StateAxes {
    key_heads: usize,
    value_heads: usize,
    d_key: usize,
    d_value: usize,
    channels: usize,
}

impl StateAxes {
    /// The axis lengths of a layer, if it has a recurrent state.
    fn of(c: &TransformerConfig, layer: usize) -> Option<Self> {
        let [key_heads, value_heads, d_key, d_value, channels] = match c.layers.get(layer)?.mixer {
            MixerConfig::GatedDeltaNet(net) => {
                [net.n_key_heads, net.n_value_heads, net.d_key, net.d_value, net.channels()]
            }
            MixerConfig::Mamba2(space) | MixerConfig::AttentionAndMamba2(_, space) => {
                [space.n_groups, space.n_heads, space.d_state, space.d_head, space.channels()]
            }
            MixerConfig::ShortConvolution(_) => [0, 1, 0, c.d_model, c.d_model],
            MixerConfig::Attention(_) | MixerConfig::None => return None,
        };
        Some(Self { key_heads, value_heads, d_key, d_value, channels })
    }

    /// Length of an axis that exists only at recurrent layers' points, or that has a different length there.
    fn length(self, axis: Axis) -> Option<usize> {
        match axis {
            Axis::KeyHead => Some(self.key_heads),
            Axis::ValueHead => Some(self.value_heads),
            Axis::DKey => Some(self.d_key),
            Axis::DValue => Some(self.d_value),
            Axis::Channel => Some(self.channels),
            _ => None,
        }
    }
}
