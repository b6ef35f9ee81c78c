//! Weight processing: folding and centering that preserve predictions and make weights easier to interpret.
//!
//! The steps are TransformerLens's. Each is applied only where it preserves the model's log-probabilities. They rely on
//! these facts: a layer norm ignores the mean of its input, and a softmax ignores a constant added to all logits; a
//! norm's weights can be folded into the linear maps after it; every row of an attention pattern sums to one.

mod center;
mod done;
#[cfg(feature = "decompositions")]
mod factor;
mod fold_norm;
mod fold_values;
mod matrix;

use std::sync::Arc;

pub use done::{has_folded_norms, has_folded_value_biases, is_centered, processing_options};

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor};

use crate::config::{Layers, NormDetails, NormKind, Positional, Settings, TransformerConfig};
use crate::error::{ProcessingError, Result};
use crate::model::{Block, HookedTransformer, Linear, narrowed, widened};

/// Processing steps to apply when a model is loaded.
///
/// [`Processing::standard`] applies the steps that the model allows and skips the others. Requesting a step by its own
/// method is an error if the step would change the model's outputs.
///
/// ```
/// # use hooklens::FromPretrained;
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

/// Processing steps, in the order in which they are applied.
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

    /// Whether the step has anything to change in this model.
    fn changes(self, model: &HookedTransformer) -> bool {
        match self {
            Step::FoldNorm => model.config.norm.has_weight(),
            Step::FoldValueBiases => {
                model.weights.parts.blocks.iter().any(|block| block.attn().is_some_and(|attn| attn.v.bias.is_some()))
            }
            _ => true,
        }
    }

    /// Reason why the step would change this model's outputs, if it would.
    fn obstacle(self, c: &TransformerConfig) -> Option<&'static str> {
        let shortformer = c.positional == Positional::Shortformer;
        match self {
            Step::FoldNorm if c.stream_is_normalized() => {
                Some("the norms' outputs form the residual stream, which other weights read as well")
            }
            Step::FoldNorm if c.d_vocab_out == 0 => {
                Some("there is no unembedding after the final norm to fold its weights into")
            }
            Step::FoldNorm if shortformer => {
                Some("position vectors are added after the norm, so folding its weights would change them")
            }
            Step::FoldNorm if c.norm.centers() && c.experts().as_ref().is_some_and(|experts| experts.scales_inputs) => {
                Some("experts read the norm's output, including its bias, scaled by their router weights")
            }
            Step::CenterWriting if !c.norm.centers() || !c.final_norm().centers() => {
                Some("a norm that reads the residual stream does not subtract its mean")
            }
            Step::CenterWriting if c.stream_is_normalized() => {
                Some("the residual stream is the output of norms with their own biases")
            }
            Step::CenterWriting if c.post_norms => {
                Some("what is written to the residual stream is the output of a norm, not of a weight matrix")
            }
            Step::CenterWriting
                if c.per_layer_inputs.is_some() || c.experts().is_some_and(|experts| experts.own_norms) =>
            {
                Some("some of what is written to the residual stream is the output of a norm, not of a weight matrix")
            }
            Step::CenterUnembed if c.d_vocab_out == 0 => Some("it has no unembedding"),
            Step::CenterUnembed if c.output_logits_soft_cap.is_some() => {
                Some("with the soft cap, a constant added to all logits changes the outputs")
            }
            Step::FoldValueBiases if c.qkv_clip.is_some() => Some("values are clipped after their biases are added"),
            Step::FoldValueBiases if c.attn_gates => Some("gates scale head outputs, including the value biases"),
            Step::FoldValueBiases if c.attn_experts.is_some() => {
                Some("router weights scale head outputs, including the value biases")
            }
            Step::FoldValueBiases if c.qk_norm.is_some_and(|norm| norm.values) => {
                Some("values are normalized after their biases are added")
            }
            Step::FoldValueBiases if c.shares_keys() => Some("later layers reuse the values, including their biases"),
            Step::FoldValueBiases if c.attn_sinks => Some(
                "sinks receive part of the attention, so a bias added to the values does not reach the output in full",
            ),
            #[cfg(feature = "decompositions")]
            Step::Factor => factor::obstacle(c),
            _ => None,
        }
    }
}

impl Processing {
    /// Leaves the weights as published.
    pub fn none() -> Self {
        Self::default()
    }

    /// TransformerLens's defaults: [`fold_ln`](Self::fold_ln),
    /// [`center_writing_weights`](Self::center_writing_weights), [`center_unembed`](Self::center_unembed) and
    /// [`fold_value_biases`](Self::fold_value_biases), each where the model allows it.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let folded = model.clone().processed(&Processing::standard())?;
    /// let mean = folded.w_u().mean_dim(1); // over the vocabulary
    /// assert!(mean.abs().max().into_scalar::<f32>() < 1e-5);
    /// assert!(folded.weights().get::<1>("blocks.0.ln1.w").is_err()); // the norm's weight was folded
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn standard() -> Self {
        let mut all = Self::none();
        for step in [Step::FoldNorm, Step::CenterWriting, Step::CenterUnembed, Step::FoldValueBiases] {
            all.steps[step as usize] = Request::IfAllowed;
        }
        all
    }

    /// Folds the norms' weights into the linear maps after them.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let folded = model.clone().processed(&Processing::none().fold_ln())?;
    /// assert!(!folded.weights().names().contains(&"ln_final.w".to_string()));
    /// let gap = folded.forward("When Mary")? - model.forward("When Mary")?;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-3);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn fold_ln(self) -> Self {
        self.wish(Step::FoldNorm)
    }

    /// Centers every weight that writes to the residual stream, so that the stream has mean zero.
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

    /// Centers the unembedding, so that logits have mean zero over the vocabulary.
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

    /// Folds the value biases into the attention's output bias.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let folded = model.processed(&Processing::none().fold_value_biases())?;
    /// assert_eq!(folded.stacked::<3>("b_V")?.abs().max().into_scalar::<f32>(), 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn fold_value_biases(self) -> Self {
        self.wish(Step::FoldValueBiases)
    }

    /// Replaces each head's query and key matrices, and likewise its value and output matrices, with orthogonal
    /// matrices scaled by the singular values of the pair's product. The product is unchanged.
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

    /// Whether no steps are requested.
    fn is_none(&self) -> bool {
        self.steps.iter().all(|wish| *wish == Request::No)
    }
}

/// Whether `processing` requests no steps.
pub fn is_none(processing: &Processing) -> bool {
    processing.is_none()
}

/// Requested steps that are skipped for a model of this configuration, each with the reason.
pub fn skipped_steps(processing: &Processing, config: &TransformerConfig) -> Vec<(&'static str, &'static str)> {
    let asked = Step::ALL.iter().filter(|step| processing.steps[**step as usize] != Request::No);
    asked.filter_map(|step| step.obstacle(config).map(|why| (step.name(), why))).collect()
}

impl HookedTransformer {
    /// Applies processing steps to the model. Weights that track gradients become new parameters.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let message = model.clone().processed(&Processing::none().fold_ln()).unwrap_err().to_string();
    /// assert!(message.starts_with("`fold_ln` can't be applied to this model: "), "{message}");
    /// assert!(model.processed(&Processing::standard()).is_ok()); // skips the step
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ProcessingError::WouldChangeOutputs`] if a step requested by name would change this model's outputs, or if the
    /// model rounds the inputs of products, since any step would convert the weights to `f32`.
    pub fn processed(mut self, processing: &Processing) -> Result<Self> {
        if processing.is_none() {
            return Ok(self);
        }
        let parts: Vec<String> = self.points.named_parts().collect();
        if !parts.is_empty() {
            return Err(ProcessingError::Spliced { parts }.into());
        }
        let requested = Step::ALL.iter().find(|step| processing.steps[**step as usize] != Request::No);
        if let Some(step) = requested.filter(|_| self.weights.parts.rounds_inputs()) {
            let reason = "it would convert the weights to f32, so that the inputs of products would no longer be rounded; \
                          load the model without rounding";
            return Err(ProcessingError::WouldChangeOutputs { step: step.name(), reason }.into());
        }
        let as_made = self.identities.are_as_made(&self.weights.parts);
        // The steps change plain tensors, in place where possible; autodiff tracking is restored afterwards.
        let (first, last) = (self.weights.parts.device(), self.weights.parts.unembed.device());
        let layers: Vec<Device> = self.weights.parts.blocks.iter().map(Block::device).collect();
        self.weights.parts = self.weights.parts.widened().valid();
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
        self.weights.parts = self.weights.parts.placed(&first, |layer| layers[layer].clone(), &last);
        self.identities = self.identities.converted(as_made, &self.weights.parts);
        Ok(self)
    }
}

/// Applies `change` to a vector, in at least `f32` precision.
fn change_vector(param: &mut Param<Tensor<1>>, change: impl FnOnce(Tensor<1>) -> Tensor<1>) {
    let value = param.val();
    let dtype = value.dtype();
    *param = Param::from_tensor(narrowed(change(widened(value)), dtype));
}

/// Adds `extra` to a linear map's bias, creating a bias of type `dtype` if there is none.
fn add_bias(linear: &mut Linear, extra: Tensor<1>, dtype: DType) {
    match &mut linear.bias {
        Some(bias) => change_vector(bias, |b| b + extra),
        None => linear.bias = Some(Param::from_tensor(narrowed(extra, dtype))),
    }
}

/// Computes `row · matrix` in at least `f32` precision, some columns at a time.
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

/// Configuration after the norms' weights were folded.
fn folded(c: &TransformerConfig) -> TransformerConfig {
    let final_rms = c.final_rms && c.norm != NormKind::None;
    c.clone().with_norm(c.norm.folded()).with_final_rms(final_rms)
}
