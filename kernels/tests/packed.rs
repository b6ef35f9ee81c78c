//! Tests of products with packed matrices against sums of the decoded values.

mod common;
use common::{Random, each_isa, rounds};
use hooklens_kernels::attention::HeadsView;
use hooklens_kernels::gemm::{Product, gemm_each, gemm_serial};
use hooklens_kernels::isa::{Isa, with_isa};
use hooklens_kernels::packed::{Format, Order, Packed};
use hooklens_kernels::view::View2;

const FORMATS: [Format; 18] = [
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::Q8_0,
    Format::Q2K,
    Format::Q3K,
    Format::Q4K,
    Format::Q5K,
    Format::Q6K,
    Format::Iq4Nl,
    Format::Iq4Xs,
    Format::Mxfp4,
    Format::Zeroed4,
    Format::Zeroed8,
    Format::Nf4,
    Format::Fp4,
    Format::E4m3,
];

/// Random rows with finite scales.
fn blocks(random: &mut Random, format: Format, k: usize, rows: usize) -> Vec<u8> {
    let bytes = (0..k / format.values() * format.bytes() * rows).map(|_| random.below(256) as u8).collect();
    with_scales(random, format, bytes)
}

/// Replaces the scales of all blocks by random finite ones.
fn with_scales(random: &mut Random, format: Format, mut bytes: Vec<u8>) -> Vec<u8> {
    let halves: &[usize] = match format {
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::Iq4Nl | Format::Iq4Xs => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
        _ => &[],
    };
    for block in bytes.chunks_exact_mut(format.bytes()) {
        for at in halves {
            let scale = half::f16::from_f32(random.float() / 16.0);
            block[*at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
        match format {
            Format::Mxfp4 => block[0] = 100 + random.below(30) as u8,
            Format::Zeroed4 | Format::Zeroed8 | Format::Nf4 | Format::Fp4 | Format::E4m3 => {
                block[..4].copy_from_slice(&(random.float() / 16.0).to_le_bytes());
            }
            _ => {}
        }
        if format == Format::E4m3 {
            // NaN would make the sums meaningless.
            block[4..].iter_mut().filter(|byte| **byte & 0x7f == 0x7f).for_each(|byte| *byte &= 0xfe);
        }
    }
    bytes
}

#[test]
fn every_instruction_set_decodes_the_same_numbers() {
    let mut random = Random(1);
    for format in FORMATS {
        let bytes = blocks(&mut random, format, 512, 5);
        let decode = |isa: Isa| {
            with_isa(isa, || {
                let mut numbers = vec![f32::NAN; 5 * 512];
                Packed::new(&bytes, format, 512, Order::AsIs).decode(&mut numbers);
                numbers
            })
        };
        let expected = decode(Isa::PORTABLE);
        for isa in Isa::available() {
            let same = decode(*isa).iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits() || a == b);
            assert!(same, "{format:?}, {isa:?}");
        }
    }
}

#[test]
fn products_are_those_of_the_decoded_matrix() {
    each_isa(|isa| {
        let mut random = Random(2);
        for round in 0..rounds(90) {
            let format = FORMATS[round % FORMATS.len()];
            let k = 256 * (1 + random.below(3)) + if format.values() == 32 { 32 * random.below(8) } else { 0 };
            let (m, n) = (1 + random.below(if round % 3 == 0 { 40 } else { 9 }), 4 * (1 + random.below(40)));
            let orders = [Order::AsIs, Order::Paired(4), Order::Every { start: 1, step: 2 }];
            let order = orders[random.below(3)];
            let rows = if let Order::Every { step, .. } = order { n * step } else { n };
            let bytes = blocks(&mut random, format, k, rows);
            let packed = Packed::new(&bytes, format, k, order);
            assert_eq!((packed.rows(), packed.cols()), (k, n));
            let mut numbers = vec![0.0; n * k];
            packed.decode(&mut numbers);
            // The order applies to whole rows.
            let mut as_is = vec![0.0; rows * k];
            Packed::new(&bytes, format, k, Order::AsIs).decode(&mut as_is);
            for j in 0..n {
                let row = match order {
                    Order::AsIs => j,
                    Order::Paired(_) => j / 4 * 4 + [0, 2, 1, 3][j % 4],
                    Order::Every { start, step } => start + j * step,
                };
                assert_eq!(numbers[j * k..][..k], as_is[row * k..][..k], "{format:?}, {order:?}, column {j}");
            }
            let (a, bias) = (random.floats(m * k), random.floats(n));
            let view = View2::row_major(&a, m, k);
            let mut c = vec![7.0; m * n];
            let bias = (round % 2 == 0).then_some(&bias[..]);
            match round % 4 {
                0 => gemm_serial(view, packed, bias, &mut c, n),
                _ => gemm_each(view, vec![Product { b: packed.into(), bias, c: &mut c, ldc: n }]),
            }
            for i in 0..m {
                for j in 0..n {
                    let products = (0..k).map(|p| f64::from(a[i * k + p]) * f64::from(numbers[j * k + p]));
                    let (mut sum, mut size) = (bias.map_or(0.0, |bias| f64::from(bias[j])), 1e-6);
                    products.for_each(|product| {
                        sum += product;
                        size += product.abs();
                    });
                    let got = f64::from(c[i * n + j]);
                    let case = (format, isa, (m, k, n), (i, j));
                    assert!((got - sum).abs() <= 1e-5 * size, "{case:?}: {got}, not {sum}");
                }
            }
        }
    });
}

/// Error of a dot product, relative to the sum of the magnitudes of its products.
fn error(dot: f32, a: &[f32], weights: &[f32]) -> f64 {
    let products = a.iter().zip(weights).map(|(a, b)| f64::from(*a) * f64::from(*b));
    let (sum, total): (f64, f64) = products.fold((0.0, 0.0), |(sum, all), x| (sum + x, all + x.abs()));
    (f64::from(dot) - sum).abs() / total
}

/// A few rows are converted to integers where that is faster, with an error of at most 1e-6 of the sum of all
/// magnitudes.
#[test]
fn products_of_rows_with_outliers_are_exact() {
    each_isa(|isa| {
        let mut random = Random(3);
        for format in FORMATS {
            for (m, size, count) in [(1, 1e3, 1), (2, 1e3, 8), (3, 1e6, 1), (1, 1e12, 3), (7, 1e3, 2)] {
                let (k, n) = (1024, 5);
                let bytes = blocks(&mut random, format, k, n);
                let packed = Packed::new(&bytes, format, k, Order::AsIs);
                let mut numbers = vec![0.0; n * k];
                packed.decode(&mut numbers);
                let mut a = random.floats(m * k);
                // Only the last row has outliers.
                for _ in 0..count {
                    a[(m - 1) * k + random.below(k)] *= size;
                }
                let mut c = vec![0.0; m * n];
                gemm_serial(View2::row_major(&a, m, k), packed, None, &mut c, n);
                for (at, c) in c.into_iter().enumerate() {
                    let error = error(c, &a[at / n * k..][..k], &numbers[at % n * k..]);
                    let row = at / n;
                    assert!(error <= 1e-6, "{isa:?}, {format:?}, row {row} of {m}, {count} of {size:e}: {error:e}");
                }
            }
            // Zeros, and a row that can't be converted to integers.
            let bytes = blocks(&mut random, format, 256, 1);
            let packed = Packed::new(&bytes, format, 256, Order::AsIs);
            for (value, expected) in [(0.0, Some(3.0)), (f32::NAN, None), (f32::INFINITY, None), (1e-40, Some(3.0))] {
                let (a, mut c) = (vec![value; 256], [0.0]);
                gemm_serial(View2::row_major(&a, 1, 256), packed, Some(&[3.0]), &mut c, 1);
                assert!(
                    expected.map_or(!c[0].is_finite(), |expected| c[0] == expected),
                    "{format:?}, {value}: {}",
                    c[0]
                );
            }
        }
    });
}

/// The largest and smallest weights, and the largest numbers to which a row is converted, with any signs.
#[test]
fn products_of_extreme_values_are_exact() {
    each_isa(|isa| {
        let mut random = Random(6);
        for format in FORMATS {
            let k = format.values() * 3;
            for byte in [0x00, 0x80, 0xff, 0x7f, 0xf0, 0x0f] {
                let bytes = vec![byte; k / format.values() * format.bytes() * 2];
                let bytes = with_scales(&mut random, format, bytes);
                let packed = Packed::new(&bytes, format, k, Order::AsIs);
                let mut numbers = vec![0.0; 2 * k];
                packed.decode(&mut numbers);
                for signs in [[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]] {
                    let largest = (127 * 65536 + 127 * 256 + 127) as f32 / 1_048_576.0;
                    let a: Vec<f32> = (0..k).map(|i| signs[i % 2] * largest).collect();
                    let view = View2::row_major(&a, 1, k);
                    for (packed, most) in [(packed, 1e-6), (packed.rounding_inputs(), 1e-3)] {
                        let mut c = [0.0; 2];
                        gemm_serial(view, packed, None, &mut c, 2);
                        for (j, c) in c.into_iter().enumerate() {
                            let products = a.iter().zip(&numbers[j * k..]).map(|(a, b)| f64::from(*a) * f64::from(*b));
                            let add = |(sum, all): (f64, f64), x: f64| (sum + x, all + x.abs());
                            // Weights may be zero because a minimum cancels them.
                            let least = 0.01 * a.iter().map(|x| f64::from(x.abs())).sum::<f64>();
                            let (sum, total) = products.fold((0.0, least), add);
                            let error = (f64::from(c) - sum).abs() / total;
                            assert!(error <= most, "{isa:?}, {format:?}, {byte:#x}, {signs:?}: {error:e}");
                        }
                    }
                }
            }
        }
    });
}

/// Weights of one block are much smaller than the others, and values of the row are much larger there.
#[test]
fn large_values_at_small_weights_are_exact() {
    each_isa(|isa| {
        let mut random = Random(7);
        let of_blocks = [Format::Q4_0, Format::Q4_1, Format::Q5_0, Format::Q5_1, Format::Q8_0, Format::Iq4Nl];
        for format in of_blocks.into_iter().chain([Format::Q4K, Format::Q5K]) {
            let (k, n) = (256, 4);
            let mut bytes = blocks(&mut random, format, k, n);
            for column in bytes.chunks_exact_mut(k / format.values() * format.bytes()) {
                match format {
                    // The first of eight 6-bit scales, and the first minimum.
                    Format::Q4K | Format::Q5K => [4, 8].iter().for_each(|at| column[*at] &= 0xc0),
                    Format::Q4_1 | Format::Q5_1 => column[..4].fill(0),
                    _ => column[..2].fill(0),
                }
            }
            let packed = Packed::new(&bytes, format, k, Order::AsIs);
            let mut numbers = vec![0.0; n * k];
            packed.decode(&mut numbers);
            let mut a = random.floats(k);
            a[32..].iter_mut().for_each(|x| *x *= 1e-6);
            let mut c = vec![0.0; n];
            gemm_serial(View2::row_major(&a, 1, k), packed, None, &mut c, n);
            for (j, c) in c.into_iter().enumerate() {
                let error = error(c, &a, &numbers[j * k..]);
                assert!(error <= 1e-6, "{isa:?}, {format:?}: {error:e}");
            }
        }
    });
}

/// The weight of a value that is much larger than all others is zero because the minimum cancels the integer.
#[test]
fn large_values_at_weights_of_zero_are_exact() {
    each_isa(|isa| {
        let mut random = Random(8);
        for format in [Format::Q4_1, Format::Q5_1, Format::Q4K, Format::Q5K] {
            let (k, n) = (256, 4);
            let mut bytes = blocks(&mut random, format, k, n);
            for column in bytes.chunks_exact_mut(k / format.values() * format.bytes()) {
                // The first group has the scale 1 and the minimum 7, and its first integer is 7.
                let [one, minus_seven] = [1.0, -7.0].map(|number| half::f16::from_f32(number).to_le_bytes());
                column[..2].copy_from_slice(&one);
                match format {
                    Format::Q4_1 | Format::Q5_1 => column[2..4].copy_from_slice(&minus_seven),
                    _ => {
                        column[2..4].copy_from_slice(&one);
                        column[4] = column[4] & 0xc0 | 1;
                        column[8] = column[8] & 0xc0 | 7;
                    }
                }
                let (low, fifth) = match format {
                    Format::Q4_1 => (4, None),
                    Format::Q5_1 => (8, Some(4)),
                    Format::Q4K => (16, None),
                    _ => (48, Some(16)),
                };
                column[low] = column[low] & 0xf0 | 7;
                if let Some(at) = fifth {
                    column[at] &= 0xfe;
                }
            }
            let packed = Packed::new(&bytes, format, k, Order::AsIs);
            let mut numbers = vec![0.0; n * k];
            packed.decode(&mut numbers);
            assert!(numbers.iter().step_by(k).all(|weight| *weight == 0.0), "{format:?}");
            let mut a = random.floats(k);
            a[0] = 1_234_568_064.0;
            let mut c = vec![0.0; n];
            gemm_serial(View2::row_major(&a, 1, k), packed, None, &mut c, n);
            for (j, c) in c.into_iter().enumerate() {
                let error = error(c, &a, &numbers[j * k..]);
                assert!(error <= 1e-6, "{isa:?}, {format:?}: {error:e}");
            }
        }
    });
}

/// Rounds as llama.cpp does before a product: each block to a scale and integers up to 127. Scales of blocks of 32 have
/// 16 bits.
fn rounded(a: &[f32], block: usize) -> Vec<f64> {
    let of = |x: &[f32]| {
        let largest = x.iter().fold(0f32, |most, x| most.max(x.abs()));
        let scale = largest / 127.0;
        let stored = if block == 32 { half::f16::from_f32(scale).to_f32() } else { scale };
        x.iter().map(|x| f64::from((x * (127.0 / largest)).round_ties_even()) * f64::from(stored)).collect::<Vec<_>>()
    };
    a.chunks(block).flat_map(of).collect()
}

#[test]
fn rounded_products_are_those_of_the_rounded_rows() {
    each_isa(|isa| {
        let mut random = Random(4);
        for round in 0..rounds(90) {
            let format = FORMATS[round % FORMATS.len()];
            let k = 256 * (1 + random.below(3)) + if format.values() == 32 { 32 * random.below(8) } else { 0 };
            let most = [9, 40, 130][random.below(3)];
            let (m, n) = (1 + random.below(most), 1 + random.below(99));
            let bytes = blocks(&mut random, format, k, n);
            let packed = Packed::new(&bytes, format, k, Order::AsIs);
            let mut numbers = vec![0.0; n * k];
            packed.decode(&mut numbers);
            let (a, bias, plain) = (random.floats(m * k), random.floats(n), random.floats(k * 3));
            let view = View2::row_major(&a, m, k);
            let (mut c, mut exact, mut with_plain) = (vec![7.0; m * n], vec![7.0; m * n], vec![7.0; m * 3]);
            let plain_view = || View2::row_major(&plain, k, 3);
            match round % 2 {
                0 => {
                    gemm_serial(view, packed.rounding_inputs(), Some(&bias), &mut c, n);
                    gemm_serial(view, packed, Some(&bias), &mut exact, n);
                    gemm_serial(view, plain_view(), None, &mut with_plain, 3);
                }
                _ => gemm_each(
                    view,
                    vec![
                        Product { b: packed.rounding_inputs().into(), bias: Some(&bias), c: &mut c, ldc: n },
                        Product { b: packed.into(), bias: Some(&bias), c: &mut exact, ldc: n },
                        Product { b: plain_view().into(), bias: None, c: &mut with_plain, ldc: 3 },
                    ],
                ),
            }
            // Minimums of `Q4_1` and `Q5_1` are multiplied by sums of 16 bits.
            let half_sums = matches!(format, Format::Q4_1 | Format::Q5_1);
            let error_of_sum = |a: &[f32]| {
                let largest = a.iter().fold(0f32, |most, x| most.max(x.abs()));
                let total: f32 = a.iter().map(|x| (x * (127.0 / largest)).round_ties_even()).sum();
                let half = |x: f32| f64::from(half::f16::from_f32(x).to_f32());
                half(largest / 127.0 * total) - half(largest / 127.0) * f64::from(total)
            };
            let minimum = |j: usize, block: usize| {
                let at = (j * k / 32 + block) * format.bytes();
                f64::from(half::f16::from_le_bytes([bytes[at + 2], bytes[at + 3]]).to_f32())
            };
            let more = |i: usize, j: usize| {
                let blocks = a[i * k..][..k].chunks(32).enumerate();
                blocks.map(|(block, a)| error_of_sum(a) * minimum(j, block)).sum::<f64>()
            };
            let more: Vec<f64> = (0..m * n).map(|at| if half_sums { more(at / n, at % n) } else { 0.0 }).collect();
            let a_rounded: Vec<f64> = a.chunks(k).flat_map(|a| rounded(a, format.values())).collect();
            let a: Vec<f64> = a.iter().map(|a| f64::from(*a)).collect();
            let none = vec![0.0; m * n];
            let check = |a: &[f64], c: &[f32], more: &[f64], what: &str| {
                for (i, a) in a.chunks(k).enumerate() {
                    for j in 0..n {
                        let products = a.iter().zip(&numbers[j * k..]).map(|(a, b)| a * f64::from(*b));
                        let start = (f64::from(bias[j]), 1e-6);
                        let (sum, size) = products.fold(start, |(sum, all), x| (sum + x, all + x.abs()));
                        let (got, sum) = (f64::from(c[i * n + j]), sum + more[i * n + j]);
                        assert!(
                            (got - sum).abs() <= 1e-5 * size,
                            "{what} {format:?} {isa:?} {m}x{k}x{n}: {got}, not {sum}"
                        );
                    }
                }
            };
            check(&a_rounded, &c, &more, "rounded");
            check(&a, &exact, &none, "exact");
            let first = (0..k).map(|p| a[p] * f64::from(plain[3 * p])).sum::<f64>();
            assert!((f64::from(with_plain[0]) - first).abs() < 1e-3);
        }
    });
}

#[test]
fn a_row_with_nan_changes_no_other_row() {
    each_isa(|isa| {
        let mut random = Random(5);
        let (m, n, k) = (13, 21, 512);
        for format in FORMATS {
            let bytes = blocks(&mut random, format, k, n);
            let packed = Packed::new(&bytes, format, k, Order::AsIs).rounding_inputs();
            let mut a = random.floats(m * k);
            let (mut plain, mut c) = (vec![0.0; m * n], vec![0.0; m * n]);
            gemm_serial(View2::row_major(&a, m, k), packed, None, &mut plain, n);
            a[3 * k + 300] = f32::NAN;
            gemm_serial(View2::row_major(&a, m, k), packed, None, &mut c, n);
            for (i, (row, plain)) in c.chunks(n).zip(plain.chunks(n)).enumerate() {
                let same = if i == 3 { row.iter().all(|x| x.is_nan()) } else { row == plain };
                assert!(same, "{format:?} {isa:?}: row {i}");
            }
        }
    });
}

/// Packed products read whole rows of A. Views whose rows are not contiguous are rejected, as for every product, and
/// never read out of bounds.
#[test]
fn rows_that_are_not_contiguous_are_refused() {
    let bytes = [0u8; 34];
    let packed = || Packed::new(&bytes, Format::Q8_0, 32, Order::AsIs);
    for m in [1, 3, 9] {
        let a = vec![1.0; m * 32];
        let turned = View2::row_major(&a, 32, m).t();
        let mut c = vec![0.0; m];
        let mut product = |view: View2<'_>, bias: Option<&[f32]>| {
            let done =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| gemm_serial(view, packed(), bias, &mut c, 1)));
            done.is_ok()
        };
        assert_eq!(product(turned, None), m == 1);
        // Rows of a wrong length and a bias of a wrong length are rejected, too.
        assert!(!product(View2::row_major(&a, m, 31), None));
        assert!(!product(View2::row_major(&a, m, 32), Some(&[])));
        assert!(product(View2::row_major(&a, m, 32), Some(&[0.0])));
    }
}

#[test]
fn what_is_shown_of_a_matrix_is_its_sizes() {
    let (bytes, numbers) = (vec![0u8; 34 << 10], vec![0.0f32; 1 << 15]);
    let packed = Packed::new(&bytes, Format::Q8_0, 32, Order::AsIs);
    let view = View2::row_major(&numbers, 1 << 10, 32);
    let heads = HeadsView::contiguous(&numbers, 1 << 10, 4, 8);
    let mut c = vec![0.0; 1 << 20];
    let product = Product { b: packed.into(), bias: Some(&numbers), c: &mut c, ldc: 1 << 10 };
    for shown in [format!("{packed:?}"), format!("{view:?}"), format!("{heads:?}"), format!("{product:?}")] {
        assert!(shown.contains("1024") && shown.len() < 200, "{shown}");
    }
}
