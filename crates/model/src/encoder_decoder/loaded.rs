//! The parts of an encoder-decoder, as a loader reads them.

use super::config::EncoderDecoderConfig;
use super::weights::EncoderDecoderWeights;
use crate::model::LoadReport;
use crate::tokens::Tokenizer;

/// The parts of an encoder-decoder, read from its files. The conversion to a model fails if a nonempty list in the
/// configuration does not have one entry per layer.
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
