//! Times of products with weights of 32 and of 16 bits, in turns; matrices are read from memory, not from caches.
use half::{bf16, f16};
use hooklens_kernels::gemm::gemm;
use hooklens_kernels::view::View2;
use std::time::Instant;

fn main() {
    let copies = 8;
    for (k, n) in [(2048usize, 8192usize), (8192, 2048), (2048, 2048)] {
        let len = k * n * copies * if k * n < 1 << 23 { 4 } else { 1 };
        let b: Vec<f32> = (0..len).map(|i| ((i * 37) % 1013) as f32 / 1000.0 - 0.5).collect();
        let brain: Vec<bf16> = b.iter().map(|x| bf16::from_f32(*x)).collect();
        let half: Vec<f16> = b.iter().map(|x| f16::from_f32(*x)).collect();
        for m in [1usize, 2, 4, 8, 16, 32, 128, 512] {
            let a: Vec<f32> = (0..m * k).map(|i| ((i * 31) % 997) as f32 / 1000.0 - 0.5).collect();
            let mut c = vec![0.0; m * n];
            for transposed in [true, false] {
                let mut times: [Vec<f64>; 3] = Default::default();
                for round in 0..24 {
                    let at = (round * 7) % (len / (k * n)) * k * n;
                    macro_rules! one {
                        ($which:expr, $b:expr) => {{
                            let b = &$b[at..at + k * n];
                            let view =
                                if transposed { View2::row_major(b, n, k).t() } else { View2::row_major(b, k, n) };
                            let start = Instant::now();
                            gemm(View2::row_major(&a, m, k), view, None, &mut c, n);
                            times[$which].push(start.elapsed().as_secs_f64() * 1e3);
                        }};
                    }
                    one!(0, b);
                    one!(1, brain);
                    one!(2, half);
                }
                let [f, b, h] = times.map(|mut t| {
                    t.sort_by(f64::total_cmp);
                    t[t.len() / 4]
                });
                let bytes = (k * n * 4) as f64 / 1e6;
                println!(
                    "{m:4} {k}x{n} {}: f32 {f:8.3} ms ({:5.1} GB/s, {:5.1} GF/s)  bf16 {:.2}  f16 {:.2}",
                    if transposed { "T" } else { "N" },
                    bytes / f,
                    2e-6 * (m * k * n) as f64 / f,
                    b / f,
                    h / f
                );
            }
        }
    }
}
