//! Attention and Mamba 2 side by side (Falcon-H1).

use burn::module::Module;
use burn::tensor::{DType, Tensor};
use hooklens_hooks::{Halt, Run};

use super::attention::{Attention, AttentionInputs};
use super::each_weight::Weight;
use super::linear::Linear;
use super::mamba2::Mamba2;
use super::mixer::TokenMixer;
use super::pass::Pass;
use crate::cpu;
use crate::points::Site;

/// Weights of attention and a Mamba 2 state space that read the same normalized stream, and whose outputs are added.
#[derive(Module, Debug)]
pub struct AttentionAndMamba2 {
    /// Attention.
    pub attention: Attention,
    /// Mamba 2.
    pub mamba2: Mamba2,
}

impl TokenMixer for AttentionAndMamba2 {
    fn forward(
        &self,
        layer: usize,
        inputs: AttentionInputs,
        pass: &mut Pass<'_>,
        run: &mut Run<'_, '_>,
    ) -> Result<Tensor<3>, Halt> {
        let attended = self.attention.forward(layer, inputs.clone(), pass, run)?;
        Ok(cpu::sum(attended, self.mamba2.forward(layer, inputs, pass, run)?))
    }

    fn maps(&self) -> Vec<&Linear> {
        [self.attention.maps(), self.mamba2.maps()].concat()
    }

    fn maps_mut(&mut self) -> Vec<&mut Linear> {
        self.attention.maps_mut().into_iter().chain(self.mamba2.maps_mut()).collect()
    }

    fn readers_mut(&mut self) -> Vec<&mut Linear> {
        self.attention.readers_mut().into_iter().chain(self.mamba2.readers_mut()).collect()
    }

    fn outputs(&self) -> Vec<(Site, &Linear)> {
        [self.attention.outputs(), self.mamba2.outputs()].concat()
    }

    fn outputs_mut(&mut self) -> Vec<&mut Linear> {
        self.attention.outputs_mut().into_iter().chain(self.mamba2.outputs_mut()).collect()
    }

    fn each_weight(&self, block: &str, dtype: DType, see: &mut dyn FnMut(String, Weight<'_>)) {
        self.attention.each_weight(block, dtype, see);
        self.mamba2.each_weight(block, dtype, see);
    }
}
