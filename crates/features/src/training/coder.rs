//! An encoder and its decoder in training: activations forward, gradients back, by hand. Latents that are not active cost
//! nothing on the way back.

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

/// An encoder `[latent, d_in]` (a row is a latent's) and a decoder `[latent, width]`, which writes outputs from `first` on.
#[derive(Debug, Clone)]
pub(super) struct Coder {
    pub(super) d_in: usize,
    pub(super) latents: usize,
    /// Width of what a latent writes.
    pub(super) width: usize,
    /// The first of the outputs that it writes.
    pub(super) first: usize,
    pub(super) encoder: Parameter,
    pub(super) bias: Parameter,
    pub(super) decoder: Parameter,
    /// JumpReLU's thresholds; a gated coder's logarithms of scales and its gate's biases.
    pub(super) thresholds: Parameter,
    pub(super) log_scale: Parameter,
    pub(super) gate_bias: Parameter,
}

/// What a coder made of a batch.
#[derive(Default)]
pub(super) struct Activations {
    /// Inputs of the encoder, `[token, d_in]`.
    pub(super) input: Vec<f32>,
    /// Pre-activations (of a gated coder those of its gate), `[token, latent]`.
    pub(super) pre: Vec<f32>,
    /// Activations by token.
    pub(super) acts: Sparse,
}

/// Gradients of outputs, `[token, width]`, for the latents before this number (behind those of the entry before).
pub(super) type Slopes<'s> = (usize, Cow<'s, [f32]>);

/// Rows times a matrix whose rows are latents', plus a bias.
fn encode(x: &[f32], [rows, width]: [usize; 2], weight: &[f32], latents: usize, bias: &[f32]) -> Vec<f32> {
    let mut pre = vec![0.0; rows * latents];
    let weight = View2::row_major(weight, latents, width).t();
    let product = Product { b: weight.into(), bias: Some(bias), c: &mut pre, ldc: latents };
    gemm_each(View2::row_major(x, rows, width), vec![product]);
    pre
}

impl Coder {
    /// Random directions of this norm, with which it encodes as well; of one that is not an autoencoder the encoder's own.
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

    /// Norms of the decoder's rows.
    pub(super) fn norms(&self) -> Vec<f32> {
        self.decoder.value.chunks_exact(self.width).map(|row| row.iter().map(|x| x * x).sum::<f32>().sqrt()).collect()
    }

    /// Pre-activations of a batch, in which none is chosen yet.
    pub(super) fn encode(&self, input: Vec<f32>) -> Activations {
        let rows = input.len() / self.d_in.max(1);
        let bias = if self.gate_bias.is_empty() { &self.bias } else { &self.gate_bias };
        let pre = encode(&input, [rows, self.d_in], &self.encoder.value, self.latents, &bias.value);
        Activations { input, pre, acts: Sparse::default() }
    }

    /// The scores by which the latents of a batch are chosen: pre-activations times the norms of decoder rows.
    pub(super) fn scores(&self, pre: &[f32], norms: &[f32], scores: &mut Vec<f32>) {
        let start = scores.len();
        scores.extend_from_slice(pre);
        for row in scores[start..].chunks_exact_mut(self.latents) {
            row.iter_mut().zip(norms).for_each(|(x, norm)| *x *= norm);
        }
    }

    /// Chooses the active latents; of several coders whose latents are chosen together, those with scores of at least
    /// `least`.
    pub(super) fn choose(&self, made: &mut Activations, objective: &Objective, norms: &[f32], least: Option<f32>) {
        let mut acts = made.pre.clone();
        match objective {
            Objective::BatchTopK { .. } | Objective::Matryoshka { .. } => {
                let least = least.unwrap_or(f32::INFINITY);
                by_rows(&mut acts, self.latents, |row, _| {
                    for (x, norm) in row.iter_mut().zip(norms) {
                        // Of what is not above zero none is chosen, whatever the bound.
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

    /// The magnitude of a gated latent from its gate's pre-activation.
    fn magnitude(&self, latent: usize, gate: f32) -> f32 {
        (gate - self.gate_bias.value[latent]) * self.log_scale.value[latent].exp() + self.bias.value[latent]
    }

    /// Adds what the latents write to the outputs, `[token, outputs]`.
    pub(super) fn write(&self, acts: &Sparse, outputs: &mut [f32], all: usize) {
        let mut written = vec![0.0; acts.rows() * self.width];
        times(acts, View2::row_major(&self.decoder.value, self.latents, self.width).into(), None, &mut written);
        for (to, from) in outputs.chunks_exact_mut(all).zip(written.chunks_exact(self.width)) {
            to[self.first..].iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }
    }

    /// The part of outputs `[token, all]` that the coder writes.
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

    /// Adds the gradients of `acts` that the outputs' gradient makes, and of the decoder: those of `latents` only.
    /// Returns the gradients of the activations, in the order of `by_latent`'s entries.
    fn decoder_back(&mut self, by_latent: &Sparse, slopes: &[f32]) -> Vec<f32> {
        let rows = slopes.len() / self.width.max(1);
        let mut made = vec![0.0; self.decoder.value.len()];
        times(by_latent, View2::row_major(slopes, rows, self.width).into(), None, &mut made);
        self.decoder.gradient.iter_mut().zip(&made).for_each(|(to, from)| *to += from);
        products_at(by_latent, &self.decoder.value, slopes, self.width)
    }

    /// Adds the gradients of encoder and bias (of a gated coder, the gate's) that those of pre-activations make, and gives
    /// their sums by latent.
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

    /// Adds all gradients of a batch. `slopes` are those of the outputs this coder writes, `[token, width]`, one for all
    /// latents or, for prefixes of latents that end at the numbers beside them, their own.
    ///
    /// Returns the loss of what keeps latents few.
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
            // Only latents of this part, in the same places.
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

    /// Adds the gradients of `weight · Σ acts · norm`.
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

    /// The way back through thresholds, by straight-through gradients.
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
        // The gradient of each latent's being active, if that counts.
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
        // Thresholds: all pre-activations near them count, active or not.
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

    /// The way back through magnitudes, and of the magnitudes' scales.
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

    /// The gate's own reconstruction and its penalty, to both of which the decoder is a constant (its rows would shrink to
    /// make gates cheap, and magnitudes make up for it): adds their gradients, returns
    /// their losses. `missed` is the output less the decoder's bias.
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

    /// The loss of dead latents, which are to reconstruct what is missed: adds its gradients.
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
                // Largest first whatever the sign.
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

/// Does something to every row, with scratch memory, on all threads.
fn by_rows(all: &mut [f32], width: usize, work: impl Fn(&mut [f32], &mut Vec<f32>) + Send + Sync) {
    const ROWS: usize = 64;
    each_item(all.chunks_mut(ROWS * width.max(1)), |rows| {
        let mut scratch = Vec::new();
        rows.chunks_exact_mut(width.max(1)).for_each(|row| work(row, &mut scratch));
    });
}

/// The entries of some rows; the other rows are empty.
fn within(all: &Sparse, rows: std::ops::Range<usize>) -> Sparse {
    if rows == (0..all.rows()) {
        return all.clone();
    }
    let (first, last) = (all.offsets[rows.start], all.offsets[rows.end]);
    let offsets = all.offsets.iter().map(|offset| offset.clamp(&first, &last) - first).collect();
    Sparse { offsets, columns: all.columns[first..last].to_vec(), values: all.values[first..last].to_vec() }
}
