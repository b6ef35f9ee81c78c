//! Display of recordings, key-value caches and models in notebooks, as tables.

use hooklens_hooks::{Activation, ActivationCache};

use super::tables::table;
use super::{Show, Shown};
use crate::error::PlotError;
use hooklens_io::numerals::{bytes, grouped};
use hooklens_model::config::Layers;
use hooklens_model::driver::HookedModel;
use hooklens_model::kv_cache::{KeyValueCache, windows};
use hooklens_model::model::{HookedTransformer, ModelWeights};

impl Show for ActivationCache {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        let size =
            |activation: &Activation| (activation.shape().iter().product::<usize>() * activation.dtype().size()) as u64;
        let row = |name: String, point: &str, activation: &Activation| {
            let axes = self.axes(point).unwrap_or_default();
            let axes: Vec<&str> = axes.iter().map(|axis| axis.name()).collect();
            let dtype = format!("{:?}", activation.dtype()).to_lowercase();
            vec![name, axes.join(", "), format!("{:?}", activation.shape()), dtype, bytes(size(activation))]
        };
        let recorded = self.iter().map(|(name, held)| (row(name.into(), name, held), size(held)));
        let gradients = self.gradients().map(|(name, held)| (row(format!("{name}_grad"), name, held), size(held)));
        let (rows, sizes): (Vec<_>, Vec<u64>) = recorded.chain(gradients).unzip();
        let points = if rows.len() == 1 { "point" } else { "points" };
        let what = format!("ActivationCache of {} {points}, {}", grouped(rows.len()), bytes(sizes.iter().sum()));
        let html = table(&what, &["point", "axes", "shape", "type", "size"], rows.into_iter());
        Ok(vec![Shown::text(what), Shown::html(html)])
    }
}

impl Show for KeyValueCache {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        let memory = self.memory();
        let rows = if self.batch() == 1 { "row" } else { "rows" };
        let what = format!(
            "KeyValueCache, {}: {} {rows} of {} positions in {} layers, {}{}",
            self.kind(),
            grouped(self.batch()),
            grouped(self.len()),
            self.n_layers(),
            bytes(memory.iter().sum::<usize>() as u64),
            if self.is_frozen() { ", frozen" } else { "" }
        );
        let row = |layer: usize| {
            let first = self[layer].first();
            let window = windows(self).get(layer).copied().flatten();
            let window = window.map_or("all".into(), |window| format!("{window:?}"));
            vec![layer.to_string(), format!("{first}..{}", self.len()), window, bytes(memory[layer] as u64)]
        };
        let layers = (0..self.n_layers()).map(row);
        let mut html = table(&what, &["layer", "positions stored", "window", "size"], layers);
        if !self.interventions().is_empty() {
            let hooks = self.interventions().join(", ");
            html.push_str(&format!("<div>computed with edits: {}</div>\n", crate::page::escaped(&hooks)));
        }
        Ok(vec![Shown::text(what), Shown::html(html)])
    }
}

impl Show for HookedTransformer {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        let config = self.config();
        let points = self.catalog().points().len();
        let what = format!(
            "HookedTransformer: {} layers of {} heads, d_model {}, {} hook points",
            config.n_layers(),
            config.n_heads(),
            grouped(config.d_model()),
            grouped(points)
        );
        let devices: Vec<String> = self.devices().iter().map(|device| format!("{device:?}")).collect();
        let rows = [
            ("layers", grouped(config.n_layers())),
            ("heads", grouped(config.n_heads())),
            ("key/value heads", grouped(config.n_kv_heads())),
            ("d_model", grouped(config.d_model())),
            ("d_head", grouped(config.widest_heads()[0])),
            ("d_mlp", grouped(config.d_mlp())),
            ("vocabulary", grouped(config.d_vocab())),
            ("context", grouped(config.n_ctx())),
            ("parameters", grouped(self.weights().count())),
            ("hook points", grouped(points)),
            ("device", devices.join(", ")),
        ];
        let rows = rows.into_iter().map(|(name, value)| vec![name.to_string(), value]);
        Ok(vec![Shown::text(&what), Shown::html(table(&what, &["", ""], rows))])
    }
}
