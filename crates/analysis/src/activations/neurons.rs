//! Decomposition of the residual stream by MLP neuron.

use std::ops::Range;

use burn::tensor::{IndexingUpdateOp, Int, Tensor, TensorData};

use super::analysis::Analysis;
use super::components::Components;
use super::post_norm::plus;
use super::stage::Stage;
use super::term::Term;
use crate::error::AnalysisError;
use hooklens_hooks::Provenance;
use hooklens_model::config::{Experts, Layers};
use hooklens_model::error::Result;
use hooklens_model::hook;
use hooklens_model::model::{ModelParts, Moe, narrowed};

impl Analysis<'_> {
    /// Each neuron's output to the residual stream before a stage: `L0N0`, `L0N1`, ... In a mixture of experts,
    /// neurons of routed experts are called `L0E0N0`, ... and are zero at tokens not routed to the expert; neurons of
    /// the shared expert are called `L0SN0`, ...
    ///
    /// The components are stored as activations and output weights. [`Components::project`] and
    /// [`Analysis::logit_attrs`] never materialize the vectors; [`Components::vectors`] does.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", "*mlp.hook_post")?;
    /// let analysis = model.analyze(&cache)?.positions(-1)?;
    /// let neurons = analysis.stack_neuron_results(hooklens::activations::Stage::Before(1))?;
    /// assert_eq!((neurons.labels().len(), neurons.labels()[17].as_str()), (256, "L0N17"));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::NotRecorded`] unless `*mlp.hook_post` was recorded and, if the MLP's output is normalized,
    /// `*ln2_post.hook_scale`. A mixture of experts requires `*mlp.hook_expert_*` and `*mlp.experts.*.hook_post` at
    /// all positions instead of `*mlp.hook_post`, and also `*mlp.shared.hook_*` if it has a shared expert.
    pub fn stack_neuron_results(&self, stage: Stage) -> Result<Components> {
        let place = self.place(stage)?;
        let mut neurons = self.no_components(place);
        for layer in self.model.config().mlp_layers().take_while(|layer| *layer < place.layers) {
            self.push_neurons(layer, None, &mut neurons)?;
        }
        Ok(neurons)
    }

    /// Like [`Analysis::stack_neuron_results`], for a range of neurons in one layer.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", "*mlp.hook_post")?;
    /// let few = model.analyze(&cache)?.get_neuron_results(-1, 10..12)?;
    /// assert_eq!(few.labels(), ["L3N10", "L3N11"]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Analysis::stack_neuron_results`]; [`AnalysisError::Shape`] if the layer has no such neurons.
    pub fn get_neuron_results(&self, layer: isize, neurons: Range<usize>) -> Result<Components> {
        let config = self.model.config();
        let place = self.place(Stage::Before(layer))?;
        let width = if config.has_mlp(place.layers) { config.d_mlp_of(place.layers) } else { 0 };
        if neurons.is_empty() || neurons.end > width {
            let expected = format!("a non-empty range within the {width} neurons of the layer");
            let given = vec![neurons.start, neurons.end];
            return Err(AnalysisError::Shape { what: "the neuron range".into(), given, expected }.into());
        }
        let mut parts = self.no_components(self.place(Stage::Final)?);
        self.push_neurons(place.layers, Some(neurons), &mut parts)?;
        Ok(parts)
    }

    /// Adds a layer's neurons to `parts` and returns the contribution of its output bias,
    /// `[batch or 1, pos or 1, d_model]`.
    pub(super) fn push_neurons(
        &self,
        layer: usize,
        some: Option<Range<usize>>,
        parts: &mut Components,
    ) -> Result<Option<Tensor<3>>> {
        let block = &self.model.parts().blocks[layer];
        let post_norm = self.post_norm(block.ln2_post.as_ref(), hook::ln2_post_scale(layer))?;
        let place = parts.place;
        let mut push = |prefix: String, post: Tensor<3>, out: Tensor<2>| {
            let range = some.clone().unwrap_or(0..out.dims()[0]);
            let range = range.start.min(out.dims()[0])..range.end.min(out.dims()[0]);
            if range.is_empty() {
                return;
            }
            let post = post_norm.factors(post.narrow(2, range.start, range.len()));
            let out = post_norm.outputs(narrowed(out.narrow(0, range.start, range.len()), post.dtype()));
            let out = self.arrived(layer, place, out);
            parts.extend(range.map(|neuron| format!("{prefix}N{neuron}")), Term::Neurons { post, out });
        };
        let bias = match (block.dense_mlp(), block.moe(), self.model.config().experts_of(layer)) {
            (Some(mlp), _, _) => {
                push(format!("L{layer}"), self.recorded(hook::mlp_post(layer))?, mlp.output.matrix());
                mlp.output.bias.as_ref().map(|bias| bias.val().unsqueeze())
            }
            (None, Some(moe), Some(mixture)) => {
                // The routed and shared outputs may each be normalized before they are added.
                let norms = moe.norms.as_ref();
                let of_experts =
                    self.post_norm(norms.map(|own| &own.experts_post), hook::experts_ln_post_scale(layer))?;
                let of_shared = self.post_norm(norms.map(|own| &own.shared_post), hook::shared_ln_post_scale(layer))?;
                let mut bias: Option<Tensor<3>> = None;
                for (number, routed) in self.routed(layer, moe, mixture)?.into_iter().enumerate() {
                    let output = &moe.experts[number].output;
                    let out = of_experts.outputs(output.matrix());
                    push(format!("L{layer}E{number}"), of_experts.factors(routed.post), out);
                    let own = output.bias.as_ref().map(|bias| bias.val().unsqueeze::<3>() * routed.share);
                    bias = plus(bias, of_experts.bias(own));
                }
                if let Some(shared) = &moe.shared {
                    let share = shared.share.as_ref().map(|_| self.recorded(hook::shared_share(layer))).transpose()?;
                    let mut post = self.recorded(hook::shared_post(layer))?;
                    if let Some(share) = &share {
                        post = post * share.clone();
                    }
                    push(format!("L{layer}S"), of_shared.factors(post), of_shared.outputs(shared.output.matrix()));
                    let own = shared.output.bias.as_ref().map(|bias| bias.val().unsqueeze::<3>());
                    let own = own.map(|own| share.map_or(own.clone(), |share| own * share));
                    bias = plus(bias, of_shared.bias(own));
                }
                bias
            }
            _ => None,
        };
        Ok(post_norm.bias(bias))
    }

    /// The activations of each expert's neurons at every token, zero where the token was not routed to the expert.
    fn routed(&self, layer: usize, moe: &Moe, mixture: Experts) -> Result<Vec<Routed>> {
        let weights: Tensor<2> = self.raw(hook::expert_weights(layer).name())?.to_tensor()?;
        let indices = self.raw(format!("blocks.{layer}.mlp.hook_expert_indices"))?.to_ndarray()?;
        let (tokens, device) = (weights.dims()[0], weights.device());
        let chosen = mixture.per_token;
        // Routing weights per token, in the order of the router's choices. The indices of the experts come from the
        // recording, because a hook may have changed them.
        let (_, _, shares) = moe.routes(weights, mixture)?;
        let mut shares: Vec<f32> = hooklens_hooks::Activation::from(shares).to_ndarray()?.into_iter().collect();
        if mixture.scales_inputs {
            shares.fill(1.0); // the recorded activations already include the routing weights
        }
        let [batch, len] = self.cache.rows_recorded();
        let dense = |number: usize| {
            let places = (0..chosen).flat_map(|choice| (0..tokens).map(move |token| (token, choice)));
            let routed: Vec<(usize, usize)> =
                places.filter(|(token, choice)| indices[[*token, *choice]] == number as f32).collect();
            let d_mlp = moe.experts[number].output.shape()[0];
            let mut post = Tensor::<2>::zeros([tokens, d_mlp], &device);
            let mut share = Tensor::<2>::zeros([tokens, 1], &device);
            if !routed.is_empty() {
                let rows: Vec<i32> = routed.iter().map(|(token, _)| *token as i32).collect();
                let rows = Tensor::<1, Int>::from_ints(rows.as_slice(), &device);
                let own: Vec<f32> = routed.iter().map(|(token, choice)| shares[token * chosen + choice]).collect();
                let own = Tensor::<2>::from_data(TensorData::new(own, [routed.len(), 1]), &device);
                let seen: Tensor<2> = self.raw(hook::expert_post(layer, number).name())?.to_tensor()?;
                post = post.select_assign(0, rows.clone(), seen * own.clone(), IndexingUpdateOp::Add);
                share = share.select_assign(0, rows, own, IndexingUpdateOp::Add);
            }
            Ok(Routed {
                post: self.cut(post.reshape([batch, len, d_mlp]))?,
                share: self.cut(share.reshape([batch, len, 1]))?,
            })
        };
        (0..moe.experts.len()).map(dense).collect()
    }
}

/// The contribution of one expert in a layer.
struct Routed {
    /// `[batch, pos, d_mlp]`, multiplied by the routing weight.
    post: Tensor<3>,
    /// Routing weight, `[batch, pos, 1]`.
    share: Tensor<3>,
}
