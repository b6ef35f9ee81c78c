//! Tests of activation functions against `f64` references.

mod common;
use common::{Random, each_isa};
use hooklens_kernels::elementwise as el;

fn inputs() -> Vec<f32> {
    let mut random = Random(3);
    let mut x: Vec<f32> = (-200_000..200_000).map(|i| i as f32 * 1e-4).collect();
    x.extend((0..50_000).map(|_| random.float() * 90.0));
    x.extend((-30..2).flat_map(|e| [1.37f32, -1.37].map(|m| m * 2f32.powi(e * 4))));
    x.push(0.0);
    x
}

/// Largest error relative to `scale(reference)`.
fn error(f: fn(&mut [f32]), reference: impl Fn(f64) -> f64, scale: impl Fn(f64, f64) -> f64) -> f64 {
    let x = inputs();
    let mut y = x.clone();
    f(&mut y);
    let mut worst = 0.0f64;
    for (&x, &y) in x.iter().zip(&y) {
        let want = reference(x as f64);
        if !(want as f32).is_finite() {
            assert_eq!(y, want as f32, "at {x}");
            continue;
        }
        let e = (y as f64 - want).abs() / scale(x as f64, want);
        assert!(!e.is_nan(), "at {x}: {y} instead of {want}");
        worst = worst.max(e);
    }
    worst
}

/// erfc in `f64`, from the series of erf or from its continued fraction.
fn erfc(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    let front = (-x * x).exp() / std::f64::consts::PI.sqrt();
    if x < 3.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= 2.0 * x * x / (2 * n + 1) as f64;
            sum += term;
        }
        1.0 - 2.0 * front * sum
    } else {
        let mut fraction = 0.0;
        for n in (1..200).rev() {
            fraction = n as f64 / 2.0 / (x + fraction);
        }
        front / (x + fraction)
    }
}

fn gelu_tanh(x: f64) -> f64 {
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    x / (1.0 + (-2.0 * u).exp())
}

#[test]
fn accuracy() {
    let relative = |_: f64, want: f64| want.abs().max(1e-30);
    let absolute = |x: f64, _: f64| x.abs().max(1.0);
    each_isa(|isa| {
        let found = [
            ("exp", error(el::exp, f64::exp, |_, want| want.max(1.2e-38)), 1.5e-7),
            ("tanh", error(el::tanh, f64::tanh, relative), 3e-7),
            ("silu", error(el::silu, |x| x / (1.0 + (-x).exp()), relative), 4e-7),
            ("gelu_tanh", error(el::gelu_tanh, gelu_tanh, absolute), 2e-7),
            (
                "gelu_tanh, relative above -4",
                error(el::gelu_tanh, gelu_tanh, |x, want| if x > -4.0 { want.abs().max(1e-36) } else { 1.0 }),
                2e-6,
            ),
            ("gelu_erf", error(el::gelu_erf, |x| 0.5 * x * erfc(-x / 2f64.sqrt()), absolute), 2e-7),
            ("relu", error(el::relu, |x| x.max(0.0), relative), 0.0),
        ];
        for (name, worst, allowed) in found {
            println!("{isa:?} {name}: {worst:.2e}");
            assert!(worst <= allowed, "{name} with {isa:?}: {worst:e}");
        }
    });
}

#[test]
fn extremes() {
    each_isa(|_| {
        let apply = |f: fn(&mut [f32]), x: f32| {
            let mut y = [x; 19];
            f(&mut y);
            assert!(y.iter().all(|v| v.to_bits() == y[0].to_bits()));
            y[0]
        };
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        for f in [el::exp, el::tanh, el::silu, el::gelu_tanh, el::gelu_erf, el::relu] {
            assert!(apply(f, nan).is_nan());
        }
        assert_eq!([apply(el::exp, inf), apply(el::exp, -inf)], [inf, 0.0]);
        assert_eq!([apply(el::tanh, inf), apply(el::tanh, -inf)], [1.0, -1.0]);
        for f in [el::silu, el::gelu_tanh, el::gelu_erf, el::relu] {
            assert_eq!([apply(f, inf), apply(f, f32::MAX)], [inf, f32::MAX]);
            assert_eq!([apply(f, -inf), apply(f, f32::MIN)], [0.0, 0.0]);
        }
        el::exp(&mut []);
    });
}

/// Derivatives match finite differences in `f64`.
#[test]
fn slopes() {
    each_isa(|_| {
        let x: Vec<f32> = (-4000..4000).map(|i| i as f32 / 200.0 + 0.001).collect();
        let gelu_erf = |x: f64| 0.5 * x * erfc(-x / 2f64.sqrt());
        let of = |back: fn(&mut [f32], &[f32]), function: &dyn Fn(f64) -> f64| {
            let mut slope = vec![2.0; x.len()];
            back(&mut slope, &x);
            for (slope, &x) in slope.iter().zip(&x) {
                let (x, step) = (f64::from(x), 1e-5);
                let want = (function(x + step) - function(x - step)) / step;
                assert!((f64::from(*slope) - want).abs() <= 1e-5, "at {x}: {slope} instead of {want}");
            }
            let mut far = [1.0; 4];
            back(&mut far, &[f32::INFINITY, f32::MAX, f32::MIN, f32::NEG_INFINITY]);
            assert_eq!(far, [1.0, 1.0, 0.0, 0.0]);
        };
        of(el::relu_back, &|x| x.max(0.0));
        of(el::silu_back, &|x| x / (1.0 + (-x).exp()));
        of(el::gelu_tanh_back, &gelu_tanh);
        of(el::gelu_erf_back, &gelu_erf);
    });
}
