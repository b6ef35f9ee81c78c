//! What stays the same throughout one forward pass.

use burn::tensor::{DType, Device, Tensor};

use super::points::Points;
use super::rotary::RotaryTable;
use super::sequence::{Masks, Sequence};
use crate::config::{Rotary, TransformerConfig};
use crate::kv_cache::KeyValueCache;

/// Shared state of one forward pass: the layout of the batch and what is derived from it.
#[derive(Debug)]
pub(crate) struct Pass<'p> {
    pub(crate) config: &'p TransformerConfig,
    pub(crate) points: &'p Points,
    pub(crate) sequence: &'p Sequence,
    pub(crate) masks: Masks<'p>,
    /// Rotation of the run's queries and keys. Keys of a cache are rotated already.
    rotary: Vec<(&'p Rotary, RotaryTable)>,
    /// What runs before this one left to attend to.
    pub(crate) kv_cache: Option<&'p mut KeyValueCache>,
    /// Added to the scores of every layer, `[batch or 1, head, query, key]` (T5).
    pub(crate) score_bias: Option<Tensor<4>>,
    /// Position vectors that queries and keys read, `[batch or 1, pos, d_model]`.
    pub(crate) shortformer: Option<Tensor<3>>,
}

impl<'p> Pass<'p> {
    pub(crate) fn new(
        config: &'p TransformerConfig,
        points: &'p Points,
        sequence: &'p Sequence,
        kv_cache: Option<&'p mut KeyValueCache>,
        device: &Device,
        dtype: DType,
    ) -> Self {
        let mut rotary: Vec<(&Rotary, RotaryTable)> = Vec::new();
        for own in (0..config.n_layers).filter_map(|layer| config.rotary(layer)) {
            if !rotary.iter().any(|(made, _)| *made == own) {
                let positions = sequence.query_positions();
                rotary.push((own, RotaryTable::new(own, &positions, sequence.position_rows(), device, dtype)));
            }
        }
        let masks = Masks::new(sequence, config.bidirectional, device);
        Self { config, points, sequence, masks, rotary, kv_cache, score_bias: None, shortformer: None }
    }

    /// Rotation of a layer's queries and keys, if it rotates them.
    pub(crate) fn rotary(&self, layer: usize) -> Option<&RotaryTable> {
        let own = self.config.rotary(layer)?;
        self.rotary.iter().find(|(made, _)| *made == own).map(|(_, table)| table)
    }
}
