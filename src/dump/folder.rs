//! A folder of shards, one a batch, that can be continued.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use hooklens_hooks::{HookError, remove_unfinished, write_safetensors};

use super::manifest::{Manifest, NAME, Shard};
use super::writer::Sink;
use super::{Batch, DumpReport};
use crate::error::DumpError;

/// Writes a shard a batch, and after each the manifest that lists it.
pub(super) struct FolderSink {
    folder: PathBuf,
    manifest: Manifest,
}

impl FolderSink {
    /// Opens the folder, making it if need be. With `resume`, finished shards of a run with the
    /// same settings are kept.
    pub(super) fn open(folder: &Path, manifest: Manifest, resume: bool) -> Result<Self, DumpError> {
        let failed = |reason: String| DumpError::File { path: folder.to_path_buf(), reason };
        let mut manifest = manifest;
        if folder.exists() && !folder.is_dir() {
            return Err(failed("it is a file; a dump goes to a folder or to a name ending in .safetensors".into()));
        }
        std::fs::create_dir_all(folder).map_err(|e| failed(e.to_string()))?;
        match Manifest::read(folder)? {
            Some(before) if resume => {
                before.check_same(&manifest, folder)?;
                remove_unfinished(folder).map_err(|e| failed(e.to_string()))?;
                manifest.shards = whole_shards(folder, &before.shards);
            }
            Some(_) => return Err(DumpError::Exists { path: folder.join(NAME) }),
            None if resume => {}
            None => {
                let mut inside = std::fs::read_dir(folder).map_err(|e| failed(e.to_string()))?;
                if inside.next().is_some() {
                    return Err(failed("the folder is not empty and holds no dump".into()));
                }
            }
        }
        manifest.write(folder)?;
        Ok(Self { folder: folder.to_path_buf(), manifest })
    }

    /// How many batches, from the first on, need not be computed again.
    pub(super) fn finished(&self) -> usize {
        self.manifest.shards.len()
    }
}

/// The shards, from the first on, whose files are there in full.
fn whole_shards(folder: &Path, listed: &[Shard]) -> Vec<Shard> {
    let whole = |shard: &&Shard| std::fs::metadata(folder.join(&shard.file)).is_ok_and(|m| m.len() == shard.bytes);
    listed.iter().take_while(whole).cloned().collect()
}

impl Sink for FolderSink {
    fn write(&mut self, batch: Batch) -> Result<(), DumpError> {
        let file = format!("shard-{:05}.safetensors", batch.number);
        let path = self.folder.join(&file);
        let failed = |reason: String| DumpError::File { path: path.clone(), reason };
        let named = batch.tensors.iter().map(|(name, activation)| (name.clone(), activation));
        let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
        write_safetensors(&path, named, metadata).map_err(|error| match error {
            HookError::Io { name, reason } if Path::new(&name) != path => failed(format!("`{name}`: {reason}")),
            HookError::Io { reason, .. } => failed(reason),
            other => failed(other.to_string()),
        })?;
        let bytes = std::fs::metadata(&path).map_err(|e| failed(e.to_string()))?.len();
        self.manifest.shards.push(Shard { file, first_row: batch.first_row, rows: batch.rows, bytes });
        self.manifest.write(&self.folder)
    }

    fn finish(mut self: Box<Self>) -> Result<DumpReport, DumpError> {
        let done: usize = self.manifest.shards.iter().map(|shard| shard.rows).sum();
        if done == self.manifest.rows {
            self.manifest.complete = true;
            self.manifest.write(&self.folder)?;
        }
        Ok(DumpReport {
            bytes: self.manifest.shards.iter().map(|shard| shard.bytes).sum(),
            files: self.manifest.shards.iter().map(|shard| self.folder.join(&shard.file)).collect(),
            ..DumpReport::default()
        })
    }
}
