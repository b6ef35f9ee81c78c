//! Sources of training activations, in an order determined by a seed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use hooklens_hooks::{Positions, Record};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_64;

use crate::splice::splice_point;
use hooklens_data::corpus::{RowIter, RowSource};
use hooklens_data::dump::{ActivationStore, Batches, DescribeStore, DumpModel, processing_of, vectors_an_epoch};
use hooklens_model::driver::{ForwardOptions, HookedModel, Logits};
use hooklens_model::error::{InputError, Result};
use hooklens_model::model::{HookedTransformer, ModelWeights};
use hooklens_model::processing::processing_options;
use hooklens_model::tokens::{PaddingSide, Tokens};

/// Number of prompts per batch.
const TOGETHER: usize = 64;

/// Activations of some tokens by point, `[token, width]` each.
pub(super) type Rows = BTreeMap<String, Vec<f32>>;

/// A source of batches. One pass through all tokens is an epoch, whose order is determined by its number and the seed.
pub(super) trait Source {
    /// The widths of the points.
    fn widths(&mut self, points: &[String]) -> Result<BTreeMap<String, usize>>;

    /// Information about the model that produced the activations.
    fn origin(&mut self) -> Result<Origin>;

    /// Identifies the activations: the model, the tokens, and the excluded tokens.
    fn described(&mut self) -> Result<Value>;

    /// Hash of the prompts read so far, if [`Source::described`] does not identify them.
    fn seen(&self) -> Option<String>;

    /// Prepares to serve these points, continuing after `done` tokens.
    fn begin(&mut self, points: &[String], serving: Serving, done: usize) -> Result<()>;

    /// Activations of the first tokens, enough to fill the shuffle buffer.
    fn first(&mut self) -> Result<Cow<'_, Rows>>;

    /// The next batch.
    fn next(&mut self) -> Result<Rows>;

    /// Returns activations of tokens that follow the last batch, in chunks, until `most` tokens or all of the data have
    /// been returned. Each token is returned once. Afterwards, no more batches may be requested.
    fn further(&mut self, most: usize) -> Result<Option<Rows>>;

    /// Whether none of the tokens returned by [`Source::further`] were served in a batch.
    fn is_unseen(&self) -> bool;
}

/// Position in the tokens that follow the last batch.
#[derive(Debug, Default)]
struct Further {
    tokens: usize,
    /// For [`FromModel`], the place in the prompts where training stopped.
    stopped: Option<RowPlace>,
    /// Whether reading has wrapped around to the start of the epoch.
    wrapped: bool,
}

/// The model that produced the training activations, for the dictionary's metadata.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Origin {
    pub(super) name: Option<String>,
    /// Whether prompts start with the BOS token.
    pub(super) prepend_bos: Option<bool>,
    /// Weight processing options, with TransformerLens's names.
    pub(super) options: Map<String, Value>,
}

/// Settings for serving batches.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Serving {
    pub(super) seed: u64,
    /// Number of tokens per batch.
    pub(super) batch: usize,
    /// Number of tokens shuffled together.
    pub(super) buffer: usize,
}

/// Dumps, read on demand.
pub(super) struct FromDumps {
    store: ActivationStore,
    batches: Option<Batches>,
    further: Further,
}

impl FromDumps {
    pub(super) fn new<P: AsRef<Path>>(dumps: impl IntoIterator<Item = P>, left_out: &[u32]) -> Self {
        let none: [&str; 0] = [];
        let store = ActivationStore::new(dumps, none).exclude_tokens(left_out.iter().copied()).endless();
        let store = store.keeping_files();
        Self { store, batches: None, further: Further::default() }
    }
}

impl Source for FromDumps {
    fn widths(&mut self, points: &[String]) -> Result<BTreeMap<String, usize>> {
        self.store = self.store.clone().of(points);
        self.store.widths()
    }

    fn origin(&mut self) -> Result<Origin> {
        Ok(self.store.model()?.map_or_else(Origin::default, |model| Origin {
            name: Some(model.name().to_string()).filter(|name| !name.is_empty()),
            prepend_bos: model.prepend_bos(),
            options: processing_of(&model).clone(),
        }))
    }

    fn described(&mut self) -> Result<Value> {
        self.store.described()
    }

    fn seen(&self) -> Option<String> {
        None
    }

    fn begin(&mut self, points: &[String], serving: Serving, done: usize) -> Result<()> {
        self.store = self.store.clone().of(points).seed(serving.seed).buffer(serving.buffer);
        self.batches = Some(self.store.clone().batch_size(serving.batch).starting_at(done as u64).batches()?);
        Ok(())
    }

    fn first(&mut self) -> Result<Cow<'_, Rows>> {
        self.store.first().map(|rows| Cow::Owned(Rows::from(rows)))
    }

    fn next(&mut self) -> Result<Rows> {
        let next = self.batches.as_mut().and_then(Iterator::next);
        next.unwrap_or_else(|| Err(no_tokens())).map(Rows::from)
    }

    fn further(&mut self, most: usize) -> Result<Option<Rows>> {
        let all = self.batches.as_ref().map_or(0, vectors_an_epoch);
        if self.further.tokens == 0 && all <= most as u64 {
            // Read every token once, instead of some tokens twice.
            self.batches = Some(self.store.clone().epochs(1).starting_at(0).batches()?);
        }
        if self.further.tokens >= most {
            return Ok(None);
        }
        let Some(batch) = self.batches.as_mut().and_then(Iterator::next).transpose()? else { return Ok(None) };
        self.further.tokens += batch.tokens().len();
        Ok(Some(batch.into()))
    }

    fn is_unseen(&self) -> bool {
        // A pass that `further` started ends at the same position as the first epoch, but contains tokens that were
        // trained on.
        self.batches
            .as_ref()
            .is_some_and(|all| self.further.tokens as u64 != all.position() && all.position() <= vectors_an_epoch(all))
    }
}

/// The error for data without tokens.
fn no_tokens() -> hooklens_model::error::Error {
    InputError::Empty { what: "the training data".into() }.into()
}

/// A model run on prompts, whose activations are buffered, shuffled and served in batches. It can also start after a
/// given number of tokens, as if it had already served them.
pub(super) struct FromModel<'m> {
    model: &'m HookedTransformer,
    prompts: &'m dyn RowSource,
    /// Token ids whose activations are excluded.
    left_out: &'m [u32],
    points: Vec<String>,
    serving: Serving,
    /// Place of the next rows to read.
    place: RowPlace,
    /// The pieces of the current epoch, in the order in which they are read.
    order: Vec<u32>,
    /// Rest of the piece at the current place.
    rest: Option<RowIter<'m>>,
    /// Number of times the buffer was filled.
    fills: u64,
    /// Hash of the rows that were read to fill the buffer.
    seen: u64,
    held: Rows,
    /// Indices of the buffer's tokens in the order in which they are served.
    places: Vec<usize>,
    /// Number of tokens of the buffer that were served.
    served: usize,
    further: Further,
}

/// A place in the prompts of all epochs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct RowPlace {
    epoch: u64,
    /// Number of pieces of the epoch that were read.
    piece: usize,
    /// Number of rows of the next piece that were read.
    row: usize,
}

impl<'m> FromModel<'m> {
    pub(super) fn new(model: &'m HookedTransformer, prompts: &'m dyn RowSource, left_out: &'m [u32]) -> Result<Self> {
        let (points, serving, order, held, places, further) = Default::default();
        let (place, rest, fills, seen, served) = (RowPlace::default(), None, 0, 0, 0);
        let mut made = Self {
            model,
            prompts,
            left_out,
            points,
            serving,
            place,
            order,
            rest,
            fills,
            seen,
            held,
            places,
            served,
            further,
        };
        // Read until a row has tokens to train on, which is usually the first row.
        made.go_to(RowPlace::default())?;
        loop {
            let rows = made.rows(RowPlace { epoch: 1, ..RowPlace::default() })?;
            if rows.is_empty() {
                return Err(no_tokens());
            }
            if made.count(&rows) > 0 {
                break;
            }
        }
        made.go_to(RowPlace::default())?;
        Ok(made)
    }

    /// Number of tokens in `rows`, without excluded tokens.
    fn count(&self, rows: &[Vec<u32>]) -> usize {
        rows.iter().flatten().filter(|id| !self.left_out.contains(id)).count()
    }

    /// Moves to a place in an epoch. The rows that come before it in its piece are read again and skipped.
    fn go_to(&mut self, place: RowPlace) -> Result<()> {
        if self.order.is_empty() || self.place.epoch != place.epoch {
            self.order = (0..self.prompts.pieces() as u32).collect();
            let seed = self.serving.seed ^ (place.epoch << 32) ^ 0x6f72_6465;
            self.order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        }
        self.place = RowPlace { row: 0, ..place };
        self.rest = None;
        for _ in 0..place.row {
            self.row()?;
        }
        Ok(())
    }

    /// The next row of the epoch; `None` at its end.
    fn row(&mut self) -> Result<Option<Vec<u32>>> {
        loop {
            let Some(piece) = self.order.get(self.place.piece) else { return Ok(None) };
            let rest = match &mut self.rest {
                Some(rest) => rest,
                None => self.rest.insert(self.prompts.open(*piece as usize)?),
            };
            if let Some(row) = rest.next() {
                self.place.row += 1;
                return row.tokens.map(Some);
            }
            self.rest = None;
            self.place = RowPlace { piece: self.place.piece + 1, row: 0, ..self.place };
        }
    }

    /// The next rows of the epoch: at most [`TOGETHER`], and only rows before the place `before`. Empty at the end of
    /// the epoch.
    fn rows(&mut self, before: RowPlace) -> Result<Vec<Vec<u32>>> {
        let mut rows = Vec::new();
        while rows.len() < TOGETHER && self.place < before {
            match self.row()? {
                Some(row) => rows.push(row),
                None => break,
            }
        }
        Ok(rows)
    }

    /// Computes activations of rows, by point.
    fn read(&self, rows: &[Vec<u32>]) -> Result<Rows> {
        let pad = self.model.tokenizer().map_or(0, |tokenizer| tokenizer.pad());
        let tokens = Tokens::padded(rows, pad, PaddingSide::Right)?;
        let record = Record::new(self.points.clone()).positions(Positions::default());
        let cache = self.model.run(&tokens, ForwardOptions::new().logits(Logits::None).record(record))?.cache;
        let kept: Vec<bool> = tokens
            .ids()
            .iter()
            .enumerate()
            .map(|(at, id)| tokens.mask().is_none_or(|mask| mask[at]) && !self.left_out.contains(id))
            .collect();
        let mut all = Rows::new();
        for point in &self.points {
            let activation = cache.activation(&**point)?;
            let width = activation.shape().iter().product::<usize>() / kept.len().max(1);
            let values: Vec<f32> = activation.to_data()?.iter().collect();
            let rows = values.chunks_exact(width.max(1)).zip(&kept).filter(|(_, kept)| **kept);
            let rows: Vec<f32> = rows.flat_map(|(row, _)| row).copied().collect();
            if let Some(at) = rows.iter().position(|x| !x.is_finite()) {
                let what = format!("the activation of `{point}` at element {at}");
                return Err(hooklens_model::error::Error::NotANumber { what });
            }
            all.insert(point.clone(), rows);
        }
        Ok(all)
    }

    /// Advances through the prompts until the buffer has enough tokens. Runs the model only if the activations are
    /// needed.
    fn fill(&mut self, wanted: bool) -> Result<usize> {
        let mut tokens = 0;
        self.held.clear();
        while tokens < self.serving.buffer {
            let next = RowPlace { epoch: self.place.epoch + 1, ..RowPlace::default() };
            let rows = self.rows(next)?;
            if rows.is_empty() {
                self.go_to(next)?;
                self.prompts.begin_pass(next.epoch + 1);
                continue;
            }
            for row in &rows {
                let ids = row.iter().flat_map(|id| id.to_le_bytes());
                self.seen = xxh3_64(&self.seen.to_le_bytes().into_iter().chain(ids).collect::<Vec<u8>>());
            }
            let own = self.count(&rows);
            if wanted && own > 0 {
                for (point, rows) in self.read(&rows)? {
                    self.held.entry(point).or_default().extend(rows);
                }
            }
            tokens += own;
        }
        self.fills += 1;
        self.places = (0..tokens).collect();
        self.places.shuffle(&mut ChaCha8Rng::seed_from_u64(self.serving.seed ^ (self.fills << 32) ^ 0x6275_6666));
        self.served = 0;
        Ok(tokens)
    }

    /// Number of tokens of a full buffer that are served: whole batches, and a last one if it is more than half full.
    fn usable(&self, tokens: usize) -> usize {
        let rest = tokens % self.serving.batch;
        if 2 * rest > self.serving.batch { tokens } else { tokens - rest }
    }
}

impl Source for FromModel<'_> {
    fn widths(&mut self, points: &[String]) -> Result<BTreeMap<String, usize>> {
        for point in points {
            splice_point(self.model.catalog(), "the dictionary to train", point)?;
        }
        let mut first = None;
        while let Some(row) = self.row()? {
            first = row.first().copied();
            if first.is_some() {
                break;
            }
        }
        self.go_to(RowPlace::default())?;
        let first = first.ok_or(InputError::Empty { what: "the prompts".into() })?;
        let cache = self.model.record(vec![vec![first]], Record::new(points.to_vec()))?;
        let width = |name: &String| Ok((name.clone(), cache.activation(&**name)?.shape().iter().product()));
        points.iter().map(width).collect()
    }

    fn origin(&mut self) -> Result<Origin> {
        Ok(Origin {
            name: Some(self.model.load_report().name.clone()).filter(|name| !name.is_empty()),
            prepend_bos: None,
            options: processing_options(self.model),
        })
    }

    fn described(&mut self) -> Result<Value> {
        let mut described = self.prompts.described()?;
        described["exclude_tokens"] = json!(self.left_out);
        described["model"] = self.model.fingerprint()?.into();
        described["parts"] = self.model.parts()?.into();
        Ok(described)
    }

    fn seen(&self) -> Option<String> {
        Some(format!("{:016x}", self.seen))
    }

    fn begin(&mut self, points: &[String], serving: Serving, done: usize) -> Result<()> {
        (self.points, self.serving) = (points.to_vec(), serving);
        // The order depends on the seed.
        self.order.clear();
        self.go_to(RowPlace::default())?;
        let mut left = done;
        while left > 0 {
            let before = (self.place, self.fills, self.seen);
            let there = self.fill(false)?;
            let usable = self.usable(there);
            if left < usable {
                self.go_to(before.0)?;
                (self.fills, self.seen) = (before.1, before.2);
                self.fill(true)?;
                self.served = left;
                return Ok(());
            }
            left -= usable;
            self.served = there;
        }
        Ok(())
    }

    fn first(&mut self) -> Result<Cow<'_, Rows>> {
        if self.held.is_empty() {
            self.fill(true)?;
        }
        Ok(Cow::Borrowed(&self.held))
    }

    fn next(&mut self) -> Result<Rows> {
        if self.held.is_empty() || self.served >= self.usable(self.places.len()) {
            self.fill(true)?;
        }
        let places = &self.places[self.served..(self.served + self.serving.batch).min(self.places.len())];
        let all = self.places.len();
        let batch = self.held.iter().map(|(point, rows)| {
            let width = rows.len() / all.max(1);
            let mut chosen = Vec::with_capacity(places.len() * width);
            places.iter().for_each(|place| chosen.extend_from_slice(&rows[place * width..][..width]));
            (point.clone(), chosen)
        });
        let batch = batch.collect();
        self.served += places.len();
        Ok(batch)
    }

    fn further(&mut self, most: usize) -> Result<Option<Rows>> {
        self.held.clear();
        let stopped = *self.further.stopped.get_or_insert(self.place);
        while self.further.tokens < most {
            let next = RowPlace { epoch: stopped.epoch + 1, ..RowPlace::default() };
            let rows = self.rows(if self.further.wrapped { stopped } else { next })?;
            if rows.is_empty() {
                // Continue at the start of the epoch, up to where training stopped, so that each prompt is read at most
                // once.
                if self.further.wrapped {
                    break;
                }
                self.further.wrapped = true;
                self.go_to(RowPlace { epoch: stopped.epoch, ..RowPlace::default() })?;
                continue;
            }
            let own = self.count(&rows);
            self.further.tokens += own;
            if own > 0 {
                return self.read(&rows).map(Some);
            }
        }
        Ok(None)
    }

    fn is_unseen(&self) -> bool {
        self.place.epoch == 0 && !self.further.wrapped
    }
}
