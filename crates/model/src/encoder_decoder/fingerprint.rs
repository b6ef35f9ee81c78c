//! Fingerprints of encoder-decoders: a hash of configuration and weights.

use std::sync::Arc;

use hooklens_hooks::ModelIdentity;

use super::HookedEncoderDecoder;
use crate::driver::HookedModel;
use crate::error::Result;
use crate::model::{Hashed, hash_of};

impl HookedEncoderDecoder {
    /// Fingerprint of the model: a hash of the configuration and of every weight as it is in memory; see
    /// [`HookedTransformer::fingerprint`](crate::model::HookedTransformer::fingerprint).
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// let mut other = model.clone();
    /// other.weights.embed = other.weights.embed.map(|table| table * 1.5);
    /// assert_eq!(model.fingerprint()?, model.clone().fingerprint()?);
    /// assert_ne!(model.fingerprint()?, other.fingerprint()?);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the weights cannot be read from the device.
    pub fn fingerprint(&self) -> Result<String> {
        hash_of(self.config(), &self.weights, Hashed::default())
    }

    /// Identity of the current weights, which is stored in caches and recordings.
    pub fn identity(&self) -> Arc<ModelIdentity> {
        let content = |hashed| hash_of(self.config(), &self.weights, hashed);
        self.identities.identity(&self.weights, self.catalog().note(), content)
    }
}
