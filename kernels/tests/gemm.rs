//! Tests of matrix products against sums in `f64`.

mod common;
use common::{Random, each_isa, rounds};
use half::{bf16, f16};
use hooklens_kernels::element::Element;
use hooklens_kernels::gemm::{Product, gemm, gemm_each, gemm_serial};
use hooklens_kernels::matrix::Matrix;
use hooklens_kernels::pairs::gemm_each_bf16;
use hooklens_kernels::view::View2;

/// How B is laid out.
#[derive(Clone, Copy, Debug)]
enum Layout {
    Rows,
    Columns,
    Scattered,
}

/// Checks a product with B of each element type.
fn check(random: &mut Random, shape: (usize, usize, usize), layout: Layout, serial: bool) {
    check_of(random, shape, layout, serial, |x| x);
    check_of(random, shape, layout, serial, bf16::from_f32);
    check_of(random, shape, layout, serial, f16::from_f32);
}

fn check_of<T: Element>(
    random: &mut Random,
    (m, k, n): (usize, usize, usize),
    layout: Layout,
    serial: bool,
    element: impl Fn(f32) -> T,
) where
    for<'a> Matrix<'a>: From<View2<'a, T>>,
{
    let lda = k + random.below(4);
    let (offset_a, offset_b) = (random.below(5), random.below(5));
    let gap = random.below(4);
    let (strides, len) = match layout {
        Layout::Rows => ((n + gap, 1), k * (n + gap)),
        Layout::Columns => ((1, k + gap), n * (k + gap)),
        Layout::Scattered => ((3 * n + gap, 3), k * (3 * n + gap) + 3),
    };
    let a = random.floats(offset_a + m * lda + 1);
    let b: Vec<T> = random.floats(offset_b + len + 1).into_iter().map(element).collect();
    let bias = random.floats(n);
    let bias = (random.below(2) == 0).then_some(&bias[..]);
    let ldc = n + random.below(3);
    let mut c = vec![7.0; m * ldc];
    let av = View2::new(&a, offset_a, (m, k), (lda, 1));
    let bv = View2::new(&b, offset_b, (k, n), strides);
    if serial {
        gemm_serial(av, bv, bias, &mut c, ldc)
    } else {
        gemm(av, bv, bias, &mut c, ldc)
    }
    for i in 0..m {
        for j in 0..ldc {
            let got = c[i * ldc + j];
            if j >= n {
                assert_eq!(got, 7.0, "gap overwritten");
                continue;
            }
            let terms = (0..k).map(|p| av.at(i, p) as f64 * bv.at(p, j).widened() as f64);
            let bias = bias.map_or(0.0, |bias| bias[j] as f64);
            let want = bias + terms.clone().sum::<f64>();
            let tolerance = 1e-6 + 5e-7 * terms.map(f64::abs).sum::<f64>();
            assert!(
                (got as f64 - want).abs() <= tolerance,
                "{m}x{k}x{n} {layout:?} of {} at ({i}, {j}): {got} instead of {want}",
                std::any::type_name::<T>()
            );
        }
    }
}

#[test]
fn matches_reference() {
    const SIZES: [usize; 22] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 15, 16, 17, 31, 33, 47, 48, 49, 64, 97, 131];
    each_isa(|_| {
        let mut random = Random(1);
        for round in 0..rounds(600) {
            // The largest sizes are too large for Miri.
            let sizes = &SIZES[..if cfg!(miri) { 16 } else { 22 }];
            let shape = (random.pick(sizes), random.pick(sizes), random.pick(sizes));
            let layout = random.pick(&[Layout::Rows, Layout::Columns, Layout::Scattered]);
            check(&mut random, shape, layout, round % 2 == 0);
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "too large")]
fn matches_reference_when_blocked_and_parallel() {
    each_isa(|_| {
        let mut random = Random(2);
        for layout in [Layout::Rows, Layout::Columns, Layout::Scattered] {
            for shape in [
                (1, 1000, 1201),
                (5, 401, 777),
                (40, 800, 395),
                (131, 385, 200),
                (150, 390, 250),
                (2, 770, 900),
                (8, 300, 1003),
                (64, 770, 150),
            ] {
                check(&mut random, shape, layout, false);
            }
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "too large")]
fn several_products_at_once_are_those_one_by_one() {
    each_isa(|_| {
        let mut random = Random(3);
        for (m, k) in [(1, 700), (1, 3), (4, 300), (7, 513), (30, 200), (130, 90)] {
            let widths = [random.below(600), random.below(300), 1 + random.below(900)];
            let columns = random.below(2) == 0;
            let (a, bias) = (random.floats(m * k), random.floats(1500));
            // Side by side in one matrix, like fused weights.
            let all: usize = widths.iter().sum();
            let weights = random.floats(k * all);
            let starts = [0, widths[0], widths[0] + widths[1]];
            let b = |i: usize| match columns {
                false => View2::new(&weights, starts[i], (k, widths[i]), (all, 1)),
                true => View2::new(&weights, starts[i] * k, (k, widths[i]), (1, k)),
            };
            let biases = [Some(&bias[..widths[0]]), None, Some(&bias[..widths[2]])];
            let a = View2::row_major(&a, m, k);
            let mut together = widths.map(|n| vec![7.0; m * n]);
            let product = |(i, c)| Product { b: b(i).into(), bias: biases[i], c, ldc: widths[i] };
            gemm_each(a, together.iter_mut().map(Vec::as_mut_slice).enumerate().map(product).collect());
            for (i, together) in together.iter().enumerate() {
                let mut alone = vec![0.0; m * widths[i]];
                gemm(a, b(i), biases[i], &mut alone, widths[i]);
                for (got, want) in together.iter().zip(alone) {
                    assert!((got - want).abs() <= 1e-4 * (1.0 + want.abs()), "{m}x{k}: {got} instead of {want}");
                }
            }
        }
    });
}

#[test]
fn a_sum_of_nothing_is_the_bias() {
    each_isa(|_| {
        const N: usize = if cfg!(miri) { 64 } else { 4096 };
        let (m, n, bias) = (8, N, [2.5; N]);
        let mut outputs = [0; 5].map(|_| vec![7.0; m * n]);
        let product = |c| Product { b: View2::<f32>::row_major(&[], 0, n).into(), bias: Some(&bias), c, ldc: n };
        gemm_each(View2::row_major(&[], m, 0), outputs.iter_mut().map(Vec::as_mut_slice).map(product).collect());
        assert!(outputs.iter().flatten().all(|value| *value == 2.5));
    });
}

#[test]
#[cfg_attr(miri, ignore = "too large")]
fn infinities_do_not_leak_between_columns() {
    each_isa(|_| {
        for (m, layout) in [(1, true), (5, true), (20, true), (200, true), (1, false), (5, false), (20, false)] {
            let (k, n) = (19, 37);
            let a = vec![1.0; m * k];
            let mut b = vec![1.0f32; k * n];
            let view = |b| {
                if layout { View2::row_major(b, k, n) } else { View2::row_major(b, n, k).t() }
            };
            let at = if layout { 3 * n + 5 } else { 5 * k + 3 };
            b[at] = f32::INFINITY;
            let mut c = vec![0.0; m * n];
            gemm(View2::row_major(&a, m, k), view(&b), None, &mut c, n);
            for (i, &c) in c.iter().enumerate() {
                assert_eq!(c, if i % n == 5 { f32::INFINITY } else { k as f32 });
            }
        }
    });
}

#[test]
#[should_panic(expected = "inner dimensions differ")]
fn rejects_mismatched_shapes() {
    let x = [0.0; 12];
    gemm(View2::row_major(&x, 3, 4), View2::row_major(&x, 3, 4), None, &mut [0.0; 12], 4);
}

#[test]
#[should_panic(expected = "exceeds")]
fn rejects_short_views() {
    View2::new(&[0.0; 11], 0, (3, 4), (4, 1));
}

/// Only runs on CPUs with `bf16` dot-product instructions.
#[test]
#[cfg_attr(miri, ignore = "too large")]
fn products_of_bf16_are_those_of_widened_numbers() {
    let mut random = Random(4);
    for round in 0..rounds(200) {
        let (m, k, n) = (9 + random.below(150), 2 * (1 + random.below(900)), 1 + random.below(300));
        let numbers = |random: &mut Random, n| random.floats(n).into_iter().map(bf16::from_f32).collect::<Vec<_>>();
        let (a, b, bias) = (numbers(&mut random, m * k), numbers(&mut random, k * n), random.floats(n));
        let av = View2::row_major(&a, m, k);
        let bv = if round % 2 == 0 { View2::row_major(&b, k, n) } else { View2::row_major(&b, n, k).t() };
        let bias = (round % 3 == 0).then_some(&bias[..]);
        let mut c = vec![7.0; m * n];
        if gemm_each_bf16(av, vec![Product { b: bv.into(), bias, c: &mut c, ldc: n }]).is_err() {
            eprintln!("NOT RUN: this processor has no bf16 products, or memory is not aligned for them");
            continue;
        }
        let wide: Vec<f32> = a.iter().map(|x| x.widened()).collect();
        let mut expected = vec![0.0; m * n];
        gemm(View2::row_major(&wide, m, k), bv, bias, &mut expected, n);
        for (got, want) in c.iter().zip(&expected) {
            assert!((got - want).abs() <= 1e-6 * (k as f32), "{m}x{k}x{n}: {got} instead of {want}");
        }
    }
}
