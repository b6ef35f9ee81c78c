//! The tokens that occur in a streamed dump. They are written to the manifest once the dump is complete.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::manifest::{BatchFile, Manifest};
#[cfg(feature = "arrow")]
use super::place;
use super::stored::StoredFile;
use hooklens_model::error::Result;
use hooklens_model::tokens::{Tokenizer, token_text};

/// For each token id, whether it occurred.
#[derive(Debug, Clone, Default)]
pub(super) struct StreamSummary(Arc<Mutex<Vec<bool>>>);

impl StreamSummary {
    /// Adds the kept tokens of prompts.
    pub(super) fn add<'r>(&self, rows: impl Iterator<Item = &'r [u32]>) {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for id in rows.flatten() {
            let id = *id as usize;
            if id >= used.len() {
                used.resize(id + 1, false);
            }
            used[id] = true;
        }
    }

    /// Completes a manifest that lists all files. The files of earlier runs are read for their tokens.
    pub(super) fn complete(
        &self,
        manifest: &mut Manifest,
        earlier: &[PathBuf],
        tokenizer: Option<&Tokenizer>,
        prefix: &[u32],
    ) -> Result<()> {
        for path in earlier {
            let rows = match path.extension().is_some_and(|ending| ending == "parquet") {
                #[cfg(feature = "arrow")]
                true => super::table::token_rows(path).map_err(place::failed(path))?,
                _ => StoredFile::open(path, &[])?.packed_rows()?,
            };
            self.add(rows.iter().map(Vec::as_slice));
        }
        // `None` if one of the files was written by a version that did not count prompts with this token.
        let add = |all: usize, file: &BatchFile| Some(all.saturating_add(file.packed?.with_bos?));
        let with_bos = manifest.files.iter().try_fold(0, add);
        if let Some(model) = &mut manifest.model {
            model.prepend_bos = match with_bos {
                _ if model.bos.is_none() => None,
                Some(0) => Some(false),
                Some(all) if all == manifest.rows => Some(true),
                _ => None,
            };
        }
        let used = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let ids = (0..).zip(used).filter(|(_, used)| *used).map(|(id, _)| id);
        let text = |id: u32| Some((id, token_text(Some(tokenizer?), id)));
        manifest.token_texts = ids.chain(prefix.iter().copied()).filter_map(text).collect();
        Ok(())
    }
}
