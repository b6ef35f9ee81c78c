//! An MLP whose activation function is held: a linear map.

use burn::module::Param;
use burn::tensor::Tensor;
use hooklens_kernels::gemm::gemm;
use hooklens_kernels::view::View2;

use super::held_norm::HeldNorm;
use super::host;
use crate::model::Mlp;

/// An MLP in which each neuron's activation is its pre-activation times the ratio that the two had. Of a gated MLP, whose
/// neurons are products of two numbers, half of each goes to either of them (the half rule of layer-wise relevance
/// propagation; RelP, Jafari et al. 2025): the sum is the neuron's activation.
#[derive(Debug)]
pub(super) struct FrozenMlp {
    /// `[d_model, neuron]`.
    input: Vec<f32>,
    gate: Option<Vec<f32>>,
    /// `[neuron, d_model]`.
    output: Vec<f32>,
    ratios: Ratios,
    inner: Option<HeldNorm>,
    width: usize,
    neurons: usize,
    /// What it adds where its input is zero, `[pos, d_model]`.
    constant: Vec<f32>,
}

/// What pre-activations are multiplied by, `[pos, neuron]`.
#[derive(Debug, Clone)]
pub(super) struct Ratios {
    pub(super) input: Vec<f32>,
    pub(super) gate: Option<Vec<f32>>,
}

impl Ratios {
    /// Of a run's pre-activations and activations behind the function, `[pos, neuron]`, and of a gated MLP its other
    /// factor.
    pub(super) fn new(pre: &[f32], post: &[f32], linear: Option<&[f32]>) -> Self {
        let over = |x: f32, y: f32| if y == 0.0 { 0.0 } else { x / y };
        let each = |below: &[f32], half: f32| post.iter().zip(below).map(|(x, y)| half * over(*x, *y)).collect();
        match linear {
            None => Self { input: each(pre, 1.0), gate: None },
            Some(linear) => Self { input: each(linear, 0.5), gate: Some(each(pre, 0.5)) },
        }
    }
}

impl FrozenMlp {
    pub(super) fn new(mlp: &Mlp, ratios: Ratios, inner: Option<HeldNorm>) -> Self {
        let [width, neurons] = mlp.input.shape();
        let vector = |bias: &Option<Param<Tensor<1>>>| bias.as_ref().map(|bias| host(bias.val()));
        let output = host(mlp.output.matrix());
        let len = ratios.input.len() / neurons.max(1);
        let mut inside = vec![0.0; ratios.input.len()];
        let mut add = |ratios: &[f32], bias: Option<Vec<f32>>| {
            let Some(bias) = bias else { return };
            for (row, ratios) in inside.chunks_exact_mut(neurons).zip(ratios.chunks_exact(neurons)) {
                row.iter_mut().zip(ratios).zip(&bias).for_each(|((x, ratio), bias)| *x += ratio * bias);
            }
        };
        add(&ratios.input, vector(&mlp.input.bias));
        if let (Some(gate), Some(ratios)) = (&mlp.gate, &ratios.gate) {
            add(ratios, vector(&gate.bias));
        }
        if let Some(norm) = &inner {
            inside.chunks_exact_mut(neurons).enumerate().for_each(|(pos, row)| norm.forward(row, pos));
        }
        let mut constant = vec![0.0; len * width];
        let (rows, by) = (View2::row_major(&inside, len, neurons), View2::row_major(&output, neurons, width));
        gemm(rows, by, vector(&mlp.output.bias).as_deref(), &mut constant, width);
        let (input, gate) = (host(mlp.input.matrix()), mlp.gate.as_ref().map(|gate| host(gate.matrix())));
        Self { input, gate, output, ratios, inner, width, neurons, constant }
    }

    /// Memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        let twice = 1 + usize::from(self.gate.is_some());
        4 * (twice * (self.input.len() + self.ratios.input.len()) + self.output.len() + self.constant.len())
    }

    pub(super) fn ratios(&self) -> &Ratios {
        &self.ratios
    }

    /// What it adds where its input is zero.
    pub(super) fn constant(&self) -> &[f32] {
        &self.constant
    }

    /// Gradients at its input, of gradients at its output, `[row, d_model]`, each of a position.
    pub(super) fn back(&self, rows: &[f32], pos: impl Fn(usize) -> usize) -> Vec<f32> {
        let (count, width, neurons) = (rows.len() / self.width.max(1), self.width, self.neurons);
        let mut inside = vec![0.0; count * neurons];
        let output = View2::row_major(&self.output, neurons, width).t();
        gemm(View2::row_major(rows, count, width), output, None, &mut inside, neurons);
        if let Some(norm) = &self.inner {
            inside.chunks_exact_mut(neurons).enumerate().for_each(|(row, x)| norm.back(x, pos(row)));
        }
        let times = |ratios: &[f32], by: &[f32]| {
            let mut scaled = inside.clone();
            for (row, x) in scaled.chunks_exact_mut(neurons).enumerate() {
                x.iter_mut().zip(&ratios[pos(row) * neurons..]).for_each(|(x, ratio)| *x *= ratio);
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
