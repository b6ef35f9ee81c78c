//! What stays the same throughout one forward pass.

use burn::tensor::{DType, Device, Tensor};

use super::points::Points;
use super::rotary::RotaryTable;
use super::sequence::{Masks, Sequence};
use crate::config::{Positional, TransformerConfig};
use crate::kv_cache::KeyValueCache;

/// Shared state of one forward pass: the layout of the batch and what is derived from it.
#[derive(Debug)]
pub(crate) struct Pass<'p> {
    pub(crate) config: &'p TransformerConfig,
    pub(crate) points: &'p Points,
    pub(crate) sequence: &'p Sequence,
    pub(crate) masks: Masks<'p>,
    /// Rotation of the run's queries and keys. Keys of a cache are rotated already.
    pub(crate) rotary: Option<RotaryTable>,
    /// What runs before this one left to attend to.
    pub(crate) kv_cache: Option<&'p mut KeyValueCache>,
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
        let rotary = match &config.positional {
            Positional::Rotary(rotary) => {
                let positions = sequence.query_positions();
                Some(RotaryTable::new(rotary, &positions, sequence.position_rows(), device, dtype))
            }
            _ => None,
        };
        let masks = Masks::new(sequence, config.bidirectional, device);
        Self { config, points, sequence, masks, rotary, kv_cache, shortformer: None }
    }
}
