//! Edge attribution patching: scores each (writer, reader) edge of the residual stream.

use crate::activations::Analyze;
use std::fmt;

use burn::tensor::Tensor;
use hooklens_hooks::{ActivationCache, Hook};
use serde::{Deserialize, Serialize};

use super::norm_gradient::through_norm;
use crate::activations::{Components, Neurons, Stage};
use crate::error::PatchError;
use crate::labeled::{LabeledArray, LabeledAxis};
use crate::patching::{Example, Patching};
use hooklens_model::config::{ResidualScheme, TransformerConfig};
use hooklens_model::driver::{ForwardOptions, HookedModel};
use hooklens_model::error::{InputError, Result};
use hooklens_model::hook;
use hooklens_model::model::{HookedTransformer, Norm};

/// A component that writes to the residual stream.
///
/// ```
/// use hooklens::attribution::{Reads, Writes};
/// use hooklens::TransformerConfig;
/// let config = TransformerConfig::gpt2_small();
/// let late = [Reads::Query(3, 0), Reads::Mlp(2), Reads::Logits];
/// assert!(late.iter().all(|reader| Writes::Head(2, 5).comes_before(*reader, &config)));
/// assert!(!Writes::Mlp(2).comes_before(Reads::Key(2, 0), &config));
/// assert_eq!(Writes::Head(2, 5).to_string(), "L2H5");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Writes {
    /// The embedding, including position embeddings.
    Embed,
    /// A head: layer, head.
    Head(usize, usize),
    /// A layer's MLP.
    Mlp(usize),
}

/// A component that reads from the residual stream.
///
/// ```
/// use hooklens::attribution::Reads;
/// assert_eq!([Reads::Query(3, 0), Reads::Logits].map(|reader| reader.to_string()), ["L3H0.q", "logits"]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Reads {
    /// A head's queries: layer, head.
    Query(usize, usize),
    /// A head's keys: layer, key/value head.
    Key(usize, usize),
    /// A head's values: layer, key/value head.
    Value(usize, usize),
    /// A layer's MLP.
    Mlp(usize),
    /// The unembedding.
    Logits,
}

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
    /// In the patched run: edge attribution patching (EAP).
    AtBase,
    /// The mean over this many runs, whose embeddings are interpolated between the patched run and the source run at
    /// the midpoints of equal intervals: EAP with integrated gradients (EAP-IG).
    Integrated(usize),
}

/// Estimated change of the metric for each edge, if the reader received the writer's output from the source run.
///
/// ```
/// # use hooklens::attribution::{Gradient, Reads, Writes};
/// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
/// # use hooklens::hook::Axis;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// # let clean = "When Mary and John went to the store, John gave a drink to";
/// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
/// # let patching = Patching::new(&model, clean, corrupted, metric)?;
/// let edges = patching.edges(Gradient::AtBase)?;
/// assert_eq!((edges.writers().len(), edges.readers().len()), (1 + 16 + 4, 3 * 16 + 4 + 1));
/// assert_eq!(edges.mean().values().shape(), [21, 53]);
/// let (writer, reader, score) = edges.largest(1)[0];
/// assert_eq!(edges.score(writer, reader), Some(score));
/// assert_eq!(edges.score(Writes::Mlp(3), Reads::Query(0, 0)), None); // the MLP writes after the query is read
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EdgeScores {
    writers: Vec<Writes>,
    readers: Vec<Reads>,
    parallel: bool,
    scores: LabeledArray,
}

impl Writes {
    /// Whether the writer writes before the reader reads.
    pub fn comes_before(self, reader: Reads, config: &TransformerConfig) -> bool {
        before(self, reader, config.residual == ResidualScheme::Parallel)
    }
}

fn before(writer: Writes, reader: Reads, parallel: bool) -> bool {
    // Number the writes and reads in order: twice the layer, plus one for the second half of a block.
    let written = match writer {
        Writes::Embed => 0,
        Writes::Head(layer, _) => 2 * layer + if parallel { 2 } else { 1 },
        Writes::Mlp(layer) => 2 * layer + 2,
    };
    let read = match reader {
        Reads::Query(layer, _) | Reads::Key(layer, _) | Reads::Value(layer, _) => 2 * layer,
        Reads::Mlp(layer) => 2 * layer + usize::from(!parallel),
        Reads::Logits => usize::MAX,
    };
    written <= read
}

impl fmt::Display for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Writes::Embed => f.write_str("embed"),
            Writes::Head(layer, head) => write!(f, "L{layer}H{head}"),
            Writes::Mlp(layer) => write!(f, "{layer}_mlp"),
        }
    }
}

impl fmt::Display for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reads::Query(layer, head) => write!(f, "L{layer}H{head}.q"),
            Reads::Key(layer, head) => write!(f, "L{layer}H{head}.k"),
            Reads::Value(layer, head) => write!(f, "L{layer}H{head}.v"),
            Reads::Mlp(layer) => write!(f, "{layer}_mlp"),
            Reads::Logits => f.write_str("logits"),
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
    /// assert_eq!(both.values().values().shape(), [21, 53, 2]); // writer, reader, example
    /// assert_eq!(both.mean(), share()?.mean());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`PatchError::Shares`] if there are no scores, or if they belong to models with different edges.
    pub fn joined(shares: impl IntoIterator<Item = Self>) -> Result<Self, PatchError> {
        let wrong = |what: &'static str| PatchError::Shares { what };
        let mut shares = shares.into_iter();
        let Self { writers, readers, parallel, scores } =
            shares.next().ok_or_else(|| wrong("no results were given"))?;
        let mut all = vec![scores];
        for share in shares {
            if (&share.writers, &share.readers, share.parallel) != (&writers, &readers, parallel) {
                return Err(wrong("their edges differ"));
            }
            all.push(share.scores);
        }
        let views: Vec<_> = all.iter().map(|scores| scores.values().view()).collect();
        let values = ndarray::concatenate(ndarray::Axis(2), &views).map_err(|_| wrong("their edges differ"))?;
        // The scores may have been read from a file.
        let [from, to, examples] = *values.shape() else {
            return Err(wrong("their axes are not [writer, reader, example]"));
        };
        if [from, to] != [writers.len(), readers.len()] {
            return Err(wrong("their edges differ"));
        }
        let scores = LabeledArray::of(axes(&writers, &readers, examples), values);
        Ok(Self { writers, readers, parallel, scores })
    }

    /// The scores, `[writer, reader, example]`; 0 where the writer writes after the reader has read.
    pub fn values(&self) -> &LabeledArray {
        &self.scores
    }

    /// The mean scores over examples, `[writer, reader]`.
    pub fn mean(&self) -> LabeledArray {
        let values = self.scores.values();
        let mean = values.mean_axis(ndarray::Axis(2)).unwrap_or_else(|| ndarray::ArrayD::zeros(values.raw_dim()));
        LabeledArray::of(self.scores.axes()[..2].to_vec(), mean)
    }

    /// The writers, in the order of the first axis.
    pub fn writers(&self) -> &[Writes] {
        &self.writers
    }

    /// The readers, in the order of the second axis.
    pub fn readers(&self) -> &[Reads] {
        &self.readers
    }

    /// The mean score of one edge over examples; `None` if there is no such edge.
    pub fn score(&self, writer: Writes, reader: Reads) -> Option<f64> {
        let from = self.writers.iter().position(|own| *own == writer)?;
        let to = self.readers.iter().position(|own| *own == reader)?;
        before(writer, reader, self.parallel).then(|| self.mean_of(from, to))
    }

    fn mean_of(&self, from: usize, to: usize) -> f64 {
        let values = self.scores.values();
        let examples = values.shape()[2];
        (0..examples).map(|example| values[[from, to, example]]).sum::<f64>() / examples as f64
    }

    /// The edges with the largest mean scores by magnitude, in descending order.
    pub fn largest(&self, count: usize) -> Vec<(Writes, Reads, f64)> {
        let mut edges = Vec::new();
        for (from, writer) in self.writers.iter().enumerate() {
            for (to, reader) in self.readers.iter().enumerate() {
                if before(*writer, *reader, self.parallel) {
                    edges.push((*writer, *reader, self.mean_of(from, to)));
                }
            }
        }
        edges.sort_by(|a, b| b.2.abs().total_cmp(&a.2.abs()));
        edges.truncate(count);
        edges
    }
}

impl Patching<'_> {
    /// Scores every edge: the change of the writer's output times the gradient at the reader's input. With
    /// grouped-query attention there is one key reader and one value reader per key/value head.
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
    /// for (writer, reader, score) in patching.edges(Gradient::Integrated(5))?.largest(3) {
    ///     println!("{writer} -> {reader}  {score:+.2}");
    /// }
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails for ablations, which have no paired prompts, for `Gradient::Integrated(0)`, and as
    /// [`Patching::attribution`] does.
    pub fn edges(&self, gradient: Gradient) -> Result<EdgeScores> {
        let model = self.model();
        let config = model.config();
        model.check_plain_layers("edge attribution")?;
        if !self.is_paired() {
            return Err(InputError::NeedsPairs { what: "edge attribution" }.into());
        }
        let no_pieces = || InputError::Setting {
            name: "Gradient::Integrated",
            given: "0".into(),
            allowed: "1 or more, the number of interpolation steps".into(),
        };
        let pieces = match gradient {
            Gradient::AtBase => 1,
            Gradient::Integrated(0) => return Err(no_pieces().into()),
            Gradient::Integrated(pieces) => pieces,
        };
        let (writers, readers) = (writers(config), readers(config));
        let recorded = recorded_for_writers(config);
        let ids = crate::patching::Sites::new(recorded.as_slice()).points(model.catalog())?;
        let per_example = self.each_example(&ids, |example| {
            let source = example.source_run(&recorded)?;
            let base = example.own_run(&recorded)?;
            let change = changes(model, &base, &source)?;
            let mut sum: Option<Tensor<2>> = None;
            for piece in 0..pieces {
                let share = (piece as f64 + 0.5) / pieces as f64;
                let embedding = match gradient {
                    Gradient::AtBase => None,
                    Gradient::Integrated(_) => {
                        Some(base.get(hook::embed())? * (1.0 - share) + source.get(hook::embed())? * share)
                    }
                };
                let slopes = slopes_at_readers(model, &example, embedding)?;
                let scores = change.clone().matmul(slopes.transpose());
                sum = Some(match sum {
                    Some(sum) => sum + scores,
                    None => scores,
                });
            }
            let scores = sum.ok_or_else(no_pieces)? / pieces as f64;
            Ok(hooklens_hooks::Activation::from(scores).to_ndarray()?)
        })?;
        let parallel = config.residual == ResidualScheme::Parallel;
        let shape = [writers.len(), readers.len(), per_example.len()];
        let values = ndarray::ArrayD::from_shape_fn(ndarray::IxDyn(&shape), |at| {
            let edge = before(writers[at[0]], readers[at[1]], parallel);
            if edge { f64::from(per_example[at[2]][[at[0], at[1]]]) } else { 0.0 }
        });
        let scores = LabeledArray::of(axes(&writers, &readers, per_example.len()), values);
        Ok(EdgeScores { writers, readers, parallel, scores })
    }
}

fn axes(writers: &[Writes], readers: &[Reads], examples: usize) -> [LabeledAxis; 3] {
    [
        LabeledAxis::new("writer", writers.iter().map(Writes::to_string)),
        LabeledAxis::new("reader", readers.iter().map(Reads::to_string)),
        LabeledAxis::numbered("example", examples),
    ]
}

fn writers(config: &TransformerConfig) -> Vec<Writes> {
    let heads = (0..config.n_layers()).flat_map(|layer| (0..config.n_heads).map(move |head| Writes::Head(layer, head)));
    let mlps = config.mlp_layers().map(Writes::Mlp);
    heads.chain(mlps).chain([Writes::Embed]).collect()
}

fn readers(config: &TransformerConfig) -> Vec<Reads> {
    let mut readers = Vec::new();
    for layer in 0..config.n_layers() {
        readers.extend((0..config.n_heads).map(|head| Reads::Query(layer, head)));
        readers.extend((0..config.n_kv_heads_of(layer)).map(|head| Reads::Key(layer, head)));
        readers.extend((0..config.n_kv_heads_of(layer)).map(|head| Reads::Value(layer, head)));
        if config.has_mlp(layer) {
            readers.push(Reads::Mlp(layer));
        }
    }
    readers.push(Reads::Logits);
    readers
}

/// The points from which the writers' outputs are computed.
fn recorded_for_writers(config: &TransformerConfig) -> Vec<&'static str> {
    let mut points = vec!["hook_embed", "blocks.*.attn.hook_z"];
    if config.positional == hooklens_model::config::Positional::Learned {
        points.push("hook_pos_embed");
    }
    if config.post_norms && config.norm != hooklens_model::config::NormKind::None {
        points.push("blocks.*.ln1_post.hook_scale");
    }
    if config.mlp_layers().next().is_some() {
        points.push("blocks.*.hook_mlp_out");
    }
    points
}

/// Change of each writer's output, source minus base, `[writer, pos * d_model]`.
fn changes(model: &HookedTransformer, base: &ActivationCache, source: &ActivationCache) -> Result<Tensor<2>> {
    let parts = |cache: &ActivationCache| -> Result<Components> {
        let parts = model.analyze(cache)?.written_to(Stage::Final, Neurons::Summed)?;
        // Positions and biases are the same in both runs.
        Ok(parts.filter(|label| label != "bias" && label != "pos_embed")?)
    };
    let change = parts(source)?.vectors() - parts(base)?.vectors();
    let [writers, _, pos, d_model] = change.dims();
    Ok(change.reshape([writers, pos * d_model]))
}

/// The gradient of the metric at each reader's input, `[reader, pos * d_model]`, in the example's run or in a run on
/// other embeddings.
fn slopes_at_readers(
    model: &HookedTransformer,
    example: &Example<'_, HookedTransformer>,
    embedding: Option<Tensor<3>>,
) -> Result<Tensor<2>> {
    model.check_unclipped("edge attribution")?;
    let config = model.config();
    if config.latent.is_some() {
        return Err(InputError::Latent { what: "edge attribution" }.into());
    }
    let mut points = vec!["blocks.*.hook_resid_pre", "blocks.*.attn.hook_{q,k,v}", "blocks.-1.hook_resid_post"];
    if config.mlp_layers().next().is_some() {
        points.push("blocks.*.hook_mlp_in");
    }
    let hooks: Vec<Hook<'_>> = embedding.into_iter().map(|own| hook::embed().edit(move |_, _| own.clone())).collect();
    let (output, _) = example.with_gradients(ForwardOptions::new().record(points).hooks(hooks))?;
    let cache = &output.cache;
    let mut slopes: Vec<Tensor<2>> = Vec::new();
    for (at, block) in model.weights.blocks.iter().enumerate() {
        let input = cache.get(hook::resid_pre(at))?;
        let Some(attn) = block.attn() else { continue };
        for (gradient, map) in [
            (cache.grad(hook::q(at))?, &attn.q),
            (cache.grad(hook::k(at))?, &attn.k),
            (cache.grad(hook::v(at))?, &attn.v),
        ] {
            slopes.push(by_head(&block.ln1, &input, gradient, map.weight_in(input.dtype())));
        }
        if config.has_mlp(at) {
            slopes.push(flat(cache.grad(hook::mlp_in(at))?));
        }
    }
    slopes.push(flat(cache.grad(hook::resid_post(-1))?));
    Ok(Tensor::cat(slopes, 0))
}

/// The gradient at each head's input, `[head, pos * d_model]`, from the gradient at its projection,
/// `[1, pos, head, d_head]`.
fn by_head(norm: &Norm, input: &Tensor<3>, gradient: Tensor<4>, weight: Tensor<2>) -> Tensor<2> {
    let [batch, pos, heads, d_head] = gradient.dims();
    let [d_model, _] = weight.dims();
    let weight = weight.reshape([d_model, heads, d_head]).permute([1, 2, 0]);
    let rows = gradient.permute([2, 0, 1, 3]).reshape([heads, batch * pos, d_head]);
    let back = rows.matmul(weight).reshape([heads, batch, pos, d_model]).permute([1, 2, 0, 3]);
    through_norm(norm, input, back).permute([2, 0, 1, 3]).reshape([heads, batch * pos * d_model])
}

fn flat(gradient: Tensor<3>) -> Tensor<2> {
    let [batch, pos, d_model] = gradient.dims();
    gradient.reshape([1, batch * pos * d_model])
}
