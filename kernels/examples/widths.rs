//! Timings of products with 16-bit weights, interleaved with `f32` and relative to it. Matrices are read from memory,
//! not from caches.
use half::{bf16, f16};
use hooklens_kernels::element::Element;
use hooklens_kernels::gemm::{Product, gemm_each};
use hooklens_kernels::matrix::Matrix;
use hooklens_kernels::pairs::gemm_each_bf16;
use hooklens_kernels::view::View2;
use std::time::Instant;

/// A view `[k, n]` of a matrix that is stored as `[k, n]` or transposed.
fn view<T: Element>(b: &[T], (k, n): (usize, usize), transposed: bool) -> View2<'_, T> {
    if transposed { View2::row_major(b, n, k).t() } else { View2::row_major(b, k, n) }
}

fn lower_quartile(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 4).copied().unwrap_or(f64::NAN)
}

fn main() {
    for shape @ (k, n) in [(2048usize, 8192usize), (8192, 2048), (2048, 2048)] {
        let copies = (1 << 27) / (k * n);
        let b: Vec<f32> = (0..k * n * copies).map(|i| ((i * 37) % 1013) as f32 / 1000.0 - 0.5).collect();
        let brain: Vec<bf16> = b.iter().map(|x| bf16::from_f32(*x)).collect();
        let half: Vec<f16> = b.iter().map(|x| f16::from_f32(*x)).collect();
        for m in [1, 2, 4, 8, 16, 32, 128, 512] {
            let a: Vec<f32> = (0..m * k).map(|i| ((i * 31) % 997) as f32 / 1000.0 - 0.5).collect();
            let narrow: Vec<bf16> = a.iter().map(|x| bf16::from_f32(*x)).collect();
            let (a, narrow) = (View2::row_major(&a, m, k), View2::row_major(&narrow, m, k));
            let mut c = vec![0.0; m * n];
            for transposed in [true, false] {
                let mut times: [Vec<f64>; 4] = Default::default();
                for round in 0..24 {
                    let at = round * 7 % copies * k * n;
                    let ways: [(Matrix, bool); 4] = [
                        (view(&b[at..at + k * n], shape, transposed).into(), false),
                        (view(&brain[at..at + k * n], shape, transposed).into(), false),
                        (view(&half[at..at + k * n], shape, transposed).into(), false),
                        (view(&brain[at..at + k * n], shape, transposed).into(), true),
                    ];
                    for ((b, pairs), times) in ways.into_iter().zip(&mut times) {
                        let products = vec![Product { b, bias: None, c: &mut c, ldc: n }];
                        let start = Instant::now();
                        if !pairs {
                            gemm_each(a, products);
                        } else if gemm_each_bf16(narrow, products).is_err() {
                            continue;
                        }
                        times.push(start.elapsed().as_secs_f64() * 1e3);
                    }
                }
                let [f32, bf16, f16, pairs] = times.map(lower_quartile);
                let way = if transposed { "T" } else { "N" };
                let speed = 2e-6 * (m * k * n) as f64 / f32;
                println!(
                    "{m:4} {k}x{n} {way}: f32 {f32:8.3} ms ({:4.1} GB/s, {speed:5.1} GF/s)  bf16 {:.2}  f16 {:.2}  pairs {:.2}",
                    (k * n * 4) as f64 / 1e6 / f32,
                    bf16 / f32,
                    f16 / f32,
                    pairs / f32
                );
            }
        }
    }
}
