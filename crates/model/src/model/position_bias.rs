//! Relative position bias of T5 and MPNet: a learned score bias for each distance bucket.

use burn::tensor::{Device, Int, Tensor, TensorData};

use super::norm::widened;
use super::sequence::Sequence;

/// Assignment of distances to buckets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buckets {
    pub(crate) count: usize,
    pub(crate) max_distance: usize,
    /// Whether later keys have separate buckets instead of all sharing bucket 0.
    pub(crate) bidirectional: bool,
}

impl Buckets {
    /// Bucket of `key - query`: exact for small distances, logarithmic for larger ones up to `max_distance` (Raffel et
    /// al. 2020, computed in `f32` as in Hugging Face).
    fn of(self, distance: i64) -> usize {
        let (count, after) = match self.bidirectional {
            true => (self.count / 2, if distance > 0 { self.count / 2 } else { 0 }),
            false => (self.count, 0),
        };
        let far = if self.bidirectional { distance.unsigned_abs() } else { (-distance).max(0).unsigned_abs() };
        let exact = count / 2;
        if (far as usize) < exact {
            return after + far as usize;
        }
        let share = (far as f32 / exact as f32).ln() / (self.max_distance as f32 / exact as f32).ln();
        after + (exact + (share * (count - exact) as f32) as usize).min(count - 1)
    }
}

/// Bias added to each head's scores, `[batch or 1, head, query, key]`, in `f32` or wider.
///
/// # Shapes
/// - table: `[bucket, head]`
pub(crate) fn position_bias(table: Tensor<2>, sequence: &Sequence, buckets: Buckets) -> Tensor<4> {
    let heads = table.dims()[1];
    let (rows, queries, keys) = (sequence.position_rows(), sequence.len, sequence.keys());
    let ids = relative_ids(sequence, |distance| buckets.of(distance), &table.device());
    widened(table.select(0, ids)).reshape([rows, queries, keys, heads]).permute([0, 3, 1, 2])
}

/// Applies a function to `key - query` for each query and key, `[(batch or 1) * query * key]`.
pub(crate) fn relative_ids(sequence: &Sequence, of: impl Fn(i64) -> usize, device: &Device) -> Tensor<1, Int> {
    let (rows, queries, keys) = (sequence.position_rows(), sequence.len, sequence.keys());
    let (query, key) = (sequence.query_positions(), sequence.key_positions());
    let mut ids = Vec::with_capacity(rows * queries * keys);
    for row in 0..rows {
        for query in &query[row * queries..(row + 1) * queries] {
            let own = key[row * keys..(row + 1) * keys].iter();
            ids.extend(own.map(|key| of(i64::from(*key) - i64::from(*query)) as i32));
        }
    }
    Tensor::from_data(TensorData::new(ids, [rows * queries * keys]), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from `_relative_position_bucket` in `transformers`, with 32 buckets up to distance 128.
    #[test]
    fn buckets_are_hugging_faces() {
        let both = Buckets { count: 32, max_distance: 128, bidirectional: true };
        let distances = [0, -1, -7, -8, -11, -12, -15, -16, -32, -64, -91, -127, -128, -500, 1, 7, 8, 16, 64, 200];
        let expected = [0, 1, 7, 8, 8, 9, 9, 10, 12, 14, 15, 15, 15, 15, 17, 23, 24, 26, 30, 31];
        assert_eq!(distances.map(|d| both.of(d)), expected);
        let causal = Buckets { bidirectional: false, ..both };
        assert_eq!(
            [3, 0, -1, -15, -16, -20, -32, -64, -127, -400].map(|d| causal.of(d)),
            [0, 0, 1, 15, 16, 17, 21, 26, 31, 31]
        );
    }
}
