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
    /// Rotation of queries and of keys.
    pub(crate) rotary: Option<[RotaryTable; 2]>,
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
        let rows = sequence.position_rows();
        let table = |rotary, positions: Vec<u32>| RotaryTable::new(rotary, &positions, rows, device, dtype);
        let rotary = match &config.positional {
            Positional::Rotary(rotary) => {
                let keys = table(rotary, sequence.key_positions());
                let queries = if sequence.past == 0 { keys.clone() } else { table(rotary, sequence.query_positions()) };
                Some([queries, keys])
            }
            _ => None,
        };
        let masks = Masks::new(sequence, config.bidirectional, device);
        Self { config, points, sequence, masks, rotary, kv_cache, shortformer: None }
    }
}
