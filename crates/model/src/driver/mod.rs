//! What every hooked model can do, whichever its architecture.

mod drive;
mod gradients;
mod input;
mod options;
mod scope;

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use hooklens_hooks::{ActivationCache, Catalog, Hook, HookError, Part, Record, Selection};

use crate::device::guarded;
use crate::error::{InputError, Result};
use crate::tokens::Tokenizer;

pub use drive::{Plan, drive, length};
pub use input::Input;
pub use options::{ForwardOptions, Logits};
pub use scope::Hooked;

/// What a run gives: recordings, and outputs that may be differentiated.
pub trait RunOutput: Sized + private::Sealed {
    /// What was recorded.
    fn cache(&mut self) -> &mut ActivationCache;

    /// The main output: logits, `[batch, pos, d_vocab]`, or the residual stream of a run with `stop_at_layer`.
    ///
    /// # Errors
    /// [`InputError::NoOutput`] and [`InputError::NoHead`] if the run made none.
    fn main(&self) -> Result<Tensor<3>>;

    /// The same without the history that automatic differentiation keeps.
    #[doc(hidden)]
    fn without_history(self) -> Self;
}

/// A model whose activations can be watched and changed: a decoder ([`HookedTransformer`](crate::HookedTransformer)), an
/// encoder ([`HookedEncoder`](crate::encoder::HookedEncoder)), an encoder with a decoder
/// ([`HookedEncoderDecoder`](crate::encoder_decoder::HookedEncoderDecoder)), or any of them with hooks that stay
/// ([`Hooked`]).
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
/// assert_eq!(on_first(&encoder, [2, 5, 9, 3].into(), 0)?.dims(), [encoder.config().n_heads]);
/// # Ok::<(), hooklens::Error>(())
/// ```
pub trait HookedModel: Sized + private::Sealed {
    /// What it runs on.
    type Input: Clone;
    /// What a run gives.
    type Output: RunOutput;
    /// What [`run_with_gradients`](HookedModel::run_with_gradients) makes a scalar of: logits, `[batch, pos, d_vocab]`;
    /// for an encoder its whole output.
    type Scored;

    /// Every point the model can fire, in firing order, those of parts included.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let names: Vec<&str> = model.catalog().points().iter().map(|point| &*point.name).collect();
    /// assert_eq!(names[..3], ["hook_tokens", "hook_embed", "hook_pos_embed"]); // in firing order
    /// // Points of other models, and why this one lacks them.
    /// let told = ("embed.ln.hook_scale", "its embedding has no norm");
    /// assert!(model.catalog().absent().any(|absent| absent == told));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    fn catalog(&self) -> &Arc<Catalog>;

    /// The devices its weights live on, in the order in which a run comes to them.
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
    /// [`InputError::NoTokenizer`] if the model came without one.
    fn tokenizer(&self) -> Result<&Tokenizer>;

    /// What changes every run of this model: parts put into it, hooks that stay and edit.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// assert!(model.interventions().is_empty());
    /// assert_eq!(model.hooks([hook::z(0).head(1).zero()]).interventions(), ["Hook(edit [\"blocks.0.attn.hook_z\"] head 1: zero)"]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    fn interventions(&self) -> Vec<String>;

    /// Complete descriptions of the hooks that stay and edit: see [`Hook::identity`](hooklens_hooks::Hook::identity).
    #[doc(hidden)]
    fn hook_identities(&self) -> Result<Vec<Result<String, HookError>>> {
        Ok(Vec::new())
    }

    /// One run, unguarded.
    #[doc(hidden)]
    fn run_checked(&self, input: Self::Input, options: ForwardOptions<'_>) -> Result<Self::Output>;

    /// Whether hooks depend on row numbers, so that a batch may not be run in parts.
    #[doc(hidden)]
    fn tells_rows_apart(&self) -> bool {
        false
    }

    /// Whether hooks act at positions counted from the end of a text, so that it may not be run in parts.
    #[doc(hidden)]
    fn counts_from_the_end(&self) -> bool {
        false
    }

    /// Whether a scalar can be made of logits only.
    #[doc(hidden)]
    const NEEDS_LOGITS: bool = true;

    /// What a scalar is made of.
    #[doc(hidden)]
    fn scored(output: &Self::Output) -> Result<Self::Scored>;

    /// Runs the model; everything a run can do is an option. A [`Record`] alone stands for options that record it.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let mut cache = model.prefill("king drum sun")?;
    /// let star = model.to_single_token("star")?;
    /// let options = ForwardOptions::new().logits(Logits::Last).kv_cache(&mut cache).record("*hook_pattern");
    /// let output = model.run([star], options)?;
    /// assert_eq!(output.logits.map(|logits| logits.dims()), Some([1, 1, 63]));
    /// assert_eq!(output.cache.get(hook::pattern(0))?.dims(), [1, 4, 1, 5]); // it sees what came before
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Bad input or options, options that this kind of model has no use for, and whatever a hook reports;
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    fn run<'h>(&self, input: impl Into<Self::Input>, options: impl Into<ForwardOptions<'h>>) -> Result<Self::Output> {
        guarded(|| self.devices(), || self.run_checked(input.into(), options.into()))
    }

    /// Runs the model and gives its logits, `[batch, pos, d_vocab]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// assert_eq!(model.forward("red fox blue red")?.dims(), [1, 5, 63]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedModel::run`]; [`InputError::NoHead`] for an encoder without a masked-token head.
    fn forward(&self, input: impl Into<Self::Input>) -> Result<Tensor<3>> {
        self.forward_with(input, ForwardOptions::new())
    }

    /// Runs the model and gives the logits, or the residual stream at `stop_at_layer`.
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
    /// As [`HookedModel::forward`].
    fn forward_with<'h>(
        &self,
        input: impl Into<Self::Input>,
        options: impl Into<ForwardOptions<'h>>,
    ) -> Result<Tensor<3>> {
        let options = options.into();
        options.check_gives_output()?;
        self.run(input, options)?.main()
    }

    /// Runs the model and records activations; gives the logits and the recordings.
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
    /// As [`HookedModel::forward`]; an unknown name or a pattern without a match is one before anything runs.
    fn run_with_cache(
        &self,
        input: impl Into<Self::Input>,
        record: impl Into<Record>,
    ) -> Result<(Tensor<3>, ActivationCache)> {
        let mut output = self.run(input, ForwardOptions::new().record(record))?;
        Ok((output.main()?, output.cache().take()))
    }

    /// Records activations and computes nothing after the last one asked for.
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
    /// As [`HookedModel::run_with_cache`].
    fn record(&self, input: impl Into<Self::Input>, record: impl Into<Record>) -> Result<ActivationCache> {
        Ok(self.run(input, ForwardOptions::new().logits(Logits::None).record(record))?.cache().take())
    }

    /// Runs the model with hooks, and gives the logits. The hooks end with the run.
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
    /// As [`HookedModel::forward`].
    fn run_with_hooks<'h>(
        &self,
        input: impl Into<Self::Input>,
        hooks: impl IntoIterator<Item = Hook<'h>>,
    ) -> Result<Tensor<3>> {
        self.forward_with(input, ForwardOptions::new().hooks(hooks))
    }

    /// A view of the model in which every run has these hooks. They are removed when it is dropped; the model itself
    /// never changes.
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

    /// Runs the model, makes a scalar of its logits, and records the gradients of the scalar with respect to the
    /// activations recorded: the output's cache holds both, `hook::z(3)` by
    /// [`get`](crate::ActivationCache::get) and its gradient by
    /// [`grad`](crate::ActivationCache::grad), or by name as `blocks.3.attn.hook_z_grad`.
    ///
    /// The weights need no gradients and get none. Hooks on gradients
    /// ([`edit_grad`](crate::hook::Point::edit_grad), [`read_grad`](crate::hook::Point::read_grad))
    /// run on the way back, last point first; what one makes of a gradient is what goes on and
    /// what is recorded. Each edited gradient costs another run up to its point, so hooks may be
    /// called several times.
    ///
    /// # Shapes
    /// - scored: a decoder's logits, `[batch, pos, d_vocab]`, or `[batch, 1, d_vocab]` for [`Logits::Last`]; an
    ///   encoder's output
    /// - the scalar: `[1]`; several are summed
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
    /// As [`HookedModel::run`]; a recording of parts of activations, or a key-value cache that grows; a scalar that does
    /// not depend on any recorded activation.
    fn run_with_gradients<'h>(
        &self,
        input: impl Into<Self::Input>,
        options: impl Into<ForwardOptions<'h>>,
        scalar: impl FnOnce(Self::Scored) -> Tensor<1>,
    ) -> Result<Self::Output> {
        gradients::run_with_gradients(self, input.into(), options.into(), scalar)
    }

    /// The model with a part put at a point: a sparse autoencoder, an adapter. See [`Part`].
    ///
    /// The part's points are like the model's own: they are listed, selected, recorded, edited, differentiated, patched
    /// and dumped. The model itself is not changed; both share their weights. Parts at several points, and several at
    /// one, follow each other.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// use hooklens::{Halt, hook::{Inside, Part, PartPoint}};
    ///
    /// /// Features that are the positive side of each coordinate.
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
    /// [`HookError`](crate::HookError): a point that is unknown, holds integers or has points of these names already.
    fn splice(&self, point: impl Into<Selection>, part: impl Part + 'static) -> Result<Self>
    where
        Self: private::Spliceable,
    {
        Ok(self.with_points(self.points().with_part(None, point.into(), part)?))
    }

    /// The model with a part that reads one point and writes a later one: a transcoder, from what an MLP reads
    /// (`blocks.5.mlp.hook_in`) to what it writes (`blocks.5.hook_mlp_out`).
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// use hooklens::{Halt, hook::{Inside, Part, PartPoint}};
    ///
    /// /// An MLP's output is what it reads, halved.
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
    /// As [`HookedModel::splice`]; a point read that fires after the one written.
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

pub mod private {
    use hooklens_hooks::PointInfo;

    use crate::config::TransformerConfig;
    use crate::points::Points;

    /// Only this crate's types are models and outputs.
    pub trait Sealed {}

    /// A model that holds its points itself.
    pub trait Spliceable {
        fn points(&self) -> &Points;

        #[must_use]
        fn with_points(&self, points: Points) -> Self;

        /// The shape of its blocks, of a decoder's where there are two stacks.
        fn block_shape(&self) -> &TransformerConfig;

        /// The model itself, where its weights may have been processed.
        fn processed_model(&self) -> Option<&dyn std::any::Any> {
            None
        }

        /// The shape of the blocks a point is in.
        fn shape_at(&self, _: &PointInfo) -> &TransformerConfig {
            self.block_shape()
        }
    }
}

/// The logits of a run that was to make them.
pub(crate) fn logits_of(logits: &Option<Tensor<3>>) -> Result<Tensor<3>> {
    Ok(logits.clone().ok_or(InputError::NoOutput { what: "logits" })?)
}
