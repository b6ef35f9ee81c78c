//! Fingerprints of models: a hash of the configuration and of sampled weights.

use burn::tensor::Tensor;
use hooklens_hooks::Activation;

use super::save::Weight;
use crate::dump::hash_bytes;
use crate::error::Result;
use crate::families;
use crate::model::HookedTransformer;

impl HookedTransformer {
    /// A hash of the configuration and of the weights as they are in memory: their shapes, element
    /// type and some rows of each. Another model, processing or element type has another.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let folded = model.clone().processed(&Processing::standard())?;
    /// assert_eq!(model.fingerprint()?, model.clone().fingerprint()?);
    /// assert_ne!(model.fingerprint()?, folded.fingerprint()?);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the device can't give the weights.
    pub fn fingerprint(&self) -> Result<String> {
        let mut bytes = families::native_json(&self.config, false).to_string().into_bytes();
        let mut failed = None;
        self.each_weight(&mut |name, weight| {
            let (shape, sample) = match weight {
                Weight::Matrix(m) => (m.dims().to_vec(), sample(m)),
                Weight::Vector(v) => (v.dims().to_vec(), v.into()),
            };
            bytes.extend(format!("{name}{shape:?}{:?}", sample.dtype()).bytes());
            match sample.to_le_bytes() {
                Ok(values) => bytes.extend(&values[..]),
                Err(error) => failed = Some(error),
            }
        });
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(hash_bytes(bytes)),
        }
    }
}

/// First, middle and last row.
fn sample(matrix: Tensor<2>) -> Activation {
    let rows = matrix.dims()[0];
    let some = [0, rows / 2, rows - 1].map(|row| matrix.clone().narrow(0, row, 1));
    Tensor::cat(some.to_vec(), 0).into()
}
