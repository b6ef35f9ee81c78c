//! What a folder of shards says of itself.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::Path;

use hooklens_hooks::beside;
use serde::{Deserialize, Serialize};

use super::Dump;
use crate::error::DumpError;

/// Name of the manifest within the folder.
pub(super) const NAME: &str = "manifest.json";

/// The settings of a dump, and the shards finished so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: String,
    pub(super) version: u32,
    pub(super) rows: usize,
    /// Hash of all token ids, so that other prompts are not taken for the same.
    pub(super) input: String,
    pub(super) settings: BTreeMap<String, String>,
    pub(super) shards: Vec<Shard>,
    pub(super) complete: bool,
}

/// One finished shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shard {
    pub(super) file: String,
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) bytes: u64,
}

impl Manifest {
    pub(super) fn new(dump: &Dump, rows: &[Vec<u32>]) -> Self {
        let settings: HashMap<_, _> = dump.fingerprint();
        Self {
            format: "hooklens-dump".into(),
            version: 1,
            rows: rows.len(),
            input: format!("{:016x}", hash(rows)),
            settings: settings.into_iter().collect(),
            shards: Vec::new(),
            complete: false,
        }
    }

    /// Reads a folder's manifest; `None` if it has none.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>, DumpError> {
        let path = folder.join(NAME);
        let failed = |reason: String| DumpError::File { path: path.clone(), reason };
        match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|e| failed(format!("not a manifest: {e}"))),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(failed(e.to_string())),
        }
    }

    /// Replaces the folder's manifest in one step.
    pub(super) fn write(&self, folder: &Path) -> Result<(), DumpError> {
        let path = folder.join(NAME);
        let failed = |reason: String| DumpError::File { path: path.clone(), reason };
        let text = serde_json::to_vec_pretty(self).map_err(|e| failed(e.to_string()))?;
        let mut unfinished = beside(&path).map_err(|e| failed(e.to_string()))?;
        unfinished.write_all(&text).map_err(|e| failed(e.to_string()))?;
        unfinished.persist(&path).map_err(|e| failed(e.to_string()))?;
        Ok(())
    }

    /// Whether a run with the settings of `now` would continue this one.
    pub(super) fn check_same(&self, now: &Manifest, folder: &Path) -> Result<(), DumpError> {
        let differs = |what: &str, before: &dyn ToString, now: &dyn ToString| DumpError::Mismatch {
            path: folder.join(NAME),
            what: what.to_string(),
            before: before.to_string(),
            now: now.to_string(),
        };
        if (&self.format, self.version) != (&now.format, now.version) {
            return Err(differs(
                "format",
                &format!("{} {}", self.format, self.version),
                &format!("{} {}", now.format, now.version),
            ));
        }
        for (name, value) in &now.settings {
            let before = self.settings.get(name).map_or("nothing", String::as_str);
            if before != value {
                return Err(differs(name, &before, value));
            }
        }
        if self.rows != now.rows {
            return Err(differs("number of prompts", &self.rows, &now.rows));
        }
        if self.input != now.input {
            return Err(differs("set of prompts", &self.input, &now.input));
        }
        Ok(())
    }
}

/// FNV-1a over all ids and row ends: the same on every machine and in every version.
fn hash(rows: &[Vec<u32>]) -> u64 {
    let words = rows.iter().flat_map(|row| row.iter().copied().chain([u32::MAX]));
    words
        .flat_map(u32::to_le_bytes)
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
