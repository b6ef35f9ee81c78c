//! Operations common to all hooked models, whatever their architecture.

mod execute;
mod gradients;
mod input;
mod options;
mod scope;

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use hooklens_hooks::{ActivationCache, Catalog, Hook, Part, Record, Selection};

use crate::device::guarded;
use crate::error::{InputError, Result};
use crate::tokens::Tokenizer;

pub use execute::{Plan, execute, length};
pub use input::Input;
pub use options::{ForwardOptions, Logits, for_copies, with_identity};
pub use scope::{Hooked, unhooked};

/// Output of a run: recordings, and tensors that can be differentiated.
pub trait RunOutput: Sized + private::Sealed {
    /// The recordings.
    fn cache(&mut self) -> &mut ActivationCache;

    /// The main output: logits, `[batch, pos, d_vocab]`, or the residual stream of a run with `stop_at_layer`.
    ///
    /// # Errors
    /// [`InputError::NoOutput`] or [`InputError::NoHead`] if the run did not compute it.
    fn main(&self) -> Result<Tensor<3>>;

    /// The output, detached from the autodiff graph.
    #[doc(hidden)]
    fn without_history(self) -> Self;
}

/// A model whose activations can be recorded and changed: a decoder
/// ([`HookedTransformer`](crate::model::HookedTransformer)), an encoder
/// ([`HookedEncoder`](crate::encoder::HookedEncoder)), an encoder-decoder
/// ([`HookedEncoderDecoder`](crate::encoder_decoder::HookedEncoderDecoder)), or any of them with persistent hooks
/// ([`Hooked`]).
///
/// The associated types are the `Input` of a run, its `Output`, and `Scored`, which the `scalar` function of
/// [`run_with_gradients`](HookedModel::run_with_gradients) receives: logits, `[batch, pos, d_vocab]`, or for an encoder
/// its whole output.
///
/// ```
/// use hooklens::prelude::*;
///
/// /// The mean attention that each head of a layer pays to the first position, `[head]`.
/// fn on_first<M: HookedModel>(model: &M, input: M::Input, layer: usize) -> Result<Tensor<1>, hooklens::Error> {
///     let pattern = model.record(input, hook::pattern(layer))?.get(hook::pattern(layer))?; // [batch, head, query, key]
///     let heads = pattern.dims()[1];
///     Ok(pattern.narrow(3, 0, 1).mean_dim(2).mean_dim(0).reshape([heads]))
/// }
///
/// let decoder = HookedTransformer::from_pretrained("embedded:induction")?;
/// assert_eq!(on_first(&decoder, "red fox".into(), 0)?.dims(), [4]);
/// let encoder = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
/// assert_eq!(on_first(&encoder, [2, 5, 9, 3].into(), 0)?.dims(), [encoder.config().n_heads()]);
/// # Ok::<(), hooklens::Error>(())
/// ```
pub trait HookedModel: Sized + private::RunModel {
    /// All points that the model can fire, in firing order, including the points of spliced parts.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let names: Vec<&str> = model.catalog().points().iter().map(|point| &*point.name).collect();
    /// assert_eq!(names[..3], ["hook_tokens", "hook_embed", "hook_pos_embed"]); // in firing order
    /// // Points that other models have, with the reason why this one lacks them.
    /// let absence = ("embed.ln.hook_scale", "the embedding has no norm");
    /// assert!(model.catalog().absent().any(|absent| absent == absence));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    fn catalog(&self) -> &Arc<Catalog>;

    /// Device of the weights; for a model spread over several devices, the first, which holds the embedding.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// assert_eq!(model.device(), hooklens::default_device()?);
    /// assert_eq!(model.devices(), [model.device()]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    fn device(&self) -> Device;

    /// The devices that hold the model's weights, in the order in which a run uses them.
    fn devices(&self) -> Vec<Device>;

    /// The tokenizer.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// assert_eq!(model.tokenizer()?.encode("red fox")?, [1, 9]);
    /// let random = HookedTransformer::random(TransformerConfig::new(1, 16, 2, 20, 8), 0, &Device::flex())?;
    /// assert!(random.tokenizer().is_err());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::NoTokenizer`] if the model was loaded without one.
    fn tokenizer(&self) -> Result<&Tokenizer>;

    /// Computes the logits of a residual stream as if it were the last layer's output (the logit lens): applies the
    /// final norm, if the model has one, and the unembedding with its soft cap; in an encoder, the masked-token head.
    /// In an encoder-decoder, the stream is the decoder's residual stream.
    ///
    /// # Shapes
    /// - stream: `[batch, pos, d_model]`
    /// - output: `[batch, pos, d_vocab_out]`
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let stream = model.record("When Mary and John", hook::resid_post(1))?.get(hook::resid_post(1))?;
    /// assert_eq!(model.unembed(stream)?.dims()[2], model.config().d_vocab_out());
    ///
    /// let encoder = HookedEncoder::from_pretrained("../../tests/fixtures/bert-pretraining")?;
    /// let gap = encoder.unembed(encoder.encode([2, 5, 9, 3])?)? - encoder.forward([2, 5, 9, 3])?;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::Residual`] if the stream has the wrong width, [`InputError::Device`] if it is not on one of the
    /// model's devices, and [`InputError::NoHead`] if the model has no unembedding.
    fn unembed(&self, stream: Tensor<3>) -> Result<Tensor<3>>;

    /// Descriptions of everything that changes all runs of this model: parts spliced into it, and persistent editing
    /// hooks.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// assert!(model.interventions().is_empty());
    /// assert_eq!(model.hooks([hook::z(0).head(1).zero()]).interventions(), ["Hook(edit [\"blocks.0.attn.hook_z\"] head 1: zero)"]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    fn interventions(&self) -> Vec<String>;

    /// Runs the model with the given options. A [`Record`] can be passed instead of options.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun")?;
    /// let star = model.to_single_token("star")?;
    /// let options = ForwardOptions::new().logits(Logits::Last).kv_cache(&mut cache).record("*hook_pattern");
    /// let output = model.run([star], options)?;
    /// assert_eq!(output.logits.map(|logits| logits.dims()), Some([1, 1, 63]));
    /// assert_eq!(output.cache.get(hook::pattern(0))?.dims(), [1, 4, 1, 5]); // attends to cached positions too
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the input or an option is invalid, if this kind of model does not support an option, or if a hook
    /// fails, and with [`Error::OutOfMemory`](crate::error::Error::OutOfMemory) if a device runs out of memory.
    fn run<'h>(&self, input: impl Into<Self::Input>, options: impl Into<ForwardOptions<'h>>) -> Result<Self::Output> {
        guarded(|| self.devices(), || self.run_checked(input.into(), options.into()))
    }

    /// Runs the model and returns its logits, `[batch, pos, d_vocab]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// assert_eq!(model.forward("red fox blue red")?.dims(), [1, 5, 63]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::run`], and [`InputError::NoHead`] for an encoder without a masked-token head.
    fn forward(&self, input: impl Into<Self::Input>) -> Result<Tensor<3>> {
        self.forward_with(input, ForwardOptions::new())
    }

    /// Runs the model and returns the logits, or the residual stream at `stop_at_layer`.
    ///
    /// # Shapes
    /// - output: `[batch, pos, d_vocab]`; `[batch, 1, d_vocab]` for [`Logits::Last`]; `[batch, pos, d_model]` with
    ///   `stop_at_layer`
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let last = model.forward_with("red fox blue red", ForwardOptions::new().logits(Logits::Last))?;
    /// assert_eq!(last.dims(), [1, 1, 63]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::forward`].
    fn forward_with<'h>(
        &self,
        input: impl Into<Self::Input>,
        options: impl Into<ForwardOptions<'h>>,
    ) -> Result<Tensor<3>> {
        let options = options.into();
        options.check_gives_output()?;
        self.run(input, options)?.main()
    }

    /// Runs the model and records activations. Returns the logits and the recordings.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let (logits, cache) = model.run_with_cache("red fox blue red", Record::all())?;
    /// let resid = cache.get(hook::resid_post(-1))?;
    /// assert_eq!(resid.dims()[..2], logits.dims()[..2]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::forward`]. Also fails, before anything runs, if a name is unknown or a pattern matches no
    /// point.
    fn run_with_cache(
        &self,
        input: impl Into<Self::Input>,
        record: impl Into<Record>,
    ) -> Result<(Tensor<3>, ActivationCache)> {
        let mut output = self.run(input, ForwardOptions::new().record(record))?;
        Ok((output.main()?, std::mem::take(output.cache())))
    }

    /// Records activations and stops after the last requested point.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary", ["pattern0", "resid_post1"])?; // layers 2 and 3 are not run
    /// let names: Vec<&str> = cache.names().collect();
    /// assert_eq!(names, ["blocks.0.attn.hook_pattern", "blocks.1.hook_resid_post"]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::run_with_cache`].
    fn record(&self, input: impl Into<Self::Input>, record: impl Into<Record>) -> Result<ActivationCache> {
        Ok(std::mem::take(self.run(input, ForwardOptions::new().logits(Logits::None).record(record))?.cache()))
    }

    /// Runs the model with hooks and returns the logits. The hooks apply to this run only.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut widths = vec![];
    /// let ablated = model.run_with_hooks("red fox blue red", [
    ///     hook::z(0).head(2).zero(),
    ///     hook::pattern(1).read(|pattern, _| widths.push(pattern.dims()[3])),
    /// ])?;
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::forward`].
    fn run_with_hooks<'h>(
        &self,
        input: impl Into<Self::Input>,
        hooks: impl IntoIterator<Item = Hook<'h>>,
    ) -> Result<Tensor<3>> {
        self.forward_with(input, ForwardOptions::new().hooks(hooks))
    }

    /// A view of the model whose runs all use these hooks. Dropping it removes the hooks; the model itself never
    /// changes.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let hooked = model.hooks([hook::attn_out(0).zero()]);
    /// let ablated = hooked.forward("red fox")?;
    /// let (_, cache) = hooked.run_with_cache("red fox", "blocks.1.*")?;
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    fn hooks<'m, 'h>(&'m self, hooks: impl IntoIterator<Item = Hook<'h>>) -> Hooked<'m, 'h, Self> {
        Hooked::new(self, hooks)
    }

    /// Runs the model, computes a scalar from its logits, and records the gradients of the scalar with respect to the
    /// recorded activations. The output's cache holds both: activations through
    /// [`get`](hooklens_hooks::ActivationCache::get), as in `get(hook::z(3))`, and gradients through
    /// [`grad`](hooklens_hooks::ActivationCache::grad), or by name as `blocks.3.attn.hook_z_grad`.
    ///
    /// No gradients are computed for the weights. Gradient hooks ([`edit_grad`](crate::hook::Point::edit_grad),
    /// [`read_grad`](crate::hook::Point::read_grad)) run in the backward pass, last point first; an edited gradient is
    /// both propagated and recorded. For each edited gradient, the model is run again up to the gradient's hook point,
    /// so hooks may be called several times.
    ///
    /// # Shapes
    /// - scored: a decoder's logits, `[batch, pos, d_vocab]`, or `[batch, 1, d_vocab]` for [`Logits::Last`]; an
    ///   encoder's output
    /// - the scalar: `[1]`; longer tensors are summed
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let prompt = "When Mary and John went to the store, John gave a drink to";
    /// let (mary, john) = (model.to_single_token("Mary")? as usize, model.to_single_token("John")? as usize);
    /// let options = ForwardOptions::new().logits(Logits::Last).record("*hook_z");
    /// let output = model.run_with_gradients(prompt, options, |logits| {
    ///     (logits.clone().narrow(2, mary, 1) - logits.narrow(2, john, 1)).reshape([1])
    /// })?;
    /// let (z, grad) = (output.cache.get(hook::z(3))?, output.cache.grad(hook::z(3))?);
    /// assert_eq!(z.dims(), grad.dims());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::run`], and errors if the record keeps only parts of activations, if the key-value cache
    /// can grow, or if the scalar does not depend on a recorded activation.
    fn run_with_gradients<'h>(
        &self,
        input: impl Into<Self::Input>,
        options: impl Into<ForwardOptions<'h>>,
        scalar: impl FnOnce(Self::Scored) -> Tensor<1>,
    ) -> Result<Self::Output> {
        gradients::run_with_gradients(self, input.into(), options.into(), scalar)
    }

    /// Returns the model with a part, such as a sparse autoencoder or an adapter, spliced in at a point. See [`Part`].
    ///
    /// The part's points behave like the model's own: they are listed, selected, recorded, edited, differentiated,
    /// patched, and dumped. The original model is unchanged and shares its weights. Parts can be added at several
    /// points, and several parts at one point run in sequence.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// use hooklens::{Halt, hook::{Inside, Part, PartPoint}};
    ///
    /// /// One feature per coordinate: its positive part.
    /// struct Positive;
    ///
    /// impl Part for Positive {
    ///     fn name(&self) -> String {
    ///         "positive".into()
    ///     }
    ///
    ///     fn points(&self) -> Vec<PartPoint> {
    ///         vec![PartPoint::new("hook_acts", &[Axis::Batch, Axis::Pos, Axis::Feature])]
    ///     }
    ///
    ///     fn forward(&self, x: Activation, inside: &mut Inside<'_, '_, '_>) -> Result<Activation, Halt> {
    ///         Ok(inside.fire("hook_acts", x.to_tensor::<3>()?.clamp_min(0.0))?.into())
    ///     }
    /// }
    ///
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let spliced = model.splice(hook::resid_post(1), Positive)?;
    /// let acts = hook::resid_post(1).inner::<3>("hook_acts");
    /// let cache = spliced.record("When Mary and John", &acts)?;
    /// assert!(cache.get(&acts)?.min().into_scalar::<f32>() >= 0.0);
    /// let without_unit_7 = spliced.run_with_hooks("When Mary and John", [acts.unit(7).zero()])?;
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError`](hooklens_hooks::HookError) for a point that is unknown, holds integers, or already has inner
    /// points with these names.
    fn splice(&self, point: impl Into<Selection>, part: impl Part + 'static) -> Result<Self>
    where
        Self: private::Spliceable,
    {
        Ok(self.with_points(self.points().with_part(None, point.into(), part)?))
    }

    /// Returns the model with a part that reads one point and writes to a later one. An example is a transcoder, which
    /// reads the MLP's input (`blocks.5.mlp.hook_in`) and replaces its output (`blocks.5.hook_mlp_out`).
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// use hooklens::{Halt, hook::{Inside, Part, PartPoint}};
    ///
    /// /// Replaces an MLP: its output is half of its input.
    /// struct Half;
    ///
    /// impl Part for Half {
    ///     fn name(&self) -> String {
    ///         "half".into()
    ///     }
    ///
    ///     fn points(&self) -> Vec<PartPoint> {
    ///         vec![]
    ///     }
    ///
    ///     fn forward(&self, x: Activation, _: &mut Inside<'_, '_, '_>) -> Result<Activation, Halt> {
    ///         Ok((x.to_tensor::<3>()? * 0.5).into())
    ///     }
    /// }
    ///
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let spliced = model.splice_between(hook::mlp_reads(0), hook::mlp_out(0), Half)?;
    /// let cache = spliced.record("When Mary", [hook::mlp_reads(0), hook::mlp_out(0)])?;
    /// let gap = cache.get(hook::mlp_reads(0))? * 0.5 - cache.get(hook::mlp_out(0))?;
    /// assert_eq!(gap.abs().max().into_scalar::<f32>(), 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::splice`], and an error if the point to read fires after the point to write.
    fn splice_between(
        &self,
        read: impl Into<Selection>,
        write: impl Into<Selection>,
        part: impl Part + 'static,
    ) -> Result<Self>
    where
        Self: private::Spliceable,
    {
        Ok(self.with_points(self.points().with_part(Some(read.into()), write.into(), part)?))
    }
}

/// Seals [`HookedModel`] and [`RunOutput`]; not re-exported by `hooklens`.
pub mod private {
    use hooklens_hooks::{HookError, PointInfo};

    use super::{ForwardOptions, RunOutput};
    use crate::config::TransformerConfig;
    use crate::error::Result;
    use crate::points::Points;

    /// Restricts the model and output traits to this crate's types.
    pub trait Sealed {}

    /// How a kind of model runs. [`HookedModel`](super::HookedModel) is the interface for users.
    pub trait RunModel: Sealed {
        /// Input of a run.
        type Input: Clone;
        /// Output of a run.
        type Output: RunOutput;
        /// Argument of the `scalar` function in [`run_with_gradients`](super::HookedModel::run_with_gradients): logits,
        /// `[batch, pos, d_vocab]`, or for an encoder its whole output.
        type Scored;

        /// Complete descriptions of the persistent editing hooks; see
        /// [`HookDetails::identity`](hooklens_hooks::HookDetails::identity).
        fn hook_identities(&self) -> Result<Vec<Result<String, HookError>>> {
            Ok(Vec::new())
        }

        /// Runs the model without the error handling of [`run`](super::HookedModel::run).
        fn run_checked(&self, input: Self::Input, options: ForwardOptions<'_>) -> Result<Self::Output>;

        /// Whether hooks depend on row numbers, so that a batch must not be split.
        fn tells_rows_apart(&self) -> bool {
            false
        }

        /// Whether hooks act at positions counted from the end of a text, so that the text must not be split.
        fn counts_from_the_end(&self) -> bool {
            false
        }

        /// Whether `run_with_gradients` requires logits.
        const NEEDS_LOGITS: bool = true;

        /// Extracts the argument of the `scalar` function from an output.
        fn scored(output: &Self::Output) -> Result<Self::Scored>;
    }

    /// A model that owns its points.
    pub trait Spliceable {
        /// The model's hook points, including the points of spliced modules.
        fn points(&self) -> &Points;

        /// Returns a model with these points and the same weights.
        #[must_use]
        fn with_points(&self, points: Points) -> Self;

        /// Configuration of the model's blocks. For a model with two stacks, the configuration of the decoder's blocks.
        fn block_shape(&self) -> &TransformerConfig;

        /// The model itself, if its weights may have been processed.
        fn processed_model(&self) -> Option<&dyn std::any::Any> {
            None
        }

        /// Configuration of the blocks that a point belongs to.
        fn shape_at(&self, _: &PointInfo) -> &TransformerConfig {
            self.block_shape()
        }
    }
}

/// Returns the logits of a run, or an error if the run did not compute them.
pub(crate) fn logits_of(logits: &Option<Tensor<3>>) -> Result<Tensor<3>> {
    Ok(logits.clone().ok_or(InputError::NoOutput { what: "logits" })?)
}
