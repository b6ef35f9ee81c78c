//! The parts of an encoder, as a loader reads them.

use super::config::EncoderConfig;
use super::sentences::SentenceEmbedding;
use super::weights::EncoderWeights;
use crate::model::LoadReport;
use crate::tokens::Tokenizer;

/// The parts of an encoder, read from its files. The conversion to a model fails if a nonempty list in the
/// configuration does not have one entry per layer.
#[derive(Debug)]
pub struct LoadedEncoder {
    /// Configuration of the model.
    pub config: EncoderConfig,
    /// The weights.
    pub weights: EncoderWeights,
    /// The tokenizer, if there is one.
    pub tokenizer: Option<Tokenizer>,
    /// How token vectors are pooled into a sentence embedding, or why the model's pooling is not supported.
    pub sentences: Result<SentenceEmbedding, String>,
    /// Report of how each tensor was used.
    pub report: LoadReport,
}
