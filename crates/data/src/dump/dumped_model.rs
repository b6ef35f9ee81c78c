//! Identity of the model that a dump comes from.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Dump, DumpModel};
use crate::error::DumpError;
use hooklens_model::error::Result;

/// The model whose activations a dump contains, as recorded in the dump's manifest, or in the header of a single file.
/// [`ActivationStore::check_model`](super::ActivationStore::check_model) compares it with a model. Its JSON form, which
/// the manifest stores, also lists the spliced parts and the hooks that edited activations.
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
/// assert_eq!((dumped.name(), dumped.fingerprint()), ("embedded:ioi", Some(&*model.fingerprint()?)));
/// assert_eq!(dumped.prepend_bos(), Some(true)); // both prompts begin with token 0
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DumpedModel {
    /// Name that the model was loaded by.
    pub(super) name: String,
    /// Hash of the configuration and of samples of the processed weights; for a small model, of all weights. `None` in
    /// dumps of earlier versions, and for a large model whose weights were edited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) identity: Option<String>,
    /// Hash of the configuration and all weights. It is slow to compute, so a single-file dump (which cannot be
    /// resumed) stores it only if there is no `identity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) fingerprint: Option<String>,
    /// Processing applied to the weights, under TransformerLens's names, such as `"fold_ln": true`. Empty in dumps of
    /// earlier versions.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(super) processing: Map<String, Value>,
    /// Beginning-of-sequence token of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bos: Option<u32>,
    /// Whether the dump's prompts begin with the beginning-of-sequence token; `None` if only some do, or if
    /// the model has no such token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) prepend_bos: Option<bool>,
    /// Hooks that edited activations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) edits: Vec<String>,
    /// Parts spliced into the model, and where.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) parts: Vec<String>,
}

/// Processing applied to the weights, under TransformerLens's names, such as `"fold_ln": true`. Empty in dumps of
/// earlier versions.
pub fn processing_of(model: &DumpedModel) -> &Map<String, Value> {
    &model.processing
}

impl DumpedModel {
    /// Name that the model was loaded by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Hash of the configuration and all weights. A single-file dump has it only if the model has no faster hash.
    pub fn fingerprint(&self) -> Option<&str> {
        self.fingerprint.as_deref()
    }

    /// Whether the dump's prompts begin with the beginning-of-sequence token; `None` if only some do, or if
    /// the model has no such token.
    pub fn prepend_bos(&self) -> Option<bool> {
        self.prepend_bos
    }

    /// Describes the model for a dump of these rows of token ids.
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

    /// Describes a model whose prompts are not known yet.
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

    /// Reads the model from the settings of an earlier version's manifest.
    pub(super) fn of_settings(settings: &BTreeMap<String, Value>) -> Option<Self> {
        let text = |name: &str| settings.get(name).and_then(Value::as_str).map(str::to_string);
        let list = |name: &str| text(name).into_iter().collect();
        Some(Self {
            name: text("model").unwrap_or_default(),
            identity: None,
            fingerprint: Some(text("weights")?),
            processing: Map::new(),
            bos: None,
            prepend_bos: None,
            edits: list("edits"),
            parts: list("part"),
        })
    }

    /// Name of the model and the processing of its weights.
    fn described(&self) -> String {
        let steps = self.processing.iter().filter(|(_, done)| **done == Value::Bool(true)).map(|(step, _)| &**step);
        [&*self.name].into_iter().chain(steps).collect::<Vec<_>>().join(", ")
    }

    /// Adds the hash of all weights.
    pub(super) fn fingerprinted<M: DumpModel>(self, model: &M) -> Result<Self> {
        Ok(Self { fingerprint: Some(model.fingerprint_of_weights()?), ..self })
    }

    /// Fails if the model of the dump at `path` is not `other`, since activations of different models must not be
    /// combined.
    pub(super) fn check_same(&self, path: &Path, other: &Self) -> Result<(), DumpError> {
        let list = |all: &[String]| if all.is_empty() { "none".into() } else { all.join(", ") };
        let hash = |of: &Self| {
            let hash = match (&self.identity, &other.identity) {
                (Some(_), Some(_)) => of.identity.clone(),
                _ => of.fingerprint.clone(),
            };
            // Hashes of different kinds cannot be compared.
            hash.unwrap_or_else(|| format!("{} (a different kind of hash)", of.identity.as_deref().unwrap_or_default()))
        };
        let is_other = |what, dumped: String, expected: String| {
            Err(DumpError::AnotherModel { path: path.to_path_buf(), what, dumped, expected })
        };
        if hash(self) != hash(other) {
            let named = |of: &Self| format!("{} ({})", hash(of), of.described());
            return is_other("model weights", named(self), named(other));
        }
        if self.parts != other.parts {
            return is_other("spliced parts", list(&self.parts), list(&other.parts));
        }
        if self.edits != other.edits {
            return is_other("edits", list(&self.edits), list(&other.edits));
        }
        Ok(())
    }
}
