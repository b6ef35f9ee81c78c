//! Forward passes in which some edges are ablated.
//!
//! Each receiver gets the residual stream plus, for each ablated edge into it, the difference between what the edge
//! carries instead and what the sender wrote in this pass. All edges are ablated in one forward pass.

mod masks;
mod order;
mod outputs;
mod pass;
mod replacement;

use burn::tensor::Tensor;
use ndarray::Array2;

use masks::Masks;
pub(super) use masks::mask_of;
use order::RunOrder;
use outputs::head_outputs;
use pass::{Chunks, EdgePass};
use replacement::Replacement;

use crate::attribution::EdgeGraph;
use crate::patching::Patching;
use crate::statistics::mean;
use hooklens_hooks::ActivationCache;
use hooklens_model::config::{Layers, NormKind, Settings};
use hooklens_model::driver::private::Spliceable;
use hooklens_model::driver::{ForwardOptions, HookedModel};
use hooklens_model::error::{InputError, Result};
use hooklens_model::hook;
use hooklens_model::model::{DecoderChecks, HookedTransformer};

/// Description of the run in error messages.
const SITE: &str = "with edges ablated";

/// Upper bound on the size of the outputs that one pass keeps, in bytes.
const BYTES_AT_ONCE: usize = 128 << 20;

/// Runs the prompts of a [`Patching`] with edges ablated.
pub(super) struct EdgeRunner<'p, 'm> {
    patching: &'p Patching<'m>,
    model: &'m HookedTransformer,
    graph: EdgeGraph,
    order: RunOrder,
    replacement: Replacement<'p>,
}

/// Examples of equal length that run as one batch, and what ablated edges carry in them.
pub(super) struct Group {
    /// Indices of the examples.
    pub(super) examples: Vec<usize>,
    ablated: Chunks,
}

impl<'p, 'm> EdgeRunner<'p, 'm> {
    pub(super) fn new(patching: &'p Patching<'m>) -> Result<Self> {
        let model = patching.model();
        let graph = EdgeGraph::of(model)?;
        model.check_one_place("running a circuit")?;
        if model.config().latent().is_some() {
            return Err(InputError::Latent { what: "a circuit" }.into());
        }
        // With a dictionary in the residual stream, receivers would not read the sum of what the senders wrote.
        if model.points().splices.replaced(model.catalog()).iter().any(|point| point.contains(".hook_resid_")) {
            let with = "a dictionary spliced into the residual stream";
            return Err(InputError::NotDefined { what: "a circuit", with }.into());
        }
        let order = RunOrder::of(&graph);
        let replacement = Replacement::of(patching, model, &order)?;
        Ok(Self { patching, model, graph, order, replacement })
    }

    pub(super) fn graph(&self) -> &EdgeGraph {
        &self.graph
    }

    /// Examples of equal length, in batches of a bounded size.
    pub(super) fn batches(&self) -> Vec<Vec<usize>> {
        self.patching.batches(|len| self.rows_at_once(len))
    }

    /// Maximum number of prompts of this length in one pass.
    pub(super) fn rows_at_once(&self, len: usize) -> usize {
        let per_row = self.graph.senders().len() * len.max(1) * self.model.config().d_model() * size_of::<f32>();
        (BYTES_AT_ONCE / per_row).max(1)
    }

    /// Computes what ablated edges carry in these examples.
    pub(super) fn group(&self, examples: Vec<usize>) -> Result<Group> {
        let ablated = self.replacement.outputs(self.patching, self.model, &self.order, &examples)?;
        Ok(Group { examples, ablated })
    }

    /// All examples, in batches.
    pub(super) fn groups(&self) -> Result<Vec<Group>> {
        self.batches().into_iter().map(|batch| self.group(batch)).collect()
    }

    /// The metric without ablations, per example of the batch.
    pub(super) fn clean(&self, examples: &[usize]) -> Result<Vec<f64>> {
        let logits = self.model.forward_with(self.patching.rows(examples)?, self.options())?;
        self.judged(logits, examples, "without an ablation")
    }

    /// The metric per example of the group, with the same edges ablated in all.
    pub(super) fn metric(&self, group: &Group, ablated: &Array2<f32>) -> Result<Vec<f64>> {
        self.run(&group.examples, std::slice::from_ref(ablated), &group.ablated)
    }

    /// The mean metric over the examples of these groups, with the same edges ablated in all.
    pub(super) fn mean_metric(&self, groups: &[Group], ablated: &Array2<f32>) -> Result<f64> {
        let mut values = Vec::new();
        for group in groups {
            values.extend(self.metric(group, ablated)?);
        }
        Ok(mean(&values))
    }

    /// The metric of the group's first example with the edges of each mask ablated, one value per mask.
    pub(super) fn metric_per_mask(&self, group: &Group, ablated: &[Array2<f32>]) -> Result<Vec<f64>> {
        let rows = vec![group.examples[0]; ablated.len()];
        let wide = |chunk: &Tensor<3>| {
            let [senders, _, size] = chunk.dims();
            chunk.clone().narrow(1, 0, 1).expand([senders, rows.len(), size])
        };
        self.run(&rows, ablated, &group.ablated.iter().map(wide).collect())
    }

    fn run(&self, examples: &[usize], masks: &[Array2<f32>], ablated: &Chunks) -> Result<Vec<f64>> {
        let pass = EdgePass { model: self.model, order: &self.order, ablated: Some((Masks(masks), ablated)) };
        let tokens = self.patching.rows(examples)?;
        let (logits, _) = pass.run(|hooks| self.model.forward_with(tokens, self.options().hooks(hooks)))?;
        self.judged(logits, examples, SITE)
    }

    /// The metric per example, and its gradient with respect to how much of each edge is ablated, `[sender, receiver]`
    /// per example.
    pub(super) fn gradient(&self, group: &Group, ablated: &Array2<f32>) -> Result<Vec<(f64, Array2<f64>)>> {
        let masks = Masks(std::slice::from_ref(ablated));
        let pass = EdgePass { model: self.model, order: &self.order, ablated: Some((masks, &group.ablated)) };
        let config = self.model.config();
        let mut points =
            vec!["blocks.*.hook_{q,k,v}_input", "blocks.-1.hook_resid_post", "hook_embed", "blocks.*.attn.hook_z"];
        if config.mlp_layers().next().is_some() {
            points.extend(["blocks.*.hook_mlp_in", "blocks.*.hook_mlp_out"]);
        }
        if config.post_norms() && config.norm() != NormKind::None {
            points.push("blocks.*.ln1_post.hook_scale");
        }
        let ((output, values), _) = pass.run(|hooks| {
            let options = ForwardOptions::new().hooks(hooks).record(points);
            self.patching.rows_with_gradients(&group.examples, options, SITE)
        })?;
        let slopes = self.slopes(&output.cache, group)?;
        Ok(values.into_iter().zip(slopes).collect())
    }

    /// Gradient of the metric with respect to the ablated fraction of each edge, `[sender, receiver]` per example: the
    /// gradient at the receiver's input times the change that ablating the edge makes to this input.
    fn slopes(&self, cache: &ActivationCache, group: &Group) -> Result<Vec<Array2<f64>>> {
        let mut written = vec![rows_of(cache.get(hook::embed())?)];
        let mut inputs = Vec::new();
        for (layer, own) in self.order.layers.iter().enumerate() {
            for point in [hook::q_input(layer), hook::k_input(layer), hook::v_input(layer)] {
                let gradient = cache.grad(point)?;
                let [rows, pos, heads, d_model] = gradient.dims();
                inputs.push(gradient.swap_dims(1, 2).reshape([rows, heads, pos * d_model]));
            }
            let scale = cache.get(hook::ln1_post_scale(layer)).ok();
            let heads = head_outputs(self.model, layer, cache.get(hook::z(layer))?, scale)?;
            written.push(heads.swap_dims(0, 1));
            if own.mlp.is_some() {
                inputs.push(rows_of(cache.grad(hook::mlp_in(layer))?));
                written.push(rows_of(cache.get(hook::mlp_out(layer))?));
            }
        }
        inputs.push(rows_of(cache.grad(hook::resid_post(-1))?));
        let ablated = Tensor::cat(group.ablated.clone(), 0).swap_dims(0, 1);
        let written = Tensor::cat(written, 1);
        let change = ablated.expand(written.dims()) - written;
        let slopes = change.matmul(Tensor::cat(inputs, 1).swap_dims(1, 2)).cast(burn::tensor::DType::F32);
        let slopes = hooklens_hooks::Activation::from(slopes).to_ndarray()?;
        let senders: Vec<usize> = self.order.chunks.iter().flatten().copied().collect();
        let of = |row: usize| {
            let mut own = Array2::zeros((self.graph.senders().len(), self.graph.receivers().len()));
            for (at, from) in senders.iter().enumerate() {
                for to in 0..self.graph.receivers().len() {
                    if self.graph.has((*from, to)) {
                        own[[*from, to]] = f64::from(slopes[[row, at, to]]);
                    }
                }
            }
            own
        };
        Ok((0..group.examples.len()).map(of).collect())
    }

    fn options<'h>(&self) -> ForwardOptions<'h> {
        ForwardOptions::new().logits(self.patching.metric.needs())
    }

    fn judged(&self, logits: Tensor<3>, examples: &[usize], site: &str) -> Result<Vec<f64>> {
        self.patching.read_rows(self.patching.judge_rows(logits, examples)?, examples, site)
    }
}

/// Flattens `[row, pos, d_model]` to `[row, 1, pos * d_model]`.
fn rows_of(values: Tensor<3>) -> Tensor<3> {
    let [rows, pos, d_model] = values.dims();
    values.reshape([rows, 1, pos * d_model])
}
