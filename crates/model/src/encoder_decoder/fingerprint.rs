//! Fingerprints of encoder-decoders: a hash of configuration and weights.

use std::sync::Arc;

use hooklens_hooks::ModelIdentity;

use super::HookedEncoderDecoder;
use crate::driver::HookedModel;
use crate::model::{Identified, hash_of};

impl Identified for HookedEncoderDecoder {
    fn identity(&self) -> Arc<ModelIdentity> {
        let content = |hashed| hash_of(&*self.config, &self.weights.parts, hashed);
        self.identities.identity(&self.weights.parts, self.catalog().note(), content)
    }
}
