//! The load report: which tensors of the files were used.

use std::fmt;

/// How the tensors in the model's files were used.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let report = model.load_report();
/// assert!(report.unused.is_empty() && report.applied.iter().any(|name| name == "unembed.W_U"));
/// assert!(report.to_string().ends_with(" tensors applied, 0 unused"));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadReport {
    /// The source of the model: a hub id, a folder or file, or `embedded:NAME`. Empty for a model that was not loaded.
    pub name: String,
    /// Name of the model family whose code loaded the model. Empty for a model that was not loaded.
    pub family: &'static str,
    /// Tensors of the files that became weights.
    pub applied: Vec<String>,
    /// Tensors in the files that were not needed, except for known derived buffers.
    pub unused: Vec<String>,
    /// Optional tensors missing from the files, such as the unembedding of a model with tied embeddings.
    pub missing: Vec<String>,
    /// Settings in `config.json` that have no effect, either in Hugging Face's code or here, each with the reason. Also
    /// the number of tensors that belong to parts other than the text model, such as a vision encoder.
    pub ignored: Vec<String>,
    /// Devices that compute with coarser rounding than the element type implies.
    pub rounding: Vec<String>,
    /// Tensors kept in a quantized file's blocks.
    pub in_blocks: Vec<String>,
    /// Quantized tensors that were dequantized: those changed by processing or adapters, those that require gradients,
    /// and all tensors on devices other than the CPU or in element types other than `f32`.
    pub widened: Vec<String>,
    /// Number of blocks, counted from the end of the model, that do not fit into memory and are read from the files on
    /// every run.
    pub read_each_time: usize,
    /// Size of the files' tensors in bytes.
    pub stored_bytes: usize,
    /// Processing steps that changed the weights, by their TransformerLens names.
    pub processed: Vec<&'static str>,
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { applied, unused, missing, ignored, rounding, in_blocks, widened, .. } = self;
        write!(
            f,
            "{} tensors applied, {} unused{}",
            applied.len(),
            unused.len(),
            if missing.is_empty() { "" } else { ", unembedding tied" }
        )?;
        for name in unused {
            write!(f, "\n  unused: {name}")?;
        }
        for setting in ignored {
            write!(f, "\n  ignored: {setting}")?;
        }
        if !in_blocks.is_empty() || !widened.is_empty() {
            write!(f, "\n  quantized: {} kept quantized, {} dequantized", in_blocks.len(), widened.len())?;
        }
        if self.read_each_time > 0 {
            write!(f, "\n  blocks read from the files on every run: {}", self.read_each_time)?;
        }
        for rounding in rounding {
            write!(f, "\n  {rounding}")?;
        }
        Ok(())
    }
}
