//! [`Metadata`]: information about the model that a dictionary was trained on.

use hooklens_hooks::{Selection, SelectionText};
use serde_json::{Map, Value};

use hooklens_model::driver::HookedModel;
use hooklens_model::error::Result;
use hooklens_model::tokens::structural_tokens;

/// Tokens at which a dictionary is not used, because their activations were excluded from its training.
///
/// ```
/// use hooklens::features::ExcludedTokens;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// assert_eq!(ExcludedTokens::Special.ids(&model)?, [0]); // the BOS token
/// assert!(ExcludedTokens::default().ids(&model)?.is_empty());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ExcludedTokens {
    /// No tokens.
    #[default]
    None,
    /// The tokenizer's special tokens, such as BOS, EOS, padding and separator tokens.
    Special,
    /// These token ids.
    Ids(Vec<u32>),
}

impl ExcludedTokens {
    /// The excluded token ids for a model, in order.
    ///
    /// # Errors
    /// [`InputError::NoTokenizer`](hooklens_model::error::InputError::NoTokenizer) if special tokens are excluded but
    /// the model has no tokenizer.
    pub fn ids<M: HookedModel>(&self, model: &M) -> Result<Vec<u32>> {
        Ok(match self {
            ExcludedTokens::None => Vec::new(),
            ExcludedTokens::Special => structural_tokens(model.tokenizer()?),
            ExcludedTokens::Ids(ids) => ids.clone(),
        })
    }

    /// Parses SAELens's format: a flag for special tokens, or a list of ids.
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

/// The value in SAELens's format; `None` if no tokens are excluded.
pub fn excluded_json(tokens: &ExcludedTokens) -> Option<Value> {
    match tokens {
        ExcludedTokens::None => None,
        ExcludedTokens::Special => Some(true.into()),
        ExcludedTokens::Ids(ids) => Some(ids.clone().into()),
    }
}

impl FromIterator<u32> for ExcludedTokens {
    fn from_iter<I: IntoIterator<Item = u32>>(ids: I) -> Self {
        let ids: Vec<u32> = ids.into_iter().collect();
        if ids.is_empty() { ExcludedTokens::None } else { ExcludedTokens::Ids(ids) }
    }
}

/// The model and points that a dictionary belongs to, and how its training activations were produced.
///
/// ```
/// use hooklens::features::Metadata;
/// let metadata = Metadata::at("blocks.0.hook_resid_post");
/// assert_eq!(metadata.reads.as_deref(), Some("blocks.0.hook_resid_post"));
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Metadata {
    /// The point that the dictionary reads.
    pub reads: Option<String>,
    /// The point that a transcoder writes.
    pub writes: Option<String>,
    /// Head index, if the dictionary reads a single head at the point.
    pub head: Option<usize>,
    /// Name of the model.
    pub model: Option<String>,
    /// Whether a BOS token was prepended to prompts.
    pub prepend_bos: Option<bool>,
    /// Tokens whose activations were excluded.
    pub exclude_special_tokens: ExcludedTokens,
    /// TransformerLens options that the model was loaded with (`fold_ln`, `center_writing_weights`, …).
    pub model_options: Map<String, Value>,
    /// Number of tokens per prompt.
    pub context_size: Option<usize>,
    /// Name of the training dataset.
    pub dataset: Option<String>,
    /// Neuronpedia id.
    pub neuronpedia: Option<String>,
    /// All other metadata, unchanged.
    pub others: Map<String, Value>,
}

impl Metadata {
    /// Metadata of a dictionary that reads and reconstructs this point.
    pub fn at(point: impl Into<Selection>) -> Self {
        Self { reads: Some(point.into().full_name()), ..Self::default() }
    }

    /// Metadata of a transcoder from one point to another.
    #[must_use]
    pub fn between(read: impl Into<Selection>, write: impl Into<Selection>) -> Self {
        Self { writes: Some(write.into().full_name()), ..Self::at(read) }
    }

    /// The metadata in SAELens's format.
    pub(super) fn to_json(&self) -> Map<String, Value> {
        let mut json = self.others.clone();
        let mut say = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                json.insert(key.to_string(), value);
            }
        };
        say("hook_name", self.reads.clone().map(Value::from));
        say("hook_name_out", self.writes.clone().map(Value::from));
        say("hook_head_index", self.head.map(Value::from));
        say("model_name", self.model.clone().map(Value::from));
        say("prepend_bos", self.prepend_bos.map(Value::from));
        say("exclude_special_tokens", excluded_json(&self.exclude_special_tokens));
        say("context_size", self.context_size.map(Value::from));
        say("dataset_path", self.dataset.clone().map(Value::from));
        say("neuronpedia_id", self.neuronpedia.clone().map(Value::from));
        let options = &self.model_options;
        say("model_from_pretrained_kwargs", (!options.is_empty()).then(|| options.clone().into()));
        json
    }

    /// Parses SAELens's format; on failure, returns the reason.
    pub(super) fn of_json(mut given: Map<String, Value>) -> Result<Self, String> {
        let mut take = |key: &str| given.remove(key).filter(|value| !value.is_null());
        let text = |value: Option<Value>| value.and_then(|value| value.as_str().map(str::to_string));
        let number = |value: Option<Value>| value.and_then(|value| value.as_u64()).map(|number| number as usize);
        let excluded = take("exclude_special_tokens").unwrap_or_default();
        let mut metadata = Self {
            reads: text(take("hook_name")).filter(|name| !name.is_empty()),
            writes: text(take("hook_name_out")),
            head: number(take("hook_head_index")),
            model: text(take("model_name")),
            prepend_bos: take("prepend_bos").and_then(|value| value.as_bool()),
            exclude_special_tokens: ExcludedTokens::of_json(&excluded).ok_or_else(|| {
                format!("`exclude_special_tokens` is {excluded}; expected a boolean or a list of token ids")
            })?,
            model_options: match take("model_from_pretrained_kwargs") {
                Some(Value::Object(options)) => options,
                _ => Map::new(),
            },
            context_size: number(take("context_size")),
            dataset: text(take("dataset_path")),
            neuronpedia: text(take("neuronpedia_id")),
            others: Map::new(),
        };
        metadata.others = given;
        Ok(metadata)
    }

    /// Whether SAELens flattens heads before encoding. It never does for queries, keys, values or transcoders, and
    /// rejects files that request it.
    pub(super) fn reads_all_heads(&self) -> bool {
        self.head.is_none()
            && self.writes.is_none()
            && self.reads.as_ref().is_some_and(|point| point.ends_with("hook_z"))
    }

    /// Whether the dictionary is a transcoder.
    pub(super) fn is_transcoder(&self) -> bool {
        self.writes.is_some()
    }
}
