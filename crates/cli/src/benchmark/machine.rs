//! Peak performance of this machine's CPU, which bounds the speed of workloads.

use std::hint::black_box;
use std::time::Instant;

use hooklens_kernels::gemm::{Product, gemm_each};
use hooklens_kernels::view::View2;
use serde::Serialize;

use super::amount::Amount;

/// Memory bandwidth and arithmetic throughput of this machine with all threads, measured as the best of several tries.
///
/// ```
/// use hooklens_cli::benchmark::Machine;
/// let machine = Machine::measured();
/// assert!(machine.bytes_per_second > 1e8 && machine.flops > 1e8);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Machine {
    /// Memory read bandwidth, in bytes per second.
    pub bytes_per_second: f64,
    /// `f32` additions and multiplications per second.
    pub flops: f64,
}

/// Number of tries per measurement.
const TRIES: usize = 5;

impl Machine {
    /// Measures this machine. Takes about a quarter of a second, and 128 MB of memory.
    pub fn measured() -> Self {
        // The matrix is larger than the caches, and the product keeps every thread busy.
        let (long, wide, square) = (1 << 13, 1 << 12, 1 << 10);
        let matrix = vec![0.5; long * wide];
        let bytes_per_second = 4.0 * matrix.len() as f64 / least(|| product((1, long, wide), &matrix));
        let flops = 2.0 * (square as f64).powi(3) / least(|| product((square, square, square), &matrix));
        Self { bytes_per_second, flops }
    }

    /// Lower bound on the time that `work` takes, in milliseconds, and the resource that bounds it.
    pub fn least_ms(&self, work: Amount) -> (f64, Bound) {
        let (read, computed) = (work.bytes / self.bytes_per_second, work.flops / self.flops);
        if read > computed { (1e3 * read, Bound::Memory) } else { (1e3 * computed, Bound::Arithmetic) }
    }
}

/// The resource that bounds a workload.
///
/// ```
/// use hooklens_cli::benchmark::Bound;
/// assert_eq!(Bound::Memory.to_string(), "memory");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Memory bandwidth: reading weights.
    Memory,
    /// Arithmetic throughput.
    Arithmetic,
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Bound::Memory { "memory" } else { "arithmetic" })
    }
}

/// Minimum time over several tries, in seconds, after a warm-up run.
fn least(mut work: impl FnMut()) -> f64 {
    let mut time = || {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    time();
    (0..TRIES).map(|_| time()).fold(f64::INFINITY, f64::min)
}

fn product((m, k, n): (usize, usize, usize), matrix: &[f32]) {
    let (a, mut c) = (vec![1.0; m * k], vec![0.0; m * n]);
    let b = View2::row_major(&matrix[..k * n], n, k).t().into();
    gemm_each(View2::row_major(&a, m, k), vec![Product { b, bias: None, c: &mut c, ldc: n }]);
    black_box(c);
}
