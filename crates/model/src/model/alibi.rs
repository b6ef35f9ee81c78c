//! ALiBi: attention with linear biases (Press et al. 2021).

use burn::tensor::{DType, Device, Tensor, TensorData};
use half::bf16;
use hooklens_hooks::upload;

/// Slope for each head: a geometric sequence whose first term and ratio are both `2^(-bias_max / heads)`. If the number
/// of heads is not a power of two, the slopes for the next lower power of two come first, followed by every other slope
/// for the next higher one.
pub(crate) fn slopes(heads: usize, bias_max: f64) -> Vec<f64> {
    let sequence = |count: usize| (1..=count).map(move |i| 2f64.powf(-bias_max * i as f64 / count as f64));
    let below = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    let above = sequence(2 * below).step_by(2);
    sequence(below).chain(above).take(heads).collect()
}

/// The slopes as `[1, head, 1, 1]`.
pub(crate) fn slope_tensor((heads, bias_max): (usize, f64), device: &Device, dtype: DType) -> Tensor<4> {
    upload(TensorData::new(slopes(heads, bias_max), [1, heads, 1, 1]), (device, dtype))
}

/// Falcon's ALiBi biases, added to the scores before the softmax, `[row, head, 1, key]`. Rounded to bf16 as in Falcon's
/// code. `positions` holds the key positions of `rows` rows.
pub(crate) fn scaled_biases(
    heads: usize,
    divisor: f64,
    (positions, rows): (&[u32], usize),
    (device, dtype): (&Device, DType),
) -> Tensor<4> {
    let keys = positions.len() / rows.max(1);
    let slopes: Vec<bf16> = slopes(heads, 8.0).into_iter().map(bf16::from_f64).collect();
    let mut biases = Vec::with_capacity(rows * heads * keys);
    for row in positions.chunks(keys.max(1)) {
        for slope in &slopes {
            biases.extend(row.iter().map(|at| (*slope * bf16::from_f64(f64::from(*at))).to_f64() / divisor));
        }
    }
    upload(TensorData::new(biases, [rows, heads, 1, keys]), (device, dtype))
}

#[cfg(test)]
mod tests {
    #[test]
    fn slopes_of_powers_of_two_and_of_others() {
        let slopes = |heads| super::slopes(heads, 8.0);
        assert_eq!(slopes(8), [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]);
        let six = slopes(6);
        assert_eq!(six[..4], slopes(4)[..]);
        assert_eq!(six[4..], [slopes(8)[0], slopes(8)[2]]);
        assert_eq!(super::slopes(4, 16.0), [0.0625, 0.00390625, 0.000244140625, 0.0000152587890625]);
    }
}
