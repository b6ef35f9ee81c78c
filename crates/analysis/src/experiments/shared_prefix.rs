//! [`SharedPrefix`]: batches of prompts whose shared prefix is computed once.

use std::sync::Arc;

use burn::tensor::Tensor;
use hooklens_hooks::{ActivationCache, ModelIdentity, Positions, Record, RecordRequest, truncated};

use hooklens_model::config::Layers;
use hooklens_model::driver::{ForwardOptions, HookedModel, Logits, with_identity};
use hooklens_model::error::{InputError, Result};
use hooklens_model::kv_cache::KeyValueCache;
use hooklens_model::model::{HookedTransformer, Identified, Output};
use hooklens_model::tokens::{PaddingSide, Tokens};

/// Length of the prefix that all rows share, short enough to leave at least one token of each row.
///
/// ```
/// use hooklens_analysis::experiments::common_prefix;
/// assert_eq!(common_prefix(&[vec![5, 6, 7, 8], vec![5, 6, 9]]), 2);
/// assert_eq!(common_prefix(&[vec![5, 6], vec![5, 6, 9]]), 1);
/// ```
pub fn common_prefix(rows: &[Vec<u32>]) -> usize {
    let Some(first) = rows.first() else { return 0 };
    let shared = |row: &Vec<u32>| {
        let same = first.iter().zip(row).take_while(|(a, b)| a == b).count();
        same.min(row.len().saturating_sub(1))
    };
    rows.iter().map(shared).min().unwrap_or(0)
}

/// Runs batches of prompts, computing each batch's common prefix once and reusing what it shares with the previous
/// batch (like walking a prefix tree in order). Sort the prompts to share as much as possible.
///
/// ```
/// use hooklens::experiments::SharedPrefix;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let rows = model.to_tokens(["king drum sun star king", "king drum sun star drum"])?;
/// let rows: Vec<Vec<u32>> = (0..2).map(|row| rows.real(row)).collect();
/// let mut prefix = SharedPrefix::new(&model, Record::new("*hook_pattern"), Logits::All);
/// let shared = prefix.run(&rows)?;
/// assert_eq!(prefix.saved(), 5);
/// let (logits, cache) = model.run_with_cache(rows, "*hook_pattern")?;
/// assert_eq!(shared.logits.unwrap().dims(), logits.dims());
/// assert_eq!(shared.cache.get(hook::pattern(1))?.dims(), cache.get(hook::pattern(1))?.dims());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug)]
pub struct SharedPrefix<'m> {
    model: &'m HookedTransformer,
    record: Record,
    logits: Logits,
    tokens: Vec<u32>,
    cache: KeyValueCache,
    recorded: Option<ActivationCache>,
    made: Option<Tensor<3>>,
    saved: usize,
    identity: Arc<ModelIdentity>,
}

impl<'m> SharedPrefix<'m> {
    /// Prepares to run batches with these recordings and logits.
    pub fn new(model: &'m HookedTransformer, record: Record, logits: Logits) -> Self {
        let (cache, identity) = (KeyValueCache::new(model.config(), 1), model.identity());
        Self { model, record, logits, tokens: Vec::new(), cache, recorded: None, made: None, saved: 0, identity }
    }

    /// Number of tokens so far that were reused from a shared prefix instead of being computed.
    pub fn saved(&self) -> usize {
        self.saved
    }

    /// Runs these rows, padding shorter ones on the right. Returns logits as selected in [`SharedPrefix::new`], and
    /// recordings of whole rows.
    ///
    /// ```
    /// use hooklens::experiments::SharedPrefix;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut prefix = SharedPrefix::new(&model, Record::default(), Logits::Last);
    /// prefix.run(&[vec![0, 51, 59, 21], vec![0, 51, 59, 22]])?;
    /// let next = prefix.run(&[vec![0, 51, 59, 23], vec![0, 51, 59, 24]])?; // three tokens of each row are known
    /// assert_eq!((next.logits.map(|logits| logits.dims()), prefix.saved()), (Some([2, 1, 63]), 3 + 6));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::run`]; [`HookError::Stitch`](hooklens_hooks::HookError::Stitch) for recordings that
    /// cannot be concatenated because the point has no position axis, such as a mixture's experts.
    pub fn run(&mut self, rows: &[Vec<u32>]) -> Result<Output> {
        if rows.is_empty() {
            return Err(InputError::Empty { what: "the list of prompts".into() }.into());
        }
        run_sharing(self, rows, common_prefix(rows))
    }

    /// Makes `prefix` the current prefix, and records its activations if `whole`. Returns the number of tokens
    /// computed.
    fn move_to(&mut self, prefix: &[u32], whole: bool) -> Result<usize> {
        let alike = self.tokens.iter().zip(prefix).take_while(|(a, b)| a == b).count();
        // Recurrent states cannot be rolled back to an earlier position.
        let state = alike < self.tokens.len() && self.model.config().has_states();
        // If no earlier batch needed recordings of the prefix, they were not made.
        let unrecorded = whole && self.recorded.is_none() && !self.record.selects_nothing();
        let kept = if state || unrecorded { 0 } else { alike };
        if kept < self.tokens.len() {
            self.cache.truncate(kept)?;
            self.recorded = self.recorded.take().filter(|_| kept > 0).map(|recorded| truncated(&recorded, kept));
            self.made = self.made.take().filter(|_| kept > 0).map(|made| made.narrow(1, 0, kept));
            self.tokens.truncate(kept);
        }
        let rest = &prefix[kept..];
        if rest.is_empty() {
            return Ok(0);
        }
        let logits = if self.logits == Logits::All { Logits::All } else { Logits::None };
        let record = if whole { self.record.clone().positions(Positions::All) } else { Record::default() };
        let options = ForwardOptions::new().logits(logits).record(record).kv_cache(&mut self.cache);
        let output = self.model.run(vec![rest.to_vec()], with_identity(options, &self.identity))?;
        // Updated before the recordings are stitched, because the cache contains the tokens even if stitching fails.
        self.tokens.extend(rest);
        self.made = match (self.made.take(), output.logits) {
            (Some(before), Some(new)) => Some(Tensor::cat(vec![before, new], 1)),
            (before, new) => before.or(new),
        };
        self.recorded = match self.recorded.take() {
            _ if !whole => None,
            Some(before) => Some(before.stitched(&output.cache)?),
            None => Some(output.cache),
        };
        Ok(rest.len())
    }
}

/// Runs rows like [`SharedPrefix::run`], sharing exactly the first `shared` tokens, which all rows must have in
/// common.
pub fn run_sharing(prefix: &mut SharedPrefix<'_>, rows: &[Vec<u32>], shared: usize) -> Result<Output> {
    // Keys whose rotation depends on the length of the text cannot be shared by texts of different lengths.
    let by_length = rows.iter().any(|row| prefix.model.config().outgrows(row.len()));
    let shared = if by_length { 0 } else { shared };
    // Positions are counted in whole rows, wherever the prefix ends.
    let places = prefix.record.places_in(rows.iter().map(Vec::len))?;
    let in_prefix = places.as_ref().is_some_and(|places| places.iter().flatten().any(|place| *place < shared));
    let suffixes = match &places {
        Some(places) if !in_prefix => {
            let columns = places.iter().map(|row| row.iter().map(|place| place - shared).collect()).collect();
            prefix.record.clone().positions(Positions::Columns(columns))
        }
        _ => prefix.record.clone().positions(Positions::All),
    };
    let whole = places.is_none() || in_prefix;
    let grown = prefix.move_to(&rows[0][..shared], whole)?;
    prefix.saved += rows.len() * shared - grown;
    let rest: Vec<Vec<u32>> = rows.iter().map(|row| row[shared..].to_vec()).collect();
    let rest = Tokens::padded(&rest, 0, PaddingSide::Right)?;
    let mut branches = prefix.cache.fork(rows.len())?;
    let options = ForwardOptions::new().logits(prefix.logits).record(suffixes).kv_cache(&mut branches);
    let mut output = prefix.model.run(rest, with_identity(options, &prefix.identity))?;
    if let (true, Some(recorded)) = (whole, &prefix.recorded) {
        output.cache = recorded.stitched(&output.cache)?;
    }
    if in_prefix {
        output.cache = output.cache.positions(prefix.record.kept().clone())?;
    }
    if let (Some(made), Logits::All) = (&prefix.made, prefix.logits) {
        let [_, len, width] = made.dims();
        let first = made.clone().expand([rows.len(), len, width]);
        output.logits = output.logits.map(|logits| Tensor::cat(vec![first, logits], 1));
    }
    Ok(output)
}
