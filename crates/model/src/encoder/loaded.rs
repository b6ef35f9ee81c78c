//! What an encoder is made of.

use super::config::EncoderConfig;
use super::sentences::SentenceEmbedding;
use super::weights::EncoderWeights;
use crate::model::LoadReport;
use crate::tokens::Tokenizer;

/// What a loader read from an encoder's files. The conversion to a model fails if a list of the configuration has
/// another length than there are layers.
#[derive(Debug)]
pub struct LoadedEncoder {
    /// Configuration of the model.
    pub config: EncoderConfig,
    /// The weights.
    pub weights: EncoderWeights,
    /// The tokenizer, if there is one.
    pub tokenizer: Option<Tokenizer>,
    /// How token vectors are pooled into a sentence's, or why that is not supported.
    pub sentences: Result<SentenceEmbedding, String>,
    /// Report of how each tensor was used.
    pub report: LoadReport,
}
