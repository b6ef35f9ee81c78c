//! Access to the parts of a model's weights, for the other crates of the workspace.

use super::model_weights::ModelWeights;

/// Access to the parts of a model's weights, for the other crates of the workspace.
pub trait ModelParts: ModelWeights {
    /// The parts of the model's weights.
    fn parts(&self) -> &Self::Parts;

    /// The parts of the model's weights, mutably.
    fn parts_mut(&mut self) -> &mut Self::Parts;
}

impl<M: ModelWeights> ModelParts for M {
    fn parts(&self) -> &Self::Parts {
        &self.weights().parts
    }

    fn parts_mut(&mut self) -> &mut Self::Parts {
        &mut self.weights_mut().parts
    }
}
