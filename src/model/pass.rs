//! What stays the same throughout one forward pass.

use burn::tensor::{Device, Tensor};

use super::points::Points;
use super::rotary::RotaryTable;
use super::sequence::{Masks, Sequence};
use crate::config::{Positional, TransformerConfig};

/// Shared state of one forward pass: the layout of the batch and what is derived from it.
#[derive(Debug)]
pub(crate) struct Pass<'p> {
    pub(crate) config: &'p TransformerConfig,
    pub(crate) points: &'p Points,
    pub(crate) sequence: &'p Sequence,
    pub(crate) masks: Masks<'p>,
    pub(crate) rotary: Option<RotaryTable>,
    /// Position vectors that queries and keys read, `[batch or 1, pos, d_model]`.
    pub(crate) shortformer: Option<Tensor<3>>,
}

impl<'p> Pass<'p> {
    pub(crate) fn new(
        config: &'p TransformerConfig,
        points: &'p Points,
        sequence: &'p Sequence,
        device: &Device,
    ) -> Self {
        let rotary = match &config.positional {
            Positional::Rotary(rotary) => Some(RotaryTable::new(rotary, sequence, device)),
            _ => None,
        };
        let masks = Masks::new(sequence, config.bidirectional, device);
        Self { config, points, sequence, masks, rotary, shortformer: None }
    }
}
