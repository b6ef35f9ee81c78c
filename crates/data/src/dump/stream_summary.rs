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

#[derive(Debug)]
struct Counts {
    used: Vec<bool>,
    rows: usize,
    /// Number of prompts that begin with the beginning-of-sequence token; `None` if this is unknown for some prompts.
    with_bos: Option<usize>,
}

impl Default for Counts {
    fn default() -> Self {
        Self { used: Vec::new(), rows: 0, with_bos: Some(0) }
    }
}

impl Counts {
    fn mark_used(&mut self, tokens: &[u32]) {
        for id in tokens {
            let id = *id as usize;
            if id >= self.used.len() {
                self.used.resize(id + 1, false);
            }
            self.used[id] = true;
        }
    }
}

impl StreamSummary {
    /// Adds prompts, given as the first token and the kept tokens of each. Returns the number of prompts that begin
    /// with `bos`.
    pub(super) fn add<'r>(&self, rows: impl Iterator<Item = (Option<u32>, &'r [u32])>, bos: Option<u32>) -> usize {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut with_bos = 0;
        for (first, row) in rows {
            counts.rows += 1;
            with_bos += usize::from(bos.is_some() && first == bos);
            counts.mark_used(row);
        }
        counts.with_bos = counts.with_bos.map(|before| before + with_bos);
        with_bos
    }

    /// Completes a manifest. The files of earlier runs are read for their tokens; each comes with the number of its
    /// prompts that begin with `bos`, or `None` if it is unknown.
    pub(super) fn complete(
        &self,
        manifest: &mut Manifest,
        earlier: &[(PathBuf, Option<usize>)],
        tokenizer: Option<&Tokenizer>,
        prefix: &[u32],
    ) -> Result<()> {
        let bos = manifest.model.as_ref().and_then(|model| model.bos);
        for (path, with_bos) in earlier {
            let rows = match path.extension().is_some_and(|ending| ending == "parquet") {
                #[cfg(feature = "arrow")]
                true => super::table::token_rows(path).map_err(place::failed(path))?,
                _ => StoredFile::open(path, &[])?.packed_rows()?,
            };
            let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            counts.rows += rows.len();
            rows.iter().for_each(|row| counts.mark_used(row));
            counts.with_bos = counts.with_bos.zip(*with_bos).map(|(all, more)| all + more);
        }
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = &mut manifest.model {
            model.prepend_bos = match (bos, counts.with_bos) {
                (None, _) | (_, None) => None,
                (_, Some(0)) => Some(false),
                (_, Some(all)) if all == counts.rows => Some(true),
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
