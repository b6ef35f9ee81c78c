//! The load report: which tensors of the files were used.

use std::fmt;

/// Which tensors of the files became weights, and which did not.
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
    /// What the model was loaded by: a hub id, a folder or file, `embedded:NAME`; nothing of one that was not loaded.
    pub name: String,
    /// Tensors of the files that became weights.
    pub applied: Vec<String>,
    /// Tensors of the files that nothing needed, buffers known to be derived left out.
    pub unused: Vec<String>,
    /// Tensors the files may leave out and did: the unembedding of a tied model.
    pub missing: Vec<String>,
    /// Settings of `config.json` that have no effect, in Hugging Face's code as here, each with the reason; how many
    /// tensors are of other parts of the model than the text model.
    pub ignored: Vec<String>,
    /// How the devices round what they compute, where that is coarser than the element type.
    pub rounding: Vec<String>,
    /// Tensors that stay in the blocks of a few bits that a quantized file holds them in.
    pub in_blocks: Vec<String>,
    /// Tensors in such blocks that were widened: what processing and adapters change, what gradients are kept for, and
    /// everything on other devices than the CPU or in another element type than `f32`.
    pub widened: Vec<String>,
    /// Blocks that do not fit into memory and are read from the files each time they are run, the last ones.
    pub read_each_time: usize,
    /// Bytes of the files' tensors.
    pub stored_bytes: usize,
    /// Steps of processing that changed the weights, by TransformerLens's names.
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
            write!(f, "\n  quantized: {} stay so, {} were widened", in_blocks.len(), widened.len())?;
        }
        if self.read_each_time > 0 {
            write!(f, "\n  blocks that are read from the file each time they are run: {}", self.read_each_time)?;
        }
        for rounding in rounding {
            write!(f, "\n  {rounding}")?;
        }
        Ok(())
    }
}
