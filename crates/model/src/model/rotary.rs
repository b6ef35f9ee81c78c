//! Rotary embeddings (Su et al. 2021) and their long-context variants.

use std::f64::consts::PI;

use burn::tensor::{DType, Device, Tensor, TensorData};
use hooklens_hooks::upload;

use super::norm::{narrowed, widened};
use crate::config::{RopeScaling, Rotary};
use crate::cpu;

/// Sines and cosines for the positions of one forward pass.
#[derive(Debug, Clone)]
pub struct RotaryTable {
    /// Cosines, `[batch or 1, pos, 1, dim / 2]`.
    cos: Tensor<4>,
    /// Sines, in the same shape.
    sin: Tensor<4>,
    dim: usize,
    adjacent_pairs: bool,
}

impl RotaryTable {
    /// Builds the table for `rows` rows of positions, in `f64` if that is the model's element type, otherwise in `f32`.
    pub fn new(rotary: &Rotary, positions: &[u32], rows: usize, device: &Device, dtype: DType) -> Self {
        let len = positions.len() / rows;
        let of_row = |row: &[u32]| frequencies(rotary, row.iter().max().map_or(0, |last| *last as usize + 1));
        // The frequencies of LongRoPE and dynamic NTK depend on the text's length, so each row has its own.
        let own: Vec<Vec<f64>> = match rotary.scaling {
            RopeScaling::Long { .. } | RopeScaling::Dynamic { .. } => {
                positions.chunks(len.max(1)).map(of_row).collect()
            }
            _ => vec![frequencies(rotary, 0)],
        };
        let factor = match rotary.scaling {
            RopeScaling::Yarn { attention_factor, .. } | RopeScaling::Long { attention_factor, .. } => attention_factor,
            _ => 1.0,
        };
        let angles = || {
            let rows = positions.chunks(len.max(1)).zip(own.iter().cycle());
            rows.flat_map(|(row, own)| row.iter().flat_map(move |p| own.iter().map(move |f| f64::from(*p) * f)))
        };
        let shape = [rows, len, 1, rotary.dim / 2];
        let dtype = if dtype == DType::F64 { dtype } else { DType::F32 };
        let table = |values: Vec<f64>| upload(TensorData::new(values, shape), (device, dtype));
        Self {
            cos: table(angles().map(|a| a.cos() * factor).collect()),
            sin: table(angles().map(|a| a.sin() * factor).collect()),
            dim: rotary.dim,
            adjacent_pairs: rotary.adjacent_pairs,
        }
    }

    /// The table for a single position.
    pub fn at(&self, pos: usize) -> Self {
        Self { cos: self.cos.clone().narrow(1, pos, 1), sin: self.sin.clone().narrow(1, pos, 1), ..*self }
    }

    /// Rotates the first `dim` dimensions of every head by the token's position, in `f32`.
    ///
    /// # Shapes
    /// - input and output: `[batch, pos, head, d_head]`
    pub fn rotate(&self, input: Tensor<4>) -> Tensor<4> {
        let by_kernels = cpu::tracked([&input], |[x]| {
            let back = Self { sin: self.sin.clone().neg(), ..self.clone() };
            Some((self.turned(x), move |gradient, _| [Some(back.turned(gradient))]))
        });
        by_kernels.unwrap_or_else(|| self.turned(input))
    }

    /// Like [`RotaryTable::rotate`], for the dimensions after the first `skip`.
    pub(crate) fn rotate_behind(&self, skip: usize, input: Tensor<4>) -> Tensor<4> {
        if skip == 0 {
            return self.rotate(input);
        }
        let d_head = input.dims()[3];
        let rest = input.clone().narrow(3, 0, skip);
        Tensor::cat(vec![rest, self.rotate(input.narrow(3, skip, d_head - skip))], 3)
    }

    fn turned(&self, input: Tensor<4>) -> Tensor<4> {
        let dtype = input.dtype();
        let [batch, pos, heads, d_head] = input.dims();
        let (dim, half) = (self.dim, self.dim / 2);
        let input = widened(input);
        let rest = (dim < d_head).then(|| input.clone().narrow(3, dim, d_head - dim));
        let turned = if dim < d_head { input.narrow(3, 0, dim) } else { input };
        let (x, y) = if self.adjacent_pairs {
            let pairs = turned.reshape([batch, pos, heads, half, 2]);
            let part = |i| pairs.clone().narrow(4, i, 1).squeeze_dim::<4>(4);
            (part(0), part(1))
        } else {
            (turned.clone().narrow(3, 0, half), turned.narrow(3, half, half))
        };
        let (cos, sin) = (narrowed(self.cos.clone(), x.dtype()), narrowed(self.sin.clone(), x.dtype()));
        let first = x.clone() * cos.clone() - y.clone() * sin.clone();
        let second = y * cos + x * sin;
        let turned = if self.adjacent_pairs {
            Tensor::stack::<5>(vec![first, second], 4).reshape([batch, pos, heads, dim])
        } else {
            Tensor::cat(vec![first, second], 3)
        };
        let whole = match rest {
            Some(rest) => Tensor::cat(vec![turned, rest], 3),
            None => turned,
        };
        narrowed(whole, dtype)
    }
}

/// Angular frequency of each rotated pair, in radians per position, for a text of this length.
fn frequencies(rotary: &Rotary, len: usize) -> Vec<f64> {
    let plain = (0..rotary.dim / 2).map(|i| rotary.base.powf(-((2 * i) as f64) / rotary.dim as f64));
    match &rotary.scaling {
        RopeScaling::Long { short_factor, long_factor, original_context, .. } => {
            let factors = if len > *original_context { long_factor } else { short_factor };
            plain.zip(factors).map(|(f, factor)| f / factor).collect()
        }
        &RopeScaling::None => plain.collect(),
        &RopeScaling::Dynamic { factor, original_context } => {
            let (len, dim) = (len.max(original_context) as f64, rotary.dim as f64);
            let growth = factor * len / original_context as f64 - (factor - 1.0);
            let base = rotary.base * growth.powf(dim / (dim - 2.0));
            (0..rotary.dim / 2).map(|i| base.powf(-((2 * i) as f64) / dim)).collect()
        }
        &RopeScaling::Proportional { pairs, factor } => {
            plain.enumerate().map(|(pair, f)| if pair < pairs { f / factor } else { 0.0 }).collect()
        }
        &RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
        &RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => plain
            .map(|f| {
                let turns = original_context as f64 * f / (2.0 * PI);
                let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                blend(f / factor, f, kept)
            })
            .collect(),
        &RopeScaling::Yarn { factor, beta_fast, beta_slow, original_context, truncate, .. } => {
            let dim = rotary.dim as f64;
            // The dimension that completes `turns` rotations within the original context.
            let place =
                |turns: f64| dim * (original_context as f64 / (turns * 2.0 * PI)).ln() / (2.0 * rotary.base.ln());
            let (mut low, mut high) = (place(beta_fast), place(beta_slow));
            if truncate {
                (low, high) = (low.floor(), high.ceil());
            }
            (low, high) = (low.max(0.0), high.min(dim - 1.0));
            let width = if high == low { 0.001 } else { high - low };
            plain.enumerate().map(|(i, f)| blend(f / factor, f, 1.0 - (i as f64 - low) / width)).collect()
        }
    }
}

/// Interpolates from `stretched` (share 0) to `kept` (share 1).
fn blend(stretched: f64, kept: f64, share: f64) -> f64 {
    let share = share.clamp(0.0, 1.0);
    stretched * (1.0 - share) + kept * share
}
