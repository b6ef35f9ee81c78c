//! Timings of products with quantized weights, interleaved with `f32` and relative to it. Matrices are read from
//! memory, not from caches. With the argument `rounded`, inputs are rounded to 8 bits.
use hooklens_kernels::gemm::gemm;
use hooklens_kernels::matrix::Matrix;
use hooklens_kernels::packed::{Format, Order, Packed};
use hooklens_kernels::view::View2;
use std::time::Instant;

const FORMATS: [Format; 8] =
    [Format::Q8_0, Format::Q4_0, Format::Q4_1, Format::Q5_0, Format::Iq4Nl, Format::Q4K, Format::Q5K, Format::Q6K];

fn lower_quartile(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 4).copied().unwrap_or(f64::NAN)
}

fn main() {
    let rounds = std::env::args().nth(1).is_some_and(|argument| argument == "rounded");
    for (k, n) in [(2048usize, 8192usize), (8192, 2048)] {
        let copies = (1 << 27) / (k * n);
        let b: Vec<f32> = (0..k * n * copies).map(|i| ((i * 37) % 1013) as f32 / 1000.0 - 0.5).collect();
        // Bytes that give moderate values if a format interprets them as a scale.
        let bytes: Vec<u8> = (0..k * n * copies / 4 * 5).map(|i| 0x20 + (i * 37 % 1013 % 29) as u8).collect();
        for m in [1, 2, 4, 8, 32, 128] {
            let a: Vec<f32> = (0..m * k).map(|i| ((i * 31) % 997) as f32 / 1000.0 - 0.5).collect();
            let a = View2::row_major(&a, m, k);
            let mut c = vec![0.0; m * n];
            let mut times: [Vec<f64>; FORMATS.len() + 1] = Default::default();
            for round in 0..24 {
                let copy = round * 7 % copies;
                let f32 = View2::row_major(&b[copy * k * n..][..k * n], n, k).t();
                let mut ways: Vec<Matrix> = vec![f32.into()];
                for format in FORMATS {
                    let size = n * k / format.values() * format.bytes();
                    let packed = Packed::new(&bytes[copy * size..][..size], format, k, Order::AsIs);
                    let packed = if rounds { packed.rounding_inputs() } else { packed };
                    ways.push(packed.into());
                }
                for (b, times) in ways.into_iter().zip(&mut times) {
                    let start = Instant::now();
                    gemm(a, b, None, &mut c, n);
                    times.push(start.elapsed().as_secs_f64() * 1e3);
                }
            }
            let f32 = lower_quartile(&mut times[0]);
            let shares = FORMATS.iter().zip(&mut times[1..]).map(|(format, times)| {
                let time = lower_quartile(times);
                let bytes = (n * k / format.values() * format.bytes()) as f64;
                format!("{format:?} {:.2} ({:.0})", time / f32, bytes / 1e6 / time)
            });
            let shares: Vec<String> = shares.collect();
            let speed = (k * n * 4) as f64 / 1e6 / f32;
            println!("{m:4} {k}x{n}: f32 {f32:7.3} ms ({speed:.0} GB/s)  {}", shares.join("  "));
        }
    }
}
