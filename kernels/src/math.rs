//! Branch-free scalar functions that vectorize inside a loop.
//!
//! Coefficients are minimax fits (relative error) computed for this crate.

/// `a * b + c`, fused only if that is a single instruction.
#[inline(always)]
pub(crate) fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Horner evaluation of `c[0] + c[1] x + …`.
#[inline(always)]
fn poly<const FMA: bool, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = c[N - 1];
    for i in (0..N - 1).rev() {
        sum = fma::<FMA>(sum, x, c[i]);
    }
    sum
}

/// Number of partial results of a reduction over a slice.
const LANES: usize = 16;

/// Combines 16 lanes pairwise.
#[inline(always)]
fn fold_lanes(mut x: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    for half in [8, 4, 2, 1] {
        for l in 0..half {
            x[l] = f(x[l + half], x[l]);
        }
    }
    x[0]
}

/// Sum of 16 lanes, pairwise.
#[inline(always)]
pub(crate) fn sum_lanes(x: [f32; LANES]) -> f32 {
    fold_lanes(x, |a, b| a + b)
}

/// Reduces `x` from `start` in 32 independent lanes: `step(x, acc)` adds one element and `join` combines two partial
/// results.
#[inline(always)]
pub(crate) fn reduce(x: &[f32], start: f32, step: impl Fn(f32, f32) -> f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    let (mut even, mut odd) = ([start; LANES], [start; LANES]);
    let (blocks, rest) = x.as_chunks::<{ 2 * LANES }>();
    for x in blocks {
        let (x, y) = x.split_at(LANES);
        for (acc, &x) in even.iter_mut().zip(x) {
            *acc = step(x, *acc);
        }
        for (acc, &y) in odd.iter_mut().zip(y) {
            *acc = step(y, *acc);
        }
    }
    for (even, odd) in even.iter_mut().zip(odd) {
        *even = join(odd, *even);
    }
    rest.iter().fold(fold_lanes(even, &join), |acc, &x| step(x, acc))
}

/// Sum of `term(a, b)` over two slices of equal length, in 16 independent lanes.
#[inline(always)]
pub(crate) fn sum_of(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for l in 0..LANES {
            sums[l] += term(a[l], b[l]);
        }
    }
    sum_lanes(sums) + a_rest.iter().zip(b_rest).map(|(a, b)| term(*a, *b)).sum::<f32>()
}

/// The larger argument (a single instruction; returns the second if either is NaN).
#[inline(always)]
pub(crate) fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

// Adding 1.5 * 2^23 rounds to an integer, found in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;

/// `(p, n)` with `e^x = p * 2^n` for `-104 <= x <= 89`.
#[inline(always)]
fn exp_parts<const FMA: bool>(x: f32) -> (f32, i32) {
    // ln 2 in two parts, the first with few enough bits for exact products.
    const LN2_HI: f32 = 355.0 / 512.0;
    const LN2_LO: f32 = -2.121_944_4e-4;
    let shifted = fma::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = fma::<FMA>(n, -LN2_LO, fma::<FMA>(n, -LN2_HI, x));
    let q = poly::<FMA, 5>(r, [0.499_999_93, 0.166_665_2, 0.041_668_395, 0.008_368_781, 0.001_381_446_8]);
    let p = 1.0 + fma::<FMA>(r * r, q, r);
    (p, (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32))
}

/// `2^n` for `-126 <= n <= 127`.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// `e^x`, relative error below 1.5e-7 over the normal range, subnormal results
/// and infinities included; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp<const FMA: bool>(x: f32) -> f32 {
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let (p, n) = exp_parts::<FMA>(x);
    // In two steps, because n spans -150 ..= 128.
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// `e^x` for `x <= 0`, 0 below -87; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp_negative<const FMA: bool>(x: f32) -> f32 {
    let (p, n) = exp_parts::<FMA>(if x < -87.0 { -87.0 } else { x });
    let e = p * power_of_two(n);
    if x < -87.0 { 0.0 } else { e }
}

/// Hyperbolic tangent, relative error below 3e-7; NaN stays NaN.
#[inline(always)]
pub(crate) fn tanh<const FMA: bool>(x: f32) -> f32 {
    let s = x * x;
    let p = poly::<FMA, 5>(s, [-0.333_332_6, 0.133_308_3, -0.053_688_023, 0.020_469_42, -0.005_515_164]);
    let near = fma::<FMA>(x * s, p, x);
    let a = x.abs();
    let far = (1.0 - 2.0 / (exp::<FMA>(a + a) + 1.0)).copysign(x);
    if a < 0.625 { near } else { far }
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn silu<const FMA: bool>(x: f32) -> f32 {
    // Below this, e^-x is huge and the quotient underflows (also for -inf).
    let x = if x < -103.0 { -103.0 } else { x };
    x * sigmoid_of_exp(exp::<FMA>(-x))
}

/// Derivative of [`silu`]: `σ (1 + x (1 - σ))`, with `σ = 1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn silu_slope<const FMA: bool>(x: f32) -> f32 {
    let x = if x < -103.0 { -103.0 } else { x };
    let x = if x > 103.0 { 103.0 } else { x };
    let share = sigmoid_of_exp(exp::<FMA>(-x));
    share * fma::<FMA>(x, 1.0 - share, 1.0)
}

/// `1 / (1 + e)`.
#[inline(always)]
fn sigmoid_of_exp(e: f32) -> f32 {
    1.0 / (1.0 + e)
}

/// Tanh approximation of GELU, `0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))`, computed without cancellation as
/// `x / (1 + e^(-2u))`.
#[inline(always)]
pub(crate) fn gelu_tanh<const FMA: bool>(x: f32) -> f32 {
    const ROOT: f64 = 0.797_884_560_802_865_4; // √(2/π)
    const LINEAR: f32 = (-2.0 * ROOT) as f32;
    const CUBIC: f32 = (-2.0 * ROOT * 0.044715) as f32;
    // The result is -0 in f32 below -11.
    let x = if x < -11.0 { -11.0 } else { x };
    let e = exp::<FMA>(x * fma::<FMA>(x * x, CUBIC, LINEAR));
    x * sigmoid_of_exp(e)
}

/// Derivative of [`gelu_tanh`]: with `σ = 1 / (1 + e^(-2u))`, `σ + 2u' x σ (1 - σ)`.
#[inline(always)]
pub(crate) fn gelu_tanh_slope<const FMA: bool>(x: f32) -> f32 {
    const ROOT: f64 = 0.797_884_560_802_865_4; // √(2/π)
    const LINEAR: f32 = (2.0 * ROOT) as f32;
    const CUBIC: f32 = (2.0 * ROOT * 0.044715) as f32;
    // Beyond this, the derivative is 0 or 1.
    let x = if x < -11.0 { -11.0 } else { x };
    let x = if x > 11.0 { 11.0 } else { x };
    let square = x * x;
    let share = sigmoid_of_exp(exp::<FMA>(-x * fma::<FMA>(square, CUBIC, LINEAR)));
    share + x * fma::<FMA>(square, 3.0 * CUBIC, LINEAR) * share * (1.0 - share)
}

/// `Φ(-|x|)`, the tail probability of the normal distribution beyond `|x|`, and `e^(-x²/2)`.
#[inline(always)]
fn normal_tail<const FMA: bool>(x: f32) -> (f32, f32) {
    // erfc(z) e^(z²) = t P(t), t = 1 / (1 + 0.4 z), for z >= 0.
    const P: [f32; 9] = [
        0.225_634_23,
        0.226_443_11,
        0.201_887_57,
        0.193_393_29,
        0.079_756_29,
        0.087_964_64,
        0.083_987_02,
        -0.140_319_1,
        0.041_253_01,
    ];
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let z = if z > 15.0 { 15.0 } else { z };
    let t = 1.0 / fma::<FMA>(z, 0.4, 1.0);
    let bell = exp::<FMA>(-z * z);
    (0.5 * t * poly::<FMA, 9>(t, P) * bell, bell)
}

/// Exact GELU, `x Φ(x)`, with the normal distribution function Φ.
#[inline(always)]
pub(crate) fn gelu_erf<const FMA: bool>(x: f32) -> f32 {
    let (beyond, _) = normal_tail::<FMA>(x);
    let below = if x < -15.0 { 0.0 } else { x * beyond };
    if x < 0.0 { below } else { x * (1.0 - beyond) }
}

/// Derivative of [`gelu_erf`]: `Φ(x) + x φ(x)`.
#[inline(always)]
pub(crate) fn gelu_erf_slope<const FMA: bool>(x: f32) -> f32 {
    const HEIGHT: f32 = 0.398_942_3; // 1/√(2π)
    // Beyond this, the derivative is 0 or 1.
    let x = if x < -15.0 { -15.0 } else { x };
    let x = if x > 15.0 { 15.0 } else { x };
    let (beyond, bell) = normal_tail::<FMA>(x);
    let under = if x < 0.0 { beyond } else { 1.0 - beyond };
    fma::<FMA>(x * HEIGHT, bell, under)
}
