//! Work done by a forward pass: bytes of weights read, and arithmetic operations in matrix products with them.

use serde::Serialize;

use hooklens_model::config::Layers;
use hooklens_model::model::{HookedTransformer, Linear, ModelParts};

/// Bytes of weights read, and floating-point operations in matrix products with weights. Attention scores and values
/// are not counted.
///
/// ```
/// use hooklens_cli::benchmark::{Work, measure};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let decoding = &measure(&model, Work::Decode, 1)?[0];
/// // For each token, every weight is read once and takes part in one multiplication and one addition.
/// assert!(decoding.amount.is_some_and(|amount| amount.flops == amount.bytes / 4.0 * 2.0));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Amount {
    /// Bytes of weights read, counting each weight once per pass.
    pub bytes: f64,
    /// Number of additions and multiplications.
    pub flops: f64,
}

impl Amount {
    /// Work of a forward pass over `tokens` tokens that computes all logits.
    pub(super) fn of_pass(model: &HookedTransformer, tokens: usize) -> Self {
        let mut sum = Amount { bytes: 0.0, flops: 0.0 };
        let weights = model.parts();
        for block in &weights.blocks {
            block.mixer_maps().for_each(|map| sum.add(map, tokens as f64, 1.0));
            if let Some(mlp) = block.dense_mlp() {
                [&mlp.input, &mlp.output].into_iter().chain(&mlp.gate).for_each(|map| sum.add(map, tokens as f64, 1.0));
            }
            let per_layer = block.per_layer.iter().flat_map(|own| own.maps());
            per_layer.for_each(|map| sum.add(map, tokens as f64, 1.0));
            if let (Some(moe), Some(mixture)) = (block.moe(), model.config().experts()) {
                sum.add(&moe.router, tokens as f64, 1.0);
                let routed = (tokens * mixture.per_token) as f64 / mixture.count as f64;
                for expert in &moe.experts {
                    expert.maps().for_each(|map| sum.add(map, routed, routed.min(1.0)));
                }
                let shared = moe.shared.iter().flat_map(|shared| shared.maps());
                shared.for_each(|map| sum.add(map, tokens as f64, 1.0));
            }
        }
        if let Some(own) = &weights.per_layer_embed {
            sum.add(&own.projection, tokens as f64, 1.0);
        }
        sum.add(&weights.unembed, tokens as f64, 1.0);
        sum
    }

    /// Adds the work of multiplying `rows` input rows by a weight that is read `read` times.
    fn add(&mut self, map: &Linear, rows: f64, read: f64) {
        let elements = map.shape().iter().product::<usize>() as f64;
        self.flops += 2.0 * rows * elements;
        self.bytes += read * map.size() as f64;
    }

    /// Total work of `passes` consecutive passes.
    pub(super) fn times(self, passes: f64) -> Self {
        Self { bytes: passes * self.bytes, flops: passes * self.flops }
    }
}
