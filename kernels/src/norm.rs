//! Layer norm and RMS norm over rows.

use crate::isa::{Isa, multiversion};
use crate::math;
use crate::tasks::{CHUNK, each_item};

/// Which normalization to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `(x - mean) / √(mean((x - mean)²) + eps)`
    Layer,
    /// `x / √(mean(x²) + eps)`
    Rms,
}

/// Parameters of a normalization over rows of `cols` elements.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// Layer or RMS norm.
    pub kind: Kind,
    /// Added to the mean square.
    pub eps: f32,
    /// Factor for each normalized column, `[cols]`.
    pub weight: Option<&'a [f32]>,
    /// Added to each column after it is multiplied by `weight`, `[cols]`.
    pub bias: Option<&'a [f32]>,
}

multiversion! {
    /// Writes one row of output and returns its scale.
    fn norm_row(norm: Norm, x: &[f32], y: &mut [f32]) -> f32 = norm_row_body
}

/// `y[r] = normalize(x[r]) * weight + bias` for each row of `x` `[rows, cols]`.
///
/// # Panics
/// If lengths disagree.
///
/// ```
/// use hooklens_kernels::norm::{Kind, Norm, norm};
/// let plain = Norm { kind: Kind::Layer, eps: 0.0, weight: None, bias: None };
/// let mut y = [0.0; 2];
/// norm(plain, &[1.0, 3.0], 2, &mut y);
/// assert_eq!(y, [-1.0, 1.0]);
/// ```
pub fn norm(norm: Norm, x: &[f32], cols: usize, y: &mut [f32]) {
    if x.is_empty() && y.is_empty() {
        return;
    }
    check(norm, x, cols, y);
    let isa = Isa::current();
    let rows = (CHUNK / cols).max(1);
    let run = |(x, y): (&[f32], &mut [f32])| {
        for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)) {
            norm_row(isa, norm, x, y);
        }
    };
    if x.len() <= CHUNK {
        run((x, y));
    } else {
        each_item(x.chunks(rows * cols).zip(y.chunks_mut(rows * cols)), run);
    }
}

/// Like [`norm`], but also writes `scale` `[rows]`, the divisor `√(mean square + eps)` of each row.
///
/// # Panics
/// If lengths disagree.
pub fn norm_and_scale(norm: Norm, x: &[f32], cols: usize, scale: &mut [f32], y: &mut [f32]) {
    if x.is_empty() && y.is_empty() && scale.is_empty() {
        return;
    }
    check(norm, x, cols, y);
    assert_eq!(scale.len(), x.len() / cols, "`scale` must have one value per row");
    let isa = Isa::current();
    let rows = (CHUNK / cols).max(1);
    let blocks = scale.chunks_mut(rows).zip(x.chunks(rows * cols).zip(y.chunks_mut(rows * cols)));
    each_item(blocks, |(scale, (x, y))| {
        let rows = x.chunks_exact(cols).zip(y.chunks_exact_mut(cols));
        for (scale, (x, y)) in scale.iter_mut().zip(rows) {
            *scale = norm_row(isa, norm, x, y);
        }
    });
}

/// Backward pass of [`norm`]: the gradient of its input from the gradient of its output, `dy` `[rows, cols]`.
///
/// # Panics
/// If lengths disagree.
pub fn norm_back(norm: Norm, x: &[f32], dy: &[f32], cols: usize, dx: &mut [f32]) {
    if x.is_empty() && dx.is_empty() && dy.is_empty() {
        return;
    }
    check(norm, x, cols, dx);
    assert_eq!(dy.len(), x.len(), "gradient and input differ in length");
    let isa = Isa::current();
    let rows = (CHUNK / cols).max(1) * cols;
    each_item(x.chunks(rows).zip(dy.chunks(rows)).zip(dx.chunks_mut(rows)), |((x, dy), dx)| {
        for ((x, dy), dx) in x.chunks_exact(cols).zip(dy.chunks_exact(cols)).zip(dx.chunks_exact_mut(cols)) {
            norm_back_row(isa, norm, x, dy, dx);
        }
    });
}

multiversion! {
    /// [`norm_back`] for one row.
    fn norm_back_row(norm: Norm, x: &[f32], dy: &[f32], dx: &mut [f32]) = norm_back_row_body
}

/// With `y = x̂ w + b`, `x̂ = (x - mean) / scale` and `g = dy w`: `dx = (g - mean(g) - x̂ mean(g x̂)) / scale`, without
/// the term `mean(g)` for RMS norm.
#[inline(always)]
fn norm_back_row_body<const FMA: bool>(norm: Norm, x: &[f32], dy: &[f32], dx: &mut [f32]) {
    let count = x.len() as f32;
    let centers = matches!(norm.kind, Kind::Layer);
    let mean = if centers { math::reduce(x, 0.0, |x, acc| acc + x, |a, b| a + b) / count } else { 0.0 };
    let add_square = |x, acc| math::fma::<FMA>(x - mean, x - mean, acc);
    let inverse = 1.0 / (math::reduce(x, 0.0, add_square, |a, b| a + b) / count + norm.eps).sqrt();
    match norm.weight {
        Some(weight) => dx.iter_mut().zip(dy).zip(weight).for_each(|((g, dy), w)| *g = dy * w),
        None => dx.copy_from_slice(dy),
    }
    let mean_g = if centers { math::reduce(dx, 0.0, |g, acc| acc + g, |a, b| a + b) / count } else { 0.0 };
    let along = math::sum_of(dx, x, |g, x| g * (x - mean)) / count * inverse * inverse;
    dx.iter_mut().zip(x).for_each(|(g, x)| *g = (*g - mean_g - (x - mean) * along) * inverse);
}

/// Asserts that the shapes agree.
fn check(norm: Norm, x: &[f32], cols: usize, y: &[f32]) {
    assert!(cols > 0 && x.len().is_multiple_of(cols), "the length {} is not a multiple of {cols}", x.len());
    assert_eq!(x.len(), y.len(), "input and output differ in length");
    for vector in [norm.weight, norm.bias].into_iter().flatten() {
        assert_eq!(vector.len(), cols, "weight or bias has the wrong length");
    }
}

#[inline(always)]
fn norm_row_body<const FMA: bool>(norm: Norm, x: &[f32], y: &mut [f32]) -> f32 {
    let count = x.len() as f32;
    let mean = match norm.kind {
        Kind::Layer => math::reduce(x, 0.0, |x, acc| acc + x, |a, b| a + b) / count,
        Kind::Rms => 0.0,
    };
    let add_square = |x, acc| math::fma::<FMA>(x - mean, x - mean, acc);
    let square = math::reduce(x, 0.0, add_square, |a, b| a + b) / count;
    let scale = (square + norm.eps).sqrt();
    let inverse = 1.0 / scale;
    for (y, &x) in y.iter_mut().zip(x) {
        *y = (x - mean) * inverse;
    }
    if let Some(weight) = norm.weight {
        for (y, &w) in y.iter_mut().zip(weight) {
            *y *= w;
        }
    }
    if let Some(bias) = norm.bias {
        for (y, &b) in y.iter_mut().zip(bias) {
            *y += b;
        }
    }
    scale
}
