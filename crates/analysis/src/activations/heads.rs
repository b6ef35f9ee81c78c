//! Decomposition of the residual stream by attention head.

use burn::tensor::Tensor;
use hooklens_hooks::Point;

use super::analysis::Analysis;
use super::components::Components;
use super::post_norm::plus;
use super::stage::Stage;
use super::term::Term;
use hooklens_model::error::Result;
use hooklens_model::hook;
use hooklens_model::model::ModelParts;

impl Analysis<'_> {
    /// Each head's output to the residual stream before a stage: `L0H0`, `L0H1`, ... Includes the heads of gated delta
    /// nets and of Mamba 2. If a model normalizes attention's output before adding it to the stream, that norm layer is
    /// applied to each head's output with the recorded scale.
    ///
    /// ```
    /// use hooklens::activations::Stage;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// # let prompt = "When Mary and John went to the store, John gave a drink to";
    /// let cache = model.record(prompt, Record::all())?;
    /// let analysis = model.analyze(&cache)?.positions(-1)?;
    /// let heads = analysis.stack_head_results(Stage::Final)?;
    /// let towards_mary = analysis.logit_attrs(&heads, Direction::token("Mary").minus("John"))?.reshape([16]);
    /// let most = towards_mary.argmax(0).into_scalar::<i64>() as usize;
    /// assert!(heads.labels()[most].starts_with("L1")); // heads of layer 1 move the name
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::NotRecorded`](super::AnalysisError::NotRecorded) unless `*attn.hook_z` was recorded; if the
    /// model has `linear_attn`, `ssm` or `conv`, also their `hook_z`; and if attention's output is normalized, also
    /// `*ln1_post.hook_scale`.
    pub fn stack_head_results(&self, stage: Stage) -> Result<Components> {
        let place = self.place(stage)?;
        let mut heads = self.no_components(place);
        for layer in 0..place.attn_layers() {
            self.push_heads(layer, &mut heads)?;
        }
        Ok(heads)
    }

    /// Appends a component `remainder`: the stream at the components' stage minus their sum.
    ///
    /// ```
    /// use hooklens::activations::Stage;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", Record::all())?;
    /// let analysis = model.analyze(&cache)?;
    /// let all = analysis.with_remainder(analysis.stack_head_results(Stage::Final)?)?;
    /// assert_eq!(all.labels().last().map(String::as_str), Some("remainder"));
    /// let gap = all.sum() - analysis.stream(Stage::Final)?;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::NotRecorded`](super::AnalysisError::NotRecorded) unless the stream at that stage was recorded;
    /// [`AnalysisError::Normed`](super::AnalysisError::Normed) if a norm was already applied.
    pub fn with_remainder(&self, mut components: Components) -> Result<Components> {
        if components.is_normed() {
            return Err(super::AnalysisError::Normed.into());
        }
        self.check_made_of(&components)?;
        let rest = self.stream_at(components.place)? - components.sum();
        components.push("remainder", rest);
        Ok(components)
    }

    /// Adds a layer's heads to `parts` and returns the contribution of its output bias,
    /// `[batch or 1, pos or 1, d_model]`. Heads of a state space layer that runs in parallel with attention are labeled
    /// `L0S0`, ...
    pub(super) fn push_heads(&self, layer: usize, parts: &mut Components) -> Result<Option<Tensor<3>>> {
        let block = &self.model.parts().blocks[layer];
        if block.mixer.is_none() {
            return Ok(None);
        }
        let post = self.post_norm(block.ln1_post.as_ref(), hook::ln1_post_scale(layer))?;
        let mut bias = None;
        for (number, (point, output_projection)) in block.mixer_outputs().enumerate() {
            let label = if number == 0 { 'H' } else { 'S' };
            let label = |head: usize| format!("L{layer}{label}{head}");
            bias = plus(bias, output_projection.bias.as_ref().map(|bias| bias.val().unsqueeze()));
            // If a hook edited the heads' results, the heads wrote the edited values.
            if point == "attn.hook_z" && self.is_edited(layer, "attn.hook_result") {
                let results = self.recorded(hook::result(layer))?;
                let [batch, pos, heads, d_model] = results.dims();
                for head in 0..heads {
                    let written = results.clone().narrow(2, head, 1).reshape([batch * pos, d_model]);
                    let written = post.factors(post.outputs(written).reshape([batch, pos, d_model]));
                    parts.push(label(head), self.arrived(layer, parts.place, written));
                }
                continue;
            }
            let z = self.recorded(Point::<4>::in_layer(layer, point))?;
            let [batch, pos, heads, d_head] = z.dims();
            let z = post.factors(z.reshape([batch, pos, heads * d_head])).reshape([batch, pos, heads, d_head]);
            let out = self.arrived(layer, parts.place, post.outputs(output_projection.weight_in(z.dtype())));
            let d_model = out.dims()[1];
            let out = out.reshape([heads, d_head, d_model]);
            parts.extend((0..heads).map(label), Term::Heads { z, out });
        }
        Ok(post.bias(bias))
    }
}
