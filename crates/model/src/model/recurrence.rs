//! Recurrences with a decaying memory matrix: the gated delta rule, and Mamba 2.

use burn::tensor::{Tensor, TensorData};
use hooklens_hooks::upload;

/// Number of positions processed together.
const CHUNK: usize = 64;

/// Inputs of the recurrence. At each position, `memory = exp(log_decay) memory; memory += beta kᵀ (v - k memory); read
/// = q memory`. Without `corrects`, the update is `memory += beta kᵀ v`.
#[derive(Debug)]
pub(super) struct Steps {
    /// Queries, `[batch, pos, head, d_key]`.
    pub(super) q: Tensor<4>,
    /// Keys, `[batch, pos, head, d_key]`.
    pub(super) k: Tensor<4>,
    /// Values, `[batch, pos, head, d_value]`.
    pub(super) v: Tensor<4>,
    /// Logarithm of the decay, `[batch, pos, head]`; at most zero.
    pub(super) log_decay: Tensor<3>,
    /// Factor of the update, `[batch, pos, head]`.
    pub(super) beta: Tensor<3>,
    /// Whether the memory's value for the key is replaced (the delta rule) instead of added to.
    pub(super) corrects: bool,
}

impl Steps {
    /// Runs the recurrence from `memory`. Returns the value read at each position, `[batch, pos, head, d_value]`, and
    /// the memory after the last position, `[batch, head, d_key, d_value]`.
    pub(super) fn run(self, memory: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let [batch, pos, heads, d_key] = self.q.dims();
        let d_value = self.v.dims()[3];
        let memory = memory.reshape([batch * heads, d_key, d_value]);
        let (read, memory) = if pos == 1 { self.one(memory) } else { self.in_chunks(memory) };
        (read.permute([0, 2, 1, 3]), memory.reshape([batch, heads, d_key, d_value]))
    }

    /// Processes a single position.
    fn one(self, memory: Tensor<3>) -> (Tensor<4>, Tensor<3>) {
        let [batch, _, heads, d_key] = self.q.dims();
        let (rows, d_value) = (batch * heads, self.v.dims()[3]);
        let (q, k) = (self.q.reshape([rows, 1, d_key]), self.k.reshape([rows, 1, d_key]));
        let v = self.v.reshape([rows, 1, d_value]);
        let memory = memory * self.log_decay.exp().reshape([rows, 1, 1]);
        let new = if self.corrects { v - k.clone().matmul(memory.clone()) } else { v };
        let correction = new * self.beta.reshape([rows, 1, 1]);
        let memory = memory + k.swap_dims(1, 2).matmul(correction);
        (q.matmul(memory.clone()).reshape([batch, heads, 1, d_value]), memory)
    }

    /// Processes positions in chunks. Within a chunk, all corrections are computed at once by solving a triangular
    /// system (Yang et al. 2024, "Gated Delta Networks", section 3.3); the memory is passed from chunk to chunk.
    fn in_chunks(self, mut memory: Tensor<3>) -> (Tensor<4>, Tensor<3>) {
        let [batch, pos, heads, _] = self.q.dims();
        let size = pos.next_power_of_two().min(CHUNK);
        let count = pos.div_ceil(size);
        let shape = [batch * heads, count, size];
        let [q, k, v] = [self.q, self.k, self.v].map(|x| chunked(x, shape));
        let [log_decay, beta] = [self.log_decay, self.beta].map(|x| chunked(x.unsqueeze_dim(3), shape));
        let device = q.device();
        let dtype = q.dtype();
        let triangle = |kept: fn(usize, usize) -> bool| {
            let ones = (0..size * size).map(|at| f32::from(u8::from(kept(at / size, at % size)))).collect::<Vec<_>>();
            upload::<4, burn::tensor::Float>(TensorData::new(ones, [1, 1, size, size]), (&device, dtype))
        };
        // Log decay from the start of a chunk up to and including each position.
        let total = triangle(|row, column| column <= row).matmul(log_decay);
        let before = triangle(|row, column| column < row);
        let later = triangle(|row, column| column > row);
        let between = total.clone() - total.clone().swap_dims(2, 3);
        // Mask before `exp`: the differences in the other triangle may be large.
        let between = (between * (-later.clone() + 1.0)).exp() * (-later + 1.0);
        let written = v * beta.clone();
        // Values written by the chunk, and the keys that look up what the memory already holds.
        let (written, seen) = match self.corrects {
            false => (written, None),
            true => {
                let scores = k.clone() * beta;
                let system = scores.clone().matmul(k.clone().swap_dims(2, 3)) * between.clone() * before;
                let solved = unit_lower_inverse(system);
                (solved.clone().matmul(written), Some(solved.matmul(scores * total.clone().exp())))
            }
        };
        let within = q.clone().matmul(k.clone().swap_dims(2, 3)) * between;
        let reads = q * total.clone().exp();
        let last = total.clone().narrow(2, size - 1, 1);
        let writes = k * (last.clone() - total).exp();
        let mut read = Vec::with_capacity(count);
        for chunk in 0..count {
            let of = |x: &Tensor<4>| x.clone().narrow(1, chunk, 1).squeeze_dim::<3>(1);
            let own = match &seen {
                Some(seen) => of(&written) - of(seen).matmul(memory.clone()),
                None => of(&written),
            };
            read.push(of(&reads).matmul(memory.clone()) + of(&within).matmul(own.clone()));
            memory = memory * of(&last).exp() + of(&writes).swap_dims(1, 2).matmul(own);
        }
        let read = Tensor::cat(read, 1);
        let [.., d_value] = read.dims();
        (read.reshape([batch, heads, count * size, d_value]).narrow(2, 0, pos), memory)
    }
}

/// Reshapes `[batch, pos, head, width]` to `[batch * head, chunk, position in chunk, width]`, padded with zeros.
fn chunked(x: Tensor<4>, [rows, count, size]: [usize; 3]) -> Tensor<4> {
    let [batch, pos, heads, width] = x.dims();
    let missing = count * size - pos;
    let x = match missing {
        0 => x,
        _ => Tensor::cat(vec![x.clone(), Tensor::zeros([batch, missing, heads, width], (&x.device(), x.dtype()))], 1),
    };
    x.permute([0, 2, 1, 3]).reshape([rows, count, size, width])
}

/// Repeats vectors shared by several heads, `[batch, pos, shared, width]` to `[batch, pos, head, width]`.
pub(super) fn for_each_head(x: Tensor<4>, heads: usize) -> Tensor<4> {
    let [batch, pos, shared, width] = x.dims();
    let each = x.unsqueeze_dim::<5>(3).expand([batch, pos, shared, heads / shared, width]);
    each.reshape([batch, pos, heads, width])
}

/// Reshapes `[batch, pos, head, width]` to `[batch, pos, head * width]`.
pub(super) fn flat(x: Tensor<4>) -> Tensor<3> {
    let [batch, pos, heads, width] = x.dims();
    x.reshape([batch, pos, heads * width])
}

/// `log(1 + exp(x))`, without overflow for large `x`.
pub(super) fn softplus(x: Tensor<3>) -> Tensor<3> {
    x.clone().clamp_min(0.0) + x.abs().neg().exp().log1p()
}

/// Computes `(1 + L)⁻¹` for strictly lower triangular matrices.
///
/// Recursively uses `[[A, 0], [B, C]]⁻¹ = [[A⁻¹, 0], [-C⁻¹ B A⁻¹, C⁻¹]]`. Matrices up to 8 × 8 use
/// `(1 - L)(1 + L²)(1 + L⁴)`; for larger matrices, the terms of this product could become much larger than their sum.
fn unit_lower_inverse(lower: Tensor<4>) -> Tensor<4> {
    let [rows, count, size, _] = lower.dims();
    let one = || Tensor::<2>::eye(size, &lower.device()).cast(lower.dtype()).reshape([1, 1, size, size]);
    if size <= 8 {
        let squared = lower.clone().matmul(lower.clone());
        let fourth = squared.clone().matmul(squared.clone());
        return (one() - lower.clone()).matmul(one() + squared).matmul(one() + fourth);
    }
    let half = size / 2;
    let part = |row: usize, column: usize| lower.clone().narrow(2, row * half, half).narrow(3, column * half, half);
    let (first, second) = (unit_lower_inverse(part(0, 0)), unit_lower_inverse(part(1, 1)));
    let below = second.clone().matmul(part(1, 0)).matmul(first.clone()).neg();
    let above = Tensor::zeros([rows, count, half, half], (&lower.device(), lower.dtype()));
    Tensor::cat(vec![Tensor::cat(vec![first, above], 3), Tensor::cat(vec![below, second], 3)], 2)
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution};

    use super::*;

    /// Single steps and chunks give the same result, also with an initial memory and with repeated keys.
    #[test]
    fn chunks_give_what_single_positions_do() {
        let device = Device::flex();
        device.seed(5);
        let cases = [(2, false), (7, false), (64, true), (131, false), (150, true)];
        for ((pos, repeats), corrects) in cases.into_iter().flat_map(|case| [(case, true), (case, false)]) {
            let [batch, heads, d_key, d_value] = [2, 3, 8, 6];
            let random =
                |width| Tensor::<4>::random([batch, pos, heads, width], Distribution::Normal(0.0, 1.0), &device);
            let mut k = random(d_key);
            if repeats {
                k = k.narrow(1, 0, 1).expand([batch, pos, heads, d_key]);
            }
            let k = k.clone() / k.square().sum_dim(3).sqrt();
            let (q, v) = (random(d_key), random(d_value));
            let gates = |low, high| Tensor::<3>::random([batch, pos, heads], Distribution::Uniform(low, high), &device);
            let (log_decay, beta) =
                if repeats { (gates(-0.01, 0.0), gates(0.9, 1.0)) } else { (gates(-9.0, 0.0), gates(0.0, 1.0)) };
            let before = Tensor::<4>::random([batch, heads, d_key, d_value], Distribution::Normal(0.0, 1.0), &device);
            let steps = |at: usize, count: usize| Steps {
                q: q.clone().narrow(1, at, count),
                k: k.clone().narrow(1, at, count),
                v: v.clone().narrow(1, at, count),
                log_decay: log_decay.clone().narrow(1, at, count),
                beta: beta.clone().narrow(1, at, count),
                corrects,
            };
            let (all, last) = steps(0, pos).run(before.clone());
            let mut memory = before;
            let mut each = Vec::new();
            for at in 0..pos {
                let (read, next) = steps(at, 1).run(memory);
                each.push(read);
                memory = next;
            }
            for (gap, size) in [
                (all - Tensor::cat(each.clone(), 1), Tensor::cat(each, 1)),
                (
                    last.reshape([2, 1, 3 * 8, 6]) - memory.clone().reshape([2, 1, 3 * 8, 6]),
                    memory.reshape([2, 1, 3 * 8, 6]),
                ),
            ] {
                let relative = gap.abs().max().into_scalar::<f32>() / size.abs().max().into_scalar::<f32>();
                assert!(relative < 1e-5, "{pos} positions: {relative}");
            }
        }
    }
}
