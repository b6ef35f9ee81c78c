//! Fingerprints of encoders: a hash of configuration and weights.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

use super::HookedEncoder;
use crate::error::{ConfigError, Result};
use crate::model::Hashed;

impl HookedEncoder {
    /// A hash of the configuration and of every weight as it is in memory, as
    /// [`HookedTransformer::fingerprint`](crate::HookedTransformer::fingerprint).
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoder::from_pretrained("tests/fixtures/bert-pretraining")?;
    /// let mut other = model.clone();
    /// other.weights.embed.tokens = other.weights.embed.tokens.map(|table| table * 1.5);
    /// assert_eq!(model.fingerprint()?, model.clone().fingerprint()?);
    /// assert_ne!(model.fingerprint()?, other.fingerprint()?);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the device can't give the weights.
    pub fn fingerprint(&self) -> Result<String> {
        let config = serde_json::to_vec(self.config()).map_err(|source| ConfigError::Unwritable { source })?;
        let mut tensors = Tensors::default();
        self.weights.visit(&mut tensors);
        tensors.hashed.finish(&config)
    }
}

/// Every tensor of a module, in order.
#[derive(Default)]
struct Tensors {
    hashed: Hashed,
    count: usize,
}

impl ModuleVisitor for Tensors {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        let shape = tensor.dims().to_vec();
        let columns = shape.last().copied().unwrap_or(1).max(1);
        let rows = shape.iter().product::<usize>() / columns;
        self.hashed.add(&format!("tensor {}", self.count), &shape, tensor.reshape([rows, columns]));
        self.count += 1;
    }
}
