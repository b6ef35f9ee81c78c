//! The MLP of a block: dense, or a mixture of experts.

use burn::module::Module;
use burn::tensor::Tensor;
use hooklens_hooks::{Halt, Run};

use super::dense_mlp::DenseMlp;
use super::linear::Linear;
use super::mixer::sizes_of;
use super::moe::Moe;
use super::pass::Pass;
use crate::config::Layers;

/// Weights of a block's MLP.
#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "a model has one per layer, and `Box` is not a module")]
pub enum Mlp {
    /// A dense MLP, plain or gated.
    Dense(DenseMlp),
    /// A mixture of experts.
    Experts(Moe),
}

impl Mlp {
    /// All linear maps.
    pub(crate) fn maps(&self) -> Vec<&Linear> {
        match self {
            Self::Dense(mlp) => mlp.maps().collect(),
            Self::Experts(moe) => moe.maps().collect(),
        }
    }

    /// All linear maps, mutably.
    pub(crate) fn maps_mut(&mut self) -> Vec<&mut Linear> {
        match self {
            Self::Dense(mlp) => mlp.maps_mut().collect(),
            Self::Experts(moe) => moe.maps_mut().collect(),
        }
    }

    /// The linear maps that write to the residual stream, mutably.
    pub(crate) fn outputs_mut(&mut self) -> Vec<&mut Linear> {
        match self {
            Self::Dense(mlp) => vec![&mut mlp.output],
            Self::Experts(moe) => {
                let experts = moe.experts.iter_mut().map(|expert| &mut expert.output);
                experts.chain(moe.shared.iter_mut().map(|shared| &mut shared.output)).collect()
            }
        }
    }

    /// Computes the output from the normalized residual stream `x`. Experts with their own norms read `stream`.
    ///
    /// # Shapes
    /// - inputs and output: `[batch, pos, d_model]`
    pub(super) fn forward(
        &self,
        layer: usize,
        x: Tensor<3>,
        stream: Option<Tensor<3>>,
        pass: &Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        match self {
            Self::Dense(mlp) => mlp.forward(layer, x, pass, run),
            Self::Experts(moe) => {
                let mixture = sizes_of(pass.config.experts_of(layer), layer)?;
                moe.forward(layer, x, stream, mixture, pass, run)
            }
        }
    }
}
