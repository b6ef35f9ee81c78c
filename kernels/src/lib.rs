//! CPU kernels for transformer inference, in `f32` arithmetic, with weights in `f32`, 16-bit or block-quantized
//! formats. This is an internal crate of hooklens without stability guarantees.
//!
//! Every kernel is a plain function over slices with explicit shapes and strides. It runs on as many threads as rayon's
//! global pool has, with one of three code paths chosen at run time (see [`isa`]): AVX-512, AVX2+FMA, or portable.
#![warn(clippy::undocumented_unsafe_blocks, clippy::multiple_unsafe_ops_per_block)]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_imports, unused_variables, reason = "x86's paths use it")
)]

pub mod adam;
pub mod attention;
pub mod attention_back;
pub mod convert;
pub mod element;
pub mod elementwise;
pub mod gemm;
mod gemv;
pub mod isa;
pub mod key_blocks;
pub mod latents;
mod math;
pub mod matrix;
mod micro;
#[cfg(target_arch = "x86_64")]
mod micro_avx2;
#[cfg(target_arch = "x86_64")]
mod micro_avx512;
mod micro_portable;
mod micro_tile;
pub mod norm;
mod operands;
mod pack;
pub mod packed;
pub mod pairs;
mod panels;
mod scratch;
pub mod softmax;
pub mod sparse;
mod sync;
pub mod tasks;
mod team;
pub mod unwritten;
pub mod view;
