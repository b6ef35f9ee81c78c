//! Timings of dictionary decoding: gathering the rows of active latents, compared with the dense product.
//!
//! ```sh
//! cargo run --release -p hooklens-kernels --example latents
//! ```

use std::time::Instant;

use hooklens_kernels::gemm::{Product, gemm_each};
use hooklens_kernels::latents::{Keep, keep};
use hooklens_kernels::sparse::{Sparse, times};
use hooklens_kernels::view::View2;

fn least(mut work: impl FnMut()) -> f64 {
    let mut once = || {
        let begun = Instant::now();
        work();
        begun.elapsed().as_secs_f64() * 1e3
    };
    (0..15).map(|_| once()).fold(f64::INFINITY, f64::min)
}

fn main() {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    for (latents, width, active) in [(16_384, 768, 64), (16_384, 2304, 64), (65_536, 768, 64), (1024, 64, 8)] {
        let matrix: Vec<f32> = (0..latents * width).map(|_| next()).collect();
        for rows in [1, 16, 128, 512] {
            let pre: Vec<f32> = (0..rows * latents).map(|_| next()).collect();
            let mut acts = pre.clone();
            let kept = least(|| {
                acts.copy_from_slice(&pre);
                keep(Keep::Largest(active), latents, &mut acts);
            });
            let mut output = vec![0.0; rows * width];
            let dense = least(|| {
                let product = Product {
                    b: View2::row_major(&matrix, latents, width).into(),
                    bias: None,
                    c: &mut output,
                    ldc: width,
                };
                gemm_each(View2::row_major(&acts, rows, latents), vec![product]);
            });
            let found = least(|| drop(Sparse::of(&acts, latents)));
            let sparse = Sparse::of(&acts, latents);
            let gathered =
                least(|| times(&sparse, View2::row_major(&matrix, latents, width).into(), None, &mut output));
            println!(
                "{latents:6} x {width:4}, {rows:3} tokens, {active} active: product {dense:8.3} ms, rows {gathered:7.3} ms ({:.3}), \
                 including finding the latents {:.3}; choosing the latents {kept:.3} ms",
                gathered / dense,
                (gathered + found) / dense
            );
        }
    }
}
