//! How to load a model.

use std::path::PathBuf;

use burn::tensor::Device;
use hooklens_hooks::DType;

use crate::error::ProcessingError;
use crate::processing::Processing;

/// Device, element type and processing of a model to load. `()` stands for the defaults: the
/// CPU, `f32`, weights as published.
///
/// ```
/// use hooklens::{LoadOptions, Processing, DType};
/// let options = LoadOptions::new().dtype(DType::BF16).process(Processing::standard());
/// ```
#[derive(Debug, Clone)]
pub struct LoadOptions {
    pub(crate) device: Device,
    pub(crate) dtype: DType,
    pub(crate) processing: Processing,
    pub(crate) adapter: Option<PathBuf>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { device: Device::flex(), dtype: DType::F32, processing: Processing::none(), adapter: None }
    }
}

impl LoadOptions {
    /// The CPU, `f32`, weights as published.
    pub fn new() -> Self {
        Self::default()
    }

    /// Where the weights go and the model runs.
    #[must_use]
    pub fn device(mut self, device: &Device) -> Self {
        self.device = device.clone();
        self
    }

    /// Element type to keep and compute in, whatever the files store.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Steps that make weights easier to read without changing predictions.
    #[must_use]
    pub fn process(mut self, processing: Processing) -> Self {
        self.processing = processing;
        self
    }

    /// The folder of a LoRA adapter, as PEFT writes it, to merge into the weights.
    #[must_use]
    pub fn adapter(mut self, folder: impl Into<PathBuf>) -> Self {
        self.adapter = Some(folder.into());
        self
    }

    /// An error if weights are to be processed.
    pub(crate) fn check_unprocessed(&self, kind: &'static str) -> Result<(), ProcessingError> {
        if self.processing.is_none() { Ok(()) } else { Err(ProcessingError::Kind { kind }) }
    }
}
