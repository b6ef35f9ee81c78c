//! AtP* (Kramár et al. 2024) for queries and keys: the softmax is recomputed, and only the rest is linearized.

use hooklens_hooks::{Axis, PointId};
use ndarray::ArrayD;

use crate::patching::{Found, Layout, Patching, PatchingResult, Sites};
use hooklens_model::config::{Layers, Positional, Settings};
use hooklens_model::driver::{ForwardOptions, HookedModel};
use hooklens_model::error::{InputError, Result};
use hooklens_model::model::DecoderChecks;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Patched {
    Queries,
    Keys,
}

impl Patching<'_> {
    /// Estimates the effects of patching each query, `[layer, pos, head]`, with the fix of AtP* (Kramár et al. 2024):
    /// the attention pattern with the patched query is computed exactly, and the effect of its change is estimated from
    /// the gradient at the pattern. A saturated softmax, whose gradient is zero, no longer hides an effect. The labels
    /// are the same as for a sweep over `*attn.hook_q` per position and head.
    ///
    /// ```
    /// use hooklens::hook::Axis;
    /// use hooklens::patching::{Metric, Patching, Sites};
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let clean = "When Mary and John went to the store, John gave a drink to";
    /// let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// let patching = Patching::new(&model, clean, corrupted, Metric::logit_diff(&model, "Mary", "John")?)?;
    /// let estimated = patching.query_attribution()?;
    /// let real = patching.sweep(&Sites::new("*attn.hook_q").per([Axis::Pos, Axis::Head]))?;
    /// assert_eq!(estimated.mean().axes(), real.mean().axes());
    /// assert_eq!(patching.key_attribution()?.mean().values().shape(), [4, 15, 4]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails for zero and mean ablations (they have no source run), for prompts of different lengths, and for models
    /// with layers without attention, latent attention, a soft cap on attention scores or scores that grow with the
    /// position; otherwise, same as [`Patching::attribution`].
    pub fn query_attribution(&self) -> Result<PatchingResult> {
        self.recomputed(Patched::Queries)
    }

    /// Like [`Patching::query_attribution`], for each key, `[layer, pos, kv_head]`. With grouped-query attention, a key
    /// changes the patterns of all heads that share it.
    ///
    /// # Errors
    /// Same as [`Patching::query_attribution`].
    pub fn key_attribution(&self) -> Result<PatchingResult> {
        self.recomputed(Patched::Keys)
    }

    fn recomputed(&self, which: Patched) -> Result<PatchingResult> {
        const WHAT: &str = "AtP* for queries and keys";
        let model = self.model();
        let config = model.config();
        model.check_attends(WHAT)?;
        if !self.is_paired() {
            return Err(InputError::NeedsPairs { what: WHAT }.into());
        }
        if config.latent().is_some() {
            return Err(InputError::Latent { what: WHAT }.into());
        }
        let layers = 0..config.n_layers();
        if config.attn_scores_soft_cap().is_some()
            || layers.clone().any(|layer| config.query_growth_of(layer).is_some())
        {
            let with = "attention scores that are capped or grow with the position";
            return Err(InputError::NotDefined { what: WHAT, with }.into());
        }
        // The products of queries and keys are taken after the rotation, if there is one.
        let rotated =
            |layer: usize| matches!(config.positional(), Positional::Rotary(_)) && config.rotary(layer).is_some();
        let names = |letter: char| -> Vec<String> {
            let name = |layer: usize| match rotated(layer) {
                true => format!("blocks.{layer}.attn.hook_rot_{letter}"),
                false => format!("blocks.{layer}.attn.hook_{letter}"),
            };
            layers.clone().map(name).collect()
        };
        let (queries, keys) = (names('q'), names('k'));
        let sites = match which {
            Patched::Queries => Sites::new("*attn.hook_q").per([Axis::Pos, Axis::Head]),
            Patched::Keys if config.n_kv_heads_of(0) == config.n_heads() => {
                Sites::new("*attn.hook_k").per([Axis::Pos, Axis::Head])
            }
            Patched::Keys => Sites::new("*attn.hook_k").per([Axis::Pos, Axis::KvHead]),
        };
        let points = sites.resolve(model.catalog())?;
        let prompts: Vec<&Vec<u32>> = self.base.iter().collect();
        let changed = if which == Patched::Queries { &queries } else { &keys };
        let ids: Vec<PointId> = changed.iter().map(|name| model.catalog().find(name)).collect::<Result<_, _>>()?;
        let mut layout: Option<Layout> = None;
        let found = self.each_example(&ids, |example| {
            let recorded: Vec<&str> =
                queries.iter().chain(&keys).map(String::as_str).chain(["*attn.hook_pattern"]).collect();
            let mut by_pass: Vec<Vec<f64>> = Vec::new();
            let (mut baseline, mut source, mut shapes) = (f64::NAN, None, Vec::new());
            for pass in self.backward.passes(model.catalog()) {
                let options = ForwardOptions::new().hooks(pass.hooks(model.catalog()));
                let (output, metric) = example.with_gradients(options.record(recorded.as_slice()))?;
                let cache = &output.cache;
                let patched = match source.take() {
                    Some(known) => known,
                    None => example.source(cache, &ids)?,
                };
                let host = |name: &str| Ok::<_, hooklens_model::error::Error>(cache.activation(name)?.to_ndarray()?);
                let mut effects = Vec::new();
                shapes.clear();
                for layer in layers.clone() {
                    let pattern = format!("blocks.{layer}.attn.hook_pattern");
                    let layer_values = Recomputed {
                        pattern: host(&pattern)?,
                        gradient: host(&format!("{pattern}_grad"))?,
                        base: host(&changed[layer])?,
                        source: patched.values[&ids[layer]].to_ndarray()?,
                        other: host(if which == Patched::Queries { &keys[layer] } else { &queries[layer] })?,
                        divisor: config.score_divisor(layer),
                    };
                    shapes.push(layer_values.base.shape().to_vec());
                    effects.extend(match which {
                        Patched::Queries => layer_values.of_queries(),
                        Patched::Keys => layer_values.of_keys(),
                    });
                }
                by_pass.push(effects);
                (baseline, source) = (metric, Some(patched));
            }
            let values = self.backward.combined(&by_pass).into_iter().map(|effect| baseline + effect).collect();
            let shape_of = |id: PointId| -> Result<Vec<usize>> {
                let layer = model.catalog().info(id).layer.unwrap_or(0);
                Ok(shapes.get(layer).cloned().unwrap_or_default())
            };
            match &layout {
                Some(layout) => layout.check(example.number, &points, &shape_of)?,
                None => layout = Some(Layout::new(model, &points, &prompts, &shape_of)?),
            }
            Ok(Found { baseline, source: source.and_then(|known| known.metric), values })
        })?;
        Ok(PatchingResult::new(layout.map(|layout| layout.axes).unwrap_or_default(), &found))
    }
}

/// One layer's activations and gradient, from which the effects of its queries or keys are estimated.
struct Recomputed {
    /// The attention pattern of the unpatched run, `[1, head, query, key]`.
    pattern: ArrayD<f32>,
    /// The gradient of the metric at the pattern, `[1, head, query, key]`.
    gradient: ArrayD<f32>,
    /// The queries (or keys) to patch, with their values in the unpatched run, `[1, pos, head, d_head]`.
    base: ArrayD<f32>,
    /// The same queries (or keys) with their values in the source run, `[1, pos, head, d_head]`.
    source: ArrayD<f32>,
    /// The keys (or queries) that the patched queries (or keys) are multiplied by, `[1, pos, head, d_head]`.
    other: ArrayD<f32>,
    /// Number by which products of queries and keys are divided to get scores.
    divisor: f64,
}

impl Recomputed {
    /// Change in a score when a query (or key) is patched: the dot product of the change in that query (or key) with
    /// the unpatched key (or query), divided by `divisor`.
    fn change(&self, pos: usize, head: usize, other_pos: usize, other_head: usize) -> f64 {
        let d_head = self.base.shape()[3];
        let product = (0..d_head).map(|at| {
            let change = f64::from(self.source[[0, pos, head, at]]) - f64::from(self.base[[0, pos, head, at]]);
            change * f64::from(self.other[[0, other_pos, other_head, at]])
        });
        product.sum::<f64>() / self.divisor
    }

    /// An entry of the attention pattern, and the gradient at that entry.
    fn at(&self, head: usize, query: usize, key: usize) -> (f64, f64) {
        let at = [0, head, query, key];
        (f64::from(self.pattern[at]), f64::from(self.gradient[at]))
    }

    /// Estimated effect of patching each query, `[pos, head]`.
    fn of_queries(&self) -> Vec<f64> {
        let [heads, queries, keys] = [1, 2, 3].map(|axis| self.pattern.shape()[axis]);
        let group = heads / self.other.shape()[2];
        let mut effects = Vec::with_capacity(queries * heads);
        for query in 0..queries {
            for head in 0..heads {
                // Starts with the attention to the sink, if the model has sinks; the sink's score does not change.
                let mut sum = 1.0 - (0..keys).map(|key| self.at(head, query, key).0).sum::<f64>();
                let (mut before, mut after) = (0.0, 0.0);
                for key in 0..keys {
                    let (share, slope) = self.at(head, query, key);
                    if share > 0.0 {
                        let grown = share * self.change(query, head, key, head / group).exp();
                        sum += grown;
                        before += share * slope;
                        after += grown * slope;
                    }
                }
                effects.push(after / sum - before);
            }
        }
        effects
    }

    /// Estimated effect of patching each key, `[pos, kv_head]`.
    fn of_keys(&self) -> Vec<f64> {
        let [heads, queries, keys] = [1, 2, 3].map(|axis| self.pattern.shape()[axis]);
        let kv_heads = self.base.shape()[2];
        let group = heads / kv_heads;
        let mut effects = Vec::with_capacity(keys * kv_heads);
        for key in 0..keys {
            for kv_head in 0..kv_heads {
                let mut effect = 0.0;
                for head in kv_head * group..(kv_head + 1) * group {
                    for query in 0..queries {
                        let (share, slope) = self.at(head, query, key);
                        if share == 0.0 {
                            continue;
                        }
                        let before: f64 = (0..keys)
                            .map(|other| {
                                let (share, slope) = self.at(head, query, other);
                                share * slope
                            })
                            .sum();
                        let grown = share * self.change(key, kv_head, query, head).exp();
                        let sum = 1.0 - share + grown;
                        effect += (before + (grown - share) * slope) / sum - before;
                    }
                }
                effects.push(effect);
            }
        }
        effects
    }
}
