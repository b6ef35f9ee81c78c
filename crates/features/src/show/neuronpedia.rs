//! Neuronpedia's JSON format of features, one object per line.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::DType;
use hooklens_hooks::Record;
use serde_json::{Value, json};

use super::correlations::{Correlations, ROWS, Similar};
use super::{Dashboards, Example, TOKENS, extremes, logit_effects};
use crate::dictionary::Dictionary;
use crate::host::host;
use hooklens_model::config::Layers;
use hooklens_model::driver::{ForwardOptions, HookedModel, Logits};
use hooklens_model::error::{InputError, Result};
use hooklens_model::hook;
use hooklens_model::tokens::token_text;

/// Placeholder for the bounds and fraction of the group of largest activations, which is not an interval.
const NONE: f64 = -1.0;

impl Dashboards<'_> {
    /// Units in Neuronpedia's JSON format, one object per line.
    pub(super) fn lines(&self, units: &[usize]) -> Result<String> {
        self.check(units)?;
        // Attributions need the prompts of examples.
        let attributed = if self.heads().is_some() { units } else { &[] };
        let examples = attributed.iter().flat_map(|unit| self.gathered[*unit].examples());
        let wanted: BTreeSet<u32> = examples.map(|example| example.prompt).collect();
        let (mut prompts, mut number) = (BTreeMap::new(), 0);
        let correlations = Correlations::of(self, units, |batch| {
            for row in batch {
                if wanted.contains(&number) {
                    prompts.insert(number, row.clone());
                }
                number += 1;
            }
        })?;
        let mut lines = String::new();
        for (place, unit) in units.iter().copied().enumerate() {
            let similar = correlations.of_unit(place, unit);
            lines.push_str(&self.neuronpedia(unit, similar, &prompts)?.to_string());
            lines.push('\n');
        }
        Ok(lines)
    }

    fn neuronpedia(
        &self,
        unit: usize,
        [features, neurons]: [Vec<Similar>; 2],
        prompts: &BTreeMap<u32, Vec<u32>>,
    ) -> Result<Value> {
        let own = &self.gathered[unit];
        let text = |id: u32| token_text(self.model.tokenizer().ok(), id);
        let effects = logit_effects(self.model, &self.units, &[unit])?;
        let effects = effects.map(host).unwrap_or_default();
        let [promoted, suppressed] = extremes(&effects, TOKENS);
        let named = |ids: &[usize]| ids.iter().map(|id| text(*id as u32)).collect::<Vec<_>>();
        let valued = |ids: &[usize]| ids.iter().map(|id| effects[*id]).collect::<Vec<_>>();
        let centers = |from: f32, to: f32, count: usize| {
            let width = (to - from) / count as f32;
            (0..count).map(|bin| from + (bin as f32 + 0.5) * width).collect::<Vec<_>>()
        };
        let histogram = super::binned(&effects);
        let bounds = |key: &str| histogram[key].as_f64().unwrap_or(0.0) as f32;
        let logit_counts = if effects.is_empty() { Value::Array(Vec::new()) } else { histogram["counts"].clone() };
        let logit_centers = centers(bounds("from"), bounds("to"), logit_counts.as_array().map_or(0, Vec::len));
        let ([from, to], counts) = own.histogram.range();

        let heads = self.heads();
        let sources = |example: &Example| match (heads, prompts.get(&example.prompt)) {
            (Some(heads), Some(prompt)) => self.sources(heads, unit, example, prompt).map(Some),
            _ => Ok(None),
        };
        let mut activations: Vec<Value> = Vec::new();
        let mut tell = |example: &Example, [low, high, share]: [f64; 3]| -> Result<()> {
            let first = example.first as usize;
            let tokens: Vec<String> = example.tokens.iter().map(|id| text(*id)).collect();
            let mut activation = json!({
                "bin_min": low, "bin_max": high, "bin_contains": share, "tokens": tokens, "values": example.acts,
                "qualifying_token_index": example.pos as usize - first,
            });
            if let Some(sources) = sources(example)? {
                let most = sources.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                activation["dfa_maxValue"] = if most.is_finite() { most.into() } else { 0.0.into() };
                activation["dfa_targetIndex"] = (example.pos as usize - first).into();
                activation["dfa_values"] = sources.into();
            }
            activations.push(activation);
            Ok(())
        };
        for example in &own.largest {
            tell(example, [NONE, own.highest.into(), NONE])?;
        }
        for (bounds, share, examples) in own.intervals() {
            for example in examples {
                tell(example, [bounds[0].into(), bounds[1].into(), share])?;
            }
        }

        let vector = self.units.direction(unit)?;
        let vector = vector.map(host);
        let aligned = aligned(vector.as_deref().unwrap_or_default());
        let by_head = match (heads, &vector) {
            (Some(heads), Some(vector)) => shares(vector, heads),
            _ => Vec::new(),
        };
        let of = |all: &[Similar], value: fn(&Similar) -> f64| all.iter().map(value).collect::<Vec<_>>();
        let places = |all: &[Similar]| all.iter().map(|one| one.place).collect::<Vec<_>>();
        Ok(json!({
            "feature_index": unit,
            "label": self.units.labels.get(unit),
            "frac_nonzero": self.units.active(own) / self.seen.tokens as f64,
            "pos_str": named(&promoted), "pos_values": valued(&promoted),
            "neg_str": named(&suppressed), "neg_values": valued(&suppressed),
            "freq_hist_data_bar_values": centers(from, to, counts.len()),
            "freq_hist_data_bar_heights": counts,
            "logits_hist_data_bar_values": logit_centers,
            "logits_hist_data_bar_heights": logit_counts,
            "correlated_features_indices": places(&features),
            "correlated_features_pearson": of(&features, |one| one.pearson),
            "correlated_features_l1": of(&features, |one| one.cosine),
            "correlated_neurons_indices": places(&neurons),
            "correlated_neurons_pearson": of(&neurons, |one| one.pearson),
            "correlated_neurons_l1": of(&neurons, |one| one.cosine),
            "neuron_alignment_indices": aligned.iter().map(|(place, ..)| *place).collect::<Vec<_>>(),
            "neuron_alignment_values": aligned.iter().map(|(_, value, _)| *value).collect::<Vec<_>>(),
            "neuron_alignment_l1": aligned.iter().map(|(.., share)| *share).collect::<Vec<_>>(),
            "decoder_weights_dist": by_head,
            "n_prompts_total": self.seen.prompts,
            "n_tokens_in_prompt": self.seen.longest,
            "dataset": self.options.dataset,
            "activations": activations,
            "vector": vector,
        }))
    }

    /// The heads whose outputs the dictionary reads, if it reads attention outputs.
    fn heads(&self) -> Option<Heads<'_>> {
        let dictionary = self.units.dictionary()?;
        let catalog = self.model.catalog();
        let point = catalog.info(catalog.find(&self.units.point).ok()?);
        let layer = point.layer.filter(|_| point.name.ends_with(".attn.hook_z"))?;
        let count = self.model.config().n_heads();
        dictionary.d_in().is_multiple_of(count.max(1)).then_some(Heads { dictionary, layer, count })
    }

    /// Direct feature attribution: the contribution of each position in an example's window to its activation, through
    /// all heads' patterns. Positions after the active token contribute nothing.
    fn sources(&self, heads: Heads<'_>, unit: usize, example: &Example, prompt: &[u32]) -> Result<Vec<f32>> {
        let pos = example.pos as usize;
        let prompt = prompt[..=pos].to_vec();
        let (pattern, value) = (hook::pattern(heads.layer), hook::v(heads.layer));
        let config = self.model.config();
        if config.qk_norm_of(heads.layer).is_some_and(|norm| norm.values) {
            let what = "direct feature attribution";
            return Err(InputError::NotDefined { what, with: "normalized values (`qk_norm`)" }.into());
        }
        let record = Record::new([pattern.name(), value.name()]);
        let cache = self.model.run(vec![prompt], ForwardOptions::new().logits(Logits::None).record(record))?.cache;
        let (pattern, values) = (cache.get(&pattern)?, cache.get(&value)?); // [1, head, query, key], [1, pos, kv head, d_head]
        let [_, _, kv_heads, d_head] = values.dims();
        let read = heads.dictionary.encoder()?.narrow(1, unit, 1).cast(DType::F32); // [head * d_head, 1]
        let read = read.to_device(&values.device()).reshape([heads.count, d_head]);
        let (pattern, values, read) = (host(pattern.narrow(2, pos, 1)), host(values), host(read));
        let along = |head: usize, source: usize| {
            let own = head / (heads.count / kv_heads.max(1)).max(1);
            let value = &values[(source * kv_heads + own) * d_head..][..d_head];
            let product: f32 = value.iter().zip(&read[head * d_head..]).map(|(x, y)| x * y).sum();
            pattern[head * (pos + 1) + source] * product
        };
        let first = example.first as usize;
        let of = |source: usize| match source <= pos {
            true => (0..heads.count).map(|head| along(head, source)).sum(),
            false => 0.0,
        };
        Ok((first..first + example.acts.len()).map(of).collect())
    }
}

/// Heads whose outputs a dictionary reads.
#[derive(Clone, Copy)]
struct Heads<'d> {
    dictionary: &'d Dictionary,
    layer: usize,
    count: usize,
}

/// The largest coordinates of a direction, each with its fraction of the sum of all magnitudes.
fn aligned(vector: &[f32]) -> Vec<(usize, f32, f32)> {
    let mut order: Vec<usize> = (0..vector.len()).collect();
    order.sort_by(|a, b| vector[*b].abs().total_cmp(&vector[*a].abs()));
    let sum: f32 = vector.iter().map(|x| x.abs()).sum();
    order.into_iter().take(ROWS).map(|place| (place, vector[place], vector[place].abs() / sum.max(1e-30))).collect()
}

/// Splits a direction into one part per head, and returns each part's norm as a fraction of the sum of norms.
fn shares(vector: &[f32], Heads { count, .. }: Heads<'_>) -> Vec<f32> {
    let norm = |part: &[f32]| part.iter().map(|x| x * x).sum::<f32>().sqrt();
    let norms: Vec<f32> = vector.chunks_exact((vector.len() / count.max(1)).max(1)).map(norm).collect();
    let sum: f32 = norms.iter().sum();
    norms.iter().map(|norm| norm / sum.max(1e-30)).collect()
}
