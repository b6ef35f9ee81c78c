//! Recurrent states of gated delta nets, Mamba 2, and short convolutions, which a cache holds instead of keys and
//! values or in addition to them.

use burn::tensor::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

use super::keys::select_rows;
use super::{Entry, KeyValueCache};
use crate::config::{GatedDelta, MixerConfig, ShortConv, StateSpace, TransformerConfig};
use crate::error::CacheError;

/// Recurrent state of a layer's gated delta net, Mamba 2, or short convolution.
#[derive(Debug, Clone)]
pub(crate) struct RecurrentState {
    /// Convolution inputs of the last positions (for a gated delta net: queries, keys, and values), `[batch, width - 1,
    /// channel]`.
    pub(crate) before: Tensor<3>,
    /// Memory matrices of the heads, `[batch, value_head, d_key, d_value]`; for Mamba 2 `[batch, head, d_state,
    /// d_head]`. A short convolution has no memory, only a zero, `[batch, 1, 1, 1]`.
    pub(crate) memory: Tensor<4>,
}

/// Sizes of a layer's recurrent state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StateShape {
    /// `[position, channel]` of the convolution inputs.
    pub(crate) before: [usize; 2],
    /// `[value_head, d_key, d_value]` of the memory.
    pub(crate) memory: [usize; 3],
}

impl StateShape {
    /// Describes what a layer caches: a recurrent state of this shape, or keys and values if `state` is `None`.
    pub(crate) fn described(state: Option<Self>) -> String {
        let of = |Self { before, memory }: Self| format!("a recurrent state of {before:?} and {memory:?} values");
        state.map_or("keys and values".into(), of)
    }

    /// State shape of a gated delta net.
    pub(crate) fn of_net(net: GatedDelta) -> Self {
        Self { before: [net.width - 1, net.channels()], memory: [net.n_value_heads, net.d_key, net.d_value] }
    }

    /// State shape of a Mamba 2 state space.
    pub(crate) fn of_space(space: StateSpace) -> Self {
        Self { before: [space.width - 1, space.channels()], memory: [space.n_heads, space.d_state, space.d_head] }
    }

    /// State shape of a short convolution with this number of channels. The memory is a placeholder with one element.
    pub(crate) fn of_convolution(conv: ShortConv, channels: usize) -> Self {
        Self { before: [conv.width - 1, channels], memory: [1, 1, 1] }
    }

    /// Kernel width of the convolution.
    pub(crate) fn width(self) -> usize {
        self.before[0] + 1
    }

    /// State shape of a model's layer, if it has a recurrent state.
    pub(super) fn of(config: &TransformerConfig, layer: usize) -> Option<Self> {
        match config.layers.get(layer)?.mixer {
            MixerConfig::GatedDeltaNet(net) => Some(Self::of_net(net)),
            MixerConfig::Mamba2(space) | MixerConfig::AttentionAndMamba2(_, space) => Some(Self::of_space(space)),
            MixerConfig::ShortConvolution(conv) => Some(Self::of_convolution(conv, config.d_model)),
            MixerConfig::Attention(_) | MixerConfig::None => None,
        }
    }
}

impl RecurrentState {
    /// Creates a state from convolution inputs and memory.
    pub(crate) fn new(before: Tensor<3>, memory: Tensor<4>) -> Self {
        Self { before, memory }
    }

    /// The state before the first position, which is all zeros.
    pub(crate) fn empty(batch: usize, shape: StateShape, device: &Device, dtype: DType) -> Self {
        let StateShape { before: [positions, channels], memory: [heads, d_key, d_value] } = shape;
        let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
        Self {
            before: Tensor::zeros([batch, positions, channels], (device, dtype)),
            memory: Tensor::zeros([batch, heads, d_key, d_value], (device, wide)),
        }
    }

    /// Convolution inputs and memory, in the shapes in which files store them.
    fn stored_tensors(&self) -> (Tensor<4>, Tensor<4>) {
        (self.before.clone().unsqueeze_dim(2), self.memory.clone())
    }

    pub(super) fn rows(&self) -> usize {
        self.memory.dims()[0]
    }

    pub(super) fn bytes(&self) -> usize {
        let of = |elements: usize, dtype: DType| elements * dtype.size();
        of(self.before.shape().num_elements(), self.before.dtype())
            + of(self.memory.shape().num_elements(), self.memory.dtype())
    }

    /// Selects rows, in the given order.
    pub(super) fn select(&self, rows: &[usize]) -> Self {
        Self { before: select_rows(self.before.clone(), rows), memory: select_rows(self.memory.clone(), rows) }
    }

    /// Repeats a single row for a batch.
    fn for_rows(self, batch: usize) -> Self {
        if self.rows() == batch { self } else { self.select(&vec![0; batch]) }
    }

    /// An all-zero state with this number of rows.
    fn nothing_in(&self, rows: usize) -> Self {
        let Self { before, memory } = self.select(&vec![0; rows]);
        Self { before: before.zeros_like(), memory: memory.zeros_like() }
    }

    /// Returns a copy in which another state's rows replace the same number of rows, starting at `row`.
    fn with_rows(&self, row: usize, other: &Self) -> Self {
        let rows = row..row + other.rows();
        Self {
            before: self.before.clone().slice_assign([rows.clone()], other.before.clone()),
            memory: self.memory.clone().slice_assign([rows], other.memory.clone()),
        }
    }
}

impl Entry {
    /// The layer's recurrent state, if it has one and has seen any positions.
    pub(super) fn state(&self) -> Option<&RecurrentState> {
        self.state.as_ref()
    }

    /// Whether the layer has a recurrent state.
    pub(super) fn has_state(&self) -> bool {
        self.recurrent.is_some()
    }

    /// The tensors that a file stores for the layer: keys and values, or the two parts of its state.
    pub(super) fn stored_tensors(&self) -> Result<Option<(Tensor<4>, Tensor<4>)>, CacheError> {
        match &self.state {
            Some(state) if !self.has_keys() => Ok(Some(state.stored_tensors())),
            _ => self.joined(),
        }
    }

    /// The two parts of the recurrent state, if the layer also has keys and values.
    pub(super) fn stored_state(&self) -> Option<(Tensor<4>, Tensor<4>)> {
        self.state.as_ref().filter(|_| self.has_keys()).map(RecurrentState::stored_tensors)
    }

    /// Sets the state after a run of new positions. The old state is kept until the run succeeds.
    fn advance(&mut self, state: RecurrentState, shape: [usize; 2]) -> Result<(), CacheError> {
        let first = self.len == 0;
        if self.has_keys() {
            // The layer's attention has already advanced the length.
            self.check_rows(shape[0])?;
        } else {
            self.pass_over(shape)?;
        }
        if self.frozen {
            return Ok(());
        }
        if first {
            self.came_from = Some(state.memory.device());
        }
        let before = self.state.replace(state);
        self.before_run.get_or_insert(before);
        Ok(())
    }

    /// Returns a copy of the state in which the rows of another entry's state replace the same number of rows, starting
    /// at `row`. The state of an entry that has seen no positions is all zeros.
    pub(super) fn state_with_rows(&self, row: usize, other: &Entry) -> Option<RecurrentState> {
        let like = self.state.as_ref().or(other.state.as_ref())?;
        let or_nothing = |entry: &Entry| entry.state.clone().unwrap_or_else(|| like.nothing_in(entry.batch));
        Some(or_nothing(self).with_rows(row, &or_nothing(other)))
    }
}

impl KeyValueCache {
    /// The state that a layer continues from, with one row per batch row; `None` before the first position.
    pub(crate) fn state(&self, layer: usize, batch: usize) -> Result<Option<RecurrentState>, CacheError> {
        let entry = &self.entries[layer];
        entry.check_rows(batch)?;
        Ok(entry.state.clone().map(|state| state.for_rows(batch)))
    }

    /// Sets a layer's state after the new positions. If the run fails, the state is rolled back.
    pub(crate) fn advance(&mut self, layer: usize, state: RecurrentState, new: [usize; 2]) -> Result<(), CacheError> {
        self.entries[layer].advance(state, new)
    }

    /// Returns an error if a layer has a recurrent state, which can't be restored to an earlier position.
    pub(super) fn check_without_states(&self, what: &'static str) -> Result<(), CacheError> {
        match self.entries.iter().position(Entry::has_state) {
            Some(layer) => Err(CacheError::State { what, layer }),
            None => Ok(()),
        }
    }
}
