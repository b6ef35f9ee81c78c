//! Position vectors that no file holds.

/// A table of sines and cosines (Vaswani et al. 2017): those of half the width, and then the cosines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sinusoids {
    /// The number that the first position has.
    pub(crate) first: usize,
    /// The number whose vector is zero.
    pub(crate) blank: Option<usize>,
    /// Whether the slowest wave is the last (fairseq's) or would be the next one (Vaswani et al.'s).
    pub(crate) ends_slowest: bool,
}

impl Sinusoids {
    /// The vectors of `len` positions, row after row. Angles are those of `f32`, in which models were trained.
    pub(crate) fn rows(self, len: usize, width: usize) -> Vec<f32> {
        let half = width / 2;
        let steps = if self.ends_slowest { half.max(2) - 1 } else { half.max(1) };
        let step = 10_000f64.ln() / steps as f64;
        let frequency = |i: usize| ((i as f32) * (-step) as f32).exp();
        let row = |position: usize| {
            let angle = move |i: usize| f64::from(position as f32 * frequency(i));
            let kept = if self.blank == Some(position) { 0.0 } else { 1.0 };
            let sines = (0..half).map(move |i| angle(i).sin());
            let waves = sines.chain((0..half).map(move |i| angle(i).cos()));
            waves.map(move |x| (x * kept) as f32).chain((0..width % 2).map(|_| 0.0))
        };
        (self.first..self.first + len).flat_map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Sinusoids;

    #[test]
    fn waves_of_half_the_width_and_blank_ones() {
        let table = Sinusoids { first: 2, blank: Some(3), ends_slowest: true }.rows(2, 5);
        let slow = 2e-4f32;
        let expected = [2f32.sin(), slow.sin(), 2f32.cos(), slow.cos(), 0.0];
        assert!(table[..5].iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{table:?}");
        assert_eq!(table[5..], [0.0; 5]);
    }
}
