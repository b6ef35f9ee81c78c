//! Types that hold the weights of a model.

use burn::module::{Module, ModuleDisplay, ParamId};
use burn::tensor::Tensor;

/// The parts of a model's weights: embeddings, blocks and heads.
pub trait Parts: Module + ModuleDisplay {
    /// Name of the weight at this path of Burn module fields, outermost first.
    fn name_of(fields: &[&str]) -> String;

    /// A dequantized copy of a weight that is stored in quantized blocks.
    fn dequantized(&self, _: ParamId) -> Option<Tensor<2>> {
        None
    }
}
