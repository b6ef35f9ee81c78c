//! Fingerprints of models: a hash of the configuration and of all weights.

use std::sync::Arc;

use hooklens_hooks::ModelIdentity;

use super::each_weight::{Weight, each_weight};
use super::identity::Identified;
use crate::driver::HookedModel;
use crate::error::{ConfigError, Result};
use crate::model::{Hashed, HookedTransformer};

impl HookedTransformer {
    /// Adds the configuration and all weights to a hash.
    pub(super) fn hash(&self, mut hashed: Hashed) -> Result<String> {
        let config = serde_json::to_vec(self.config()).map_err(|source| ConfigError::Unwritable { source })?;
        each_weight(self, &mut |name, weight| match weight {
            Weight::Matrix(m) => hashed.add(&name, &m.dims(), m),
            Weight::Map(map) => match map.in_blocks() {
                Some(packed) => hashed.add_blocks(&name, packed),
                None => {
                    let rounding = if map.rounds_to_bf16() { " rounding inputs" } else { "" };
                    hashed.add(&format!("{name}{rounding}"), &map.shape(), map.matrix());
                }
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
