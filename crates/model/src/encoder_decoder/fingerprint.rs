//! Fingerprints of encoder-decoders: a hash of configuration and weights.

use std::sync::Arc;

use hooklens_hooks::ModelIdentity;

use super::HookedEncoderDecoder;
use crate::driver::HookedModel;
use crate::error::Result;
use crate::model::{Hashed, Identified, hash_of};

impl HookedEncoderDecoder {
    /// Fingerprint of the model: a hash of the configuration and of every weight as it is in memory; see
    /// [`HookedTransformer::fingerprint`](crate::model::HookedTransformer::fingerprint).
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// let mut other = model.clone();
    /// let table = model.weights().get::<2>("embed.W_E")?;
    /// other.weights_mut().set("embed.W_E", table * 1.5)?;
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

impl Identified for HookedEncoderDecoder {
    fn identity(&self) -> Arc<ModelIdentity> {
        let content = |hashed| hash_of(&*self.config, &self.weights.parts, hashed);
        self.identities.identity(&self.weights.parts, self.catalog().note(), content)
    }
}
