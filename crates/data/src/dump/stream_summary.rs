//! What is known about the tokens of a streamed dump at its end.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::manifest::Manifest;
#[cfg(feature = "arrow")]
use super::place;
use super::stored::StoredFile;
use hooklens_model::error::Result;
use hooklens_model::tokens::{Tokenizer, token_text};

/// Tokens that occurred, and how many prompts begin with the beginning-of-sequence token.
#[derive(Debug, Clone, Default)]
pub(super) struct StreamSummary(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    used: Vec<bool>,
    rows: usize,
    with_bos: usize,
}

impl StreamSummary {
    /// Adds prompts: the first token and the kept tokens of each. `bos` is the token that they may begin with.
    pub(super) fn add<'r>(&self, rows: impl Iterator<Item = (Option<u32>, &'r [u32])>, bos: Option<u32>) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (first, row) in rows {
            counts.rows += 1;
            counts.with_bos += usize::from(bos.is_some() && first == bos);
            for id in row {
                let id = *id as usize;
                if id >= counts.used.len() {
                    counts.used.resize(id + 1, false);
                }
                counts.used[id] = true;
            }
        }
    }

    /// Completes a manifest. The files of earlier runs are read for their tokens.
    pub(super) fn complete(
        &self,
        manifest: &mut Manifest,
        earlier: &[PathBuf],
        tokenizer: Option<&Tokenizer>,
        prefix: &[u32],
    ) -> Result<()> {
        let bos = manifest.model.as_ref().and_then(|model| model.bos);
        for path in earlier {
            let rows = match path.extension().is_some_and(|ending| ending == "parquet") {
                #[cfg(feature = "arrow")]
                true => super::table::token_rows(path).map_err(place::failed(path))?,
                _ => StoredFile::open(path, &[])?.packed_rows()?,
            };
            // If only some positions are kept, the first token is unknown, and so is whether all prompts have it.
            let first = |row: &[u32]| prefix.first().or(row.first()).copied();
            self.add(rows.iter().map(|row| (first(row), row.as_slice())), bos);
        }
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = &mut manifest.model {
            model.prepend_bos = match counts.with_bos {
                _ if bos.is_none() => None,
                0 => Some(false),
                all if all == counts.rows => Some(true),
                _ => None,
            };
        }
        let used = std::mem::take(&mut counts.used);
        let ids = (0..).zip(used).filter(|(_, used)| *used).map(|(id, _)| id);
        let text = |id: u32| Some((id, token_text(Some(tokenizer?), id)));
        manifest.token_texts = ids.chain(prefix.iter().copied()).filter_map(text).collect();
        Ok(())
    }
}
