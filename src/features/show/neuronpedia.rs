//! Neuronpedia's JSON of features, an object a line.

use std::path::Path;

use hooklens_hooks::write_file;
use serde_json::{Value, json};

use super::{Dashboards, Example, extremes, logit_effects};
use crate::error::{LoadError, Result};
use crate::tokens::token_text;

impl Dashboards<'_> {
    /// Writes what Neuronpedia shows of these units, a JSON object a line.
    ///
    /// # Errors
    /// As [`Dashboards::save_page`].
    pub fn save_neuronpedia(&self, units: impl IntoIterator<Item = usize>, path: impl AsRef<Path>) -> Result<()> {
        let units: Vec<usize> = units.into_iter().collect();
        self.check(&units)?;
        let mut lines = String::new();
        for unit in units {
            lines.push_str(&self.neuronpedia(unit)?.to_string());
            lines.push('\n');
        }
        let path = path.as_ref();
        Ok(write_file(path, lines.as_bytes()).map_err(LoadError::write(path))?)
    }

    fn neuronpedia(&self, unit: usize) -> Result<Value> {
        let own = &self.gathered[unit];
        let text = |id: u32| token_text(crate::driver::HookedModel::tokenizer(self.model).ok(), id);
        let effects = logit_effects(self.model, &self.units, &[unit])?;
        let effects: Vec<f32> = effects.map(|effects| effects.to_data().iter().collect()).unwrap_or_default();
        let [promoted, suppressed] = extremes(&effects);
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
        let example = |example: &Example, low: f32, high: f32, share: f64| {
            let row = &self.prompts[example.prompt as usize];
            let first = example.first as usize;
            let tokens: Vec<String> = row[first..first + example.acts.len()].iter().map(|id| text(*id)).collect();
            json!({
                "bin_min": low, "bin_max": high, "bin_contains": share, "tokens": tokens, "values": example.acts,
                "qualifying_token_index": example.pos as usize - first,
            })
        };
        let mut activations: Vec<Value> =
            own.largest.iter().map(|one| example(one, own.most.abs(), own.most.abs(), 0.0)).collect();
        for (bounds, share, examples) in own.intervals() {
            activations.extend(examples.iter().map(|one| example(one, bounds[0], bounds[1], share)));
        }
        let related = self.related(&[unit])?.pop().unwrap_or_default();
        let vector: Option<Vec<f32>> = match self.units.dictionary() {
            Some(dictionary) => Some(dictionary.direction(unit)?.to_data().iter().collect()),
            None => None,
        };
        Ok(json!({
            "feature_index": unit,
            "label": self.units.labels.get(unit),
            "frac_nonzero": own.active as f64 / self.tokens as f64,
            "pos_str": named(&promoted), "pos_values": valued(&promoted),
            "neg_str": named(&suppressed), "neg_values": valued(&suppressed),
            "freq_hist_data_bar_values": centers(0.0, own.histogram.limit, own.histogram.counts.len()),
            "freq_hist_data_bar_heights": own.histogram.counts.to_vec(),
            "logits_hist_data_bar_values": logit_centers,
            "logits_hist_data_bar_heights": logit_counts,
            "correlated_features_indices": related.iter().map(|(other, _)| *other).collect::<Vec<_>>(),
            "correlated_features_pearson": Vec::<f32>::new(),
            "correlated_features_l1": Vec::<f32>::new(),
            "correlated_neurons_indices": Vec::<usize>::new(),
            "correlated_neurons_pearson": Vec::<f32>::new(),
            "correlated_neurons_l1": Vec::<f32>::new(),
            "neuron_alignment_indices": Vec::<usize>::new(),
            "neuron_alignment_values": Vec::<f32>::new(),
            "neuron_alignment_l1": Vec::<f32>::new(),
            "n_prompts_total": self.prompts.len(),
            "n_tokens_in_prompt": self.prompts.iter().map(Vec::len).max().unwrap_or(0),
            "dataset": "",
            "activations": activations,
            "vector": vector,
        }))
    }
}
