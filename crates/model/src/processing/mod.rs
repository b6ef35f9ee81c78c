//! Weight processing: folding and centering that keep predictions and make weights easier to interpret.
//!
//! The steps are TransformerLens's; each is done here only where it really keeps the model's
//! log-probabilities. What keeps them: a layer norm ignores the mean of what it reads and a
//! softmax a constant added to all logits; a norm's weights can be moved into the linear maps
//! behind it; every row of an attention pattern sums to one.

mod center;
mod done;
#[cfg(feature = "decompositions")]
mod factor;
mod fold_norm;
mod fold_values;
mod matrix;

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor};

use crate::config::{NormKind, Positional, TransformerConfig};
use crate::error::{ProcessingError, Result};
use crate::model::{Block, HookedTransformer, Linear, narrowed, widened};

/// Which steps to apply when a model is loaded.
///
/// [`Processing::standard`] applies what a model allows and leaves out the rest; a step asked
/// for by its own method is an error where it would change the model's outputs.
///
/// ```
/// use hooklens::{HookedTransformer, LoadOptions, Processing};
/// let plain = HookedTransformer::from_pretrained("embedded:induction")?;
/// let folded = plain.clone().processed(&Processing::none().fold_value_biases())?;
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Processing {
    steps: [Request; Step::ALL.len()],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Request {
    #[default]
    No,
    IfAllowed,
    Yes,
}

/// One step, in the order they are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    FoldNorm,
    CenterWriting,
    CenterUnembed,
    FoldValueBiases,
    #[cfg(feature = "decompositions")]
    Factor,
}

impl Step {
    const ALL: &[Step] = &[
        Step::FoldNorm,
        Step::CenterWriting,
        Step::CenterUnembed,
        Step::FoldValueBiases,
        #[cfg(feature = "decompositions")]
        Step::Factor,
    ];

    fn name(self) -> &'static str {
        match self {
            Step::FoldNorm => "fold_ln",
            Step::CenterWriting => "center_writing_weights",
            Step::CenterUnembed => "center_unembed",
            Step::FoldValueBiases => "fold_value_biases",
            #[cfg(feature = "decompositions")]
            Step::Factor => "refactor_factored_attn_matrices",
        }
    }

    /// Whether there is something for it to change.
    fn changes(self, model: &HookedTransformer) -> bool {
        match self {
            Step::FoldNorm => model.config.norm.has_weight(),
            Step::FoldValueBiases => {
                model.weights.blocks.iter().any(|block| block.attn.as_ref().is_some_and(|attn| attn.v.bias.is_some()))
            }
            _ => true,
        }
    }

    /// Why the step would change this model's outputs, if it would.
    fn obstacle(self, c: &TransformerConfig) -> Option<&'static str> {
        let shortformer = c.positional == Positional::Shortformer;
        match self {
            Step::FoldNorm if c.stream_is_normalized() => {
                Some("the norms' outputs are the residual stream itself, which other weights than theirs read")
            }
            Step::FoldNorm if c.d_vocab_out == 0 => {
                Some("no unembedding stands behind the last norm, whose weights would be lost")
            }
            Step::FoldNorm if shortformer => {
                Some("position vectors are added behind the norm, where its weights would reach them")
            }
            Step::FoldNorm if c.norm.centers() && c.experts.as_ref().is_some_and(|experts| experts.scales_inputs) => {
                Some("experts read the norm's output scaled by their share, its bias with it")
            }
            Step::CenterWriting if !c.norm.centers() || !c.final_norm().centers() => {
                Some("some norm that reads the residual stream does not ignore its mean")
            }
            Step::CenterWriting if c.stream_is_normalized() => {
                Some("the stream is what norms make of it, with biases of their own")
            }
            Step::CenterWriting if c.post_norms => {
                Some("what is written to the residual stream comes from a norm, not from a weight")
            }
            Step::CenterWriting
                if c.per_layer_inputs.is_some() || c.experts.is_some_and(|experts| experts.own_norms) =>
            {
                Some("some of what is written to the residual stream comes from a norm, not from a weight")
            }
            Step::CenterUnembed if c.d_vocab_out == 0 => Some("it has no unembedding"),
            Step::CenterUnembed if c.output_logits_soft_cap.is_some() => {
                Some("the soft cap makes a constant added to all logits matter")
            }
            Step::FoldValueBiases if c.qkv_clip.is_some() => Some("values are clipped behind their biases"),
            Step::FoldValueBiases if c.attn_gates => Some("gates scale what heads give, biases of values with it"),
            Step::FoldValueBiases if c.attn_experts.is_some() => {
                Some("shares of experts scale what heads give, biases of values with it")
            }
            Step::FoldValueBiases if c.qk_norm.is_some_and(|norm| norm.values) => {
                Some("values are normalized behind their biases")
            }
            Step::FoldValueBiases if c.shared_keys.iter().any(Option::is_some) => {
                Some("later layers read values with their biases")
            }
            Step::FoldValueBiases if c.attn_sinks => {
                Some("sinks take a share of attention, so that no constant of the values comes through whole")
            }
            #[cfg(feature = "decompositions")]
            Step::Factor => factor::obstacle(c),
            _ => None,
        }
    }
}

impl Processing {
    /// Weights as published.
    pub fn none() -> Self {
        Self::default()
    }

    /// What TransformerLens does by default: [`fold_ln`](Self::fold_ln),
    /// [`center_writing_weights`](Self::center_writing_weights),
    /// [`center_unembed`](Self::center_unembed) and
    /// [`fold_value_biases`](Self::fold_value_biases), each where the model allows it.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let folded = model.clone().processed(&Processing::standard())?;
    /// let mean = folded.w_u().mean_dim(1); // over the vocabulary
    /// assert!(mean.abs().max().into_scalar::<f32>() < 1e-5);
    /// assert!(folded.weights.blocks[0].ln1.w.is_none()); // the norm's weight has moved
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn standard() -> Self {
        let mut all = Self::none();
        for step in [Step::FoldNorm, Step::CenterWriting, Step::CenterUnembed, Step::FoldValueBiases] {
            all.steps[step as usize] = Request::IfAllowed;
        }
        all
    }

    /// Moves the norms' weights into the linear maps behind them.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let folded = model.clone().processed(&Processing::none().fold_ln())?;
    /// assert!(folded.weights.ln_final.w.is_none() && folded.weights.blocks[0].ln1.w.is_none());
    /// let gap = folded.forward("When Mary")? - model.forward("When Mary")?;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-3);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn fold_ln(self) -> Self {
        self.wish(Step::FoldNorm)
    }

    /// Makes everything written to the residual stream have mean zero.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let centered = model.processed(&Processing::none().center_writing_weights())?;
    /// let stream = centered.record("When Mary", hook::resid_post(-1))?.get(hook::resid_post(-1))?;
    /// assert!(stream.mean_dim(2).abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn center_writing_weights(self) -> Self {
        self.wish(Step::CenterWriting)
    }

    /// Makes the unembedding have mean zero over the vocabulary.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let centered = model.processed(&Processing::none().center_unembed())?;
    /// let logits = centered.forward("When Mary")?;
    /// assert!(logits.mean_dim(2).abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn center_unembed(self) -> Self {
        self.wish(Step::CenterUnembed)
    }

    /// Moves the value biases into attention's output bias.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let folded = model.processed(&Processing::none().fold_value_biases())?;
    /// assert_eq!(folded.b_v().abs().max().into_scalar::<f32>(), 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn fold_value_biases(self) -> Self {
        self.wish(Step::FoldValueBiases)
    }

    /// Replaces each head's query and key (value and output) matrices by orthogonal ones of the
    /// same product, times the singular values.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let turned = model.clone().processed(&Processing::none().refactor_factored_attn_matrices())?;
    /// let gap = turned.forward("When Mary")? - model.forward("When Mary")?;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-3);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[cfg(feature = "decompositions")]
    #[must_use]
    pub fn refactor_factored_attn_matrices(self) -> Self {
        self.wish(Step::Factor)
    }

    fn wish(mut self, step: Step) -> Self {
        self.steps[step as usize] = Request::Yes;
        self
    }

    /// Whether there is nothing to do.
    ///
    /// ```
    /// use hooklens::Processing;
    /// assert!(Processing::none().is_none() && !Processing::standard().is_none());
    /// ```
    pub fn is_none(&self) -> bool {
        self.steps.iter().all(|wish| *wish == Request::No)
    }

    /// Steps that these leave out for a model of this configuration, each
    /// with the reason.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let steps = Processing::standard().left_out(model.config());
    /// assert_eq!(steps[0].0, "fold_ln"); // its positions are added behind the norm
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn left_out(&self, config: &TransformerConfig) -> Vec<(&'static str, &'static str)> {
        let asked = Step::ALL.iter().filter(|step| self.steps[**step as usize] != Request::No);
        asked.filter_map(|step| step.obstacle(config).map(|why| (step.name(), why))).collect()
    }
}

impl HookedTransformer {
    /// The model with these steps applied. Weights that gradients are kept for are parameters of their own afterwards.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let told = model.clone().processed(&Processing::none().fold_ln()).unwrap_err().to_string();
    /// assert!(told.starts_with("`fold_ln` can't be applied to this model: "), "{told}");
    /// assert!(model.processed(&Processing::standard()).is_ok()); // leaves it out
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ProcessingError::WouldChangeOutputs`] for a step asked for by name that this model does
    /// not allow.
    pub fn processed(mut self, processing: &Processing) -> Result<Self> {
        if processing.is_none() {
            return Ok(self);
        }
        let parts: Vec<String> = self.points.named_parts().collect();
        if !parts.is_empty() {
            return Err(ProcessingError::Spliced { parts }.into());
        }
        let as_made = self.identities.are_as_made(&self.weights);
        // Steps change plain tensors, in place where they can: afterwards the weights are tracked again.
        let (first, last) = (self.weights.device(), self.weights.unembed.device());
        let layers: Vec<Device> = self.weights.blocks.iter().map(Block::device).collect();
        self.weights = self.weights.widened().valid();
        for &step in Step::ALL {
            let wish = processing.steps[step as usize];
            match (wish, step.obstacle(&self.config)) {
                (Request::No, _) | (Request::IfAllowed, Some(_)) => continue,
                (Request::Yes, Some(reason)) => {
                    return Err(ProcessingError::WouldChangeOutputs { step: step.name(), reason }.into());
                }
                (_, None) => {}
            }
            if step.changes(&self) {
                Arc::make_mut(&mut self.report).processed.push(step.name());
            }
            match step {
                Step::FoldNorm => fold_norm::apply(&mut self),
                Step::CenterWriting => center::writing_weights(&mut self),
                Step::CenterUnembed => center::unembed(&mut self),
                Step::FoldValueBiases => fold_values::apply(&mut self),
                #[cfg(feature = "decompositions")]
                Step::Factor => factor::apply(&mut self)?,
            }
        }
        self.weights = self.weights.placed(&first, |layer| layers[layer].clone(), &last);
        self.identities = self.identities.converted(as_made, &self.weights);
        Ok(self)
    }
}

/// Replaces a vector by what `change` makes of it, computed in `f32` at least.
fn change_vector(param: &mut Param<Tensor<1>>, change: impl FnOnce(Tensor<1>) -> Tensor<1>) {
    let value = param.val();
    let dtype = value.dtype();
    *param = Param::from_tensor(narrowed(change(widened(value)), dtype));
}

/// Adds `extra` to a linear map's bias, which is made of this element type if there is none.
fn add_bias(linear: &mut Linear, extra: Tensor<1>, dtype: DType) {
    match &mut linear.bias {
        Some(bias) => change_vector(bias, |b| b + extra),
        None => linear.bias = Some(Param::from_tensor(narrowed(extra, dtype))),
    }
}

/// `row · matrix`, both in `f32` at least, some columns at a time.
fn times(row: Tensor<1>, linear: &Linear) -> Tensor<1> {
    let row = widened(row).unsqueeze::<2>();
    let matrix = linear.weight.val();
    let [rows, columns] = matrix.dims();
    let step = (matrix::PIECE / rows).max(1);
    let pieces = (0..columns).step_by(step).map(|start| {
        let piece = matrix.clone().narrow(1, start, step.min(columns - start));
        row.clone().matmul(widened(piece)).squeeze_dim::<1>(0)
    });
    Tensor::cat(pieces.collect(), 0)
}

/// The configuration after its norms' weights were folded.
fn folded(c: &TransformerConfig) -> TransformerConfig {
    let final_rms = c.final_rms && c.norm != NormKind::None;
    TransformerConfig { norm: c.norm.folded(), final_rms, ..c.clone() }
}
