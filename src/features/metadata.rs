//! What a dictionary's files say of the model it was trained on.

use serde_json::{Map, Value};

/// Where a dictionary belongs, and how its activations were made.
///
/// ```
/// use hooklens::features::Metadata;
/// let metadata = Metadata::at("blocks.0.hook_resid_post");
/// assert_eq!(metadata.reads.as_deref(), Some("blocks.0.hook_resid_post"));
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Metadata {
    /// The point it reads.
    pub reads: Option<String>,
    /// The point it writes, of a transcoder.
    pub writes: Option<String>,
    /// The one head of the point it is about.
    pub head: Option<usize>,
    /// The model's name.
    pub model: Option<String>,
    /// Whether prompts began with the token of their beginning.
    pub prepend_bos: Option<bool>,
    /// Whether activations at special tokens were left out.
    pub exclude_special_tokens: bool,
    /// How the model was loaded: TransformerLens's options (`fold_ln`, `center_writing_weights`, …).
    pub model_options: Map<String, Value>,
    /// Tokens of a prompt.
    pub context_size: Option<usize>,
    /// What it was trained on.
    pub dataset: Option<String>,
    /// Where it is shown.
    pub neuronpedia: Option<String>,
    /// Everything else that is said, as it is said.
    pub others: Map<String, Value>,
}

impl Metadata {
    /// Of a dictionary that reads this point, and writes it.
    pub fn at(point: impl Into<String>) -> Self {
        Self { reads: Some(point.into()), ..Self::default() }
    }

    /// Of a transcoder from one point to another.
    #[must_use]
    pub fn between(read: impl Into<String>, write: impl Into<String>) -> Self {
        Self { writes: Some(write.into()), ..Self::at(read) }
    }
}
