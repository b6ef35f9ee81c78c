//! Fingerprints of models: a hash of the configuration and of all weights.

use std::sync::Arc;

use hooklens_hooks::ModelIdentity;

use super::each_weight::{Weight, each_weight};
use super::identity::Identified;
use crate::driver::HookedModel;
use crate::error::{ConfigError, Result};
use crate::model::{Hashed, HookedTransformer};

impl HookedTransformer {
    /// Fingerprint of the model: a hash (XXH3, 128 bits) of the configuration and of every weight's name, shape,
    /// element type and bytes in memory.
    ///
    /// A different model, processing, element type or edit gives a different fingerprint. Equal weights give the same
    /// fingerprint in every process, however they were loaded. Each call reads all weights, a few megabytes at a time;
    /// half a gigabyte takes about half a second on two cores.
    ///
    /// The fingerprint guards against mistakes, not against weights crafted to collide.
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
    /// Fails if the weights cannot be read from the device.
    pub fn fingerprint(&self) -> Result<String> {
        self.hash(Hashed::default())
    }

    fn hash(&self, mut hashed: Hashed) -> Result<String> {
        let config = serde_json::to_vec(self.config()).map_err(|source| ConfigError::Unwritable { source })?;
        each_weight(self, &mut |name, weight| match weight {
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

impl Identified for HookedTransformer {
    fn identity(&self) -> Arc<ModelIdentity> {
        self.identities.identity(&self.weights.parts, self.catalog().note(), |hashed| self.hash(hashed))
    }
}
