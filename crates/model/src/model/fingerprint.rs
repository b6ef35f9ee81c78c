//! Fingerprints of models: a hash of the configuration and of all weights.

use std::sync::Arc;

use hooklens_hooks::ModelIdentity;

use super::each_weight::Weight;
use crate::driver::HookedModel;
use crate::error::{ConfigError, Result};
use crate::model::{Hashed, HookedTransformer};

impl HookedTransformer {
    /// A hash of the configuration and of every weight as it is in memory: name, shape, element type and all bytes
    /// (XXH3, 128 bits). Another model, processing, element type or edit has another; the same weights have the same
    /// in every process, however they were loaded. All weights are read each time, a few megabytes at once: half a
    /// gigabyte takes about half a second on two cores.
    ///
    /// It guards against mistakes, not against someone who makes weights to fit a hash.
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
        self.hash(Hashed::default())
    }

    /// The identity of the weights as they are now, which caches and recordings keep.
    pub fn identity(&self) -> Arc<ModelIdentity> {
        self.identities.identity(&self.weights, self.catalog().note(), |hashed| self.hash(hashed))
    }

    fn hash(&self, mut hashed: Hashed) -> Result<String> {
        let config = serde_json::to_vec(self.config()).map_err(|source| ConfigError::Unwritable { source })?;
        self.each_weight(&mut |name, weight| match weight {
            Weight::Matrix(m) => hashed.add(&name, &m.dims(), m),
            Weight::Map(map) => match map.in_blocks() {
                Some(packed) => hashed.add_blocks(&name, packed),
                None => hashed.add(&name, &map.shape(), map.matrix()),
            },
            Weight::Tokens(embed) => match embed.in_blocks() {
                Some(packed) => hashed.add_blocks(&name, packed),
                None => hashed.add(&name, &embed.matrix().dims(), embed.matrix()),
            },
            Weight::Vector(v) => hashed.add(&name, &v.dims(), v.unsqueeze()),
        });
        hashed.finish(&config)
    }
}
