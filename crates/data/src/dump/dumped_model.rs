//! Which model's activations a dump holds.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Dump, DumpModel};
use crate::error::DumpError;
use hooklens_model::error::Result;

/// The model whose activations a dump holds, as the dump's manifest (of one file, its header) records it.
///
/// ```
/// use hooklens::dump::{ActivationStore, Dump};
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// # let folder = tempfile::tempdir()?;
/// # let out = folder.path().join("activations");
/// Dump::new("resid_post1").run(&model, &[vec![0, 21, 4], vec![0, 9]], &out)?;
/// let dumped = ActivationStore::new([&out], ["blocks.1.hook_resid_post"]).model()?;
/// let dumped = dumped.ok_or("a dump of an earlier version")?;
/// assert_eq!((dumped.fingerprint, dumped.bos), (Some(model.fingerprint()?), Some(0)));
/// assert_eq!(dumped.prepend_bos, Some(true)); // both prompts begin with token 0
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DumpedModel {
    /// What the model was loaded by.
    pub name: String,
    /// Hash of its configuration and of samples of its weights, as they were processed; of a small model of all weights. None
    /// in dumps of earlier versions, and of a large model whose weights were edited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Hash of its configuration and all weights. A dump that is one file, which is not resumed, has it only without an
    /// identity: it takes a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The processing of its weights by TransformerLens's names, such as `"fold_ln": true`. Empty in dumps of earlier
    /// versions.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub processing: Map<String, Value>,
    /// The model's beginning-of-sequence token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bos: Option<u32>,
    /// Whether the dump's prompts begin with that token; none where only some of them do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepend_bos: Option<bool>,
    /// Hooks that edited the model's activations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<String>,
    /// Parts that were put into the model, each with its place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
}

impl DumpedModel {
    /// Where a file's header has it, as JSON.
    pub(super) const KEY: &str = "hooklens_model";

    /// The model that a dump runs on these rows of token ids.
    pub(super) fn of<M: DumpModel>(dump: &Dump, model: &M, rows: &[Vec<u32>], edits: Vec<String>) -> Result<Self> {
        let own = Self::of_model(model, edits)?;
        let bos = own.bos;
        let begins = |row: &Vec<u32>| dump.prefix.first().or(row.first()).copied();
        let with_bos = rows.iter().filter(|row| bos.is_some() && begins(row) == bos).count();
        let prepend_bos = match with_bos {
            0 => Some(false),
            all if all == rows.len() => Some(true),
            _ => None,
        };
        Ok(Self { prepend_bos: prepend_bos.filter(|_| bos.is_some()), ..own })
    }

    /// A model, of prompts nobody knows yet.
    pub(super) fn of_model<M: DumpModel>(model: &M, edits: Vec<String>) -> Result<Self> {
        Ok(Self {
            name: model.name().to_string(),
            identity: model.identity_of_weights(),
            fingerprint: None,
            processing: model.processing_options(),
            bos: model.beginning(),
            prepend_bos: None,
            edits,
            parts: model.parts()?,
        })
    }

    /// What the settings of an earlier version's manifest say.
    pub(super) fn of_settings(settings: &BTreeMap<String, String>) -> Option<Self> {
        let list = |name: &str| settings.get(name).into_iter().cloned().collect();
        Some(Self {
            name: settings.get("model").cloned().unwrap_or_default(),
            identity: None,
            fingerprint: Some(settings.get("weights")?.clone()),
            processing: Map::new(),
            bos: None,
            prepend_bos: None,
            edits: list("edits"),
            parts: list("part"),
        })
    }

    /// Its name and the processing of its weights.
    fn described(&self) -> String {
        let steps = self.processing.iter().filter(|(_, done)| **done == Value::Bool(true)).map(|(step, _)| &**step);
        [&*self.name].into_iter().chain(steps).collect::<Vec<_>>().join(", ")
    }

    /// The same with the hash of all weights.
    pub(super) fn fingerprinted<M: DumpModel>(self, model: &M) -> Result<Self> {
        Ok(Self { fingerprint: Some(model.fingerprint_of_weights()?), ..self })
    }

    /// An error where the model of a dump at `path` is not `other`: their activations do not belong together.
    pub(super) fn check_same(&self, path: &Path, other: &Self) -> Result<(), DumpError> {
        let list = |all: &[String]| if all.is_empty() { "none".into() } else { all.join(", ") };
        let hash = |of: &Self| {
            let hash = match (&self.identity, &other.identity) {
                (Some(_), Some(_)) => of.identity.clone(),
                _ => of.fingerprint.clone(),
            };
            // One that only has the other hash can't be compared.
            hash.unwrap_or_else(|| format!("{} (another kind of hash)", of.identity.as_deref().unwrap_or_default()))
        };
        let is_other = |what, dumped: String, expected: String| {
            Err(DumpError::AnotherModel { path: path.to_path_buf(), what, dumped, expected })
        };
        if hash(self) != hash(other) {
            let named = |of: &Self| format!("{} ({})", hash(of), of.described());
            return is_other("model weights", named(self), named(other));
        }
        if self.parts != other.parts {
            return is_other("parts in the model", list(&self.parts), list(&other.parts));
        }
        if self.edits != other.edits {
            return is_other("edits", list(&self.edits), list(&other.edits));
        }
        Ok(())
    }
}
