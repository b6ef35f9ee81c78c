//! Activations rounded to 8 bits, as llama.cpp rounds them before it multiplies them by quantized weights.

/// How a format's activations are rounded: each block has a scale, and its values are integers from -127 to 127.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rounding {
    /// Values per block: 32 (ggml's `Q8_0` and `Q8_1`) or 256 (`Q8_K`).
    pub(crate) block: usize,
    /// Whether the sum of a block, by which the weights' minimum is multiplied, is rounded to 16 bits (`Q8_1`).
    pub(crate) half_sums: bool,
}

/// A block's values as integers with a common scale.
pub(crate) struct Rounded<const N: usize> {
    pub(crate) integers: [i8; N],
    /// NaN if a value is not finite.
    pub(crate) scale: f32,
    /// The scale before it was rounded to 16 bits.
    step: f32,
}

impl<const N: usize> Rounded<N> {
    /// The sum of some of the block's values, given as integers; rounded to 16 bits if `half`.
    pub(crate) fn sum(&self, integers: &[i8], half: bool) -> f32 {
        let total: i32 = integers.iter().map(|integer| i32::from(*integer)).sum();
        if half { half::f16::from_f32(self.step * total as f32).to_f32() } else { self.scale * total as f32 }
    }
}

impl Rounding {
    /// The rounding for products with a format whose blocks have `block` values.
    pub(crate) fn new(block: usize, half_sums: bool) -> Self {
        Self { block, half_sums }
    }

    /// Rounds values, which are whole blocks.
    pub(crate) fn round(self, x: &[f32], to: &mut [f32]) {
        match self.block {
            256 => round_blocks::<256>(x, to),
            _ => round_blocks::<32>(x, to),
        }
    }
}

fn round_blocks<const N: usize>(x: &[f32], to: &mut [f32]) {
    for (x, to) in x.as_chunks::<N>().0.iter().zip(to.as_chunks_mut::<N>().0) {
        let Rounded { integers, scale, .. } = rounded(x);
        to.iter_mut().zip(integers).for_each(|(to, integer)| *to = scale * f32::from(integer));
    }
}

/// The largest magnitude. `None` if a value is not finite.
#[inline(always)]
pub(crate) fn largest<const N: usize>(x: &[f32; N]) -> Option<f32> {
    let (mut largest, mut total) = ([0f32; 8], [0f32; 8]);
    for x in x.as_chunks::<8>().0 {
        for lane in 0..8 {
            let x = x[lane].abs();
            largest[lane] = if x > largest[lane] { x } else { largest[lane] };
            // Unlike the comparison, this notices NaN.
            total[lane] += x;
        }
    }
    // The sum of large values can be infinite, too.
    let finite = total.iter().sum::<f32>().is_finite() || x.iter().all(|x| x.is_finite());
    finite.then(|| largest.into_iter().fold(0.0, f32::max))
}

/// Rounds a block. Ties are rounded to even integers.
#[inline(always)]
pub(crate) fn rounded<const N: usize>(x: &[f32; N]) -> Rounded<N> {
    // Adding this to a float below 2²² leaves the nearest integer in the low bits.
    const TO_INTEGER: f32 = 12_582_912.0;
    let Some(largest) = largest(x) else {
        return Rounded { integers: [1; N], scale: f32::NAN, step: f32::NAN };
    };
    let inverse = if largest == 0.0 { 0.0 } else { 127.0 / largest };
    let (step, scale) = match N {
        256 if largest == 0.0 => (0.0, 0.0),
        256 => (1.0 / inverse, 1.0 / inverse),
        // `Q8_0` stores its scales in 16 bits.
        _ => (largest / 127.0, half::f16::from_f32(largest / 127.0).to_f32()),
    };
    let mut integers = [0; N];
    for (integer, x) in integers.iter_mut().zip(x) {
        *integer = (x * inverse + TO_INTEGER).to_bits() as i8;
    }
    Rounded { integers, scale, step }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(block: usize, x: &[f32]) -> Vec<f32> {
        let mut to = vec![0.0; x.len()];
        Rounding::new(block, false).round(x, &mut to);
        to
    }

    #[test]
    fn values_are_within_half_a_step_of_what_they_were() {
        for block in [32, 256] {
            let x: Vec<f32> = (0..512).map(|i| ((i * 37 % 101) as f32 - 50.0) * (1 + i / block) as f32).collect();
            for (x, rounded) in x.chunks(block).zip(round(block, &x).chunks(block)) {
                let largest = x.iter().fold(0f32, |most, x| most.max(x.abs()));
                // The scale of `Q8_0` is itself rounded to 11 bits.
                let most = largest / 254.0 + largest / 4096.0;
                assert!(x.iter().zip(rounded).all(|(x, rounded)| (x - rounded).abs() <= most), "{x:?}, {rounded:?}");
            }
        }
    }

    #[test]
    fn integers_times_a_power_of_two_stay_as_they_are() {
        for block in [32, 256] {
            let x: Vec<f32> = (0..256).map(|i| (i % 255 - 127) as f32 / 4.0).collect();
            assert_eq!(round(block, &[&x[..], &[0.0; 256]].concat())[..32], x[..32]);
            let zeros = round(block, &[0.0; 256]);
            assert_eq!(zeros, [0.0; 256]);
        }
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for wrong in [f32::NAN, f32::INFINITY] {
            let mut x = [1.0; 512];
            x[300] = wrong;
            for block in [32, 256] {
                let first = 300 / block * block;
                let rounded = round(block, &x);
                assert!(rounded.iter().enumerate().all(|(i, x)| x.is_nan() == (first..first + block).contains(&i)));
            }
        }
        // The sum of the values is infinite, but the values are not.
        assert!(round(256, &[f32::MAX / 2.0; 256]).iter().all(|x| x.is_finite()));
    }
}
