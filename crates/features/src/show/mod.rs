//! Dashboards of units: what activates a latent, and how it affects the next token.

mod context;
mod correlations;
mod gather;
mod histogram;
mod neuronpedia;
mod units;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use burn::tensor::{DType, Tensor};
use hooklens_hooks::{Activation, Record, write_file};
use hooklens_kernels::sparse::Sparse;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::compatibility_warnings::check_processing;
use crate::error::FeatureError;
use crate::host::host;
use context::is_repeat;
use gather::{Amount, BINS, Example, Gathered};
use hooklens_data::corpus::RowSource;
use hooklens_io::script_json::script_json;
use hooklens_model::driver::{ForwardOptions, HookedModel, Logits};
use hooklens_model::error::{Result, load_errors};
use hooklens_model::model::{DecoderInput, HookedTransformer, ModelParts};
use hooklens_model::tokens::{PaddingSide, Tokens, token_text};
pub use units::Units;

/// The HTML page.
const PAGE: &str = include_str!("page.html");
/// Text in the page that is replaced by the data.
const PLACE: &str = "__HOOKLENS_DATA__";
/// Number of promoted and of suppressed tokens listed.
const TOKENS: usize = 10;
/// Number of related units listed.
const RELATED: usize = 8;
/// Number of units for which a page lists promoted tokens but no examples.
const OTHERS: usize = 2_000;
/// Number of promoted and of suppressed tokens listed for each unit without examples.
const TOKENS_OF_OTHERS: usize = 5;
/// Number of prompts, and number of tokens per prompt, used to detect how the tokenizer writes spaces.
const START: [usize; 2] = [4, 65];
/// Number of units whose logits are held in memory at once.
const AT_ONCE: usize = 100;

/// Options of dashboards.
///
/// ```
/// use hooklens::features::DashboardOptions;
/// let options = DashboardOptions::new().window(10, 10).largest(20).exclude_tokens([0]);
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct DashboardOptions {
    amount: Amount,
    batch_size: usize,
    /// Excluded token ids; `None` for the ones listed in the dictionary's files.
    left_out: Option<Vec<u32>>,
    query: Option<String>,
    dataset: String,
    seed: u64,
}

impl Default for DashboardOptions {
    fn default() -> Self {
        let amount = Amount { largest: 20, each_interval: 5, around: [12, 6] };
        Self { amount, batch_size: 16, left_out: None, query: None, dataset: String::new(), seed: 0 }
    }
}

impl DashboardOptions {
    /// Default options: the 20 largest activations and 5 of each interval, shown with 12 tokens before and 6 after.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of tokens shown before and after an active one.
    pub fn window(mut self, before: usize, behind: usize) -> Self {
        self.amount.around = [before, behind];
        self
    }

    /// Sets how many of the largest activations to keep, at most one per prompt.
    pub fn largest(mut self, count: usize) -> Self {
        self.amount.largest = count;
        self
    }

    /// Sets the number of prompts per batch.
    pub fn batch_size(mut self, prompts: usize) -> Self {
        self.batch_size = prompts.max(1);
        self
    }

    fn leaves_out(&self, id: u32) -> bool {
        self.left_out.as_ref().is_some_and(|ids| ids.contains(&id))
    }

    /// Excludes activations at these tokens, in the prompts and in the query.
    pub fn exclude_tokens(mut self, tokens: impl IntoIterator<Item = u32>) -> Self {
        self.left_out = Some(tokens.into_iter().collect());
        self
    }

    /// Sets a query text: pages also show its activations, and the list of units can be sorted by them.
    pub fn query(mut self, text: impl Into<String>) -> Self {
        self.query = Some(text.into());
        self
    }

    /// Sets the name of the prompts' dataset, which is written to Neuronpedia's JSON.
    pub fn dataset(mut self, name: impl Into<String>) -> Self {
        self.dataset = name.into();
        self
    }
}

/// The tokens of the query, and the activations of each unit that is active in it.
type Query = (Vec<u32>, BTreeMap<usize, Vec<f32>>);

/// Statistics and examples of all units, collected in one pass over prompts, from which HTML pages and Neuronpedia
/// files are written.
pub struct Dashboards<'m> {
    model: &'m HookedTransformer,
    units: Units,
    prompts: Box<dyn RowSource + 'm>,
    options: DashboardOptions,
    gathered: Vec<Gathered>,
    seen: Seen,
    query: Option<Query>,
}

/// Information about the prompts that the first pass collects.
#[derive(Default)]
struct Seen {
    prompts: usize,
    tokens: usize,
    /// Number of tokens of the longest prompt.
    longest: usize,
    /// The first tokens of the first prompts.
    start: Vec<Vec<u32>>,
}

impl Seen {
    /// Adds prompts, of which `tokens` tokens are counted.
    fn add(&mut self, rows: &[Vec<u32>], tokens: usize) {
        self.prompts += rows.len();
        self.tokens += tokens;
        self.longest = rows.iter().map(Vec::len).fold(self.longest, usize::max);
        let more = rows.iter().take(START[0].saturating_sub(self.start.len()));
        self.start.extend(more.map(|row| row[..row.len().min(START[1])].to_vec()));
    }
}

impl std::fmt::Debug for Dashboards<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dashboards of {} {}s over {} tokens", self.gathered.len(), self.units.noun(), self.seen.tokens)
    }
}

/// Collects dashboards of all units in one pass over prompts. `progress` is called with the number of prompts done.
/// Memory grows with the number of units, not with the number of tokens.
///
/// ```
/// use hooklens::features::{DashboardOptions, Dictionary, Units, dashboards};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let sae = Dictionary::open("embedded:ioi-sae")?;
/// let texts = ["When Mary and John went to the store, John gave a drink to Mary.", "Anna went to the park."];
/// let prompts: Vec<Vec<u32>> =
///     texts.iter().map(|text| Ok(model.to_tokens(*text)?.row(0).to_vec())).collect::<Result<_, hooklens::Error>>()?;
/// let options = DashboardOptions::new().exclude_tokens(model.tokenizer()?.bos()).query("When Mary");
/// let all = dashboards(&model, Units::latents(&sae)?, &prompts, options, |_| {})?;
/// let most = all.by_density()[0];
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("page.html");
/// all.save([most], &path)?; // a single file that works offline
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Fails if the model lacks the units' point or has a different width there, if it cannot run the prompts, or if the
/// prompts have no tokens other than excluded ones.
pub fn dashboards<'m>(
    model: &'m HookedTransformer,
    units: Units,
    prompts: &'m [Vec<u32>],
    options: DashboardOptions,
    progress: impl FnMut(usize),
) -> Result<Dashboards<'m>> {
    dashboards_of(model, units, Box::new(Cow::Borrowed(prompts)), options, progress)
}

/// Like [`dashboards`], over prompts that are read when they are needed. `progress` is called with the number of pieces
/// of `prompts` that are done.
///
/// # Errors
/// Same as [`dashboards`]; also fails if a prompt cannot be read.
pub fn dashboards_of<'m>(
    model: &'m HookedTransformer,
    units: Units,
    prompts: Box<dyn RowSource + 'm>,
    options: DashboardOptions,
    mut progress: impl FnMut(usize),
) -> Result<Dashboards<'m>> {
    let units = units.on(model);
    units.dictionary().map_or(Ok(()), |dictionary| check_processing(model, dictionary))?;
    let options = match (&options.left_out, units.dictionary()) {
        (None, Some(dictionary)) => options.exclude_tokens(dictionary.metadata().exclude_special_tokens.ids(model)?),
        _ => options,
    };
    let mut random = ChaCha8Rng::seed_from_u64(options.seed);
    let (mut gathered, mut seen): (Vec<Gathered>, Seen) = Default::default();
    for batch in batches(&*prompts, options.batch_size) {
        let (batch, pieces) = batch?;
        let (acts, real, len) = activations(model, &units, &batch)?;
        let [_, count] = acts.dims();
        if seen.prompts == 0 {
            units.labels.check(&units.point, count)?;
            gathered.resize(count, Gathered::default());
        }
        let mut values = host(acts);
        if let Some(at) = values.iter().position(|x| !x.is_finite()) {
            let what = format!("{} {} of a prompt", units.noun(), at % count.max(1));
            return Err(hooklens_model::error::Error::NotANumber { what });
        }
        let left_out = real.iter().map(|id| id.is_none_or(|id| options.leaves_out(id)));
        let tokens = real.len() - zero_rows(&mut values, count, left_out);
        let by_unit = Sparse::of(&values, count).transposed(count);
        for (unit, own) in gathered.iter_mut().enumerate() {
            let (rows, acts) = by_unit.row(unit);
            for (row, value) in rows.iter().zip(acts) {
                let row = *row as usize;
                let prompt = (seen.prompts + row / len) as u32;
                let window = || {
                    let [before, behind] = options.amount.around;
                    let (first_row, pos) = (row / len * len, row % len);
                    let first = pos.saturating_sub(before);
                    let own = &batch[row / len];
                    let last = pos.saturating_add(behind).saturating_add(1).min(own.len());
                    let acts = (first..last).map(|pos| values[(first_row + pos) * count + unit]).collect();
                    let tokens = own[first..last].to_vec();
                    Example { value: *value, prompt, pos: pos as u32, first: first as u32, tokens, acts }
                };
                let repeats = |one: &Example, other: &Example| is_repeat(one.context(), other.context());
                own.add((*value, prompt), options.amount, &mut random, window, repeats);
            }
        }
        seen.add(&batch, tokens);
        progress(pieces);
    }
    if seen.tokens == 0 {
        let (dictionary, reason) = ("the dashboards".to_string(), "the prompts contain no tokens to show".to_string());
        return Err(FeatureError::Kind { dictionary, reason }.into());
    }
    let query = match &options.query {
        None => None,
        Some(text) => {
            // The query starts with a BOS token if the prompts that the dictionary was trained on did.
            let prepend_bos = units.dictionary().and_then(|dictionary| dictionary.metadata().prepend_bos);
            let row = model.token_row(text, prepend_bos)?;
            let (acts, _, _) = activations(model, &units, std::slice::from_ref(&row))?;
            let count = acts.dims()[1];
            let mut values = host(acts);
            zero_rows(&mut values, count, row.iter().map(|id| options.leaves_out(*id)));
            let by_unit = Sparse::of(&values, count).transposed(count);
            let active = (0..count).filter(|unit| !by_unit.row(*unit).0.is_empty());
            let each = active.map(|unit| (unit, (0..row.len()).map(|pos| values[pos * count + unit]).collect()));
            let each = each.collect();
            Some((row, each))
        }
    };
    Ok(Dashboards { model, units, prompts, options, gathered, seen, query })
}

/// Batches of prompts, each with the number of pieces that have been read.
fn batches<'p>(
    prompts: &'p (dyn RowSource + 'p),
    size: usize,
) -> impl Iterator<Item = Result<(Vec<Vec<u32>>, usize)>> + 'p {
    let mut rows = prompts.open_all(0..prompts.pieces(), 0);
    std::iter::from_fn(move || {
        let mut pieces = 0;
        let batch = rows.by_ref().take(size).map(|row| {
            pieces = row.piece + 1;
            row.tokens
        });
        let batch = batch.collect::<Result<Vec<_>>>().map(|batch| (batch, pieces));
        (!matches!(&batch, Ok((rows, _)) if rows.is_empty())).then_some(batch)
    })
}

/// Sets the excluded rows to zero, and returns their number. Each row has `count` values.
fn zero_rows(values: &mut [f32], count: usize, left_out: impl Iterator<Item = bool>) -> usize {
    let mut zeroed = 0;
    for (own, _) in values.chunks_exact_mut(count.max(1)).zip(left_out).filter(|(_, left_out)| *left_out) {
        own.fill(0.0);
        zeroed += 1;
    }
    zeroed
}

/// The units' activations over some prompts, `[row, unit]`, the token of each row (`None` for padding), and the number
/// of tokens per prompt.
pub(super) fn activations(
    model: &HookedTransformer,
    units: &Units,
    prompts: &[Vec<u32>],
) -> Result<(Tensor<2>, Vec<Option<u32>>, usize)> {
    let (activation, real, len) = recorded(model, &units.point, prompts)?;
    Ok((units.read(&activation, real.len())?, real, len))
}

/// A point's activations over some prompts, the token of each row (`None` for padding), and the number of tokens per
/// prompt.
fn recorded(
    model: &HookedTransformer,
    point: &str,
    prompts: &[Vec<u32>],
) -> Result<(Activation, Vec<Option<u32>>, usize)> {
    let pad = model.tokenizer().map_or(0, |tokenizer| tokenizer.pad());
    let tokens = Tokens::padded(prompts, pad, PaddingSide::Right)?;
    let [_, len] = tokens.shape();
    let options = ForwardOptions::new().logits(Logits::None).record(Record::new(point));
    let cache = model.run(&tokens, options)?.cache;
    let real = |(at, id): (usize, &u32)| tokens.mask().is_none_or(|mask| mask[at]).then_some(*id);
    Ok((cache.activation(point)?.clone(), tokens.ids().iter().enumerate().map(real).collect(), len))
}

/// Direct effects of units on the next token's logits, `[unit, d_vocab]`: their directions multiplied by the final
/// norm's weights and the unembedding. `None` if the units do not write to the residual stream.
pub(super) fn logit_effects(model: &HookedTransformer, units: &Units, which: &[usize]) -> Result<Option<Tensor<2>>> {
    if which.is_empty() || model.config().d_vocab_out() == 0 {
        return Ok(None);
    }
    let Some(rows) = units.written(model, which)? else { return Ok(None) };
    let unembed = &model.parts().unembed;
    let rows = rows.to_device(&unembed.device()).cast(DType::F32);
    let norm = &model.parts().ln_final;
    let rows = if norm.centers() { rows.clone() - rows.mean_dim(1) } else { rows };
    let rows = match &norm.w {
        Some(weight) => rows * weight.val().cast(DType::F32).to_device(&unembed.device()).unsqueeze::<2>(),
        None => rows,
    };
    Ok(Some(rows.matmul(unembed.weight_in(DType::F32))))
}

/// Histogram of values, in bins of equal width over their range.
fn binned(values: &[f32]) -> Value {
    let (low, high) = values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), x| (l.min(*x), h.max(*x)));
    let mut counts = [0u32; BINS];
    for x in values {
        let share = if high > low { (x - low) / (high - low) } else { 0.0 };
        counts[((share * BINS as f32) as usize).min(BINS - 1)] += 1;
    }
    json!({"from": low, "to": high, "counts": counts.to_vec()})
}

impl Dashboards<'_> {
    /// Number of units.
    fn len(&self) -> usize {
        self.gathered.len()
    }

    /// The units that are active for at least one token, in descending order of density.
    pub fn by_density(&self) -> Vec<usize> {
        let density = self.density();
        let mut order: Vec<usize> = (0..self.len()).filter(|unit| density[*unit] > 0.0).collect();
        order.sort_by(|a, b| density[*b].total_cmp(&density[*a]));
        order
    }

    fn check(&self, units: &[usize]) -> Result<()> {
        match units.iter().find(|unit| **unit >= self.len()) {
            Some(unit) => {
                let (dictionary, latent, count) = (self.units.point.clone(), *unit, self.len());
                Err(FeatureError::Latent { dictionary, latent, count }.into())
            }
            None => Ok(()),
        }
    }

    /// Saves dashboards of `units`. If the path ends in `.html` or `.htm`, writes a self-contained HTML page with these
    /// units and a list of all units; otherwise, writes Neuronpedia's JSON, with one object per line. The JSON takes a
    /// second pass over the prompts, for correlations with other units and with the coordinates of the input.
    ///
    /// # Errors
    /// [`FeatureError::Latent`] for a unit that does not exist; also fails if the file cannot be written.
    pub fn save(&self, units: impl IntoIterator<Item = usize>, path: impl AsRef<Path>) -> Result<()> {
        let (path, units) = (path.as_ref(), units.into_iter().collect::<Vec<usize>>());
        let text = match path.extension().and_then(|ending| ending.to_str()) {
            Some("html" | "htm") => self.page(&units)?,
            _ => self.lines(&units)?,
        };
        Ok(write_file(path, text.as_bytes()).map_err(load_errors::cant_write(path))?)
    }

    /// The HTML page as text.
    pub(super) fn page(&self, units: &[usize]) -> Result<String> {
        self.check(units)?;
        Ok(PAGE.replacen(PLACE, &script_json(&self.data(units)?), 1))
    }

    fn data(&self, units: &[usize]) -> Result<Value> {
        let mut strings = Strings { model: self.model, places: BTreeMap::new(), texts: Vec::new() };
        let effects = logit_effects(self.model, &self.units, units)?;
        let effects = effects.map(|effects| {
            let [_, vocabulary] = effects.dims();
            (effects.to_data().iter::<f32>().collect::<Vec<f32>>(), vocabulary)
        });
        let related = self.related(units)?;
        let mut shown = Vec::new();
        for (place, unit) in units.iter().enumerate() {
            let own = &self.gathered[*unit];
            let logits = effects.as_ref().map(|(all, vocabulary)| {
                let row = &all[place * vocabulary..][..*vocabulary];
                let mut histogram = binned(row);
                let [promoted, suppressed] = extremes(row, TOKENS)
                    .map(|ids| ids.iter().map(|id| json!([strings.of(*id as u32), row[*id]])).collect::<Vec<_>>());
                histogram["promoted"] = promoted.into();
                histogram["suppressed"] = suppressed.into();
                histogram
            });
            let n = self.seen.tokens as f64;
            let mean = own.sum / n;
            let mut groups = Vec::new();
            for (title, examples) in [("largest activations", &own.largest), ("smallest activations", &own.least)] {
                if !examples.is_empty() {
                    let examples = self.examples(examples, &mut strings);
                    groups
                        .push(json!({"title": title, "low": null, "high": null, "share": null, "examples": examples}));
                }
            }
            // Each context is shown once, in the first group that has it.
            let mut shown_before: Vec<&Example> = own.largest.iter().chain(&own.least).collect();
            for ([low, high], share, examples) in own.intervals() {
                let title = interval_title(low, high);
                let mut first_seen = Vec::new();
                for example in examples {
                    if !shown_before.iter().any(|other| is_repeat(other.context(), example.context())) {
                        shown_before.push(example);
                        first_seen.push(example);
                    }
                }
                let repeated = examples.len() - first_seen.len();
                let examples = self.examples(first_seen, &mut strings);
                groups.push(json!({
                    "title": title, "low": low, "high": high, "share": share, "examples": examples, "repeated": repeated,
                }));
            }
            let histogram = (own.nonzero > 0).then(|| {
                let ([from, to], counts) = own.histogram.range();
                json!({"from": from, "to": to, "counts": counts})
            });
            shown.push(json!({
                "id": unit, "label": self.units.labels.get(*unit), "density": self.units.active(own) / n,
                "max": own.most, "mean": mean, "deviation": (own.square / n - mean * mean).max(0.0).sqrt(),
                "histogram": histogram, "logits": logits, "related": related[place],
                "groups": groups,
            }));
        }
        let mut others = serde_json::Map::new();
        for units in self.others(units, &related).chunks(AT_ONCE) {
            let Some(effects) = logit_effects(self.model, &self.units, units)? else { break };
            let [_, vocabulary] = effects.dims();
            let all = host(effects);
            for (unit, row) in units.iter().zip(all.chunks_exact(vocabulary)) {
                let [promoted, suppressed] = extremes(row, TOKENS_OF_OTHERS)
                    .map(|ids| ids.iter().map(|id| json!([strings.of(*id as u32), row[*id]])).collect::<Vec<_>>());
                others.insert(unit.to_string(), json!({"promoted": promoted, "suppressed": suppressed}));
            }
        }
        let query = self.query.as_ref().map(|(row, acts)| {
            let acts: serde_json::Map<String, Value> =
                acts.iter().map(|(unit, acts)| (unit.to_string(), json!(acts))).collect();
            let tokens: Vec<usize> = row.iter().map(|id| strings.of(*id)).collect();
            json!({"text": self.options.query, "tokens": tokens, "acts": acts})
        });
        let name = self.units.dictionary().map_or("", |dictionary| dictionary.name());
        Ok(json!({
            "title": self.units.point, "unit": self.units.noun(), "active": self.units.active_where(), "name": name, "model": self.model_name(),
            "point": self.units.point, "count": self.len(), "tokens": self.seen.tokens, "prompts": self.seen.prompts,
            "list": {
                "id": (0..self.len()).collect::<Vec<_>>(),
                "density": self.density(),
                "max": self.gathered.iter().map(|own| own.most).collect::<Vec<_>>(),
                "label": (0..self.len()).map(|unit| self.units.labels.get(unit)).collect::<Vec<_>>(),
            },
            "latents": shown,
            "others": others,
            "query": query,
            "spaced": self.spaced(),
            "strings": strings.texts,
        }))
    }

    /// Whether the tokenizer omits the spaces between words from its tokens.
    fn spaced(&self) -> bool {
        let Ok(tokenizer) = self.model.tokenizer() else { return false };
        let decoded = |ids: &[u32]| tokenizer.decode(ids, false).unwrap_or_default();
        let mut pairs = self.seen.start.iter().flat_map(|row| row.windows(2)).take(START[1] - 1);
        pairs.any(|pair| {
            let [first, second] = [decoded(&pair[..1]), token_text(Some(tokenizer), pair[1])];
            !second.starts_with(' ') && decoded(pair) == format!("{first} {second}")
        })
    }

    fn model_name(&self) -> String {
        let said = self.units.dictionary().and_then(|dictionary| dictionary.metadata().model.clone());
        said.unwrap_or_default()
    }

    fn examples<'e>(&self, examples: impl IntoIterator<Item = &'e Example>, strings: &mut Strings<'_>) -> Vec<Value> {
        let one = |example: &Example| {
            let tokens: Vec<usize> = example.tokens.iter().map(|id| strings.of(*id)).collect();
            json!({"prompt": example.prompt, "first": example.first, "at": example.pos, "tokens": tokens, "acts": example.acts})
        };
        examples.into_iter().map(one).collect()
    }

    /// The units for which a page of `units` lists promoted tokens but no examples. Units that are active in the query
    /// or related to `units` come first, then the densest.
    fn others(&self, units: &[usize], related: &[Vec<(usize, f32)>]) -> Vec<usize> {
        let active = self.query.iter().flat_map(|(_, acts)| acts.keys().copied());
        let near = related.iter().flatten().map(|(unit, _)| *unit);
        let mut seen: BTreeSet<usize> = units.iter().copied().collect();
        let order = active.chain(near).chain(self.by_density()).chain(0..self.len());
        order.filter(|unit| seen.insert(*unit)).take(OTHERS).collect()
    }

    /// For each unit, the other units with the nearest directions by cosine similarity.
    fn related(&self, units: &[usize]) -> Result<Vec<Vec<(usize, f32)>>> {
        let Some(dictionary) = self.units.dictionary().filter(|_| !units.is_empty()) else {
            return Ok(vec![Vec::new(); units.len()]);
        };
        let decoder = dictionary.decoder()?.cast(DType::F32);
        let norms = decoder.clone().square().sum_dim(1).sqrt().clamp_min(1e-12);
        let decoder = decoder / norms;
        let own = Tensor::cat(units.iter().map(|unit| decoder.clone().narrow(0, *unit, 1)).collect(), 0);
        let cosines = host(own.matmul(decoder.transpose()));
        let near = |(unit, row): (&usize, &[f32])| {
            let mut order: Vec<usize> = (0..row.len()).filter(|other| other != unit).collect();
            order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
            order.into_iter().take(RELATED).map(|other| (other, row[other])).collect()
        };
        Ok(units.iter().zip(cosines.chunks_exact(self.len().max(1))).map(near).collect())
    }
}

/// The bounds of an interval, with enough decimals to tell them apart.
fn interval_title(low: f32, high: f32) -> String {
    let decimals = (1.0 - (high - low).log10().floor()).clamp(2.0, 12.0) as usize;
    let end = |value: f32| match format!("{value:.decimals$}").trim_start_matches('-') {
        zero if zero.trim_start_matches(['0', '.']).is_empty() => "0".to_string(),
        size => format!("{}{size}", if value < 0.0 { "−" } else { "" }),
    };
    format!("{} to {}", end(low), end(high))
}

/// The tokens with the largest and with the smallest logits.
fn extremes(row: &[f32], count: usize) -> [Vec<usize>; 2] {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
    let count = count.min(row.len());
    [order[..count].to_vec(), order.iter().rev().take(count).copied().collect()]
}

/// A table of distinct token texts.
struct Strings<'m> {
    model: &'m HookedTransformer,
    places: BTreeMap<u32, usize>,
    texts: Vec<String>,
}

impl Strings<'_> {
    fn of(&mut self, id: u32) -> usize {
        if let Some(place) = self.places.get(&id) {
            return *place;
        }
        self.texts.push(token_text(self.model.tokenizer().ok(), id));
        self.places.insert(id, self.texts.len() - 1);
        self.texts.len() - 1
    }
}

/// Statistics over all units of dashboards.
pub trait DashboardCounts {
    /// Number of tokens processed.
    fn tokens(&self) -> usize;

    /// Fraction of tokens at which each unit is active, as defined in [`Units`].
    fn density(&self) -> Vec<f64>;

    /// The active units in the order in which a page should show them. If there is a query, the units that are active
    /// in it come first, in descending order of activation. The others follow in descending order of density.
    fn by_query(&self) -> Vec<usize>;
}

impl DashboardCounts for Dashboards<'_> {
    fn tokens(&self) -> usize {
        self.seen.tokens
    }

    fn density(&self) -> Vec<f64> {
        self.gathered.iter().map(|own| self.units.active(own) / self.seen.tokens as f64).collect()
    }

    fn by_query(&self) -> Vec<usize> {
        let peak = |acts: &[f32]| acts.iter().fold(0.0f32, |most, act| most.max(act.abs()));
        let active = self.query.iter().flat_map(|(_, acts)| acts).map(|(unit, acts)| (peak(acts), *unit));
        let mut active: Vec<(f32, usize)> = active.collect();
        active.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut seen = BTreeSet::new();
        let by_density = self.by_density();
        // Units that are active only in the query have no examples.
        let known: BTreeSet<usize> = by_density.iter().copied().collect();
        let in_query = active.into_iter().map(|(_, unit)| unit).filter(|unit| known.contains(unit));
        in_query.chain(by_density.iter().copied()).filter(|unit| seen.insert(*unit)).collect()
    }
}
