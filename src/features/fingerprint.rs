//! Fingerprints of dictionaries.

use super::dictionary::Dictionary;
use super::matrix::Matrix;
use super::transcoders::Transcoders;
use crate::error::Result;
use crate::model::Hashed;

impl Dictionary {
    /// A hash of all weights and of what is done with them (XXH3, 128 bits), as [`HookedTransformer::fingerprint`] is of a
    /// model: the same dictionary has the same in every process, any other another.
    ///
    /// ```
    /// use hooklens::features::{Architecture, Dictionary, DictionaryWeights};
    /// use hooklens::prelude::*;
    /// # let device = Device::flex();
    /// # let weights = DictionaryWeights {
    /// #     encoder: Tensor::ones([4, 8], &device), encoder_bias: Tensor::zeros([8], &device),
    /// #     decoder: Tensor::ones([8, 4], &device), decoder_bias: Tensor::zeros([4], &device), skip: None,
    /// # };
    /// let sae = Dictionary::new("by hand", weights)?;
    /// assert_eq!(sae.fingerprint()?, sae.clone().fingerprint()?);
    /// assert_ne!(sae.fingerprint()?, sae.clone().with_architecture(Architecture::TopK { k: 2 })?.fingerprint()?);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// If weights can't be read.
    ///
    /// [`HookedTransformer::fingerprint`]: crate::HookedTransformer::fingerprint
    pub fn fingerprint(&self) -> Result<String> {
        self.hash_with("", [])
    }

    /// The hash of it with more that is said and more matrices.
    pub(super) fn hash_with<'m>(&'m self, told: &str, more: impl IntoIterator<Item = &'m Matrix>) -> Result<String> {
        let said = format!(
            "{:?} {:?} {} {} {} {told}",
            self.architecture, self.normalization, self.centered, self.by_norms, self.by_heads
        );
        let mut hashed = Hashed::default();
        let own = [&self.encoder, &self.decoder].into_iter().chain(&self.skip);
        for (number, matrix) in own.chain(more).enumerate() {
            hashed.add(&format!("matrix {number}"), &matrix.shape(), matrix.get(false)?);
        }
        let vectors = [&self.encoder_bias, &self.decoder_bias].into_iter().chain(&self.finetuned);
        for (number, vector) in vectors.enumerate() {
            hashed.add(&format!("vector {number}"), &vector.dims(), vector.clone().unsqueeze());
        }
        hashed.finish(said.as_bytes())
    }
}

impl Transcoders {
    /// The hash of a set: of every layer's transcoder, and of what they write to later layers.
    ///
    /// # Errors
    /// If weights can't be read.
    pub fn fingerprint(&self) -> Result<String> {
        let mut hashed = Vec::new();
        for (from, layer) in self.layers().iter().enumerate() {
            let across = (from + 1..self.layers().len()).filter_map(|to| self.across(from, to));
            hashed.push(layer.hash_with("", across)?);
        }
        Hashed::default().finish(hashed.join(" ").as_bytes())
    }
}
