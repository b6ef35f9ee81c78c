//! What a dictionary's files say of the model it was trained on.

use serde_json::{Map, Value};

use hooklens_model::driver::HookedModel;
use hooklens_model::error::Result;

/// Tokens at which a dictionary is not used: those whose activations were left out when it was trained.
///
/// ```
/// use hooklens::features::ExcludedTokens;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// assert_eq!(ExcludedTokens::Special.ids(&model)?, [0]); // where every prompt begins
/// assert!(ExcludedTokens::default().ids(&model)?.is_empty());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ExcludedTokens {
    /// No tokens.
    #[default]
    None,
    /// The tokenizer's special tokens: of the beginning and the end, of padding, of separation.
    Special,
    /// These.
    Ids(Vec<u32>),
}

impl ExcludedTokens {
    /// The ids of a model's tokens, in order.
    ///
    /// # Errors
    /// [`InputError::NoTokenizer`](crate::InputError::NoTokenizer) if they are special tokens of a model without a
    /// tokenizer.
    pub fn ids<M: HookedModel>(&self, model: &M) -> Result<Vec<u32>> {
        Ok(match self {
            ExcludedTokens::None => Vec::new(),
            ExcludedTokens::Special => model.tokenizer()?.special(),
            ExcludedTokens::Ids(ids) => ids.clone(),
        })
    }

    /// As SAELens writes it; nothing where no tokens are.
    pub(super) fn to_json(&self) -> Option<Value> {
        match self {
            ExcludedTokens::None => None,
            ExcludedTokens::Special => Some(true.into()),
            ExcludedTokens::Ids(ids) => Some(ids.clone().into()),
        }
    }

    /// As SAELens writes it: whether special tokens are, or a list of ids.
    pub(super) fn of_json(value: &Value) -> Option<Self> {
        match value {
            Value::Null | Value::Bool(false) => Some(ExcludedTokens::None),
            Value::Bool(true) => Some(ExcludedTokens::Special),
            Value::Array(ids) => {
                let id = |id: &Value| u32::try_from(id.as_u64()?).ok();
                let ids = ids.iter().map(id).collect::<Option<Vec<_>>>()?;
                Some(if ids.is_empty() { ExcludedTokens::None } else { ExcludedTokens::Ids(ids) })
            }
            _ => None,
        }
    }
}

impl FromIterator<u32> for ExcludedTokens {
    fn from_iter<I: IntoIterator<Item = u32>>(ids: I) -> Self {
        let ids: Vec<u32> = ids.into_iter().collect();
        if ids.is_empty() { ExcludedTokens::None } else { ExcludedTokens::Ids(ids) }
    }
}

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
    /// Tokens whose activations were left out.
    pub exclude_special_tokens: ExcludedTokens,
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

    /// Whether SAELens has to flatten heads' vectors before it encodes them. At queries, keys and values and for transcoders
    /// it never does, and refuses a file that says so.
    pub(super) fn reads_all_heads(&self) -> bool {
        self.head.is_none()
            && self.writes.is_none()
            && self.reads.as_ref().is_some_and(|point| point.ends_with("hook_z"))
    }

    /// Whether it is a transcoder's.
    pub(super) fn is_transcoder(&self) -> bool {
        self.writes.is_some()
    }
}
