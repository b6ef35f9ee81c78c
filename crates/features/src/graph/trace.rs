//! Computes the graph of a prompt: which features are traced, in which order, and the effects on each.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use xxhash_rust::xxh3::Xxh3;

use super::attribution_graph::{AttributionGraph, GraphNode, NodeKind};
use super::capture::{Captured, capture};
use super::frozen::{Batch, Effects};
use super::influence::influence;
use super::intervene::one_prompt;
use super::options::GraphOptions;
use super::replacement::Replacement;
use super::row_of::RowOf;
use super::rows::{Cone, RowStore};
use super::site::{Coder, FeatureSite, POST, STEPS, Sort, lengths, usual};
use super::target::{PreparedTargets, name, prepared_targets};
use crate::error::GraphError;
use crate::{Dictionary, Units};
use hooklens_model::driver::Input;
use hooklens_model::error::Result;
use hooklens_model::model::{HookedTransformer, Identified};

/// Number of gradient rows processed together: large enough for efficient matrix products, and small enough for the CPU
/// caches.
const ROWS: usize = 4096;
/// Prompts with more tokens than this count as long.
const LONG: usize = 1024;
/// Number of gradient rows processed together for long prompts, where the targets of a batch share the cost of reading
/// the pattern.
const LONG_ROWS: usize = 16384;
/// Maximum number of targets in a batch.
const MOST: usize = 256;
/// The batch number of the graph's targets.
const GOALS: u64 = 0;
/// Maximum number of effects in a batch.
const NUMBERS: usize = 1 << 24;

/// Progress of an attribution graph. The first report, made before any features are traced, already contains the
/// estimates.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct GraphProgress {
    /// Number of features whose inputs are known.
    pub done: usize,
    /// Number of features that the graph will have.
    pub of: usize,
    /// Estimated memory use in bytes, not counting the model.
    pub bytes: usize,
    /// Estimated total time in seconds, extrapolated from the time that the targets took.
    pub seconds: f64,
    /// Number of bytes of rows in the [`GraphOptions::resumable`] folder that were dropped because they were damaged or
    /// came after damage. These rows are computed again.
    pub damaged: u64,
}

struct Trace<'c> {
    captured: &'c Captured,
    rows: RowStore,
    /// Indices of the rows traced so far.
    traced: Vec<usize>,
    /// Rows left by an earlier run, by target and batch.
    left: HashMap<(RowOf, u64), usize>,
    batch: Option<usize>,
    columns: usize,
}

impl<'c> Trace<'c> {
    fn new(captured: &'c Captured, targets: &PreparedTargets, options: &GraphOptions) -> Result<Self> {
        let columns = captured.frozen.columns(&captured.active);
        let rows = match &options.folder {
            None => RowStore::new(options.memory),
            Some(folder) => RowStore::in_folder(folder, identity(captured, targets), |of| {
                captured.columns_of(of, targets.weights.len())
            })?,
        };
        let left = (0..rows.len()).map(|row| ((rows.of(row), rows.batch(row)), row)).collect();
        Ok(Self { captured, rows, traced: Vec::new(), left, batch: options.batch, columns })
    }

    /// Adds the rows of a batch, except those left by an earlier run.
    fn add(&mut self, effects: Effects, all: &[RowOf], batch: u64) -> Result<()> {
        for ((row, constant), of) in effects.rows.chunks_exact(self.columns).zip(effects.constants).zip(all) {
            if row.iter().any(|x| !x.is_finite()) {
                return Err(hooklens_model::error::Error::NotANumber { what: format!("an effect on {of:?}") });
            }
            if self.was_left(*of, batch) {
                continue;
            }
            let columns = self.captured.columns_of(*of, usize::MAX).unwrap_or_default();
            self.traced.push(self.rows.len());
            self.rows.add(*of, batch, row, columns, constant)?;
        }
        Ok(())
    }

    /// Whether an earlier run left this row, computed in the same batch. If so, marks it as traced.
    fn was_left(&mut self, of: RowOf, batch: u64) -> bool {
        let row = self.left.remove(&(of, batch));
        self.traced.extend(row);
        row.is_some()
    }

    /// Whether an earlier run left all rows of a batch. If so, marks them as traced.
    fn was_left_whole(&mut self, all: &[RowOf], batch: u64) -> bool {
        let whole = all.iter().all(|of| self.left.contains_key(&(*of, batch)));
        if whole {
            all.iter().for_each(|of| _ = self.was_left(*of, batch));
        }
        whole
    }

    fn add_targets(&mut self, targets: &PreparedTargets) -> Result<()> {
        let (frozen, active) = (&self.captured.frozen, &self.captured.active);
        let count = targets.weights.len();
        let all: Vec<RowOf> = (0..count).map(RowOf::Target).collect();
        if self.was_left_whole(&all, GOALS) {
            return Ok(());
        }
        let positions = vec![active.len - 1; count];
        let start = Some((frozen.layers.len() - 1) * STEPS + POST);
        let mut effects =
            frozen.effects(Batch { vectors: targets.vectors.clone(), positions: &positions, start }, active)?;
        effects.constants.iter_mut().zip(&targets.constants).for_each(|(x, own)| *x += own);
        self.add(effects, &all, GOALS)
    }

    /// Traces features, grouped by site and ordered by position. Rows left by an earlier run do not change how features
    /// are batched, because the last bits of an effect depend on its batch.
    fn add_features(&mut self, mut features: Vec<usize>, mut done: impl FnMut(usize)) -> Result<()> {
        features.sort_unstable();
        let active = &self.captured.active;
        let mut rest = &features[..];
        while let Some(first) = rest.first() {
            let (site, _) = active.place(*first);
            let own = rest.partition_point(|feature| active.place(*feature).0 == site);
            let mut of_site = &rest[..own];
            while !of_site.is_empty() {
                // Gradients cover all positions up to the last feature's.
                let most = self.batch.unwrap_or(MOST).min((NUMBERS / self.columns).max(1)).min(of_site.len()).max(1);
                let together = rows_together(active.len);
                let fits = |count: &usize| count * (active.place(of_site[count - 1]).1 + 1) <= together;
                let count = match self.batch {
                    Some(_) => most,
                    None => (1..=most).rev().find(fits).unwrap_or(1),
                };
                self.add_batch(site, &of_site[..count])?;
                done(count);
                of_site = &of_site[count..];
            }
            rest = &rest[own..];
        }
        Ok(())
    }

    fn add_batch(&mut self, site: usize, features: &[usize]) -> Result<()> {
        let (active, own) = (&self.captured.active, &self.captured.sites[site]);
        let all: Vec<RowOf> = features.iter().map(|feature| RowOf::Feature(*feature)).collect();
        let number = batch_number(features);
        if self.was_left_whole(&all, number) {
            return Ok(());
        }
        let latents: Vec<u32> = features.iter().map(|feature| active.latent(*feature)).collect();
        let positions: Vec<usize> = features.iter().map(|feature| active.place(*feature).1).collect();
        let (vectors, constants) = own.reads(&latents, &positions)?;
        let batch = Batch { vectors, positions: &positions, start: own.start };
        let mut effects = self.captured.frozen.effects(batch, active)?;
        effects.constants.iter_mut().zip(&constants).for_each(|(x, own)| *x += own);
        self.add(effects, &all, number)
    }

    /// Estimated work for the rows of this many features. One unit is the work for one position of a target that
    /// follows all layers.
    fn work(&self, features: usize) -> f64 {
        let (active, sites) = (&self.captured.active, &self.captured.sites);
        let layers = self.captured.frozen.layers.len() as f64;
        let of = |(number, site): (usize, &FeatureSite)| {
            let share = site.start.map_or(0.0, |start| (start / STEPS + 1) as f64 / layers);
            let positions = (0..active.len).map(|pos| (active.range(number, pos).len() * (pos + 1)) as f64);
            share * positions.sum::<f64>()
        };
        let all: f64 = sites.iter().enumerate().map(of).sum();
        all * features as f64 / active.count().max(1) as f64
    }

    /// Estimated memory of a graph with this many features, not counting the model.
    fn bytes(&self, features: usize, rows: usize) -> usize {
        let (frozen, active) = (&self.captured.frozen, &self.captured.active);
        // Effects, and one score per effect during pruning.
        let graph = 2 * 4 * features * (features + self.columns - active.count());
        let together = rows_together(active.len).max(self.traced.len() * active.len);
        let batch = 4 * (together * 6 * frozen.width + NUMBERS.min(MOST * self.columns));
        frozen.bytes() + graph + batch + rows.min(2 * features * self.columns)
    }

    /// The influence of every column, given the rows known so far.
    fn influence(&mut self, targets: &PreparedTargets) -> Result<Vec<f64>> {
        let mut order = self.traced.clone();
        order.sort_unstable_by_key(|row| std::cmp::Reverse(self.rows.of(*row)));
        influence(&mut self.rows, &order, &targets.weights, self.columns)
    }
}

/// A number that identifies a batch of features.
fn batch_number(features: &[usize]) -> u64 {
    let mut hash = Xxh3::new();
    features.iter().for_each(|feature| hash.update(&(*feature as u64).to_le_bytes()));
    hash.digest()
}

/// Number of gradient rows processed together for a prompt with this many tokens.
fn rows_together(tokens: usize) -> usize {
    if tokens > LONG { LONG_ROWS } else { ROWS }
}

/// The identity of a graph: a 128-bit XXH3 hash of everything that its effects depend on.
fn identity(captured: &Captured, targets: &PreparedTargets) -> u128 {
    let Captured { frozen, active, sites, .. } = captured;
    let mut hash = Xxh3::new();
    let add = |hash: &mut Xxh3, values: &[f32]| {
        hash.update(&values.len().to_le_bytes());
        values.iter().for_each(|x| hash.update(&x.to_le_bytes()));
    };
    for site in 0..sites.len() {
        for pos in 0..active.len {
            hash.update(&active.range(site, pos).len().to_le_bytes());
            active.latents(site, pos).iter().for_each(|latent| hash.update(&latent.to_le_bytes()));
        }
    }
    for values in [&active.acts, &active.pre, &frozen.tokens, &targets.weights, &targets.vectors] {
        add(&mut hash, values);
    }
    // The errors depend on everything that features write.
    frozen.all_places().for_each(|place| add(&mut hash, &place.errors));
    hash.digest128()
}

impl Captured {
    /// The columns of a row that may be nonzero; `None` if there is no such feature or target.
    fn columns_of(&self, of: RowOf, targets: usize) -> Option<Vec<Range<usize>>> {
        let Self { active, frozen, sites, .. } = self;
        let cone = match of {
            RowOf::Target(target) if target < targets => Cone { sites: sites.len(), pos: active.len - 1 },
            RowOf::Feature(feature) if feature < active.count() => {
                let (site, pos) = active.place(feature);
                Cone { sites: site, pos }
            }
            _ => return None,
        };
        Some(cone.columns(active, frozen.places, frozen.positions.is_some()))
    }
}

/// Default number of positions to leave out at the start of the prompt.
pub(super) fn special(model: &HookedTransformer, tokens: &[u32]) -> usize {
    usize::from(model.bos_token().is_some() && tokens.first().copied() == model.bos_token())
}

impl AttributionGraph {
    /// Builds the attribution graph of a prompt.
    ///
    /// # Errors
    /// Fails if the replacement does not fit the model ([`GraphError::Replacement`]), for invalid targets, or if the
    /// model cannot run the prompt.
    pub fn new(
        model: &HookedTransformer,
        prompt: impl Into<Input>,
        replacement: &Replacement,
        options: &GraphOptions,
    ) -> Result<Self> {
        Self::with_progress(model, prompt, replacement, options, |_| {})
    }

    /// Builds the graph like [`AttributionGraph::new`] and calls `progress` along the way.
    ///
    /// # Errors
    /// Same as [`AttributionGraph::new`].
    pub fn with_progress(
        model: &HookedTransformer,
        prompt: impl Into<Input>,
        replacement: &Replacement,
        options: &GraphOptions,
        progress: impl FnMut(GraphProgress),
    ) -> Result<Self> {
        let tokens = one_prompt(model, prompt.into())?;
        trace(model, tokens.row(0), replacement, options, progress)
    }
}

/// Computes the graph of a prompt's tokens.
fn trace(
    model: &HookedTransformer,
    tokens: &[u32],
    replacement: &Replacement,
    options: &GraphOptions,
    mut progress: impl FnMut(GraphProgress),
) -> Result<AttributionGraph> {
    check(options, tokens)?;
    let left_out = options.left_out.unwrap_or_else(|| special(model, tokens));
    let captured = capture(model, tokens, replacement, left_out)?;
    let targets = prepared_targets(model, &captured, &options.targets, options.likely)?;
    let active = &captured.active;
    let (of, all) = (options.max_nodes.min(active.count()), active.count());
    let mut trace = Trace::new(&captured, &targets, options)?;
    let begun = Instant::now();
    trace.add_targets(&targets)?;
    let (bytes, damaged) = (trace.bytes(of, options.memory), trace.rows.damaged());
    let mut status = GraphProgress { done: 0, of, bytes, seconds: 0.0, damaged };
    status.seconds = begun.elapsed().as_secs_f64() * trace.work(of) / (targets.weights.len() * active.len) as f64;
    progress(status);
    let mut known = vec![false; all];
    while status.done < of {
        let next: Vec<usize> = if of == all {
            (0..all).collect()
        } else {
            let influence = trace.influence(&targets)?;
            let mut rest: Vec<usize> = (0..all).filter(|feature| !known[*feature]).collect();
            let count = options.ranked_every.unwrap_or_else(|| (status.done / 4).max(128)).min(of - status.done);
            let order = |a: &usize, b: &usize| influence[*b].total_cmp(&influence[*a]).then(a.cmp(b));
            if count < rest.len() {
                rest.select_nth_unstable_by(count, order);
                rest.truncate(count);
            }
            rest
        };
        next.iter().for_each(|feature| known[*feature] = true);
        trace.add_features(next, |count| {
            status.done += count;
            progress(status);
        })?;
    }
    trace.rows.sync()?;
    let mut graph = assemble(model, tokens, &captured, &targets, trace, &known, left_out)?;
    graph.options = Some(options.clone());
    Ok(graph)
}

fn check(options: &GraphOptions, tokens: &[u32]) -> Result<()> {
    options.check()?;
    match options.left_out.filter(|left_out| *left_out >= tokens.len().max(1)) {
        None => Ok(()),
        Some(left_out) => {
            let (what, given) = ("the number of excluded positions", left_out.to_string());
            Err(GraphError::Setting { what, given, wanted: "less than the prompt's number of tokens" }.into())
        }
    }
}

/// Assembles the rows of the traced features into a graph.
fn assemble(
    model: &HookedTransformer,
    tokens: &[u32],
    captured: &Captured,
    targets: &PreparedTargets,
    mut trace: Trace<'_>,
    known: &[bool],
    left_out: usize,
) -> Result<AttributionGraph> {
    let Captured { frozen, sites, active, places, .. } = captured;
    let features: Vec<usize> = (0..active.count()).filter(|feature| known[*feature]).collect();
    let rest = trace.columns - active.count();
    let columns = features.len() + rest;
    let mut kept = vec![usize::MAX; trace.columns];
    features.iter().enumerate().for_each(|(to, from)| kept[*from] = to);
    (0..rest).for_each(|column| kept[active.count() + column] = features.len() + column);

    let mut nodes = Vec::new();
    let mut node = |kind, layer, pos: usize, label: String, feature: Option<(usize, f32)>| {
        let (site, activation) = feature.unzip();
        nodes.push(GraphNode { kind, layer, position: pos, label, activation, influence: 0.0, site });
    };
    for feature in &features {
        let ((site, pos), latent) = (active.place(*feature), active.latent(*feature) as usize);
        let own = &sites[site];
        let kind = match own.sort {
            Sort::Transcoder => NodeKind::Feature { latent },
            Sort::Latent => NodeKind::Latent { latent },
            Sort::Neuron => NodeKind::Neuron { neuron: latent },
        };
        node(kind, Some(own.layer), pos, own.label(latent), Some((site, active.acts[*feature])));
    }
    for layer in places {
        (0..active.len).for_each(|pos| node(NodeKind::Error, Some(*layer), pos, String::new(), None));
    }
    let names: Vec<String> = tokens.iter().map(|id| name(model, *id)).collect();
    for (pos, id) in tokens.iter().enumerate() {
        node(NodeKind::Token { id: *id }, None, pos, names[pos].clone(), None);
    }
    if frozen.positions.is_some() {
        (0..active.len).for_each(|pos| node(NodeKind::Position, None, pos, String::new(), None));
    }
    for ((label, token), weight) in targets.labels.iter().zip(&targets.tokens).zip(&targets.weights) {
        let kind = NodeKind::Logit { token: *token, weight: *weight };
        node(kind, Some(frozen.layers.len()), active.len - 1, label.clone(), None);
    }

    // Features in order, then targets.
    let mut order = std::mem::take(&mut trace.traced);
    order.sort_unstable_by_key(|row| trace.rows.of(*row));
    let mut effects = vec![0f32; order.len() * columns];
    let (mut constants, mut values, mut deviations) = (Vec::new(), Vec::new(), Vec::new());
    let usual = usual_sizes(captured, targets, &features)?;
    for ((row, to), usual) in order.iter().zip(effects.chunks_exact_mut(columns.max(1))).zip(usual) {
        let (mut sum, mut largest) = (0f64, 0f64);
        trace.rows.each(*row, |range, entries| {
            for (column, entry) in range.zip(entries) {
                sum += f64::from(*entry);
                largest = largest.max(f64::from(entry.abs()));
                if kept[column] != usize::MAX {
                    to[kept[column]] = *entry;
                }
            }
        })?;
        let constant = trace.rows.constant(*row);
        let value = match trace.rows.of(*row) {
            RowOf::Feature(feature) => f64::from(active.pre[feature]),
            RowOf::Target(target) => targets.values[target],
        };
        // Rounding errors of a sum scale with its largest terms. If the terms of a dot product nearly cancel, it is
        // only as accurate as the norms of its vectors allow, in the model as well as here. At the first token, such a
        // dot product may be the only term of a row.
        let scale = value.abs().max(largest).max(constant.abs()).max(usual).max(1e-6);
        deviations.push(((sum + constant - value).abs() / scale) as f32);
        constants.push(constant as f32);
        values.push(value as f32);
    }
    let mut graph = AttributionGraph::assembled(
        nodes,
        effects,
        [features.len(), places.len(), active.len],
        [constants, values, deviations],
        (tokens.to_vec(), names),
        (active.count(), left_out, frozen.layers.len()),
        sites.iter().map(FeatureSite::units).collect::<Result<_>>()?,
    );
    graph.model = Some(model.identity());
    graph.chosen_targets.clone_from(&targets.chosen);
    graph.prompt = model.to_string(tokens).unwrap_or_else(|_| graph.token_texts.concat());
    Ok(graph)
}

/// Typical magnitudes of the values of features, then targets, if nothing cancels.
fn usual_sizes(captured: &Captured, targets: &PreparedTargets, features: &[usize]) -> Result<Vec<f64>> {
    let (active, width) = (&captured.active, captured.frozen.width);
    let mut sizes = Vec::new();
    for own in features.chunk_by(|a, b| active.place(*a).0 == active.place(*b).0) {
        for own in own.chunks(MOST) {
            let latents: Vec<u32> = own.iter().map(|feature| active.latent(*feature)).collect();
            let positions: Vec<usize> = own.iter().map(|feature| active.place(*feature).1).collect();
            sizes.extend(captured.sites[active.place(own[0]).0].sizes(&latents, &positions)?);
        }
    }
    let stream = lengths(&captured.stream, width).first().copied().unwrap_or(0.0);
    sizes.extend(targets.vectors.chunks_exact(width.max(1)).map(|row| usual(row, f64::from(stream))));
    Ok(sizes)
}

impl FeatureSite {
    /// The features as units of a dashboard.
    pub(super) fn units(&self) -> Result<Units> {
        match self.dictionary() {
            Some(dictionary) => Units::latents(dictionary),
            None => Ok(Units::neurons(self.layer)),
        }
    }

    /// The label of a feature. For neurons of experts, the expert and the neuron.
    fn label(&self, latent: usize) -> String {
        match &self.coder {
            Coder::Dictionary(dictionary) => dictionary.labels().get(latent).unwrap_or_default().to_string(),
            Coder::Neurons(neurons) if neurons.experts() => {
                let (expert, neuron) = neurons.expert(latent);
                format!("expert {expert} neuron {neuron}")
            }
            Coder::Neurons(_) => String::new(),
        }
    }

    /// The dictionary whose latents are the features.
    pub(super) fn dictionary(&self) -> Option<&Dictionary> {
        match &self.coder {
            Coder::Dictionary(dictionary) => Some(dictionary),
            Coder::Neurons(_) => None,
        }
    }
}
