//! Edge attribution patching: scores each (sender, receiver) edge of the residual stream.

use crate::activations::Analyze;
use std::fmt;

use burn::tensor::Tensor;
use hooklens_hooks::{ActivationCache, Hook};
use ndarray::{Array2, IxDyn};
use serde::{Deserialize, Serialize};

use super::edge_graph::{EdgeGraph, precedes};
use super::norm_gradient::through_norm;
use crate::activations::{Components, Neurons, Stage};
use crate::error::{PatchError, StatisticsError};
use crate::labeled::{LabeledArray, LabeledAxis, matching};
use crate::patching::{Backward, Patching, Receiver, Source};
use crate::statistics::{EffectStatistics, Statistics};
use hooklens_model::config::{Layers, Settings, TransformerConfig};
use hooklens_model::driver::{ForwardOptions, HookedModel, Logits};
use hooklens_model::error::{Error, InputError, Result};
use hooklens_model::hook;
use hooklens_model::model::{DecoderChecks, HookedTransformer, ModelParts, Norm, widened};
use hooklens_model::tokens::Tokens;

/// A component that writes to the residual stream.
///
/// ```
/// use hooklens::attribution::Sender;
/// assert_eq!(Sender::Head(2, 5).to_string(), "L2H5");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Sender {
    /// The embedding, including position embeddings.
    Embed,
    /// A head: layer, head.
    Head(usize, usize),
    /// A layer's MLP.
    Mlp(usize),
}

/// Upper bound on the size of the outputs and gradients of one batch of examples, in bytes.
const BYTES_AT_ONCE: usize = 256 << 20;

/// Where the gradient of the metric is taken.
///
/// ```
/// # use hooklens::attribution::Gradient;
/// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
/// # use hooklens::hook::Axis;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// # let clean = "When Mary and John went to the store, John gave a drink to";
/// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
/// # let patching = Patching::new(&model, clean, corrupted, metric)?;
/// let best = |gradient| Ok::<_, hooklens::Error>(patching.edges(gradient)?.largest(1)[0].2);
/// assert_ne!(best(Gradient::AtBase)?, best(Gradient::Integrated(5))?); // the metric is not linear
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gradient {
    /// In the unpatched run: edge attribution patching (EAP).
    AtBase,
    /// Averaged over this number of runs, whose embeddings are interpolated between the unpatched run and the source
    /// run, at the midpoints of equal intervals: EAP with integrated gradients (EAP-IG).
    Integrated(usize),
}

/// For each edge, the estimated change in the metric if the receiver read the sender's output from the source run.
///
/// ```
/// # use hooklens::attribution::{Gradient, Sender};
/// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
/// # use hooklens::hook::Axis;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// # let clean = "When Mary and John went to the store, John gave a drink to";
/// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
/// # let patching = Patching::new(&model, clean, corrupted, metric)?;
/// let edges = patching.edges(Gradient::AtBase)?;
/// assert_eq!((edges.senders.len(), edges.receivers.len()), (1 + 16 + 4, 3 * 16 + 4 + 1));
/// assert_eq!(edges.mean().values().shape(), [21, 53]);
/// let (sender, receiver, score) = edges.largest(1)[0];
/// assert_eq!(edges.score(sender, receiver), Some(score));
/// assert_eq!(edges.score(Sender::Mlp(3), Receiver::Query(0, 0)), None); // the MLP writes after the query is read
/// assert_eq!(edges.score(Sender::Embed, Receiver::Mlp(-1)), edges.score(Sender::Embed, Receiver::Mlp(3)));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EdgeScores {
    /// The senders, in the order of the first axis of `scores`.
    pub senders: Vec<Sender>,
    /// The receivers, in the order of the second axis of `scores`.
    pub receivers: Vec<Receiver>,
    /// Whether each layer's MLP reads the same stream as its attention.
    parallel: bool,
    /// Hash of the model's weights, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// The scores, `[sender, receiver, example]`; 0 where the sender writes after the receiver has read.
    pub scores: LabeledArray,
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sender::Embed => f.write_str("embed"),
            Sender::Head(layer, head) => write!(f, "L{layer}H{head}"),
            Sender::Mlp(layer) => write!(f, "{layer}_mlp"),
        }
    }
}

impl EdgeScores {
    /// Concatenates scores along the example axis, in order.
    ///
    /// ```
    /// # use hooklens::attribution::{EdgeScores, Gradient};
    /// # use hooklens::patching::{Metric, Patching};
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let share = || Patching::new(&model, clean, corrupted, metric.clone())?.edges(Gradient::AtBase);
    /// let both = EdgeScores::joined([share()?, share()?])?;
    /// assert_eq!(both.scores.values().shape(), [21, 53, 2]); // sender, receiver, example
    /// assert_eq!(both.mean(), share()?.mean());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`PatchError::Shares`] if there are no scores, or if they belong to models with different edges
    /// or weights.
    pub fn joined(shares: impl IntoIterator<Item = Self>) -> Result<Self, PatchError> {
        let wrong = |what: &'static str| PatchError::Shares { what };
        let mut shares = shares.into_iter();
        let Self { senders, receivers, parallel, model, scores } =
            shares.next().ok_or_else(|| wrong("no results were given"))?;
        let mut all = vec![scores];
        for share in shares {
            if (&share.senders, &share.receivers, share.parallel) != (&senders, &receivers, parallel) {
                return Err(wrong("their edges differ"));
            }
            if share.model != model {
                return Err(wrong("they belong to models with different weights"));
            }
            all.push(share.scores);
        }
        let views: Vec<_> = all.iter().map(|scores| scores.values().view()).collect();
        let values = ndarray::concatenate(ndarray::Axis(2), &views).map_err(|_| wrong("their edges differ"))?;
        // The scores may have been read from a file.
        let [from, to, examples] = *values.shape() else {
            return Err(wrong("their axes are not [sender, receiver, example]"));
        };
        if [from, to] != [senders.len(), receivers.len()] {
            return Err(wrong("their edges differ"));
        }
        let scores = matching(axes(&senders, &receivers, examples), values);
        Ok(Self { senders, receivers, parallel, model, scores })
    }

    /// The edges that are scored.
    pub fn graph(&self) -> EdgeGraph {
        EdgeGraph::from_parts(self.senders.clone(), self.receivers.clone(), self.parallel, self.model.clone())
    }

    pub(crate) fn of_graph(graph: &EdgeGraph, per_example: &[Array2<f64>]) -> Self {
        let (senders, receivers) = (graph.senders().to_vec(), graph.receivers().to_vec());
        let shape = [senders.len(), receivers.len(), per_example.len()];
        let values = ndarray::ArrayD::from_shape_fn(IxDyn(&shape), |at| {
            if graph.has((at[0], at[1])) { per_example[at[2]][[at[0], at[1]]] } else { 0.0 }
        });
        let scores = matching(axes(&senders, &receivers, per_example.len()), values);
        let (parallel, model) = (graph.is_parallel(), graph.model().map(str::to_string));
        Self { senders, receivers, parallel, model, scores }
    }

    /// The mean scores over examples, `[sender, receiver]`.
    pub fn mean(&self) -> LabeledArray {
        let values = self.scores.values();
        let mean = values.mean_axis(ndarray::Axis(2)).unwrap_or_else(|| ndarray::ArrayD::zeros(values.raw_dim()));
        matching(self.scores.axes()[..2].to_vec(), mean)
    }

    /// Intervals and p-values of the scores over examples, `[sender, receiver]`. Where the sender writes after the
    /// receiver has read, p-values are NaN and do not count in the correction.
    ///
    /// ```
    /// # use hooklens::attribution::Gradient;
    /// # use hooklens::patching::{Metric, Patching};
    /// # use hooklens::prelude::*;
    /// use hooklens::statistics::Statistics;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let clean = "When Mary and John went to the store, John gave a drink to";
    /// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
    /// let patching = Patching::new(&model, [clean; 3], [corrupted; 3], metric)?;
    /// let found = patching.edges(Gradient::AtBase)?.statistics(&Statistics::new())?;
    /// assert_eq!(found.mean.values().shape(), found.p_value.values().shape());
    /// assert!(found.p_value.values().iter().any(|p| p.is_nan()));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Statistics::effects`].
    pub fn statistics(&self, settings: &Statistics) -> Result<EffectStatistics, StatisticsError> {
        let is_edge = |place: &IxDyn| precedes(self.senders[place[0]], self.receivers[place[1]], self.parallel);
        Ok(settings.effects(&self.scores)?.only(is_edge))
    }

    /// The mean score of one edge over examples; `None` if there is no such edge.
    pub fn score(&self, sender: Sender, receiver: Receiver) -> Option<f64> {
        let layers = self.senders.iter().filter_map(|sender| match sender {
            Sender::Head(layer, _) => Some(layer + 1),
            Sender::Embed | Sender::Mlp(_) => None,
        });
        let receiver = receiver.in_model(layers.max().unwrap_or(0));
        let from = self.senders.iter().position(|own| *own == sender)?;
        let to = self.receivers.iter().position(|own| *own == receiver)?;
        precedes(sender, receiver, self.parallel).then(|| self.mean_of(from, to))
    }

    fn mean_of(&self, from: usize, to: usize) -> f64 {
        let values = self.scores.values();
        let examples = values.shape()[2];
        (0..examples).map(|example| values[[from, to, example]]).sum::<f64>() / examples as f64
    }

    /// The edges with the largest mean scores by magnitude, in descending order.
    pub fn largest(&self, count: usize) -> Vec<(Sender, Receiver, f64)> {
        let mut edges = Vec::new();
        for (from, sender) in self.senders.iter().enumerate() {
            for (to, receiver) in self.receivers.iter().enumerate() {
                if precedes(*sender, *receiver, self.parallel) {
                    edges.push((*sender, *receiver, self.mean_of(from, to)));
                }
            }
        }
        edges.sort_by(|a, b| b.2.abs().total_cmp(&a.2.abs()));
        edges.truncate(count);
        edges
    }
}

impl Patching<'_> {
    /// Scores every edge by the change in the sender's output times the gradient at the receiver's input. With
    /// grouped-query attention, there is one key receiver and one value receiver per key/value head.
    ///
    /// Per example, takes two forward passes for the recordings, plus one forward and one backward pass per step of
    /// [`Gradient::Integrated`] (a single step for [`Gradient::AtBase`]).
    ///
    /// ```
    /// use hooklens::attribution::Gradient;
    /// use hooklens::patching::{Metric, Patching};
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let clean = "When Mary and John went to the store, John gave a drink to";
    /// let corrupted = "When Mary and John went to the store, Mary gave a drink to";
    /// let patching = Patching::new(&model, clean, corrupted, Metric::logit_diff(&model, "Mary", "John")?)?;
    /// for (sender, receiver, score) in patching.edges(Gradient::Integrated(5))?.largest(3) {
    ///     println!("{sender} -> {receiver}  {score:+.2}");
    /// }
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails for zero and mean ablations (they have no source run), for `Gradient::Integrated(0)` and for
    /// [`Backward::GradDrop`]; otherwise, same as [`Patching::attribution`].
    pub fn edges(&self, gradient: Gradient) -> Result<EdgeScores> {
        self.edges_by(gradient, self.backward)
    }

    /// Like [`Patching::edges`], with the given backward pass.
    pub(crate) fn edges_by(&self, gradient: Gradient, backward: Backward) -> Result<EdgeScores> {
        backward.check_edges()?;
        let model = self.model();
        let config = model.config();
        model.check_plain_layers("edge attribution")?;
        let no_pieces = || InputError::Setting {
            name: "Gradient::Integrated",
            given: "0".into(),
            allowed: "1 or more (the number of interpolation steps)".into(),
        };
        let pieces = match gradient {
            Gradient::AtBase => 1,
            Gradient::Integrated(0) => return Err(no_pieces().into()),
            Gradient::Integrated(pieces) => pieces,
        };
        let graph = EdgeGraph::of(model)?;
        let Source::Run(sources) = &self.source else {
            return Err(InputError::NeedsPairs { what: "edge attribution" }.into());
        };
        let recorded = recorded_for_senders(config);
        let shape = (graph.senders().len(), graph.receivers().len());
        let per_position = (shape.0 + shape.1) * config.d_model() * size_of::<f32>();
        let mut per_example = vec![Array2::zeros(shape); self.examples()];
        for examples in self.batches(|len| BYTES_AT_ONCE / (per_position * len.max(1))) {
            let run = |tokens: Tokens| {
                let options = ForwardOptions::new().logits(Logits::None).record(recorded.as_slice());
                Ok::<_, Error>(model.run(tokens, options)?.cache)
            };
            let source = run(Tokens::new(examples.iter().map(|own| sources[*own].clone()).collect::<Vec<_>>())?)?;
            let base = run(self.rows(&examples)?)?;
            let change = changes(model, &base, &source)?;
            let mut sum: Option<Tensor<3>> = None;
            for piece in 0..pieces {
                let share = (piece as f64 + 0.5) / pieces as f64;
                let embedding = match gradient {
                    Gradient::AtBase => None,
                    Gradient::Integrated(_) => {
                        Some(base.get(hook::embed())? * (1.0 - share) + source.get(hook::embed())? * share)
                    }
                };
                let slopes = self.slopes_at_receivers(&examples, embedding, backward)?;
                sum = Some(match sum {
                    Some(sum) => sum + slopes,
                    None => slopes,
                });
            }
            let slopes = sum.ok_or_else(no_pieces)? / pieces as f64;
            let scores = change.swap_dims(0, 1).matmul(slopes.swap_dims(0, 1).swap_dims(1, 2));
            let scores = hooklens_hooks::Activation::from(scores).to_ndarray()?;
            for (row, example) in examples.iter().enumerate() {
                per_example[*example] = Array2::from_shape_fn(shape, |(from, to)| f64::from(scores[[row, from, to]]));
            }
        }
        Ok(EdgeScores::of_graph(&graph, &per_example))
    }

    /// The gradient of the metric at each receiver's input, `[receiver, row, pos * d_model]`, in the unpatched runs of
    /// the examples or, if `embedding` is given, in a run on that embedding.
    fn slopes_at_receivers(
        &self,
        examples: &[usize],
        embedding: Option<Tensor<3>>,
        backward: Backward,
    ) -> Result<Tensor<3>> {
        let model = self.model();
        model.check_unclipped("edge attribution")?;
        let config = model.config();
        if config.latent().is_some() {
            return Err(InputError::Latent { what: "edge attribution" }.into());
        }
        let mut points = vec!["blocks.*.hook_resid_pre", "blocks.*.attn.hook_{q,k,v}", "blocks.-1.hook_resid_post"];
        if config.mlp_layers().next().is_some() {
            points.push("blocks.*.hook_mlp_in");
        }
        let mut hooks: Vec<Hook<'_>> = backward.hooks(model.catalog());
        hooks.extend(embedding.map(|own| hook::embed().edit(move |_, _| own.clone())));
        let options = ForwardOptions::new().record(points).hooks(hooks);
        let (output, _) = self.rows_with_gradients(examples, options, "without a patch")?;
        let cache = &output.cache;
        let mut slopes: Vec<Tensor<3>> = Vec::new();
        for (at, block) in model.parts().blocks.iter().enumerate() {
            let input = cache.get(hook::resid_pre(at))?;
            let Some(attn) = block.attn() else { continue };
            for (gradient, map) in [
                (cache.grad(hook::q(at))?, &attn.q),
                (cache.grad(hook::k(at))?, &attn.k),
                (cache.grad(hook::v(at))?, &attn.v),
            ] {
                slopes.push(by_head(&block.ln1, &input, gradient, map.weight_in(input.dtype()), backward));
            }
            if config.has_mlp(at) {
                slopes.push(flat(cache.grad(hook::mlp_in(at))?));
            }
        }
        slopes.push(flat(cache.grad(hook::resid_post(-1))?));
        Ok(Tensor::cat(slopes, 0))
    }
}

fn axes(senders: &[Sender], receivers: &[Receiver], examples: usize) -> [LabeledAxis; 3] {
    [
        LabeledAxis::new("sender", senders.iter().map(Sender::to_string)),
        LabeledAxis::new("receiver", receivers.iter().map(Receiver::to_string)),
        LabeledAxis::numbered("example", examples),
    ]
}

/// The points from which the senders' outputs are computed.
fn recorded_for_senders(config: &TransformerConfig) -> Vec<&'static str> {
    let mut points = vec!["hook_embed", "blocks.*.attn.hook_z"];
    if *config.positional() == hooklens_model::config::Positional::Learned {
        points.push("hook_pos_embed");
    }
    if config.post_norms() && config.norm() != hooklens_model::config::NormKind::None {
        points.push("blocks.*.ln1_post.hook_scale");
    }
    if config.mlp_layers().next().is_some() {
        points.push("blocks.*.hook_mlp_out");
    }
    points
}

/// Change in each sender's output (source minus base), `[sender, row, pos * d_model]`.
fn changes(model: &HookedTransformer, base: &ActivationCache, source: &ActivationCache) -> Result<Tensor<3>> {
    let parts = |cache: &ActivationCache| -> Result<Components> {
        let parts = model.analyze(cache)?.written_to(Stage::Final, Neurons::Summed)?;
        // Position embeddings and biases are the same in both runs.
        Ok(parts.filter(|label| label != "bias" && label != "pos_embed")?)
    };
    let change = widened(parts(source)?.vectors()) - widened(parts(base)?.vectors());
    let [senders, rows, pos, d_model] = change.dims();
    Ok(change.reshape([senders, rows, pos * d_model]))
}

/// The gradient at each head's input, `[head, row, pos * d_model]`, computed from the gradient at the head's queries,
/// keys or values, `[row, pos, head, d_head]`.
fn by_head(norm: &Norm, input: &Tensor<3>, gradient: Tensor<4>, weight: Tensor<2>, backward: Backward) -> Tensor<3> {
    let [batch, pos, heads, d_head] = gradient.dims();
    let [d_model, _] = weight.dims();
    let weight = weight.reshape([d_model, heads, d_head]).permute([1, 2, 0]);
    let rows = gradient.permute([2, 0, 1, 3]).reshape([heads, batch * pos, d_head]);
    let back = rows.matmul(weight).reshape([heads, batch, pos, d_model]).permute([1, 2, 0, 3]);
    through_norm(norm, input, back, backward.freezes_norms()).permute([2, 0, 1, 3]).reshape([
        heads,
        batch,
        pos * d_model,
    ])
}

fn flat(gradient: Tensor<3>) -> Tensor<3> {
    let [batch, pos, d_model] = gradient.dims();
    widened(gradient).reshape([1, batch, pos * d_model])
}
