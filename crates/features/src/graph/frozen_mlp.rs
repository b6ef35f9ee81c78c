//! An MLP, or a mixture of experts, whose activation functions and routing are held: a linear map.

use burn::module::Param;
use burn::tensor::Tensor;
use hooklens_kernels::gemm::gemm;
use hooklens_kernels::view::View2;

use super::held_norm::HeldNorm;
use super::host;
use super::mlp_run::{MlpRun, Routed};

/// Neurons whose activations are their pre-activations times the ratios that the two had. Of a gated neuron, which is a
/// product of two numbers, half of each goes to either of them (the half rule of layer-wise relevance propagation; RelP,
/// Jafari et al. 2025): the sum is the neuron's activation.
#[derive(Debug)]
pub(super) struct FrozenMlp {
    /// The MLP, or each expert that a position is given to.
    parts: Vec<Part>,
    width: usize,
    /// What it adds where its input is zero, `[pos, d_model]`.
    constant: Vec<f32>,
    experts: bool,
}

#[derive(Debug)]
struct Part {
    /// `[d_model, neuron]`.
    input: Vec<f32>,
    gate: Option<Vec<f32>>,
    /// `[neuron, d_model]`.
    output: Vec<f32>,
    biases: [Option<Vec<f32>>; 2],
    output_bias: Option<Vec<f32>>,
    /// By what the output of each row is multiplied; the ratios hold it for the neurons.
    shares: Vec<f32>,
    ratios: Ratios,
    inner: Option<HeldNorm>,
}

/// What pre-activations are multiplied by, `[row, neuron]`.
#[derive(Debug, Clone)]
pub(super) struct Ratios {
    pub(super) input: Vec<f32>,
    pub(super) gate: Option<Vec<f32>>,
    /// The row of each position.
    routed: Routed,
    neurons: usize,
}

fn over(x: f32, y: f32) -> f32 {
    if y == 0.0 { 0.0 } else { x / y }
}

impl Ratios {
    /// Of a run's pre-activations and activations behind the function, `[pos, neuron]`, and of a gated MLP its other
    /// factor.
    pub(super) fn new(pre: &[f32], post: &[f32], linear: Option<&[f32]>, neurons: usize) -> Self {
        let each = |below: &[f32], half: f32| post.iter().zip(below).map(|(x, y)| half * over(*x, *y)).collect();
        let (input, gate) = match linear {
            None => (each(pre, 1.0), None),
            Some(linear) => (each(linear, 0.5), Some(each(pre, 0.5))),
        };
        Self { input, gate, routed: Routed::default(), neurons }
    }

    /// Of neurons whose other factor is one more than what is read, kept within a limit: the half rule is for the product
    /// with what is read, and what the one gives is the gate's.
    pub(super) fn clipped(gate: &[f32], post: &[f32], linear: &[f32], limit: f32, neurons: usize) -> Self {
        let (mut input, mut by_gate) = (Vec::new(), Vec::new());
        for ((gate, post), linear) in gate.iter().zip(post).zip(linear) {
            let clipped = linear.clamp(-limit, limit);
            // Where the factor is zero, so is the activation, and nothing says what the gate would give.
            let alone = over(*post, clipped + 1.0);
            input.push(0.5 * over(alone * clipped, *linear));
            by_gate.push(over(alone * (0.5 * clipped + 1.0), *gate));
        }
        Self { input, gate: Some(by_gate), routed: Routed::default(), neurons }
    }

    pub(super) fn routed(self, routed: Routed) -> Self {
        Self { routed, ..self }
    }

    /// The row of a position, where it has one.
    pub(super) fn row(&self, pos: usize) -> Option<usize> {
        self.routed.row(pos)
    }

    /// Those of a gated neuron's input and gate at a position.
    pub(super) fn at(&self, pos: usize, neuron: usize) -> [f32; 2] {
        let Some(row) = self.row(pos) else { return [0.0; 2] };
        let at = row * self.neurons + neuron;
        [self.input[at], self.gate.as_ref().map_or(0.0, |gate| gate[at])]
    }
}

impl FrozenMlp {
    /// Of what the neurons did at so many positions.
    pub(super) fn new(runs: Vec<MlpRun<'_>>, positions: usize, experts: bool) -> Self {
        let width = runs.first().map_or(0, |run| run.maps.input.shape()[0]);
        let mut mlp = Self { parts: Vec::new(), width, constant: Vec::new(), experts };
        for run in runs {
            if (0..positions).all(|pos| run.ratios.row(pos).is_none()) {
                continue;
            }
            mlp.parts.push(Part {
                input: host(run.maps.input.matrix()),
                gate: run.maps.gate.map(|gate| host(gate.matrix())),
                output: host(run.maps.output.matrix()),
                biases: [vector(&run.maps.input.bias), run.maps.gate.and_then(|gate| vector(&gate.bias))],
                output_bias: vector(&run.maps.output.bias),
                shares: run.shares,
                ratios: run.ratios,
                inner: run.inner,
            });
        }
        mlp.constant = mlp.forward(&vec![0.0; positions * width]);
        mlp
    }

    /// Memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        let part = |part: &Part| {
            let twice = 1 + usize::from(part.gate.is_some());
            twice * (part.input.len() + part.ratios.input.len()) + part.output.len()
        };
        4 * (self.parts.iter().map(part).sum::<usize>() + self.constant.len())
    }

    /// Those of an MLP that is no mixture.
    pub(super) fn ratios(&self) -> Option<&Ratios> {
        self.parts.first().map(|part| &part.ratios).filter(|_| !self.experts)
    }

    /// What it adds where its input is zero.
    pub(super) fn constant(&self) -> &[f32] {
        &self.constant
    }

    /// Its output `[pos, d_model]`, of its input.
    pub(super) fn forward(&self, x: &[f32]) -> Vec<f32> {
        let mut sum = vec![0.0; x.len()];
        for part in &self.parts {
            sum.iter_mut().zip(part.forward(x, self.width)).for_each(|(x, own)| *x += own);
        }
        sum
    }

    /// Gradients at its input, of gradients at its output, `[row, d_model]`, each of a position.
    pub(super) fn back(&self, rows: &[f32], pos: impl Fn(usize) -> usize) -> Vec<f32> {
        let width = self.width;
        let mut back = vec![0.0; rows.len()];
        for part in &self.parts {
            let used: Vec<(usize, usize)> =
                (0..rows.len() / width.max(1)).filter_map(|row| Some((row, part.ratios.row(pos(row))?))).collect();
            if used.len() * width == rows.len() {
                let own = part.back(rows, |row| used[row].1, &pos, width);
                back.iter_mut().zip(own).for_each(|(x, more)| *x += more);
                continue;
            }
            let own: Vec<f32> = used.iter().flat_map(|(row, _)| &rows[row * width..][..width]).copied().collect();
            let own = part.back(&own, |row| used[row].1, |row| pos(used[row].0), width);
            for ((row, _), own) in used.iter().zip(own.chunks_exact(width)) {
                back[row * width..][..width].iter_mut().zip(own).for_each(|(x, more)| *x += more);
            }
        }
        back
    }
}

impl Part {
    fn neurons(&self) -> usize {
        self.ratios.neurons
    }

    /// What it makes of an input `[pos, d_model]`.
    fn forward(&self, x: &[f32], width: usize) -> Vec<f32> {
        let (positions, neurons) = (x.len() / width.max(1), self.neurons());
        let used: Vec<(usize, usize)> = (0..positions).filter_map(|pos| Some((pos, self.ratios.row(pos)?))).collect();
        let rows: Vec<f32> = used.iter().flat_map(|(pos, _)| &x[pos * width..][..width]).copied().collect();
        let mut inside = vec![0.0; used.len() * neurons];
        let ratios = [Some(&self.ratios.input), self.ratios.gate.as_ref()];
        let inputs = [Some(&self.input), self.gate.as_ref()];
        for ((matrix, ratios), bias) in inputs.into_iter().zip(ratios).zip(&self.biases) {
            let (Some(matrix), Some(ratios)) = (matrix, ratios) else { continue };
            let mut made = vec![0.0; inside.len()];
            let (a, b) = (View2::row_major(&rows, used.len(), width), View2::row_major(matrix, width, neurons));
            gemm(a, b, bias.as_deref(), &mut made, neurons);
            for ((inside, made), (_, row)) in
                inside.chunks_exact_mut(neurons).zip(made.chunks_exact(neurons)).zip(&used)
            {
                let ratios = &ratios[row * neurons..][..neurons];
                inside.iter_mut().zip(made).zip(ratios).for_each(|((x, made), ratio)| *x += made * ratio);
            }
        }
        if let Some(norm) = &self.inner {
            inside.chunks_exact_mut(neurons).zip(&used).for_each(|(row, (pos, _))| norm.forward(row, *pos));
        }
        let mut made = vec![0.0; used.len() * width];
        let (a, b) = (View2::row_major(&inside, used.len(), neurons), View2::row_major(&self.output, neurons, width));
        gemm(a, b, None, &mut made, width);
        let mut out = vec![0.0; x.len()];
        for ((pos, row), made) in used.iter().zip(made.chunks_exact(width)) {
            let out = &mut out[pos * width..][..width];
            out.copy_from_slice(made);
            if let Some(bias) = &self.output_bias {
                out.iter_mut().zip(bias).for_each(|(x, bias)| *x += self.shares[*row] * bias);
            }
        }
        out
    }

    /// Gradients at the input, of gradients at the output, each with its row of ratios and its position.
    fn back(
        &self,
        rows: &[f32],
        row_of: impl Fn(usize) -> usize,
        pos: impl Fn(usize) -> usize,
        width: usize,
    ) -> Vec<f32> {
        let (count, neurons) = (rows.len() / width.max(1), self.neurons());
        let mut inside = vec![0.0; count * neurons];
        let output = View2::row_major(&self.output, neurons, width).t();
        gemm(View2::row_major(rows, count, width), output, None, &mut inside, neurons);
        if let Some(norm) = &self.inner {
            inside.chunks_exact_mut(neurons).enumerate().for_each(|(row, x)| norm.back(x, pos(row)));
        }
        let times = |ratios: &[f32], by: &[f32]| {
            let mut scaled = inside.clone();
            for (row, x) in scaled.chunks_exact_mut(neurons).enumerate() {
                x.iter_mut().zip(&ratios[row_of(row) * neurons..]).for_each(|(x, ratio)| *x *= ratio);
            }
            let mut back = vec![0.0; count * width];
            let by = View2::row_major(by, width, neurons).t();
            gemm(View2::row_major(&scaled, count, neurons), by, None, &mut back, width);
            back
        };
        let mut back = times(&self.ratios.input, &self.input);
        if let (Some(ratios), Some(gate)) = (&self.ratios.gate, &self.gate) {
            back.iter_mut().zip(times(ratios, gate)).for_each(|(x, more)| *x += more);
        }
        back
    }
}

fn vector(bias: &Option<Param<Tensor<1>>>) -> Option<Vec<f32>> {
    bias.as_ref().map(|bias| host(bias.val()))
}
