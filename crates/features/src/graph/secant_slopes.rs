//! Secant slopes: activations divided by pre-activations. They stand in for the nonlinearity of a frozen MLP.

/// Slopes of the secants from the origin to each neuron: activation over pre-activation, `[row, neuron]`.
#[derive(Debug, Clone)]
pub(super) struct SecantSlopes {
    pub(super) input: Vec<f32>,
    pub(super) gate: Option<Vec<f32>>,
    /// The row of each position.
    routed: Routed,
    pub(super) neurons: usize,
}

fn over(x: f32, y: f32) -> f32 {
    if y == 0.0 { 0.0 } else { x / y }
}

impl SecantSlopes {
    /// Computes slopes from a run's pre-activations and activations, `[pos, neuron]`, and the linear factor of a gated
    /// MLP.
    pub(super) fn new(pre: &[f32], post: &[f32], linear: Option<&[f32]>, neurons: usize) -> Self {
        let each = |below: &[f32], half: f32| post.iter().zip(below).map(|(x, y)| half * over(*x, *y)).collect();
        let (input, gate) = match linear {
            None => (each(pre, 1.0), None),
            Some(linear) => (each(linear, 0.5), Some(each(pre, 0.5))),
        };
        Self { input, gate, routed: Routed::default(), neurons }
    }

    /// Computes slopes for gated neurons whose linear factor is clamped to `limit` and increased by one. The half rule
    /// applies to the product with the clamped value; the contribution of the constant 1 is attributed to the
    /// gate.
    pub(super) fn clipped(gate: &[f32], post: &[f32], linear: &[f32], limit: f32, neurons: usize) -> Self {
        let (mut input, mut by_gate) = (Vec::new(), Vec::new());
        for ((gate, post), linear) in gate.iter().zip(post).zip(linear) {
            let clipped = linear.clamp(-limit, limit);
            // If the factor is zero, so is the activation, and the gate's contribution is unknown.
            let alone = over(*post, clipped + 1.0);
            input.push(0.5 * over(alone * clipped, *linear));
            by_gate.push(over(alone * (0.5 * clipped + 1.0), *gate));
        }
        Self { input, gate: Some(by_gate), routed: Routed::default(), neurons }
    }

    pub(super) fn routed(self, routed: Routed) -> Self {
        Self { routed, ..self }
    }

    /// The row of a position, if it has one.
    pub(super) fn row(&self, pos: usize) -> Option<usize> {
        self.routed.row(pos)
    }

    /// The slopes of a neuron's input and gate at a position.
    pub(super) fn at(&self, pos: usize, neuron: usize) -> [f32; 2] {
        let Some(row) = self.row(pos) else { return [0.0; 2] };
        let at = row * self.neurons + neuron;
        [self.input[at], self.gate.as_ref().map_or(0.0, |gate| gate[at])]
    }
}

/// The row of each position in an expert's activations. Without routing, every position has its own row.
#[derive(Debug, Clone, Default)]
pub(super) struct Routed(Option<Vec<Option<usize>>>);

impl Routed {
    pub(super) fn new(routes: &[(usize, f32)], positions: usize) -> Self {
        let mut rows = vec![None; positions];
        routes.iter().enumerate().for_each(|(row, (pos, _))| rows[*pos] = Some(row));
        Self(Some(rows))
    }

    pub(super) fn row(&self, pos: usize) -> Option<usize> {
        match &self.0 {
            None => Some(pos),
            Some(rows) => rows.get(pos).copied().flatten(),
        }
    }
}
