//! What an encoder-decoder is made of.

use super::config::EncoderDecoderConfig;
use super::weights::EncoderDecoderWeights;
use crate::model::LoadReport;
use crate::tokens::Tokenizer;

/// What a loader read from an encoder-decoder's files. The conversion to a model fails if a list of the configuration
/// has another length than there are layers.
#[derive(Debug)]
pub struct LoadedEncoderDecoder {
    /// Configuration of the model.
    pub config: EncoderDecoderConfig,
    /// The weights.
    pub weights: EncoderDecoderWeights,
    /// The tokenizer, if there is one.
    pub tokenizer: Option<Tokenizer>,
    /// End-of-sequence tokens.
    pub eos_tokens: Vec<u32>,
    /// Report of how each tensor was used.
    pub report: LoadReport,
}
