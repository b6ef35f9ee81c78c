//! Fingerprints of encoders: a hash of configuration and weights.

use std::sync::Arc;

use hooklens_hooks::ModelIdentity;

use super::HookedEncoder;
use crate::driver::HookedModel;
use crate::error::Result;
use crate::model::{Hashed, Identified, hash_of};

impl HookedEncoder {
    /// Fingerprint of the model: a hash of the configuration and of every weight as it is in memory; see
    /// [`HookedTransformer::fingerprint`](crate::model::HookedTransformer::fingerprint).
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
    /// let mut other = model.clone();
    /// let table = model.weights().get::<2>("embed.embed.W_E")?;
    /// other.weights_mut().set("embed.embed.W_E", table * 1.5)?;
    /// assert_eq!(model.fingerprint()?, model.clone().fingerprint()?);
    /// assert_ne!(model.fingerprint()?, other.fingerprint()?);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the weights cannot be read from the device.
    pub fn fingerprint(&self) -> Result<String> {
        hash_of(&*self.config, &self.weights.parts, Hashed::default())
    }
}

impl Identified for HookedEncoder {
    fn identity(&self) -> Arc<ModelIdentity> {
        let content = |hashed| hash_of(&*self.config, &self.weights.parts, hashed);
        self.identities.identity(&self.weights.parts, self.catalog().note(), content)
    }
}
