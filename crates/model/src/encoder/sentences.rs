//! Sentence embeddings: one vector per text, as in sentence-transformers.

use std::path::{Component, Path};

use burn::tensor::Tensor;
use serde_json::Value;

use super::HookedEncoder;
use super::forward::first_rows;
use crate::device::guarded;
use crate::driver::{ForwardOptions, HookedModel};
use crate::error::{InputError, LoadError, Result};
use crate::model::{Sequence, narrowed, widened};
use crate::tokens::read_json;

/// How the vectors of all positions are pooled into one.
///
/// ```
/// # use hooklens::FromPretrained;
/// # use hooklens::encoder::HookedEncoder;
/// use hooklens::encoder::{Pooling, SentenceEmbedding};
/// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
/// let own = SentenceEmbedding { pooling: Pooling::First, normalize: false, max_len: None };
/// assert_eq!(model.with_sentence_embedding(own).sentence_embedding()?.pooling, Pooling::First);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooling {
    /// Mean over unmasked tokens.
    Mean,
    /// Vector of the first token.
    First,
    /// Maximum of each coordinate over unmasked tokens.
    Max,
}

/// Pooling and normalization after the last block of a sentence encoder.
///
/// ```
/// # use hooklens::FromPretrained;
/// # use hooklens::encoder::HookedEncoder;
/// use hooklens::encoder::{Pooling, SentenceEmbedding};
/// # let model = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
/// let own = model.sentence_embedding()?; // the default, since the model has no setting
/// assert_eq!(own, SentenceEmbedding { pooling: Pooling::Mean, normalize: true, max_len: None });
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentenceEmbedding {
    /// Pooling over positions.
    pub pooling: Pooling,
    /// Whether vectors are scaled to unit length.
    pub normalize: bool,
    /// Maximum text length in tokens, including special tokens; longer texts are truncated. `None` for the model's
    /// context length.
    pub max_len: Option<usize>,
}

impl Default for SentenceEmbedding {
    /// Mean pooling, normalized to unit length.
    fn default() -> Self {
        Self { pooling: Pooling::Mean, normalize: true, max_len: None }
    }
}

/// Reads `modules.json` and the files it names. Returns the default for a folder without `modules.json`, and an
/// inner `Err` with the reason if the model's pooling is not supported.
pub fn sentence_embedding_of(folder: &Path) -> Result<std::result::Result<SentenceEmbedding, String>, LoadError> {
    let path = folder.join("modules.json");
    if !path.is_file() {
        return Ok(Ok(SentenceEmbedding::default()));
    }
    let modules = read_json(path.clone())?;
    let bad = |reason: String| LoadError::Content { path: path.clone(), reason };
    let modules = modules.as_array().ok_or_else(|| bad("it is not a list of modules".into()))?;
    let mut found = SentenceEmbedding { normalize: false, ..SentenceEmbedding::default() };
    for module in modules {
        let text = |field: &str| module.get(field).and_then(Value::as_str).unwrap_or_default();
        match text("type").rsplit('.').next() {
            Some("Pooling") => {
                let inside = |part| matches!(part, Component::Normal(_));
                if !Path::new(text("path")).components().all(inside) {
                    return Err(bad(format!("`{}` is outside the folder", text("path"))));
                }
                let own = read_json(folder.join(text("path")).join("config.json"))?;
                let modes = own.as_object().into_iter().flatten();
                let on = modes.filter(|(key, value)| key.starts_with("pooling_mode_") && **value == Value::Bool(true));
                let on: Vec<&str> = on.map(|(key, _)| &key["pooling_mode_".len()..]).collect();
                found.pooling = match on[..] {
                    ["mean_tokens"] => Pooling::Mean,
                    ["cls_token"] => Pooling::First,
                    ["max_tokens"] => Pooling::Max,
                    _ => return Ok(Err(format!("the pooling {on:?} is not supported"))),
                };
            }
            Some("Normalize") => found.normalize = true,
            Some("Transformer") => {}
            _ => return Ok(Err(format!("a module of type {:?} is not supported", text("type")))),
        }
    }
    let limits = folder.join("sentence_bert_config.json");
    if limits.is_file() {
        let longest = read_json(limits)?.get("max_seq_length").and_then(Value::as_u64);
        found.max_len = longest.and_then(|n| usize::try_from(n).ok());
    }
    Ok(Ok(found))
}

impl HookedEncoder {
    /// How [`HookedEncoder::sentence_embeddings`] pools the output of the last block.
    ///
    /// # Errors
    /// [`InputError::Sentences`] if the model's `modules.json` requires steps that are not supported.
    pub fn sentence_embedding(&self) -> Result<SentenceEmbedding, InputError> {
        self.sentences.clone().map_err(|reason| InputError::Sentences { reason })
    }

    /// Sets how sentence embeddings are computed.
    #[must_use]
    pub fn with_sentence_embedding(mut self, sentences: SentenceEmbedding) -> Self {
        self.sentences = Ok(sentences);
        self
    }

    /// Computes one vector per text, `[text, d_model]`, as specified by the model's `modules.json`. Texts longer than
    /// the model's limit are truncated.
    ///
    /// # Errors
    /// Same as [`HookedModel::run`] and [`HookedEncoder::sentence_embedding`].
    ///
    /// ```no_run
    /// # use hooklens::FromPretrained;
    /// use hooklens::encoder::HookedEncoder;
    /// let model = HookedEncoder::from_pretrained("sentence-transformers/all-MiniLM-L6-v2")?;
    /// let vectors = model.sentence_embeddings(&["It rains.", "The weather is wet."])?;
    /// let alike = vectors.clone().narrow(0, 0, 1).matmul(vectors.narrow(0, 1, 1).transpose());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn sentence_embeddings(&self, texts: &[impl AsRef<str>]) -> Result<Tensor<2>> {
        let texts: Vec<String> = texts.iter().map(|text| text.as_ref().to_string()).collect();
        let sentences = self.sentence_embedding()?;
        let longest = sentences.max_len.unwrap_or(self.config.n_ctx).min(self.config.n_ctx);
        let tokens = self.truncated(&texts, longest)?;
        let hidden = guarded(|| self.devices(), || self.hidden(&tokens, ForwardOptions::new()))?;
        let dtype = hidden.dtype();
        let hidden = widened(hidden);
        let sequence = Sequence::of(&tokens.tokens);
        let real = sequence.real_as_float(&hidden.device());
        let vectors: Tensor<2> = match (sentences.pooling, real) {
            (Pooling::First, _) => first_rows(hidden, &sequence),
            (Pooling::Mean, None) => hidden.mean_dim(1).squeeze_dim(1),
            (Pooling::Mean, Some(real)) => ((hidden * real.clone()).sum_dim(1) / real.sum_dim(1)).squeeze_dim(1),
            (Pooling::Max, None) => hidden.max_dim(1).squeeze_dim(1),
            (Pooling::Max, Some(real)) => {
                let padding = real.equal_elem(0.0).expand(hidden.dims());
                hidden.mask_fill(padding, f32::NEG_INFINITY).max_dim(1).squeeze_dim(1)
            }
        };
        let vectors = match sentences.normalize {
            true => vectors.clone() / vectors.square().sum_dim(1).sqrt().clamp_min(1e-12),
            false => vectors,
        };
        Ok(narrowed(vectors, dtype))
    }
}
