//! Fingerprints of dictionaries.

use std::sync::Arc;

use super::architecture::Architecture;
use super::dictionary::Dictionary;
use super::matrix::Matrix;
use super::normalization::Normalization;
use super::save::DictionaryFiles;
use hooklens_model::error::Result;
use hooklens_model::model::Hashed;

impl Dictionary {
    /// Hashes the dictionary together with additional text and matrices.
    pub(super) fn hash_with<'m>(
        &'m self,
        description: &str,
        more: impl IntoIterator<Item = &'m Matrix>,
    ) -> Result<String> {
        let said = format!(
            "{} {} {} {} {} {description}",
            hashed_architecture(&self.architecture),
            hashed_normalization(self.normalization),
            self.centered,
            self.by_norms,
            self.by_heads
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

    /// Whether a latent of this dictionary is the latent with the same number of another: the dictionaries are clones,
    /// or have the same weights and settings.
    pub(crate) fn has_latents_of(&self, other: &Self) -> Result<bool> {
        Ok(Arc::ptr_eq(&self.computed, &other.computed) || self.fingerprint()? == other.fingerprint()?)
    }
}

/// The text that represents an architecture in fingerprints. Manifests store the hash, so the text must not change when
/// names in the code do.
fn hashed_architecture(architecture: &Architecture) -> String {
    match architecture {
        Architecture::Standard => "Standard".into(),
        Architecture::JumpRelu { thresholds, positive } => {
            format!("JumpRelu {{ thresholds: {thresholds:?}, positive: {positive} }}")
        }
        Architecture::TopK { k } => format!("TopK {{ k: {k} }}"),
        Architecture::AbsTopK { k } => format!("AbsTopK {{ k: {k} }}"),
        Architecture::GroupMax { k } => format!("GroupMax {{ k: {k} }}"),
        Architecture::Gated { gate_bias, log_scale } => {
            format!("Gated {{ gate_bias: {gate_bias:?}, log_scale: {log_scale:?} }}")
        }
        Architecture::MatchingPursuit { residual_threshold, max_iterations, until_repeated } => format!(
            "MatchingPursuit {{ residual_threshold: {residual_threshold:?}, max_iterations: {max_iterations}, \
             until_repeated: {until_repeated} }}"
        ),
    }
}

/// The text that represents a normalization in fingerprints.
fn hashed_normalization(normalization: Normalization) -> String {
    match normalization {
        Normalization::None => "None".into(),
        Normalization::ConstantNorm => "ConstantNorm".into(),
        Normalization::LayerNorm => "LayerNorm".into(),
        Normalization::Scale(factor) => format!("Scale({factor:?})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Manifests of dumps contain fingerprints, so these texts must not change.
    #[test]
    fn hashed_texts_stay() {
        let hashed = |architecture| hashed_architecture(&architecture);
        assert_eq!(hashed(Architecture::Standard), "Standard");
        assert_eq!(
            hashed(Architecture::JumpRelu { thresholds: vec![0.1, 1.0], positive: true }),
            "JumpRelu { thresholds: [0.1, 1.0], positive: true }"
        );
        assert_eq!(hashed(Architecture::TopK { k: 32 }), "TopK { k: 32 }");
        assert_eq!(hashed(Architecture::AbsTopK { k: 32 }), "AbsTopK { k: 32 }");
        assert_eq!(hashed(Architecture::GroupMax { k: 32 }), "GroupMax { k: 32 }");
        assert_eq!(
            hashed(Architecture::Gated { gate_bias: vec![-0.5], log_scale: vec![1e-7] }),
            "Gated { gate_bias: [-0.5], log_scale: [1e-7] }"
        );
        let pursuit =
            Architecture::MatchingPursuit { residual_threshold: 0.5, max_iterations: 9, until_repeated: true };
        assert_eq!(
            hashed(pursuit),
            "MatchingPursuit { residual_threshold: 0.5, max_iterations: 9, until_repeated: true }"
        );
        let all = [
            Normalization::None,
            Normalization::ConstantNorm,
            Normalization::LayerNorm,
            Normalization::Scale(Some(1.5)),
            Normalization::Scale(None),
        ];
        let all = all.map(hashed_normalization);
        assert_eq!(all, ["None", "ConstantNorm", "LayerNorm", "Scale(Some(1.5))", "Scale(None)"]);
    }
}
