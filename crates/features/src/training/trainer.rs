//! Training of one dictionary, batch by batch.

use std::borrow::Cow;

use burn::tensor::{Device, Tensor, TensorData};
use hooklens_kernels::adam::Adam;
use hooklens_kernels::gemm::{Product, gemm_each};
use hooklens_kernels::latents::bound;
use hooklens_kernels::view::View2;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::coder::{Activations, Coder};
use super::objective::{JumpReluSparsity, Objective};
use super::parameter::Parameter;
use super::settings::Training;
use super::source::Origin;
use crate::architecture::Architecture;
use crate::dictionary::{Dictionary, DictionaryWeights};
use crate::metadata::Metadata;
use hooklens_model::error::Result;

/// Metrics of one training step, computed on the step's batch.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Step {
    /// Number of steps done.
    pub step: usize,
    /// Number of tokens seen.
    pub tokens: usize,
    /// Total loss.
    pub loss: f64,
    /// Reconstruction error `‖y − ŷ‖²`, averaged over tokens, in units of normalized activations.
    pub(super) reconstruction: f64,
    /// `1 − ‖y − ŷ‖² / ‖y − mean‖²`.
    pub explained_variance: f64,
    /// Mean number of active latents per token.
    pub l0: f64,
    /// Fraction of latents that are dead.
    pub dead: f64,
    /// The learning rate.
    pub(super) rate: f64,
}

impl Step {
    /// Column names of the log.
    pub(super) const NAMES: [&'static str; 8] =
        ["step", "tokens", "loss", "reconstruction", "explained_variance", "l0", "dead", "learning_rate"];

    pub(super) fn numbers(&self) -> [f64; 8] {
        let [step, tokens] = [self.step as f64, self.tokens as f64];
        [step, tokens, self.loss, self.reconstruction, self.explained_variance, self.l0, self.dead, self.rate]
    }

    /// Number of numbers that represent a step.
    pub(super) const NUMBERS: usize = 8;

    pub(super) fn from_numbers(numbers: &[f64]) -> Option<Self> {
        let [step, tokens, loss, reconstruction, explained_variance, l0, dead, rate] = *numbers else { return None };
        let (step, tokens) = (step as usize, tokens as usize);
        Some(Self { step, tokens, loss, reconstruction, explained_variance, l0, dead, rate })
    }
}

/// The weights of a dictionary in training.
#[derive(Debug, Clone)]
pub(super) struct Trainer {
    pub(super) settings: Training,
    /// The model that produced the training activations.
    pub(super) origin: Origin,
    pub(super) coders: Vec<Coder>,
    pub(super) center: Parameter,
    pub(super) skip: Parameter,
    /// Scale factors of inputs and outputs; 0 until they are measured.
    pub(super) scales: Vec<f32>,
    /// Number of tokens since each latent was last active, for the latents of all coders.
    pub(super) silent: Vec<u64>,
    /// BatchTopK's threshold, which [`Trainer::calibrate`] sets once the weights are final.
    pub(super) threshold: f32,
    pub(super) step: usize,
    pub(super) tokens: usize,
}

/// Number of active latents that BatchTopK chooses for `tokens` tokens.
pub(super) fn chosen(k: f64, tokens: usize) -> usize {
    ((k * tokens as f64) as usize).max(1)
}

/// Subtracts a vector from every row.
fn less(rows: &mut [f32], center: &[f32]) {
    for row in rows.chunks_exact_mut(center.len().max(1)) {
        row.iter_mut().zip(center).for_each(|(x, center)| *x -= center);
    }
}

impl Trainer {
    /// Initializes random weights for inputs and outputs of these widths.
    pub(super) fn new(settings: &Training, d_in: usize, d_out: usize) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(settings.seed);
        let autoencoder = !settings.is_transcoder();
        let layers = settings.layers();
        let coder = |layer: usize| {
            let width = (layers - layer) * d_out;
            let shape = [d_in, settings.latents, width, layer * d_out];
            Coder::new(shape, settings.decoder_norm, autoencoder, &settings.objective, &mut random)
        };
        let coders: Vec<Coder> = (0..layers).map(coder).collect();
        let outputs = layers * d_out;
        let skip = if settings.skip { vec![0.0; d_in * d_out * layers] } else { Vec::new() };
        Self {
            silent: vec![0; layers * settings.latents],
            scales: vec![0.0; 2 * layers],
            settings: settings.clone(),
            origin: Origin::default(),
            coders,
            center: Parameter::new(vec![0.0; outputs]),
            skip: Parameter::new(skip),
            threshold: 0.0,
            step: 0,
            tokens: 0,
        }
    }

    fn d_out(&self) -> usize {
        self.center.value.len() / self.coders.len()
    }

    /// Measures the scale factors on the first activations, and initializes the center with their mean.
    pub(super) fn prepare(&mut self, inputs: &[&[f32]], outputs: &[&[f32]]) {
        let (d_in, d_out) = (self.coders[0].d_in, self.d_out());
        let mean_norm = |rows: &[f32], width: usize| {
            let norms = rows.chunks_exact(width).map(|row| row.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt());
            norms.sum::<f64>() / (rows.len() / width).max(1) as f64
        };
        let scale = |rows: &[f32], width: usize| {
            let norm = mean_norm(rows, width);
            if self.settings.normalize && norm > 0.0 { ((width as f64).sqrt() / norm) as f32 } else { 1.0 }
        };
        let layers = self.coders.len();
        self.scales = inputs.iter().map(|rows| scale(rows, d_in)).collect();
        self.scales.extend(outputs.iter().map(|rows| scale(rows, d_out)));
        for (layer, rows) in outputs.iter().enumerate() {
            let (count, factor) = ((rows.len() / d_out).max(1) as f64, f64::from(self.scales[layers + layer]));
            let mut mean = vec![0f64; d_out];
            for row in rows.chunks_exact(d_out) {
                mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            let center = &mut self.center.value[layer * d_out..][..d_out];
            center.iter_mut().zip(mean).for_each(|(center, sum)| *center = (sum / count * factor) as f32);
        }
    }

    /// Scales each layer's inputs to normalized units.
    pub(super) fn scaled(&self, inputs: &[&[f32]]) -> Vec<Vec<f32>> {
        inputs.iter().zip(&self.scales).map(|(rows, scale)| rows.iter().map(|x| x * scale).collect()).collect()
    }

    /// Pre-activations of each layer's scaled inputs.
    pub(super) fn encoded(&self, scaled: &[Vec<f32>]) -> Vec<Activations> {
        let layer = |(coder, rows): (&Coder, &Vec<f32>)| {
            let mut input = rows.clone();
            if !self.settings.is_transcoder() {
                less(&mut input, &self.center.value);
            }
            coder.encode(input)
        };
        self.coders.iter().zip(scaled).map(layer).collect()
    }

    /// Scores of the latents of all layers, by which BatchTopK chooses.
    pub(super) fn scores(&self, made: &[Activations], norms: &[Vec<f32>]) -> Vec<f32> {
        let mut scores = Vec::with_capacity(made.iter().map(|made| made.pre.len()).sum());
        for ((coder, made), norms) in self.coders.iter().zip(made).zip(norms) {
            coder.scores(&made.pre, norms, &mut scores);
        }
        scores
    }

    /// Takes one step on a batch of input and output activations of each layer, `[token, width]`.
    pub(super) fn step(&mut self, inputs: &[&[f32]], outputs: &[&[f32]]) -> Step {
        let (measured, tokens) = self.gradients(inputs, outputs);
        self.update(tokens);
        Step { step: self.step, tokens: self.tokens, ..measured }
    }

    /// Computes the losses of a batch and the gradients of all parameters, which are reset first.
    pub(super) fn gradients(&mut self, inputs: &[&[f32]], outputs: &[&[f32]]) -> (Step, usize) {
        let (layers, d_in, d_out) = (self.coders.len(), self.coders[0].d_in, self.d_out());
        let all = layers * d_out;
        let tokens = inputs[0].len() / d_in.max(1);
        let share = 1.0 / tokens.max(1) as f32;
        let warm = self.settings.penalty_share(self.tokens);
        self.clear();
        let objective = self.settings.objective.clone();
        let centered = !self.settings.is_transcoder();

        // Encode.
        let raw = self.scaled(inputs);
        let mut wanted = vec![0.0; tokens * all];
        for (layer, rows) in outputs.iter().enumerate() {
            let scale = self.scales[layers + layer];
            for (to, from) in wanted.chunks_exact_mut(all).zip(rows.chunks_exact(d_out)) {
                to[layer * d_out..].iter_mut().zip(from).for_each(|(to, from)| *to = from * scale);
            }
        }
        let norms: Vec<Vec<f32>> = self.coders.iter().map(Coder::norms).collect();
        let mut made = self.encoded(&raw);
        let least = objective.by_batch().map(|k| bound(&self.scores(&made, &norms), chosen(k, tokens)));
        for ((coder, made), norms) in self.coders.iter().zip(&mut made).zip(&norms) {
            coder.choose(made, &objective, norms, least);
        }

        // Reconstruct, with each prefix of a Matryoshka dictionary separately.
        let mut recons = vec![0.0; tokens * all];
        for row in recons.chunks_exact_mut(all.max(1)) {
            row.copy_from_slice(&self.center.value);
        }
        if !self.skip.is_empty() {
            for (layer, rows) in raw.iter().enumerate() {
                let weight = View2::row_major(&self.skip.value[layer * d_in * d_out..], d_in, d_out);
                let mut through = vec![0.0; tokens * d_out];
                let product = Product { b: weight.into(), bias: None, c: &mut through, ldc: d_out };
                gemm_each(View2::row_major(rows, tokens, d_in), vec![product]);
                for (to, from) in recons.chunks_exact_mut(all).zip(through.chunks_exact(d_out)) {
                    to[layer * d_out..].iter_mut().zip(from).for_each(|(to, from)| *to += from);
                }
            }
        }
        let ends = match &objective {
            Objective::Matryoshka { widths, .. } => {
                let mut ends: Vec<usize> =
                    widths.iter().copied().filter(|width| *width < self.settings.latents).collect();
                ends.push(self.settings.latents);
                ends
            }
            _ => vec![self.settings.latents],
        };
        let mut slopes: Vec<(usize, Vec<f32>)> = Vec::with_capacity(ends.len());
        let (mut loss, mut last) = (0.0, 0.0);
        let mut start = 0;
        let mut of_center = vec![0.0; all];
        for end in ends {
            for (coder, made) in self.coders.iter().zip(&made) {
                coder.write(&made.acts.columns_in(start..end), &mut recons, all);
            }
            let mut errors = recons.clone();
            last = 0.0;
            for (errors, wanted) in errors.chunks_mut(all.max(1)).zip(wanted.chunks(all.max(1))) {
                let mut squares = 0.0;
                for (error, wanted) in errors.iter_mut().zip(wanted) {
                    *error -= wanted;
                    squares += *error * *error;
                    *error *= 2.0 * share;
                }
                last += f64::from(squares * share);
            }
            loss += last;
            for row in errors.chunks_exact(all.max(1)) {
                of_center.iter_mut().zip(row).for_each(|(sum, slope)| *sum += slope);
            }
            slopes.push((end, errors));
            start = end;
        }
        // Latents of a prefix also contribute to all longer prefixes, so gradients are accumulated from the longest
        // one.
        for part in (1..slopes.len()).rev() {
            let (before, after) = slopes.split_at_mut(part);
            before[part - 1].1.iter_mut().zip(&after[0].1).for_each(|(to, from)| *to += from);
        }

        // Backward pass.
        let missed: Vec<f32> = wanted.iter().zip(&recons).map(|(wanted, given)| wanted - given).collect();
        let dead = self.dead();
        for (layer, (coder, made)) in self.coders.iter_mut().zip(&made).enumerate() {
            let own: Vec<(usize, Cow<'_, [f32]>)> =
                slopes.iter().map(|(end, slopes)| (*end, coder.own(slopes, all))).collect();
            loss += coder.back(made, &own, &objective, (&norms[layer], warm));
            if let Objective::Gated { coefficient } = &objective {
                let mut off_center = wanted.clone();
                less(&mut off_center, &self.center.value);
                let weight = coefficient * warm * share;
                loss += coder.gate_back(made, &coder.own(&off_center, all), &norms[layer], weight);
            }
            if objective.is_top_k() && self.settings.revive > 0.0 {
                let latents = coder.latents;
                let own = coder.own(&missed, all);
                loss += coder.revive(made, &dead[layer * latents..][..latents], &own, self.settings.revive);
            }
        }
        if !self.skip.is_empty() {
            let whole = &slopes[0].1;
            for (layer, rows) in raw.iter().enumerate() {
                let mut own = Vec::with_capacity(tokens * d_out);
                whole.chunks_exact(all).for_each(|row| own.extend_from_slice(&row[layer * d_out..][..d_out]));
                let to = &mut self.skip.gradient[layer * d_in * d_out..][..d_in * d_out];
                let product =
                    Product { b: View2::row_major(&own, tokens, d_out).into(), bias: None, c: to, ldc: d_out };
                let mut turned = vec![0.0; rows.len()];
                for (token, row) in rows.chunks_exact(d_in.max(1)).enumerate() {
                    row.iter().enumerate().for_each(|(at, x)| turned[at * tokens + token] = *x);
                }
                gemm_each(View2::row_major(&turned, d_in, tokens), vec![product]);
            }
        }
        self.center.gradient.copy_from_slice(&of_center);
        if centered {
            let coder = &self.coders[0];
            for (latent, row) in coder.encoder.value.chunks_exact(d_in).enumerate() {
                let sum = match coder.gate_bias.is_empty() {
                    true => coder.bias.gradient[latent],
                    false => {
                        let scale = coder.log_scale.value[latent].exp();
                        coder.gate_bias.gradient[latent] + scale * coder.bias.gradient[latent]
                    }
                };
                if sum != 0.0 {
                    self.center.gradient.iter_mut().zip(row).for_each(|(to, x)| *to -= sum * x);
                }
            }
        }

        // Measure.
        self.count(&made, tokens);
        let (mut mean, mut square) = (vec![0f64; all], 0.0);
        for rows in wanted.chunks(64 * all.max(1)) {
            // Sums blocks of rows in f32, and the block sums in f64.
            let (mut sums, mut squares) = (vec![0f32; all], vec![0f32; all]);
            for row in rows.chunks_exact(all.max(1)) {
                for ((sum, own), x) in sums.iter_mut().zip(&mut squares).zip(row) {
                    *sum += x;
                    *own += x * x;
                }
            }
            mean.iter_mut().zip(&sums).for_each(|(mean, sum)| *mean += f64::from(*sum));
            square += squares.iter().map(|x| f64::from(*x)).sum::<f64>();
        }
        let count = tokens.max(1) as f64;
        let spread = square / count - mean.iter().map(|sum| (sum / count) * (sum / count)).sum::<f64>();
        let active: usize = made.iter().map(|made| made.acts.values.len()).sum();
        let measured = Step {
            step: self.step,
            tokens: self.tokens,
            loss,
            reconstruction: last,
            explained_variance: 1.0 - last / spread,
            l0: active as f64 / count,
            dead: dead.iter().filter(|dead| **dead).count() as f64 / dead.len().max(1) as f64,
            rate: f64::from(self.settings.rate_at(self.tokens)),
        };
        (measured, tokens)
    }

    /// All parameters, by name.
    pub(super) fn named(&mut self) -> Vec<(String, &mut Parameter)> {
        let mut all = vec![("center".to_string(), &mut self.center), ("skip".to_string(), &mut self.skip)];
        for (layer, coder) in self.coders.iter_mut().enumerate() {
            all.extend(coder.parameters().map(|(name, parameter)| (format!("{layer}.{name}"), parameter)));
        }
        all
    }

    fn parameters(&mut self) -> impl Iterator<Item = &mut Parameter> {
        let own = [&mut self.center, &mut self.skip];
        own.into_iter()
            .chain(self.coders.iter_mut().flat_map(|coder| coder.parameters().map(|(_, parameter)| parameter)))
    }

    fn clear(&mut self) {
        self.parameters().for_each(|parameter| parameter.gradient.fill(0.0));
    }

    /// Whether each latent is dead.
    fn dead(&self) -> Vec<bool> {
        self.silent.iter().map(|tokens| *tokens > self.settings.dead_after_tokens() as u64).collect()
    }

    fn count(&mut self, made: &[Activations], tokens: usize) {
        self.silent.iter_mut().for_each(|silent| *silent += tokens as u64);
        let latents = self.settings.latents;
        for (layer, made) in made.iter().enumerate() {
            made.acts.columns.iter().for_each(|latent| self.silent[layer * latents + *latent as usize] = 0);
        }
    }

    /// Takes an Adam step with the current gradients.
    fn update(&mut self, tokens: usize) {
        let square: f64 = self.parameters().map(|parameter| parameter.square()).sum();
        let (norm, clip) = (square.sqrt(), f64::from(self.settings.clip));
        let scale = if clip > 0.0 && norm > clip { (clip / norm) as f32 } else { 1.0 };
        let rate = self.settings.rate_at(self.tokens);
        self.step += 1;
        self.tokens += tokens;
        let adam = Adam { rate, betas: self.settings.betas, eps: 1e-8, scale, step: self.step as i32 };
        self.parameters().filter(|parameter| !parameter.is_empty()).for_each(|parameter| parameter.step(adam));
        if let Objective::JumpRelu {
            sparsity: JumpReluSparsity::Quadratic { .. } | JumpReluSparsity::Step { .. },
            ..
        } = self.settings.objective
        {
            // JumpReLU requires positive activations, so a negative threshold would have no effect.
            let positive = |coder: &mut Coder| {
                coder.thresholds.value.iter_mut().for_each(|threshold| *threshold = threshold.max(0.0));
            };
            self.coders.iter_mut().for_each(positive);
        }
    }

    /// Builds a layer's dictionary from the current weights, for unscaled activations.
    pub(super) fn dictionary(&self, layer: usize) -> Result<Dictionary> {
        let coder = &self.coders[layer];
        let (layers, d_out, d_in, latents) = (self.coders.len(), self.d_out(), coder.d_in, coder.latents);
        let (scale_in, scale_out) = (self.scales[layer], self.scales[layers + layer]);
        let matrix = |values: Vec<f32>, shape: [usize; 2]| {
            Tensor::<2>::from_data(TensorData::new(values, shape), &Device::flex())
        };
        let vector = |values: Vec<f32>| {
            let len = values.len();
            Tensor::<1>::from_data(TensorData::new(values, [len]), &Device::flex())
        };
        // If latents are chosen by scores, norms are folded: decoder rows get norm 1, and activations are the scores.
        let by_norms = self.settings.objective.is_top_k();
        let norms = if by_norms { coder.norms() } else { vec![1.0; latents] };
        let encoder: Vec<f32> = coder
            .encoder
            .value
            .chunks_exact(d_in)
            .zip(&norms)
            .flat_map(|(row, norm)| row.iter().map(move |x| x * norm * scale_in))
            .collect();
        let encoder = matrix(encoder, [latents, d_in]).transpose();
        let encoder = Tensor::from_data(encoder.into_data(), &Device::flex());
        let bias = coder.bias.value.iter().zip(&norms).map(|(bias, norm)| bias * norm).collect();
        let decoder: Vec<f32> = coder
            .decoder
            .value
            .chunks_exact(coder.width)
            .zip(&norms)
            .flat_map(|(row, norm)| row[..d_out].iter().map(move |x| x / norm.max(1e-8) / scale_out))
            .collect();
        let center = self.center.value[layer * d_out..][..d_out].iter().map(|x| x / scale_out).collect();
        let skip = (!self.skip.is_empty()).then(|| {
            let own = &self.skip.value[layer * d_in * d_out..][..d_in * d_out];
            matrix(own.iter().map(|x| x * scale_in / scale_out).collect(), [d_in, d_out])
        });
        let weights = DictionaryWeights {
            encoder,
            encoder_bias: vector(bias),
            decoder: matrix(decoder, [latents, d_out]),
            decoder_bias: vector(center),
            skip,
        };
        let architecture = match &self.settings.objective {
            Objective::TopK { k } => Architecture::TopK { k: *k },
            Objective::L1 { .. } => Architecture::Standard,
            Objective::JumpRelu { .. } => {
                Architecture::JumpRelu { thresholds: coder.thresholds.value.clone(), positive: true }
            }
            Objective::Gated { .. } => Architecture::Gated {
                gate_bias: coder.gate_bias.value.clone(),
                log_scale: coder.log_scale.value.clone(),
            },
            Objective::BatchTopK { .. } | Objective::Matryoshka { .. } => {
                // With decoder rows of norm 1, scores are in units of normalized activations.
                Architecture::JumpRelu { thresholds: vec![self.threshold; latents], positive: true }
            }
        };
        let made = Dictionary::new(self.settings.name.clone(), weights)?
            .with_architecture(architecture)?
            .with_centered_input(!self.settings.is_transcoder());
        Ok(made.with_metadata(self.metadata(layer)))
    }

    /// Decoders of a layer's latents for later layers.
    pub(super) fn across(&self, layer: usize) -> Vec<Tensor<2>> {
        let (coder, d_out, layers) = (&self.coders[layer], self.d_out(), self.coders.len());
        let norms = if self.settings.objective.is_top_k() { coder.norms() } else { vec![1.0; coder.latents] };
        let to = |other: usize| {
            let scale = self.scales[layers + other];
            let start = (other - layer) * d_out;
            let rows = coder.decoder.value.chunks_exact(coder.width).zip(&norms);
            let values =
                rows.flat_map(|(row, norm)| row[start..start + d_out].iter().map(move |x| x / norm.max(1e-8) / scale));
            let data = TensorData::new(values.collect::<Vec<f32>>(), [coder.latents, d_out]);
            Tensor::from_data(data, &Device::flex())
        };
        (layer + 1..layers).map(to).collect()
    }

    fn metadata(&self, layer: usize) -> Metadata {
        let (read, write) = self.settings.points(layer);
        let mut metadata = match write {
            Some(write) => Metadata::between(read, write),
            None => Metadata::at(read),
        };
        metadata.model = self.settings.model.clone().or_else(|| self.origin.name.clone());
        metadata.prepend_bos = self.settings.prepend_bos.or(self.origin.prepend_bos);
        metadata.model_options.clone_from(&self.origin.options);
        metadata
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;

    const TOKENS: usize = 24;

    fn numbers(count: usize, random: &mut ChaCha8Rng) -> Vec<f32> {
        (0..count).map(|_| random.random_range(-1.0..1.0f32)).collect()
    }

    /// A trainer with random weights everywhere, and activations for it.
    fn random(training: Training, d_in: usize, d_out: usize) -> (Trainer, Vec<Vec<f32>>, Vec<Vec<f32>>) {
        let training =
            training.normalize(false).penalty_warm_up(0.0).tokens(TOKENS).batch_size(TOKENS).decoder_norm(1.0);
        let mut trainer = Trainer::new(&training, d_in, d_out);
        trainer.scales.fill(1.0);
        let mut random = ChaCha8Rng::seed_from_u64(5);
        for (name, parameter) in trainer.named() {
            let spread = if name.contains("thresholds") || name.contains("log_scale") { 0.2 } else { 0.5 };
            for value in &mut parameter.value {
                *value += spread * random.random_range(-1.0..1.0f32);
                *value = if name.contains("thresholds") { value.abs() + 0.05 } else { *value };
            }
        }
        let layers = trainer.coders.len();
        let inputs: Vec<Vec<f32>> = (0..layers).map(|_| numbers(TOKENS * d_in, &mut random)).collect();
        let outputs = match training.is_transcoder() {
            true => (0..layers).map(|_| numbers(TOKENS * d_out, &mut random)).collect(),
            false => inputs.clone(),
        };
        (trainer, inputs, outputs)
    }

    fn loss(trainer: &Trainer, inputs: &[Vec<f32>], outputs: &[Vec<f32>]) -> f64 {
        let slices = |all: &'_ [Vec<f32>]| -> Vec<Vec<f32>> { all.to_vec() };
        let (inputs, outputs) = (slices(inputs), slices(outputs));
        let [inputs, outputs] = [&inputs, &outputs].map(|all| all.iter().map(|rows| &rows[..]).collect::<Vec<_>>());
        trainer.clone().gradients(&inputs, &outputs).0.loss
    }

    /// Compares gradients with finite differences, except for the parameters in `not`, whose gradients are not
    /// derivatives.
    fn check(training: Training, dims: [usize; 2], not: &[&str]) {
        let name = format!("{training:?}");
        let (mut trainer, inputs, outputs) = random(training, dims[0], dims[1]);
        let [i, o] = [&inputs, &outputs].map(|all| all.iter().map(|rows| &rows[..]).collect::<Vec<_>>());
        trainer.gradients(&i, &o);
        let gradients: Vec<(String, Vec<f32>)> =
            trainer.named().into_iter().map(|(name, parameter)| (name, parameter.gradient.clone())).collect();
        let mut compared = 0;
        for (place, (which, gradient)) in gradients.iter().enumerate() {
            if gradient.is_empty() || not.iter().any(|part| which.ends_with(part)) {
                continue;
            }
            let largest = gradient.iter().fold(0f32, |m, x| m.max(x.abs()));
            assert!(largest > 0.0, "{which} has no gradient: {name}");
            let (mut worst, mut wrong) = (0f64, 0);
            let step = (gradient.len() / 17).max(1);
            for at in (0..gradient.len()).step_by(step) {
                let moved = |by: f32| {
                    let mut other = trainer.clone();
                    other.named()[place].1.value[at] += by;
                    loss(&other, &inputs, &outputs)
                };
                const BY: f32 = 2e-3;
                let slope = (moved(BY) - moved(-BY)) / f64::from(2.0 * BY);
                let gap = (slope - f64::from(gradient[at])).abs() / f64::from(largest);
                // If another latent is chosen within the step, the finite difference is meaningless.
                wrong += usize::from(gap > 2e-2);
                worst = worst.max(gap);
                compared += 1;
            }
            assert!(wrong <= 2, "{which}: {wrong} of 17, by {worst}: {name}");
        }
        assert!(compared > 30, "{name}");
    }

    #[test]
    fn gradients_are_slopes() {
        let of = |objective: Objective| Training::autoencoder("hook_x", 12).objective(objective).revive(0.0);
        check(of(Objective::BatchTopK { k: 4.0 }), [7, 7], &[]);
        check(of(Objective::TopK { k: 3 }), [7, 7], &[]);
        check(of(Objective::Matryoshka { k: 4.0, widths: vec![3, 7] }), [7, 7], &[]);
        check(of(Objective::L1 { coefficient: 0.3 }), [7, 7], &[]);
        let tanh = JumpReluSparsity::Tanh { coefficient: 0.5, scale: 2.0 };
        let quadratic = JumpReluSparsity::Quadratic { coefficient: 0.8, target: 2.0 };
        for sparsity in [tanh, JumpReluSparsity::Step { coefficient: 0.2 }, quadratic] {
            // Thresholds get straight-through gradients, which are not derivatives.
            check(of(Objective::JumpRelu { sparsity, bandwidth: 0.1, threshold: 0.1 }), [7, 7], &["thresholds"]);
        }
        // The gate's auxiliary reconstruction treats the decoder as a constant.
        check(of(Objective::Gated { coefficient: 0.3 }), [7, 7], &["decoder", "center"]);
        let transcoder = |latents| Training::transcoder("hook_x", "hook_y", latents).k(4.0).revive(0.0);
        check(transcoder(12), [7, 5], &[]);
        let (mut skipping, inputs, outputs) = random(transcoder(12).skip(true), 7, 5);
        let [i, o] = [&inputs, &outputs].map(|all| all.iter().map(|rows| &rows[..]).collect::<Vec<_>>());
        skipping.gradients(&i, &o);
        assert!(skipping.skip.gradient.iter().any(|x| *x != 0.0));
        check(transcoder(12).skip(true), [7, 5], &[]);
        check(Training::cross_layer(3, 8).k(5.0).revive(0.0), [6, 5], &[]);
        check(Training::cross_layer(3, 8).objective(Objective::L1 { coefficient: 0.2 }), [6, 5], &[]);
    }

    /// Compares with a naive `∂/∂θ = Σ −(θ/ε) rect((pre − θ)/ε) ∂L/∂act − (1/ε) rect((pre − θ)/ε) ∂L/∂L0` over tokens,
    /// for each penalty.
    #[test]
    fn thresholds_get_straight_through_gradients() {
        let (coefficient, bandwidth, scale, target) = (0.7, 0.4, 1.5, 2.0);
        let (d, count, share) = (6, 9, 1.0 / TOKENS as f32);
        let step = JumpReluSparsity::Step { coefficient };
        let quadratic = JumpReluSparsity::Quadratic { coefficient, target };
        for sparsity in [step, JumpReluSparsity::Tanh { coefficient, scale }, quadratic] {
            let objective = Objective::JumpRelu { sparsity, bandwidth, threshold: 0.1 };
            let (mut trainer, inputs, outputs) =
                random(Training::autoencoder("hook_x", count).objective(objective), d, d);
            let (measured, _) = trainer.gradients(&[&inputs[0]], &[&outputs[0]]);
            let coder = &trainer.coders[0];
            let thresholds = &coder.thresholds.value;
            let row = |matrix: &[f32], latent: usize| matrix[latent * d..][..d].to_vec();
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            let pre = |x: &[f32], latent: usize| {
                let centered: Vec<f32> = x.iter().zip(&trainer.center.value).map(|(x, center)| x - center).collect();
                dot(&centered, &row(&coder.encoder.value, latent)) + coder.bias.value[latent]
            };
            let act = |x: &[f32], latent: usize| {
                let pre = pre(x, latent);
                if pre > thresholds[latent] { pre } else { 0.0 }
            };
            let tokens = || inputs[0].chunks_exact(d);
            let l0: f32 = tokens().map(|x| (0..count).filter(|latent| act(x, *latent) > 0.0).count() as f32).sum();
            assert!((l0 * share - measured.l0 as f32).abs() < 1e-5);
            let of_l0 = match sparsity {
                JumpReluSparsity::Step { .. } => coefficient * share,
                JumpReluSparsity::Tanh { .. } => 0.0,
                JumpReluSparsity::Quadratic { .. } => {
                    2.0 * coefficient * (l0 * share - target) / (target * target) * share
                }
            };
            let mut expected = vec![0f32; count];
            for x in tokens() {
                let mut error: Vec<f32> = trainer.center.value.iter().zip(x).map(|(center, x)| center - x).collect();
                for latent in 0..count {
                    let (act, row) = (act(x, latent), row(&coder.decoder.value, latent));
                    error.iter_mut().zip(row).for_each(|(error, w)| *error += act * w);
                }
                for (latent, sum) in expected.iter_mut().enumerate() {
                    if (pre(x, latent) - thresholds[latent]).abs() >= bandwidth / 2.0 {
                        continue;
                    }
                    let row = row(&coder.decoder.value, latent);
                    let norm = dot(&row, &row).sqrt();
                    let of_penalty = match sparsity {
                        JumpReluSparsity::Tanh { .. } => {
                            let tanh = (scale * act(x, latent) * norm).tanh();
                            coefficient * share * (1.0 - tanh * tanh) * scale * norm
                        }
                        _ => 0.0,
                    };
                    let of_act = 2.0 * share * dot(&error, &row) + of_penalty;
                    *sum += -(thresholds[latent] / bandwidth) * of_act - of_l0 / bandwidth;
                }
            }
            assert!(expected.iter().any(|x| x.abs() > 1e-3));
            for (given, expected) in coder.thresholds.gradient.iter().zip(&expected) {
                assert!((given - expected).abs() < 1e-4, "{given} for {expected}: {sparsity:?}");
            }
        }
    }

    /// Dead latents receive gradients of the auxiliary loss, in which the residual is a constant.
    #[test]
    fn dead_latents_get_slopes_of_what_is_missed() {
        let (trainer, inputs, _) = random(Training::autoencoder("hook_x", 12).k(2.0), 7, 7);
        let mut coder = trainer.coders[0].clone();
        let dead: Vec<bool> = (0..12).map(|latent| latent % 2 == 0).collect();
        let missed: Vec<f32> = inputs[0].iter().map(|x| 0.3 - x).collect();
        let of = |coder: &Coder| coder.clone().revive(&coder.encode(inputs[0].clone()), &dead, &missed, 0.8);
        let made = coder.encode(inputs[0].clone());
        coder.revive(&made, &dead, &missed, 0.8);
        let names = ["encoder", "bias", "decoder"];
        for which in names {
            let place = coder.parameters().iter().position(|(name, _)| *name == which).unwrap();
            let gradient = coder.parameters()[place].1.gradient.clone();
            let largest = gradient.iter().fold(0f32, |m, x| m.max(x.abs()));
            let mut wrong = 0;
            for at in (0..gradient.len()).step_by((gradient.len() / 13).max(1)) {
                let moved = |by: f32| {
                    let mut other = coder.clone();
                    other.parameters()[place].1.value[at] += by;
                    of(&other)
                };
                let slope = (moved(2e-3) - moved(-2e-3)) / 4e-3;
                wrong += usize::from((slope - f64::from(gradient[at])).abs() > 2e-2 * f64::from(largest));
            }
            assert!(largest > 0.0 && wrong <= 1, "{which}: {wrong}");
        }
        // Other latents receive no gradients from it.
        assert!(coder.bias.gradient.iter().enumerate().all(|(latent, slope)| dead[latent] || *slope == 0.0));
    }
}
