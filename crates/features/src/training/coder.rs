//! [`Coder`]: an encoder and its decoder during training, with hand-written forward and backward passes. The backward
//! pass skips inactive latents.

use std::borrow::Cow;

use hooklens_kernels::gemm::{Product, gemm_each};
use hooklens_kernels::latents::{Keep, keep};
use hooklens_kernels::sparse::{Sparse, products_at, times};
use hooklens_kernels::tasks::each_item;
use hooklens_kernels::view::View2;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::objective::{JumpReluSparsity, Objective};
use super::parameter::Parameter;

/// An encoder `[latent, d_in]` with one row per latent, and a decoder `[latent, width]` that writes outputs from index
/// `first` on.
#[derive(Debug, Clone)]
pub(super) struct Coder {
    pub(super) d_in: usize,
    pub(super) latents: usize,
    /// Width of the decoder.
    pub(super) width: usize,
    /// Index of the first output that the decoder writes.
    pub(super) first: usize,
    pub(super) encoder: Parameter,
    pub(super) bias: Parameter,
    pub(super) decoder: Parameter,
    /// Thresholds of JumpReLU.
    pub(super) thresholds: Parameter,
    /// Logarithms of the scales of a gated coder.
    pub(super) log_scale: Parameter,
    /// Gate biases of a gated coder.
    pub(super) gate_bias: Parameter,
}

/// The activations of a coder on one batch.
#[derive(Default)]
pub(super) struct Activations {
    /// Inputs of the encoder, `[token, d_in]`.
    pub(super) input: Vec<f32>,
    /// Pre-activations, `[token, latent]`; the gate's pre-activations for a gated coder.
    pub(super) pre: Vec<f32>,
    /// Activations, one sparse row per token.
    pub(super) acts: Sparse,
}

/// Gradients of outputs, `[token, width]`, that apply to latents from the previous entry's index up to this index
/// (exclusive).
pub(super) type Slopes<'s> = (usize, Cow<'s, [f32]>);

/// Multiplies rows by a matrix with one row per latent, and adds a bias.
fn encode(x: &[f32], [rows, width]: [usize; 2], weight: &[f32], latents: usize, bias: &[f32]) -> Vec<f32> {
    let mut pre = vec![0.0; rows * latents];
    let weight = View2::row_major(weight, latents, width).t();
    let product = Product { b: weight.into(), bias: Some(bias), c: &mut pre, ldc: latents };
    gemm_each(View2::row_major(x, rows, width), vec![product]);
    pre
}

impl Coder {
    /// Initializes the decoder with random rows of norm `norm`. The encoder starts as the decoder's transpose if `tied`
    /// (for autoencoders), and otherwise with its own random rows.
    pub(super) fn new(
        [d_in, latents, width, first]: [usize; 4],
        norm: f32,
        tied: bool,
        objective: &Objective,
        random: &mut ChaCha8Rng,
    ) -> Self {
        let mut rows = |width: usize, norm: f32| {
            let mut all: Vec<f32> = (0..latents * width).map(|_| random.random_range(-1.0..1.0f32)).collect();
            for row in all.chunks_exact_mut(width.max(1)) {
                let length = row.iter().map(|x| x * x).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
                row.iter_mut().for_each(|x| *x *= norm / length);
            }
            all
        };
        let decoder = rows(width, norm);
        let encoder = if tied { decoder.clone() } else { rows(d_in, norm) };
        let of = |value: f32, there: bool| Parameter::new(if there { vec![value; latents] } else { Vec::new() });
        let gated = matches!(objective, Objective::Gated { .. });
        let threshold = match objective {
            Objective::JumpRelu { threshold, .. } => Some(*threshold),
            _ => None,
        };
        Self {
            d_in,
            latents,
            width,
            first,
            encoder: Parameter::new(encoder),
            bias: of(0.0, true),
            decoder: Parameter::new(decoder),
            thresholds: of(threshold.unwrap_or(0.0), threshold.is_some()),
            log_scale: of(0.0, gated),
            gate_bias: of(0.0, gated),
        }
    }

    /// Norms of the decoder rows.
    pub(super) fn norms(&self) -> Vec<f32> {
        self.decoder.value.chunks_exact(self.width).map(|row| row.iter().map(|x| x * x).sum::<f32>().sqrt()).collect()
    }

    /// Computes the pre-activations of a batch, without choosing active latents.
    pub(super) fn encode(&self, input: Vec<f32>) -> Activations {
        let rows = input.len() / self.d_in.max(1);
        let bias = if self.gate_bias.is_empty() { &self.bias } else { &self.gate_bias };
        let pre = encode(&input, [rows, self.d_in], &self.encoder.value, self.latents, &bias.value);
        Activations { input, pre, acts: Sparse::default() }
    }

    /// Appends the scores by which active latents are chosen in a batch: pre-activations times decoder norms.
    pub(super) fn scores(&self, pre: &[f32], norms: &[f32], scores: &mut Vec<f32>) {
        let start = scores.len();
        scores.extend_from_slice(pre);
        for row in scores[start..].chunks_exact_mut(self.latents) {
            row.iter_mut().zip(norms).for_each(|(x, norm)| *x *= norm);
        }
    }

    /// Chooses the active latents. If latents of the whole batch compete, chooses those with scores of at least
    /// `least`.
    pub(super) fn choose(&self, made: &mut Activations, objective: &Objective, norms: &[f32], least: Option<f32>) {
        let mut acts = made.pre.clone();
        match objective {
            Objective::BatchTopK { .. } | Objective::Matryoshka { .. } => {
                let least = least.unwrap_or(f32::INFINITY);
                by_rows(&mut acts, self.latents, |row, _| {
                    for (x, norm) in row.iter_mut().zip(norms) {
                        // Only positive scores are chosen, whatever the bound.
                        let score = *x * norm;
                        *x = if score >= least.max(f32::MIN_POSITIVE) { *x } else { 0.0 };
                    }
                });
            }
            Objective::TopK { k } => {
                for (row, pre) in acts.chunks_exact_mut(self.latents).zip(made.pre.chunks_exact(self.latents)) {
                    row.iter_mut().zip(norms).for_each(|(x, norm)| *x *= norm);
                    keep(Keep::Largest(*k), self.latents, row);
                    row.iter_mut().zip(pre).for_each(|(x, pre)| *x = if *x == 0.0 { 0.0 } else { *pre });
                }
            }
            Objective::JumpRelu { .. } => {
                let thresholds = &self.thresholds.value;
                keep(Keep::Above { thresholds, positive: true }, self.latents, &mut acts);
            }
            Objective::L1 { .. } => keep(Keep::Positive, self.latents, &mut acts),
            Objective::Gated { .. } => {
                let gates = made.pre.chunks_exact(self.latents);
                for (row, gate) in acts.chunks_exact_mut(self.latents).zip(gates) {
                    for (latent, x) in row.iter_mut().enumerate() {
                        *x = if gate[latent] > 0.0 { self.magnitude(latent, gate[latent]).max(0.0) } else { 0.0 };
                    }
                }
            }
        }
        made.acts = Sparse::of(&acts, self.latents);
    }

    /// The magnitude of a gated latent, computed from its gate's pre-activation.
    fn magnitude(&self, latent: usize, gate: f32) -> f32 {
        (gate - self.gate_bias.value[latent]) * self.log_scale.value[latent].exp() + self.bias.value[latent]
    }

    /// Adds the decoded latents to the outputs, `[token, output]`.
    pub(super) fn write(&self, acts: &Sparse, outputs: &mut [f32], all: usize) {
        let mut written = vec![0.0; acts.rows() * self.width];
        times(acts, View2::row_major(&self.decoder.value, self.latents, self.width).into(), None, &mut written);
        for (to, from) in outputs.chunks_exact_mut(all).zip(written.chunks_exact(self.width)) {
            to[self.first..].iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }
    }

    /// The part of outputs `[token, all]` that this coder writes.
    pub(super) fn own<'o>(&self, outputs: &'o [f32], all: usize) -> Cow<'o, [f32]> {
        match self.width == all {
            true => outputs.into(),
            false => {
                let mut own = Vec::with_capacity(outputs.len() / all.max(1) * self.width);
                outputs
                    .chunks_exact(all)
                    .for_each(|row| own.extend_from_slice(&row[self.first..self.first + self.width]));
                own.into()
            }
        }
    }

    /// Adds gradients of the decoder, given the gradients of the outputs, for the latents in `by_latent` only. Returns
    /// the gradients of the activations, in the order of `by_latent`'s entries.
    fn decoder_back(&mut self, by_latent: &Sparse, slopes: &[f32]) -> Vec<f32> {
        let rows = slopes.len() / self.width.max(1);
        let mut made = vec![0.0; self.decoder.value.len()];
        times(by_latent, View2::row_major(slopes, rows, self.width).into(), None, &mut made);
        self.decoder.gradient.iter_mut().zip(&made).for_each(|(to, from)| *to += from);
        products_at(by_latent, &self.decoder.value, slopes, self.width)
    }

    /// Adds gradients of the encoder and the bias (the gate's bias for a gated coder), given the gradients of the
    /// pre-activations.
    fn encoder_back(&mut self, by_latent: &Sparse, of_pre: Vec<f32>, input: &[f32], gate: bool) {
        let back = Sparse { values: of_pre, ..by_latent.clone() };
        let rows = input.len() / self.d_in.max(1);
        let mut made = vec![0.0; self.encoder.value.len()];
        times(&back, View2::row_major(input, rows, self.d_in).into(), None, &mut made);
        self.encoder.gradient.iter_mut().zip(&made).for_each(|(to, from)| *to += from);
        let bias = if gate { &mut self.gate_bias } else { &mut self.bias };
        for (latent, sum) in bias.gradient.iter_mut().enumerate() {
            *sum += back.row(latent).1.iter().sum::<f32>();
        }
    }

    /// Adds all gradients of a batch. `slopes` are gradients of the outputs that this coder writes, `[token, width]`:
    /// one entry for all latents, or one entry per prefix of latents, with the index at which the prefix ends.
    ///
    /// Returns the sparsity loss.
    pub(super) fn back(
        &mut self,
        made: &Activations,
        slopes: &[Slopes<'_>],
        objective: &Objective,
        (norms, warm): (&[f32], f32),
    ) -> f64 {
        let tokens = made.acts.rows();
        let by_latent = made.acts.transposed(self.latents);
        let mut of_acts = Vec::with_capacity(by_latent.values.len());
        let mut start = 0;
        for (end, slopes) in slopes {
            // Select the latents of this part. Indices do not change.
            let part = within(&by_latent, start..*end);
            let products = self.decoder_back(&part, slopes);
            of_acts.extend(products);
            start = *end;
        }
        let share = 1.0 / tokens.max(1) as f32;
        match objective {
            Objective::BatchTopK { .. } | Objective::Matryoshka { .. } | Objective::TopK { .. } => {
                self.encoder_back(&by_latent, of_acts, &made.input, false);
                0.0
            }
            Objective::L1 { coefficient } => {
                let weight = coefficient * warm * share;
                let loss = self.penalize(&by_latent, &mut of_acts, norms, weight);
                self.encoder_back(&by_latent, of_acts, &made.input, false);
                loss
            }
            Objective::JumpRelu { sparsity, bandwidth, .. } => {
                self.jump_back(made, &by_latent, of_acts, (*sparsity, *bandwidth, warm), (norms, slopes))
            }
            Objective::Gated { .. } => {
                self.gated_back(made, &by_latent, of_acts);
                0.0
            }
        }
    }

    /// Adds the gradients of the penalty `weight · Σ acts · norm`, and returns the penalty.
    fn penalize(&mut self, by_latent: &Sparse, of_acts: &mut [f32], norms: &[f32], weight: f32) -> f64 {
        let mut loss = 0.0;
        for (latent, norm) in norms.iter().enumerate() {
            let range = by_latent.offsets[latent]..by_latent.offsets[latent + 1];
            of_acts[range.clone()].iter_mut().for_each(|slope| *slope += weight * norm);
            let sum: f32 = by_latent.values[range].iter().sum();
            loss += f64::from(weight * norm * sum);
            self.lengthen(latent, weight * sum, *norm);
        }
        loss
    }

    /// Adds the gradient of `factor` times the norm of a decoder row.
    fn lengthen(&mut self, latent: usize, factor: f32, norm: f32) {
        let factor = if norm > 0.0 { factor / norm } else { 0.0 };
        let range = latent * self.width..(latent + 1) * self.width;
        let row = &self.decoder.value[range.clone()];
        self.decoder.gradient[range].iter_mut().zip(row).for_each(|(to, x)| *to += factor * x);
    }

    /// The backward pass of JumpReLU, with straight-through gradients for thresholds.
    fn jump_back(
        &mut self,
        made: &Activations,
        by_latent: &Sparse,
        mut of_acts: Vec<f32>,
        (sparsity, bandwidth, warm): (JumpReluSparsity, f32, f32),
        (norms, slopes): (&[f32], &[Slopes<'_>]),
    ) -> f64 {
        let tokens = made.acts.rows();
        let share = 1.0 / tokens.max(1) as f32;
        let l0 = made.acts.values.len() as f32 * share;
        // The gradient with respect to the step function that counts active latents, if their number is penalized.
        let (of_step, mut loss) = match sparsity {
            JumpReluSparsity::Step { coefficient } => (coefficient * warm * share, f64::from(coefficient * warm * l0)),
            JumpReluSparsity::Quadratic { coefficient, target } => {
                let over = l0 / target - 1.0;
                (2.0 * coefficient * warm * over / target * share, f64::from(coefficient * warm * over * over))
            }
            JumpReluSparsity::Tanh { .. } => (0.0, 0.0),
        };
        if let JumpReluSparsity::Tanh { coefficient, scale } = sparsity {
            for (latent, norm) in norms.iter().enumerate() {
                let range = by_latent.offsets[latent]..by_latent.offsets[latent + 1];
                let mut of_norm = 0.0;
                for (slope, act) in of_acts[range.clone()].iter_mut().zip(&by_latent.values[range]) {
                    let tanh = (scale * act * norm).tanh();
                    let rise = coefficient * warm * share * (1.0 - tanh * tanh) * scale;
                    *slope += rise * norm;
                    of_norm += rise * act;
                    loss += f64::from(coefficient * warm * share * tanh);
                }
                self.lengthen(latent, of_norm, *norm);
            }
        }
        // All pre-activations near a threshold contribute to its gradient, whether active or not.
        let near: Vec<f32> = made
            .pre
            .chunks_exact(self.latents)
            .flat_map(|row| {
                let near = |(x, threshold): (&f32, &f32)| (x - threshold).abs() < bandwidth / 2.0;
                row.iter().zip(&self.thresholds.value).map(move |both| f32::from(u8::from(near(both))))
            })
            .collect();
        let near = Sparse::of(&near, self.latents).transposed(self.latents);
        let own = slopes.first().map(|(_, slopes)| &slopes[..]).unwrap_or_default();
        let mut of_value = products_at(&near, &self.decoder.value, own, self.width);
        if let JumpReluSparsity::Tanh { coefficient, scale } = sparsity {
            for (latent, norm) in norms.iter().enumerate() {
                let range = near.offsets[latent]..near.offsets[latent + 1];
                for (slope, token) in of_value[range.clone()].iter_mut().zip(&near.columns[range]) {
                    let pre = made.pre[*token as usize * self.latents + latent];
                    let act = if pre > self.thresholds.value[latent] { pre.max(0.0) } else { 0.0 };
                    let tanh = (scale * act * norm).tanh();
                    *slope += coefficient * warm * share * (1.0 - tanh * tanh) * scale * norm;
                }
            }
        }
        for (latent, threshold) in self.thresholds.value.iter().enumerate() {
            let range = near.offsets[latent]..near.offsets[latent + 1];
            let sum: f32 =
                of_value[range].iter().map(|slope| -(threshold / bandwidth) * slope - of_step / bandwidth).sum();
            self.thresholds.gradient[latent] += sum;
        }
        self.encoder_back(by_latent, of_acts, &made.input, false);
        loss
    }

    /// The backward pass of gated magnitudes and their scales.
    fn gated_back(&mut self, made: &Activations, by_latent: &Sparse, mut of_base: Vec<f32>) {
        for latent in 0..self.latents {
            let scale = self.log_scale.value[latent].exp();
            let range = by_latent.offsets[latent]..by_latent.offsets[latent + 1];
            let (mut of_scale, mut of_bias) = (0.0, 0.0);
            for (place, slope) in of_base[range.clone()].iter_mut().enumerate() {
                let token = by_latent.columns[range.start + place] as usize;
                let base = made.pre[token * self.latents + latent] - self.gate_bias.value[latent];
                of_scale += *slope * base * scale;
                of_bias += *slope;
                *slope *= scale;
            }
            self.log_scale.gradient[latent] += of_scale;
            self.bias.gradient[latent] += of_bias;
        }
        let back = Sparse { values: of_base, ..by_latent.clone() };
        let rows = made.input.len() / self.d_in.max(1);
        let mut gradient = vec![0.0; self.encoder.value.len()];
        times(&back, View2::row_major(&made.input, rows, self.d_in).into(), None, &mut gradient);
        self.encoder.gradient.iter_mut().zip(&gradient).for_each(|(to, from)| *to += from);
    }

    /// Adds the gradients of the gate's auxiliary reconstruction and of its sparsity penalty, and returns their losses.
    /// Both treat the decoder as a constant; otherwise decoder rows would shrink to make gates cheap, and magnitudes
    /// would grow to compensate. `missed` is the output minus the decoder bias.
    pub(super) fn gate_back(&mut self, made: &Activations, missed: &[f32], norms: &[f32], weight: f32) -> f64 {
        let mut open = made.pre.clone();
        keep(Keep::Positive, self.latents, &mut open);
        let open = Sparse::of(&open, self.latents);
        let tokens = open.rows();
        let mut recons = vec![0.0; tokens * self.width];
        times(&open, View2::row_major(&self.decoder.value, self.latents, self.width).into(), None, &mut recons);
        let share = 1.0 / tokens.max(1) as f32;
        let mut loss = 0.0;
        for (recons, wanted) in recons.iter_mut().zip(missed) {
            let error = *recons - wanted;
            loss += f64::from(error * error * share);
            *recons = 2.0 * error * share;
        }
        let by_latent = open.transposed(self.latents);
        let mut of_open = products_at(&by_latent, &self.decoder.value, &recons, self.width);
        for (latent, norm) in norms.iter().enumerate() {
            let range = by_latent.offsets[latent]..by_latent.offsets[latent + 1];
            of_open[range.clone()].iter_mut().for_each(|slope| *slope += weight * norm);
            loss += f64::from(weight * norm * by_latent.values[range].iter().sum::<f32>());
        }
        self.encoder_back(&by_latent, of_open, &made.input, true);
        loss
    }

    /// Adds the gradients of the auxiliary loss (AuxK), in which dead latents reconstruct the residual `missed`, and
    /// returns the loss.
    pub(super) fn revive(&mut self, made: &Activations, dead: &[bool], missed: &[f32], coefficient: f32) -> f64 {
        let count = dead.iter().filter(|dead| **dead).count();
        let most = (self.d_in / 2).max(1);
        if count == 0 {
            return 0.0;
        }
        let scale = coefficient * (count as f32 / most as f32).min(1.0);
        let wanted = most.min(count);
        let mut of_dead = made.pre.clone();
        let places: Vec<usize> = (0..self.latents).filter(|latent| dead[*latent]).collect();
        by_rows(&mut of_dead, self.latents, |row, own| {
            own.clear();
            own.extend(places.iter().map(|place| row[*place]));
            let least = match wanted == count {
                true => f32::NEG_INFINITY,
                // Order by value, including the sign.
                false => *own.select_nth_unstable_by(wanted - 1, |a, b| b.total_cmp(a)).1,
            };
            for (x, dead) in row.iter_mut().zip(dead) {
                *x = if *dead && *x >= least { *x } else { 0.0 };
            }
        });
        let acts = Sparse::of(&of_dead, self.latents);
        let tokens = acts.rows();
        let mut recons = vec![0.0; tokens * self.width];
        times(&acts, View2::row_major(&self.decoder.value, self.latents, self.width).into(), None, &mut recons);
        let share = 1.0 / tokens.max(1) as f32;
        let mut loss = 0.0;
        for (recons, wanted) in recons.iter_mut().zip(missed) {
            let error = *recons - wanted;
            loss += f64::from(scale * error * error * share);
            *recons = 2.0 * scale * error * share;
        }
        let by_latent = acts.transposed(self.latents);
        let of_acts = self.decoder_back(&by_latent, &recons);
        self.encoder_back(&by_latent, of_acts, &made.input, false);
        loss
    }

    /// All parameters, by name.
    pub(super) fn parameters(&mut self) -> [(&'static str, &mut Parameter); 6] {
        [
            ("encoder", &mut self.encoder),
            ("bias", &mut self.bias),
            ("decoder", &mut self.decoder),
            ("thresholds", &mut self.thresholds),
            ("log_scale", &mut self.log_scale),
            ("gate_bias", &mut self.gate_bias),
        ]
    }
}

/// Processes every row in parallel, with scratch memory.
fn by_rows(all: &mut [f32], width: usize, work: impl Fn(&mut [f32], &mut Vec<f32>) + Send + Sync) {
    const ROWS: usize = 64;
    each_item(all.chunks_mut(ROWS * width.max(1)), |rows| {
        let mut scratch = Vec::new();
        rows.chunks_exact_mut(width.max(1)).for_each(|row| work(row, &mut scratch));
    });
}

/// The entries of a range of rows; other rows are empty.
fn within(all: &Sparse, rows: std::ops::Range<usize>) -> Sparse {
    if rows == (0..all.rows()) {
        return all.clone();
    }
    let (first, last) = (all.offsets[rows.start], all.offsets[rows.end]);
    let offsets = all.offsets.iter().map(|offset| offset.clamp(&first, &last) - first).collect();
    Sparse { offsets, columns: all.columns[first..last].to_vec(), values: all.values[first..last].to_vec() }
}
