//! Activation functions applied in place.

use crate::isa::{Isa, multiversion};
use crate::math;
use crate::tasks::{CHUNK, each_chunk, each_item};

/// Runs `kernel` on chunks of `x` in parallel.
fn in_chunks(x: &mut [f32], kernel: fn(Isa, &mut [f32])) {
    let isa = Isa::current();
    if x.len() <= CHUNK {
        kernel(isa, x);
    } else {
        each_item(x.chunks_mut(CHUNK), |x| kernel(isa, x));
    }
}

/// Defines the public function `$name` applying `$scalar` to every element.
macro_rules! elementwise {
    ($(#[$meta:meta])* $name:ident, $kernel:ident, $body:ident, |$x:ident, $fma:ident| $value:expr) => {
        #[inline(always)]
        fn $body<const $fma: bool>(x: &mut [f32]) {
            for slot in x {
                let $x = *slot;
                *slot = $value;
            }
        }
        multiversion! { fn $kernel(x: &mut [f32]) = $body }
        $(#[$meta])*
        pub fn $name(x: &mut [f32]) {
            in_chunks(x, $kernel);
        }
    };
}

#[inline(always)]
fn add_body<const FMA: bool>(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}
multiversion! { fn add_kernel(x: &mut [f32], y: &[f32]) = add_body }

#[inline(always)]
fn multiply_body<const FMA: bool>(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x *= y);
}
multiversion! { fn multiply_kernel(x: &mut [f32], y: &[f32]) = multiply_body }

/// Runs `kernel` on corresponding chunks of `x` and `y` in parallel.
fn in_pairs_of_chunks(x: &mut [f32], y: &[f32], kernel: fn(Isa, &mut [f32], &[f32])) {
    let isa = Isa::current();
    each_chunk(y, x, CHUNK, |y, x| kernel(isa, x, y));
}

/// `x ← x + y` for every element.
///
/// # Panics
/// If the lengths differ.
pub fn add(x: &mut [f32], y: &[f32]) {
    in_pairs_of_chunks(x, y, add_kernel);
}

/// `x ← x y` for every element.
///
/// # Panics
/// If the lengths differ.
pub fn multiply(x: &mut [f32], y: &[f32]) {
    in_pairs_of_chunks(x, y, multiply_kernel);
}

elementwise! {
    /// `x ← e^x` for every element (relative error below 1.5e-7).
    exp, exp_kernel, exp_body, |x, FMA| math::exp::<FMA>(x)
}
elementwise! {
    /// `x ← tanh x` for every element (relative error below 3e-7).
    tanh, tanh_kernel, tanh_body, |x, FMA| math::tanh::<FMA>(x)
}
elementwise! {
    /// `x ← max(x, 0)` for every element; NaN stays NaN.
    relu, relu_kernel, relu_body, |x, FMA| if x < 0.0 { 0.0 } else { x }
}
elementwise! {
    /// `x ← x / (1 + e^-x)` for every element.
    silu, silu_kernel, silu_body, |x, FMA| math::silu::<FMA>(x)
}
elementwise! {
    /// Tanh approximation of GELU ("gelu_new"): `x ← 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
    gelu_tanh, gelu_tanh_kernel, gelu_tanh_body, |x, FMA| math::gelu_tanh::<FMA>(x)
}
elementwise! {
    /// Exact GELU: `x ← 0.5 x (1 + erf(x / √2))`.
    gelu_erf, gelu_erf_kernel, gelu_erf_body, |x, FMA| math::gelu_erf::<FMA>(x)
}

/// Defines the public function `$name`, which multiplies every element of `g` by the function's derivative at `x`.
macro_rules! slope {
    ($(#[$meta:meta])* $name:ident, $kernel:ident, $body:ident, |$x:ident, $fma:ident| $value:expr) => {
        #[inline(always)]
        fn $body<const $fma: bool>(g: &mut [f32], x: &[f32]) {
            g.iter_mut().zip(x).for_each(|(g, &$x)| *g *= $value);
        }
        multiversion! { fn $kernel(g: &mut [f32], x: &[f32]) = $body }
        $(#[$meta])*
        ///
        /// # Panics
        /// If the lengths differ.
        pub fn $name(g: &mut [f32], x: &[f32]) {
            in_pairs_of_chunks(g, x, $kernel);
        }
    };
}

slope! {
    /// Backward pass of [`relu`]: `g ← g` where `x` is positive, else 0.
    relu_back, relu_back_kernel, relu_back_body, |x, FMA| if x > 0.0 { 1.0 } else { 0.0 }
}
slope! {
    /// Backward pass of [`silu`].
    silu_back, silu_back_kernel, silu_back_body, |x, FMA| math::silu_slope::<FMA>(x)
}
slope! {
    /// Backward pass of [`gelu_tanh`].
    gelu_tanh_back, gelu_tanh_back_kernel, gelu_tanh_back_body, |x, FMA| math::gelu_tanh_slope::<FMA>(x)
}
slope! {
    /// Backward pass of [`gelu_erf`].
    gelu_erf_back, gelu_erf_back_kernel, gelu_erf_back_body, |x, FMA| math::gelu_erf_slope::<FMA>(x)
}
