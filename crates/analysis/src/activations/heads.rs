//! The residual stream by the heads that wrote to it.

use burn::tensor::Tensor;

use super::analysis::Analysis;
use super::components::Components;
use super::stage::Stage;
use super::term::Term;
use hooklens_model::error::Result;
use hooklens_model::hook;

impl Analysis<'_> {
    /// Each head's output, summed into the stream before a stage: `L0H0`, `L0H1`, ..., those of gated delta nets and of Mamba 2 too. Where a model
    /// normalizes attention's output before adding it, a head's share of that.
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
    /// [`AnalysisError::NotRecorded`](super::AnalysisError::NotRecorded): needs `*attn.hook_z` (those of `linear_attn`, `ssm` and `conv` too), and
    /// `*ln1_post.hook_scale` where attention's output is normalized; an error before the first
    /// layer, where no head has written.
    pub fn stack_head_results(&self, stage: Stage) -> Result<Components> {
        let place = self.place(stage)?;
        let mut heads = self.no_components(place);
        for layer in 0..place.attn_layers() {
            self.push_heads(layer, &mut heads)?;
        }
        Ok(heads)
    }

    /// The components and, as `remainder`, what the stream at their stage is besides their sum.
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
    /// [`AnalysisError::NotRecorded`](super::AnalysisError::NotRecorded): needs the stream there;
    /// [`AnalysisError::Normed`](super::AnalysisError::Normed).
    pub fn with_remainder(&self, mut components: Components) -> Result<Components> {
        if components.is_normed() {
            return Err(super::AnalysisError::Normed.into());
        }
        self.check_made_of(&components)?;
        let rest = self.stream_at(components.place)? - components.sum();
        components.push("remainder", rest);
        Ok(components)
    }

    /// Adds a layer's heads, and gives what its bias adds, `[batch or 1, pos or 1, d_model]`.
    pub(super) fn push_heads(&self, layer: usize, parts: &mut Components) -> Result<Option<Tensor<3>>> {
        let block = &self.model.weights.blocks[layer];
        let Some(mixed) = block.mixed() else { return Ok(None) };
        let post = self.post_norm(block.ln1_post.as_ref(), hook::ln1_post_scale(layer))?;
        let bias = || post.bias(mixed.bias.as_ref().map(|bias| bias.val().unsqueeze()));
        // What a hook made of heads' results is what they wrote.
        if self.is_edited(layer, "attn.hook_result") {
            let results = self.recorded(hook::result(layer))?;
            let [batch, pos, heads, d_model] = results.dims();
            for head in 0..heads {
                let written = results.clone().narrow(2, head, 1).reshape([batch * pos, d_model]);
                let written = post.factors(post.outputs(written).reshape([batch, pos, d_model]));
                parts.push(format!("L{layer}H{head}"), self.arrived(layer, parts.place, written));
            }
            return Ok(bias());
        }
        let z = match (&block.delta, &block.ssm, &block.conv) {
            (Some(_), ..) => self.recorded(hook::linear_z(layer))?,
            (_, Some(_), _) => self.recorded(hook::ssm_z(layer))?,
            (.., Some(_)) => self.recorded(hook::conv_z(layer))?,
            _ => self.recorded(hook::z(layer))?,
        };
        let [batch, pos, heads, d_head] = z.dims();
        let z = post.factors(z.reshape([batch, pos, heads * d_head])).reshape([batch, pos, heads, d_head]);
        let out = self.arrived(layer, parts.place, post.outputs(mixed.weight_in(z.dtype())));
        let d_model = out.dims()[1];
        let out = out.reshape([heads, d_head, d_model]);
        parts.extend((0..heads).map(|head| format!("L{layer}H{head}")), Term::Heads { z, out });
        Ok(bias())
    }
}
