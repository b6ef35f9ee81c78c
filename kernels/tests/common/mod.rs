//! Shared by the tests: random data and every instruction set in turn.
#![allow(dead_code)]

use hooklens_kernels::isa::{Isa, with_isa};

/// A small linear congruential generator.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.bits() as usize % n
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub fn float(&mut self) -> f32 {
        self.bits() as f32 / (1u64 << 30) as f32 - 1.0
    }

    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

/// Runs `test` once per instruction set of this machine.
pub fn each_isa(test: impl Fn(Isa)) {
    for &isa in Isa::available() {
        with_isa(isa, || test(isa));
    }
}
