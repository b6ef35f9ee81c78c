//! The parts of a decoder, as a loader reads them.

use hooklens_hooks::DType;

use super::paging::Paging;
use super::report::LoadReport;
use super::weights::DecoderWeights;
use crate::config::TransformerConfig;
use crate::tokens::Tokenizer;

/// The parts of a decoder, read from its files. The weights must match the configuration.
#[derive(Debug)]
pub struct LoadedDecoder {
    /// Configuration of the model.
    pub config: TransformerConfig,
    /// The weights.
    pub weights: DecoderWeights,
    /// The tokenizer, if there is one.
    pub tokenizer: Option<Tokenizer>,
    /// End-of-sequence tokens.
    pub eos_tokens: Vec<u32>,
    /// Beginning-of-sequence token.
    pub bos_token: Option<u32>,
    /// Report of how each tensor was used.
    pub report: LoadReport,
    /// Element type that the model computes in.
    pub dtype: DType,
    /// Paging of blocks that are read from files when they run.
    pub paging: Option<Paging>,
}
