//! An MLP or mixture of experts with activation functions and routing frozen: a linear map.

use burn::module::Param;
use burn::tensor::Tensor;
use hooklens_kernels::gemm::gemm;
use hooklens_kernels::view::View2;

use super::held_norm::HeldNorm;
use super::host;
use super::mlp_run::MlpRun;
use super::secant_slopes::SecantSlopes;

/// Neurons whose activations equal their pre-activations times the secant slopes recorded in the run. A gated neuron is a
/// product of two factors, and half of the activation is attributed to each (the half rule of layer-wise relevance
/// propagation; RelP, Jafari et al. 2025), so that both halves sum to the activation.
#[derive(Debug)]
pub(super) struct FrozenMlp {
    /// The MLP, or each expert to which at least one position is routed.
    parts: Vec<Part>,
    width: usize,
    /// Output for a zero input, `[pos, d_model]`.
    constant: Vec<f32>,
    experts: bool,
}

#[derive(Debug)]
struct Part {
    /// Input matrix, `[d_model, neuron]`.
    input: Vec<f32>,
    gate: Option<Vec<f32>>,
    /// Output matrix, `[neuron, d_model]`.
    output: Vec<f32>,
    biases: [Option<Vec<f32>>; 2],
    output_bias: Option<Vec<f32>>,
    /// Multiplier of each row's output bias, such as the routing weight. For the neurons' outputs, this factor is
    /// included in the slopes.
    shares: Vec<f32>,
    slopes: SecantSlopes,
    inner: Option<HeldNorm>,
}

impl FrozenMlp {
    /// Freezes the neurons of a run with this number of positions.
    pub(super) fn new(runs: Vec<MlpRun<'_>>, positions: usize, experts: bool) -> Self {
        let width = runs.first().map_or(0, |run| run.maps.input.shape()[0]);
        let mut mlp = Self { parts: Vec::new(), width, constant: Vec::new(), experts };
        for run in runs {
            if (0..positions).all(|pos| run.slopes.row(pos).is_none()) {
                continue;
            }
            mlp.parts.push(Part {
                input: host(run.maps.input.matrix()),
                gate: run.maps.gate.map(|gate| host(gate.matrix())),
                output: host(run.maps.output.matrix()),
                biases: [vector(&run.maps.input.bias), run.maps.gate.and_then(|gate| vector(&gate.bias))],
                output_bias: vector(&run.maps.output.bias),
                shares: run.shares,
                slopes: run.slopes,
                inner: run.inner,
            });
        }
        mlp.constant = mlp.forward(&vec![0.0; positions * width]);
        mlp
    }

    /// Memory size in bytes.
    pub(super) fn bytes(&self) -> usize {
        let part = |part: &Part| {
            let twice = 1 + usize::from(part.gate.is_some());
            twice * (part.input.len() + part.slopes.input.len()) + part.output.len()
        };
        4 * (self.parts.iter().map(part).sum::<usize>() + self.constant.len())
    }

    /// The slopes of a dense MLP; `None` for a mixture of experts.
    pub(super) fn slopes(&self) -> Option<&SecantSlopes> {
        self.parts.first().map(|part| &part.slopes).filter(|_| !self.experts)
    }

    /// The output for a zero input.
    pub(super) fn constant(&self) -> &[f32] {
        &self.constant
    }

    /// The output for an input, both `[pos, d_model]`.
    pub(super) fn forward(&self, x: &[f32]) -> Vec<f32> {
        let mut sum = vec![0.0; x.len()];
        for part in &self.parts {
            sum.iter_mut().zip(part.forward(x, self.width)).for_each(|(x, own)| *x += own);
        }
        sum
    }

    /// Propagates gradients at the output, `[row, d_model]`, backward to the input. `pos` gives the position of a row.
    pub(super) fn back(&self, rows: &[f32], pos: impl Fn(usize) -> usize) -> Vec<f32> {
        let width = self.width;
        let mut back = vec![0.0; rows.len()];
        for part in &self.parts {
            let used: Vec<(usize, usize)> =
                (0..rows.len() / width.max(1)).filter_map(|row| Some((row, part.slopes.row(pos(row))?))).collect();
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
        self.slopes.neurons
    }

    /// The output for an input, both `[pos, d_model]`.
    fn forward(&self, x: &[f32], width: usize) -> Vec<f32> {
        let (positions, neurons) = (x.len() / width.max(1), self.neurons());
        let used: Vec<(usize, usize)> = (0..positions).filter_map(|pos| Some((pos, self.slopes.row(pos)?))).collect();
        let rows: Vec<f32> = used.iter().flat_map(|(pos, _)| &x[pos * width..][..width]).copied().collect();
        let mut inside = vec![0.0; used.len() * neurons];
        let slopes = [Some(&self.slopes.input), self.slopes.gate.as_ref()];
        let inputs = [Some(&self.input), self.gate.as_ref()];
        for ((matrix, slopes), bias) in inputs.into_iter().zip(slopes).zip(&self.biases) {
            let (Some(matrix), Some(slopes)) = (matrix, slopes) else { continue };
            let mut made = vec![0.0; inside.len()];
            let (a, b) = (View2::row_major(&rows, used.len(), width), View2::row_major(matrix, width, neurons));
            gemm(a, b, bias.as_deref(), &mut made, neurons);
            for ((inside, made), (_, row)) in
                inside.chunks_exact_mut(neurons).zip(made.chunks_exact(neurons)).zip(&used)
            {
                let slopes = &slopes[row * neurons..][..neurons];
                inside.iter_mut().zip(made).zip(slopes).for_each(|((x, made), slope)| *x += made * slope);
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

    /// Propagates gradients backward from output to input, given the slope row and the position of each gradient row.
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
        let times = |slopes: &[f32], by: &[f32]| {
            let mut scaled = inside.clone();
            for (row, x) in scaled.chunks_exact_mut(neurons).enumerate() {
                x.iter_mut().zip(&slopes[row_of(row) * neurons..]).for_each(|(x, slope)| *x *= slope);
            }
            let mut back = vec![0.0; count * width];
            let by = View2::row_major(by, width, neurons).t();
            gemm(View2::row_major(&scaled, count, neurons), by, None, &mut back, width);
            back
        };
        let mut back = times(&self.slopes.input, &self.input);
        if let (Some(slopes), Some(gate)) = (&self.slopes.gate, &self.gate) {
            back.iter_mut().zip(times(slopes, gate)).for_each(|(x, more)| *x += more);
        }
        back
    }
}

fn vector(bias: &Option<Param<Tensor<1>>>) -> Option<Vec<f32>> {
    bias.as_ref().map(|bias| host(bias.val()))
}
