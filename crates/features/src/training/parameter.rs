//! Parameters with their gradients and Adam's moments.

use hooklens_kernels::adam::Adam;

/// One trained tensor.
#[derive(Debug, Clone, Default)]
pub(super) struct Parameter {
    pub(super) value: Vec<f32>,
    pub(super) gradient: Vec<f32>,
    pub(super) first: Vec<f32>,
    pub(super) second: Vec<f32>,
}

impl Parameter {
    pub(super) fn new(value: Vec<f32>) -> Self {
        let zeros = vec![0.0; value.len()];
        Self { value, gradient: zeros.clone(), first: zeros.clone(), second: zeros }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.value.is_empty()
    }

    /// Squared norm of the gradient.
    pub(super) fn square(&self) -> f64 {
        // Summed in blocks, so that the result does not depend on the number of threads.
        self.gradient.chunks(4096).map(|block| f64::from(block.iter().map(|x| x * x).sum::<f32>())).sum()
    }

    pub(super) fn step(&mut self, adam: Adam) {
        adam.apply(&mut self.value, &self.gradient, &mut self.first, &mut self.second);
    }
}
