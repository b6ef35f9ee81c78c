//! [`WeightSource`]: where the weights of a module come from.

use std::convert::Infallible;

use burn::module::Param;
use burn::tensor::{Device, Tensor};

use super::attention::Attention;
use super::linear::Linear;
use super::mixer::Mixer;
use super::norm::Norm;
use crate::config::{NormDetails, NormKind, TransformerConfig};

/// Source of a model's weights: random initialization or files. A mixer lists its weights once, for all sources.
pub trait WeightSource {
    /// Error returned if a weight is unavailable.
    type Error;

    /// Attention of a layer, named `name`.
    fn attention(&mut self, name: &str, c: &TransformerConfig, layer: usize) -> Result<Attention, Self::Error>;

    /// A linear map `{name}.W_{part}` with its bias `{name}.b_{part}`.
    fn linear(&mut self, name: &str, part: &str, shape: [usize; 2]) -> Result<Linear, Self::Error>;

    /// Convolution filters named `name`, `[width, channel]`.
    fn filters(&mut self, name: String, shape: [usize; 2]) -> Result<Param<Tensor<2>>, Self::Error>;

    /// A vector of length `len`; in a randomly initialized model, every element is `initial`.
    fn vector(&mut self, name: String, len: usize, initial: f64) -> Result<Param<Tensor<1>>, Self::Error>;

    /// A vector of length `len` that may be absent from files; in a randomly initialized model, zeros.
    fn optional_vector(&mut self, name: String, len: usize) -> Result<Option<Param<Tensor<1>>>, Self::Error>;

    /// A norm of kind `kind` over `width` elements, named `name`.
    fn norm(&mut self, name: String, kind: NormKind, width: usize, eps: f64) -> Result<Norm, Self::Error>;
}

/// Names of a layer's mixer weights, except those of attention. `block` is the name of the layer's block.
pub fn names_beside_attention(block: &str, c: &TransformerConfig, layer: usize) -> Vec<String> {
    let mut names = Names(Vec::new());
    let Ok(_) = Mixer::build(&mut names, block, c, layer);
    names.0
}

/// A source that records the requested names and returns empty weights.
struct Names(Vec<String>);

impl Names {
    fn empty(&mut self, name: String) -> Param<Tensor<1>> {
        self.0.push(name);
        Param::from_tensor(Tensor::zeros([0], &Device::flex()))
    }

    fn empty_map(&self) -> Linear {
        Linear::new(Tensor::zeros([0, 0], &Device::flex()), None)
    }
}

impl WeightSource for Names {
    type Error = Infallible;

    fn attention(&mut self, _: &str, _: &TransformerConfig, _: usize) -> Result<Attention, Infallible> {
        let [q, k, v, o] = [(); 4].map(|()| self.empty_map());
        let (q_norm, k_norm, sinks, gate, router, latent) = (None, None, None, None, None, None);
        Ok(Attention { q, k, v, o, q_norm, k_norm, sinks, gate, router, latent })
    }

    fn linear(&mut self, name: &str, part: &str, _: [usize; 2]) -> Result<Linear, Infallible> {
        self.0.extend(["W", "b"].map(|kind| format!("{name}.{kind}_{part}")));
        Ok(self.empty_map())
    }

    fn filters(&mut self, name: String, _: [usize; 2]) -> Result<Param<Tensor<2>>, Infallible> {
        self.0.push(name);
        Ok(Param::from_tensor(Tensor::zeros([0, 0], &Device::flex())))
    }

    fn vector(&mut self, name: String, _: usize, _: f64) -> Result<Param<Tensor<1>>, Infallible> {
        Ok(self.empty(name))
    }

    fn optional_vector(&mut self, name: String, _: usize) -> Result<Option<Param<Tensor<1>>>, Infallible> {
        Ok(Some(self.empty(name)))
    }

    fn norm(&mut self, name: String, kind: NormKind, _: usize, eps: f64) -> Result<Norm, Infallible> {
        if kind.has_weight() {
            self.0.push(format!("{name}.w"));
        }
        Ok(Norm::new(kind, eps, None, None))
    }
}
