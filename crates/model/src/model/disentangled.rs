//! Disentangled attention (DeBERTa, He et al. 2021): content-to-position and position-to-content scores.

use burn::tensor::{Int, Tensor};

use super::norm::widened;
use super::position_bias::relative_ids;
use super::sequence::Sequence;
use crate::kv_cache::heads_first;

/// DeBERTa 2's buckets of relative positions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogBuckets {
    /// Half the number of buckets.
    pub(crate) span: usize,
    /// Positions at this distance or farther share the last bucket in their direction. `None` if far distances are not
    /// grouped logarithmically.
    pub(crate) max_distance: Option<usize>,
}

impl LogBuckets {
    /// Bucket of `key - query`, computed in `f32` as in Hugging Face.
    fn of(self, distance: i64) -> usize {
        let back = -distance;
        let middle = self.span / 2;
        let far = back.unsigned_abs() as usize;
        let moved = match self.max_distance {
            Some(max_distance) if far > middle => {
                let share =
                    (far as f32 / middle as f32).ln() / (((max_distance - 1) as f64 / middle as f64) as f32).ln();
                back.signum() * ((share * (middle - 1) as f32).ceil() as i64 + middle as i64)
            }
            _ => back,
        };
        (moved + self.span as i64).clamp(0, 2 * self.span as i64 - 1) as usize
    }

    /// Bucket of each query-key pair, `[batch or 1, 1, query, key]`.
    pub(crate) fn numbers(self, sequence: &Sequence, like: &Tensor<2>) -> Tensor<4, Int> {
        let shape = [sequence.position_rows(), 1, sequence.len, sequence.keys()];
        relative_ids(sequence, |distance| self.of(distance), &like.device()).reshape(shape)
    }
}

/// Projected relative position embeddings for one layer's queries and keys.
#[derive(Debug)]
pub(crate) struct Disentangled {
    /// Position keys for content queries, `[bucket, head * d_head]`.
    pub(crate) keys: Option<Tensor<2>>,
    /// Position queries for content keys, `[bucket, head * d_head]`.
    pub(crate) queries: Option<Tensor<2>>,
    /// Bucket of each query-key pair, `[batch or 1, 1, query, key]`.
    pub(crate) numbers: Tensor<4, Int>,
}

impl Disentangled {
    /// Bias added to the scores, `[batch, head, query, key]`, in `f32` or wider.
    ///
    /// # Shapes
    /// - queries and keys: `[batch, pos, head, d_head]`
    pub(crate) fn bias(&self, q: &Tensor<4>, k: &Tensor<4>, divisor: f64) -> Tensor<4> {
        let ([batch, queries, heads, d_head], keys) = (q.dims(), k.dims()[1]);
        // Scores of each vector against all buckets, `[batch, head, pos, bucket]`.
        let met = |by: &Tensor<4>, positions: &Tensor<2>| {
            let count = positions.dims()[0];
            let positions = widened(positions.clone()).reshape([1, count, heads, d_head]).permute([0, 2, 3, 1]);
            (heads_first(widened(by.clone())) / divisor).matmul(positions)
        };
        let content = self
            .keys
            .as_ref()
            .map(|positions| met(q, positions).gather(3, self.numbers.clone().expand([batch, heads, queries, keys])));
        let position = self.queries.as_ref().map(|positions| {
            let numbers = self.numbers.clone().swap_dims(2, 3).expand([batch, heads, keys, queries]);
            met(k, positions).gather(3, numbers).swap_dims(2, 3)
        });
        match (content, position) {
            (Some(content), Some(position)) => content + position,
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => Tensor::zeros([batch, heads, queries, keys], (&q.device(), widened(q.clone()).dtype())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from `make_log_bucket_position` in `transformers`, with 256 buckets up to distance 512 (DeBERTa 3), and
    /// without logarithmic buckets.
    #[test]
    fn numbers_are_hugging_faces() {
        let far = LogBuckets { span: 256, max_distance: Some(512) };
        let back = [0, 1, -1, 127, 128, 130, -129, 140, 200, -200, 300, 400, -511, 512, 900];
        assert_eq!(
            back.map(|back| far.of(-back) as i64 - 256),
            [0, 1, -1, 127, 128, 130, -129, 137, 169, -169, 207, 233, -255, 255, 255]
        );
        let near = LogBuckets { span: 4, max_distance: None };
        assert_eq!([-9, -3, 0, 1, 4, 7].map(|distance| near.of(distance)), [7, 7, 4, 3, 0, 0]);
    }
}
