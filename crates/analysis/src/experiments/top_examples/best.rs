//! [`Best`]: the `k` largest values seen so far.

/// An activation and its location.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Firing {
    pub(super) text: usize,
    pub(super) position: usize,
    pub(super) value: f32,
}

/// The tokens around a position.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Context {
    /// Position of the first token.
    pub(super) start: usize,
    /// Token ids with their activations.
    pub(super) places: Vec<(u32, f32)>,
}

/// The `k` largest activations so far, in descending order. Ties keep the first.
#[derive(Debug)]
pub(super) struct Best {
    k: usize,
    kept: Vec<(Firing, Context)>,
}

impl Best {
    /// An empty list for the `k` largest.
    pub(super) fn new(k: usize) -> Self {
        Self { k, kept: Vec::new() }
    }

    /// Inserts an activation if it is large enough, and only then computes its context.
    pub(super) fn offer(&mut self, firing: Firing, around: impl FnOnce() -> Context) {
        let rank = rank(firing.value);
        if self.kept.len() == self.k {
            if self.kept.last().is_some_and(|(least, _)| self::rank(least.value) >= rank) {
                return;
            }
            self.kept.pop();
        }
        let place = self.kept.partition_point(|(other, _)| self::rank(other.value) >= rank);
        self.kept.insert(place, (firing, around()));
    }

    /// The activations in descending order.
    pub(super) fn into_sorted(self) -> Vec<(Firing, Context)> {
        self.kept
    }
}

/// Sort key that puts NaN last.
fn rank(value: f32) -> f32 {
    if value.is_nan() { f32::NEG_INFINITY } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(k: usize, values: &[f32]) -> Vec<usize> {
        let mut best = Best::new(k);
        for (text, value) in values.iter().enumerate() {
            best.offer(Firing { text, position: 0, value: *value }, || Context { start: 0, places: vec![] });
        }
        best.into_sorted().into_iter().map(|(firing, _)| firing.text).collect()
    }

    #[test]
    fn the_largest_are_kept_and_of_equal_ones_the_first() {
        assert_eq!(kept(2, &[1.0, 3.0, 2.0, 3.0, 3.0]), [1, 3]);
        assert_eq!(kept(9, &[1.0, 3.0, 2.0]), [1, 2, 0]);
        assert_eq!(kept(2, &[0.0, -0.0, 0.0]), [0, 1]);
        assert_eq!(kept(3, &[f32::NAN, -1.0, f32::NAN, 5.0]), [3, 1, 0]);
        assert_eq!(kept(1, &[]), [0; 0]);
    }
}
