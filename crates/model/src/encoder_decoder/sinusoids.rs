//! Computed position tables.

/// Sinusoidal position table (Vaswani et al. 2017), with the sines in the first half of each row and the cosines in the
/// second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sinusoids {
    /// Angles in `f32`; for an odd width, the last column is zero.
    Numbered {
        /// Number of the first position.
        first: usize,
        /// Number of the position whose vector is zero, if any.
        blank: Option<usize>,
        /// Whether the last column has the frequency 1/10000 (fairseq), rather than a hypothetical next column
        /// (Vaswani et al.).
        ends_slowest: bool,
    },
    /// Angles in `f64`; an odd width has one more sine than cosine (Marian).
    Exact,
}

impl Sinusoids {
    /// Maximum number of values in a computed table.
    pub const LARGEST: usize = 1 << 28;

    /// Vectors of `len` positions, row by row.
    pub fn rows(self, len: usize, width: usize) -> Vec<f32> {
        let Self::Numbered { first, blank, ends_slowest } = self else {
            let half = width / 2;
            let row = |position: usize| {
                let angle = move |i: usize| position as f64 / 10_000f64.powf(2.0 * i as f64 / width as f64);
                let sines = (0..width - half).map(move |i| angle(i).sin() as f32);
                sines.chain((0..half).map(move |i| angle(i).cos() as f32))
            };
            return (0..len).flat_map(row).collect();
        };
        let half = width / 2;
        let steps = if ends_slowest { half.max(2) - 1 } else { half.max(1) };
        let step = 10_000f64.ln() / steps as f64;
        let frequency = |i: usize| ((i as f32) * (-step) as f32).exp();
        let row = |position: usize| {
            let angle = move |i: usize| f64::from(position as f32 * frequency(i));
            let kept = if blank == Some(position) { 0.0 } else { 1.0 };
            let sines = (0..half).map(move |i| angle(i).sin());
            let waves = sines.chain((0..half).map(move |i| angle(i).cos()));
            waves.map(move |x| (x * kept) as f32).chain((0..width % 2).map(|_| 0.0))
        };
        (first..first + len).flat_map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Sinusoids;

    #[test]
    fn waves_of_half_the_width_and_blank_ones() {
        let table = Sinusoids::Numbered { first: 2, blank: Some(3), ends_slowest: true }.rows(2, 5);
        let slow = 2e-4f32;
        let expected = [2f32.sin(), slow.sin(), 2f32.cos(), slow.cos(), 0.0];
        assert!(table[..5].iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{table:?}");
        assert_eq!(table[5..], [0.0; 5]);
    }
}
