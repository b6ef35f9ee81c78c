//! Shared test helpers: random data, and running a test for every instruction set.
#![allow(dead_code)]

use hooklens_kernels::isa::{Isa, with_isa};

/// A small linear congruential generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.bits() as usize % n
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(crate) fn float(&mut self) -> f32 {
        self.bits() as f32 / (1u64 << 30) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

/// The number of rounds; a few under Miri, where a round takes ten thousand times as long.
pub(crate) fn rounds(count: usize) -> usize {
    if cfg!(miri) { 3.max(count / 100) } else { count }
}

/// Runs `test` once per instruction set that this machine supports.
pub(crate) fn each_isa(test: impl Fn(Isa)) {
    for &isa in Isa::available() {
        with_isa(isa, || test(isa));
    }
}
