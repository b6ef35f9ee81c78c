//! Activations to train on, in an order that a seed decides.

use std::collections::BTreeMap;

use hooklens_hooks::{Positions, Record};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use xxhash_rust::xxh3::Xxh3;

use crate::driver::{ForwardOptions, HookedModel, Logits};
use crate::error::{FeatureError, InputError, Result};
use crate::model::HookedTransformer;
use crate::tokens::{PaddingSide, Tokens};

/// Prompts run together.
const TOGETHER: usize = 64;

/// Activations of some tokens, by point: `[token, width]` each.
pub(super) type Rows = BTreeMap<String, Vec<f32>>;

/// Where activations come from, a chunk at a time. A pass through all is an epoch; the order of each is decided by its
/// number and the seed.
pub(super) trait Source {
    /// Widths of the points.
    fn widths(&mut self, points: &[String]) -> Result<BTreeMap<String, usize>>;

    /// Number of chunks of an epoch.
    fn chunks(&self) -> usize;

    /// Tokens of a chunk, in the order of this epoch.
    fn tokens(&mut self, order: &[usize], chunk: usize) -> Result<usize>;

    /// Activations of a chunk.
    fn read(&mut self, order: &[usize], chunk: usize, points: &[String]) -> Result<Rows>;

    /// What tells it from other activations: the model, the tokens, those that are left out.
    fn described(&mut self) -> Result<String>;

    /// Things that are shuffled: prompts, or files.
    fn items(&self) -> usize;
}

/// A model run on prompts.
pub(super) struct FromModel<'m> {
    model: &'m HookedTransformer,
    prompts: &'m [Vec<u32>],
    /// Tokens whose activations are left out.
    left_out: &'m [u32],
}

impl<'m> FromModel<'m> {
    pub(super) fn new(model: &'m HookedTransformer, prompts: &'m [Vec<u32>], left_out: &'m [u32]) -> Result<Self> {
        let kept = |row: &Vec<u32>| row.iter().any(|id| !left_out.contains(id));
        if !prompts.iter().any(kept) {
            let reason = "the prompts have no tokens to train on".to_string();
            return Err(FeatureError::Kind { dictionary: "the training".into(), reason }.into());
        }
        Ok(Self { model, prompts, left_out })
    }

    fn rows(&self, order: &[usize], chunk: usize) -> Vec<Vec<u32>> {
        let first = chunk * TOGETHER;
        order[first..(first + TOGETHER).min(order.len())].iter().map(|row| self.prompts[*row].clone()).collect()
    }
}

impl Source for FromModel<'_> {
    fn widths(&mut self, points: &[String]) -> Result<BTreeMap<String, usize>> {
        let row =
            self.prompts.iter().find(|row| !row.is_empty()).ok_or(InputError::Empty { what: "the prompts".into() })?;
        let cache = self.model.record(vec![row[..1].to_vec()], Record::new(points.to_vec()))?;
        let width = |name: &String| Ok((name.clone(), cache.activation(&**name)?.len()));
        points.iter().map(width).collect()
    }

    fn described(&mut self) -> Result<String> {
        let mut hash = Xxh3::new();
        let mut count = 0;
        for row in self.prompts {
            hash.update(&(row.len() as u64).to_le_bytes());
            row.iter().for_each(|id| hash.update(&id.to_le_bytes()));
            count += row.len();
        }
        let (rows, hash, left_out) = (self.prompts.len(), hash.digest128(), self.left_out);
        let (model, parts) = (self.model.fingerprint()?, self.model.interventions());
        let parts = if parts.is_empty() { String::new() } else { format!(" with {}", parts.join(", ")) };
        Ok(format!("{count} tokens of {rows} prompts ({hash:032x}), without {left_out:?}, in the model {model}{parts}"))
    }

    fn items(&self) -> usize {
        self.prompts.len()
    }

    fn chunks(&self) -> usize {
        self.prompts.len().div_ceil(TOGETHER)
    }

    fn tokens(&mut self, order: &[usize], chunk: usize) -> Result<usize> {
        let rows = self.rows(order, chunk);
        Ok(rows.iter().flatten().filter(|id| !self.left_out.contains(id)).count())
    }

    fn read(&mut self, order: &[usize], chunk: usize, points: &[String]) -> Result<Rows> {
        let rows = self.rows(order, chunk);
        let pad = self.model.tokenizer().map_or(0, |tokenizer| tokenizer.pad());
        let tokens = Tokens::padded(&rows, pad, PaddingSide::Right)?;
        let record = Record::new(points.to_vec()).positions(Positions::default());
        let cache = self.model.run(&tokens, ForwardOptions::new().logits(Logits::None).record(record))?.cache;
        let kept: Vec<bool> = tokens
            .ids()
            .iter()
            .enumerate()
            .map(|(at, id)| tokens.mask().is_none_or(|mask| mask[at]) && !self.left_out.contains(id))
            .collect();
        let mut all = Rows::new();
        for point in points {
            let activation = cache.activation(&**point)?;
            let width = activation.len() / kept.len().max(1);
            let values: Vec<f32> = activation.to_data()?.iter().collect();
            let rows = values.chunks_exact(width.max(1)).zip(&kept).filter(|(_, kept)| **kept);
            let rows: Vec<f32> = rows.flat_map(|(row, _)| row).copied().collect();
            if let Some(at) = rows.iter().position(|x| !x.is_finite()) {
                let what = format!("the activation of `{point}` at element {at}");
                return Err(crate::error::Error::NotANumber { what });
            }
            all.insert(point.clone(), rows);
        }
        Ok(all)
    }
}

/// Activations held and shuffled, served in batches. After so many tokens it can begin anew as if it had served them.
pub(super) struct Buffer<'s> {
    source: &'s mut dyn Source,
    points: Vec<String>,
    seed: u64,
    /// Tokens to hold, and to serve together.
    capacity: usize,
    batch: usize,
    epoch: u64,
    order: Vec<usize>,
    chunk: usize,
    /// How often it was filled.
    fills: u64,
    held: Rows,
    /// Places of tokens in the order in which they are served, and how many have been.
    places: Vec<usize>,
    served: usize,
}

impl<'s> Buffer<'s> {
    pub(super) fn new(
        source: &'s mut dyn Source,
        points: Vec<String>,
        seed: u64,
        [batch, batches]: [usize; 2],
    ) -> Self {
        let mut new = Self {
            source,
            points,
            seed,
            capacity: batch * batches,
            batch,
            epoch: 0,
            order: Vec::new(),
            chunk: 0,
            fills: 0,
            held: Rows::new(),
            places: Vec::new(),
            served: 0,
        };
        new.begin_epoch(0);
        new
    }

    fn begin_epoch(&mut self, epoch: u64) {
        (self.epoch, self.chunk) = (epoch, 0);
        self.order = (0..self.source.items()).collect();
        self.order.shuffle(&mut ChaCha8Rng::seed_from_u64(self.seed ^ (epoch << 32) ^ 0x6f72_6465));
    }

    /// Goes through chunks until so many tokens are there; reads them if they are wanted.
    fn fill(&mut self, wanted: bool) -> Result<usize> {
        let mut tokens = 0;
        self.held.clear();
        while tokens < self.capacity {
            if self.chunk == self.source.chunks() {
                self.begin_epoch(self.epoch + 1);
            }
            let own = self.source.tokens(&self.order, self.chunk)?;
            if wanted && own > 0 {
                for (point, rows) in self.source.read(&self.order, self.chunk, &self.points)? {
                    self.held.entry(point).or_default().extend(rows);
                }
            }
            tokens += own;
            self.chunk += 1;
        }
        self.fills += 1;
        self.places = (0..tokens).collect();
        self.places.shuffle(&mut ChaCha8Rng::seed_from_u64(self.seed ^ (self.fills << 32) ^ 0x6275_6666));
        self.served = 0;
        Ok(tokens)
    }

    /// Tokens of a fill that are served: whole batches, and a last one that is more than half.
    fn usable(&self, tokens: usize) -> usize {
        let rest = tokens % self.batch;
        if 2 * rest > self.batch { tokens } else { tokens - rest }
    }

    /// Goes on as if so many tokens had been served.
    pub(super) fn skip(&mut self, mut tokens: usize) -> Result<()> {
        while tokens > 0 {
            let before = (self.epoch, self.chunk, self.order.clone(), self.fills);
            let there = self.fill(false)?;
            let usable = self.usable(there);
            if tokens < usable {
                (self.epoch, self.chunk, self.order, self.fills) = before;
                self.fill(true)?;
                self.served = tokens;
                return Ok(());
            }
            tokens -= usable;
            self.served = there;
        }
        Ok(())
    }

    /// All that is held, filled if nothing is.
    pub(super) fn held(&mut self) -> Result<&Rows> {
        if self.held.is_empty() {
            self.fill(true)?;
        }
        Ok(&self.held)
    }

    /// The next batch.
    pub(super) fn next(&mut self) -> Result<Rows> {
        if self.held.is_empty() || self.served >= self.usable(self.places.len()) {
            self.fill(true)?;
        }
        let places = &self.places[self.served..(self.served + self.batch).min(self.places.len())];
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
}
