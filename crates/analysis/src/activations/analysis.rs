//! [`Analysis`]: a model together with a recording of one of its runs.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::Tensor;
use hooklens_hooks::{Activation, ActivationCache, Catalog, HookError, Point, Positions, Provenance};

use super::components::{Components, FrozenNorm};
use super::cut::Cut;
use super::made_of::MadeOf;
use super::stage::{Reader, ResolvedStage, Stage};
use super::token_choice::{TokenChoice, residual_directions};
use crate::error::AnalysisError;
use hooklens_model::driver::{Hooked, HookedModel, unhooked};
use hooklens_model::error::{InputError, Result};
use hooklens_model::hook;
use hooklens_model::model::{DecoderChecks, HookedTransformer, Identified, ModelParts, Norm, narrowed};

/// A model and a recording of one of its runs, for decomposing the residual stream. See the [module](super).
///
/// ```
/// use hooklens::activations::Stage;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let cache = model.record("When Mary and John", Record::all())?;
/// let analysis = model.analyze(&cache)?.positions(-1)?; // only the last position
/// let parts = analysis.decompose_resid(Stage::Final)?;
/// let rest = parts.sum() - analysis.stream(Stage::Final)?;
/// assert!(rest.abs().max().into_scalar::<f32>() < 1e-4); // the parts sum to the stream
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Analysis<'a> {
    pub(super) model: &'a HookedTransformer,
    pub(super) cache: &'a ActivationCache,
    looked_at: Cut,
    made_of: Arc<MadeOf>,
}

/// Analyzes recordings with the model that made them, and computes directions in the model's residual stream. Part of
/// the prelude.
///
/// An analysis uses only weights and a recording, so the hooks of a [`Hooked`] model affect it only through the
/// recording.
pub trait Analyze {
    /// Analyzes a recording with the model that made it.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", "*hook_resid_post")?;
    /// let last = model.analyze(&cache)?.stream(hooklens::activations::Stage::Final)?;
    /// assert_eq!(last.dims(), [1, 5, 64]);
    /// let other = HookedTransformer::from_pretrained("embedded:induction")?;
    /// assert!(other.analyze(&cache).is_err());
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::OtherModel`] if the recording was made by a different model, or by this model with its norms
    /// folded differently; [`InputError::Spread`](hooklens_model::error::InputError::Spread) if the model's blocks are
    /// on several devices; [`InputError::NormalizedStream`](hooklens_model::error::InputError::NormalizedStream) if the
    /// model normalizes the residual stream, so that the stream is not the sum of the layers' outputs.
    fn analyze<'a>(&'a self, cache: &'a ActivationCache) -> Result<Analysis<'a>>;

    /// The residual stream direction of a token's logit: the token's column of the unembedding,
    /// `[batch or 1, pos or 1, d_model]`. Does not include the final norm.
    ///
    /// # Errors
    /// Fails for text that is not a single token, for an id that has no logit, and with [`AnalysisError::Shape`] for
    /// rows of unequal length.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// assert_eq!(model.tokens_to_residual_directions("Mary")?.dims(), [1, 1, 64]);
    /// assert_eq!(model.tokens_to_residual_directions(vec![3, 4])?.dims(), [2, 1, 64]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    fn tokens_to_residual_directions(&self, tokens: impl Into<TokenChoice>) -> Result<Tensor<3>>;
}

impl Analyze for HookedTransformer {
    fn analyze<'a>(&'a self, cache: &'a ActivationCache) -> Result<Analysis<'a>> {
        check_origin(self.catalog(), cache.catalog())?;
        if let Err(HookError::OtherModel { recorded, model }) = cache.check_model(&self.identity()) {
            return Err(
                AnalysisError::OtherModel { what: format!("recorded by {recorded}, analyzed with {model}") }.into()
            );
        }
        self.check_sums("an analysis of the stream")?;
        self.check_one_place("an analysis")?;
        let recorded = cache.recorded_rows()?.clone();
        let looked_at = Cut::whole(cache.rows_recorded(), recorded);
        let made_of = Arc::new(looked_at.made_of(cache.origin()));
        Ok(Analysis { model: self, cache, looked_at, made_of })
    }

    fn tokens_to_residual_directions(&self, tokens: impl Into<TokenChoice>) -> Result<Tensor<3>> {
        residual_directions(self, tokens.into())
    }
}

impl Analyze for Hooked<'_, '_, HookedTransformer> {
    fn analyze<'a>(&'a self, cache: &'a ActivationCache) -> Result<Analysis<'a>> {
        unhooked(self).analyze(cache)
    }

    fn tokens_to_residual_directions(&self, tokens: impl Into<TokenChoice>) -> Result<Tensor<3>> {
        unhooked(self).tokens_to_residual_directions(tokens)
    }
}

/// Checks that activations recorded by one model have the same meaning in this model.
pub(crate) fn check_origin(model: &Arc<Catalog>, recorded: &Arc<Catalog>) -> Result<(), AnalysisError> {
    if Arc::ptr_eq(model, recorded) {
        return Ok(());
    }
    let names = |catalog: &Catalog| catalog.points().iter().map(|point| point.name.clone()).collect::<Vec<_>>();
    if names(model) != names(recorded) {
        return Err(AnalysisError::OtherModel { what: "its hook points differ from those of this model".into() });
    }
    if model.note() != recorded.note() {
        let what = format!("in the recording's model {}, in this model {}", recorded.note(), model.note());
        return Err(AnalysisError::OtherModel { what });
    }
    Ok(())
}

impl<'a> Analysis<'a> {
    /// The model.
    pub(crate) fn model(&self) -> &'a HookedTransformer {
        self.model
    }

    /// Restricts the analysis to these rows of the recording's batch.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record(["When Mary and John", "When Tom and Anna"], "*hook_resid_post")?;
    /// let second = model.analyze(&cache)?.rows(1..2)?;
    /// assert_eq!(second.stream(hooklens::activations::Stage::Final)?.dims(), [1, 5, 64]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::Shape`] if the batch has fewer rows.
    pub fn rows(mut self, rows: Range<usize>) -> Result<Self> {
        let [batch, _] = self.shape();
        if rows.is_empty() || rows.end > batch {
            let expected = format!("a non-empty range within the {batch} rows of the batch");
            return Err(AnalysisError::Shape {
                what: "the row range".into(),
                given: vec![rows.start, rows.end],
                expected,
            }
            .into());
        }
        self.looked_at = self.looked_at.rows(rows);
        self.made_of = Arc::new(self.looked_at.made_of(self.cache.origin()));
        Ok(self)
    }

    /// Restricts the analysis to these positions, given as one index, a range or a list. Positions are relative to
    /// each row's text, without padding, and negative positions count from the end. After an earlier call, positions
    /// are relative to those selected before.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", "*hook_resid_post")?;
    /// let last_two = model.analyze(&cache)?.positions(-2..5)?;
    /// assert_eq!(last_two.stream(hooklens::activations::Stage::Final)?.dims(), [1, 2, 64]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// [`Positions::of_rows`] chooses one position per row:
    ///
    /// ```
    /// # use hooklens::activations::Stage;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record(["When Mary and John", "While John and Mary"], "*hook_resid_post")?;
    /// let of_john = model.analyze(&cache)?.positions(Positions::of_rows([4, 2]))?; // "John" in each text
    /// let whole = model.analyze(&cache)?.stream(Stage::Final)?;
    /// let gap = of_john.stream(Stage::Final)?.narrow(0, 1, 1) - whole.slice([1..2, 2..3]);
    /// assert_eq!(gap.abs().max().into_scalar::<f32>(), 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::Positions`] for a position that the text does not have; [`HookError::NoPosition`] for one that was
    /// not recorded.
    pub fn positions(mut self, positions: impl Into<Positions>) -> Result<Self> {
        self.looked_at = self.looked_at.positions(&positions.into())?;
        self.made_of = Arc::new(self.looked_at.made_of(self.cache.origin()));
        Ok(self)
    }

    /// An empty set of components at `place`, for the selected rows and positions.
    pub(super) fn no_components(&self, place: ResolvedStage) -> Components {
        let ([batch, pos], d_model) = (self.shape(), self.model.config().d_model());
        let zeros = Tensor::zeros([batch, pos, d_model], (&self.model.device(), self.model.dtype().burn()));
        Components::new(place, &self.made_of, zeros)
    }

    /// The selected rows and positions of the recording.
    pub(crate) fn made_of(&self) -> &Arc<MadeOf> {
        &self.made_of
    }

    /// Fails unless the components were computed from the selected rows and positions.
    pub(super) fn check_made_of(&self, components: &Components) -> Result<(), AnalysisError> {
        let (made_of, own) = (&components.made_of, &self.made_of);
        if Arc::ptr_eq(made_of, own) || made_of.is(own) {
            return Ok(());
        }
        let same_places = made_of.positions() == own.positions() && made_of.rows == own.rows;
        let (components, analysis) = (made_of.to_string(), own.to_string());
        Err(AnalysisError::OtherPlaces { components, analysis, same_places })
    }

    /// `[batch, pos]` of the selected rows and positions.
    fn shape(&self) -> [usize; 2] {
        self.looked_at.shape()
    }

    /// The recorded activation at a point whose first axes are batch and position, cut to the selected rows and
    /// positions, in the model's dtype and on the model's device.
    pub(super) fn recorded<const D: usize>(&self, point: Point<D>) -> Result<Tensor<D>> {
        let held: Tensor<D> = self.cache.get(&point).map_err(not_recorded)?;
        self.cut(held)
    }

    /// Cuts a recorded tensor to the selected rows and positions, and converts it to the model's dtype and device.
    pub(super) fn cut<const D: usize>(&self, held: Tensor<D>) -> Result<Tensor<D>> {
        let mut held = self.looked_at.of(held);
        let device = self.model.device();
        if held.device() != device {
            held = held.to_device(&device);
        }
        Ok(narrowed(held, self.model.dtype().burn()))
    }

    /// The complete recorded activation of a point whose first axes are not batch and position.
    pub(super) fn raw(&self, name: String) -> Result<&'a Activation> {
        self.cache.activation(name).map_err(not_recorded)
    }

    pub(super) fn place(&self, stage: Stage) -> Result<ResolvedStage, InputError> {
        stage.place(self.model.config())
    }

    /// The residual stream at a stage, as recorded, `[batch, pos, d_model]`.
    ///
    /// ```
    /// use hooklens::activations::Stage;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", "*hook_resid_{pre,post}")?;
    /// let analysis = model.analyze(&cache)?;
    /// let gap = analysis.stream(Stage::Before(1))? - cache.get(hook::resid_post(0))?;
    /// assert_eq!(gap.abs().max().into_scalar::<f32>(), 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::NotRecorded`] if the stream at this stage (`*hook_resid_pre`, `*hook_resid_mid` or
    /// `*hook_resid_post`) was not recorded.
    pub fn stream(&self, stage: Stage) -> Result<Tensor<3>> {
        let place = self.place(stage)?;
        self.stream_at(place)
    }

    /// What a vector written by layer `layer` contributes to the stream at `place`: the vector, scaled by any blocks in
    /// between that scale the stream.
    pub(super) fn arrived<const D: usize>(&self, layer: usize, place: ResolvedStage, written: Tensor<D>) -> Tensor<D> {
        let blocks = self.model.parts().blocks.iter().take(place.layers).skip(layer);
        let device = written.device();
        blocks.filter_map(|block| block.scalar.as_ref()).fold(written, |written, scalar| {
            let scalar = narrowed(scalar.val(), written.dtype()).to_device(&device);
            written * scalar.unsqueeze()
        })
    }

    pub(super) fn stream_at(&self, place: ResolvedStage) -> Result<Tensor<3>> {
        let layer = place.layers;
        if place.attn {
            return self.recorded(hook::resid_mid(layer));
        }
        let last = self.model.config().n_layers() - 1;
        if layer > last {
            return self.recorded(hook::resid_post(last));
        }
        match (self.recorded(hook::resid_pre(layer)), layer) {
            // The stream before a layer equals the previous layer's output, unless a hook changed it in between.
            (Err(_), 1..) if !self.is_edited(layer, "hook_resid_pre") => self.recorded(hook::resid_post(layer - 1)),
            (found, _) => found,
        }
    }

    /// The norm layer that reads the stream at `place`, and the hook point of its scale.
    pub(super) fn norm_at(&self, place: ResolvedStage) -> Option<(&'a Norm, Point<3>)> {
        let weights = self.model.parts();
        match place.reader {
            Reader::Attn(layer) => Some((&weights.blocks[layer].ln1, hook::ln1_scale(layer))),
            Reader::Mlp(layer) => Some((weights.blocks[layer].ln2.as_ref()?, hook::ln2_scale(layer))),
            Reader::Unembed => Some((&weights.ln_final, hook::final_scale())),
        }
    }

    /// Wraps arbitrary vectors, `[component, batch, pos, d_model]`, as components of the stream at a stage, so that a
    /// norm layer can be applied to these vectors, or logits attributed to them.
    ///
    /// ```
    /// use hooklens::activations::Stage;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", Record::all())?;
    /// let analysis = model.analyze(&cache)?.positions(-1)?;
    /// let mary = model.tokens_to_residual_directions("Mary")?.unsqueeze_dim::<4>(0); // [1, 1, 1, d_model]
    /// let pushed = analysis.components(Stage::Final, ["push"], mary)?;
    /// let gain = analysis.logit_attrs(&pushed, "Mary")?; // change in the logit if the vector is added
    /// assert!(gain.into_scalar::<f32>() > 0.0);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::Shape`] if the numbers of labels and vectors differ, or if the vectors do not match the
    /// selected rows and positions.
    pub fn components(
        &self,
        stage: Stage,
        labels: impl IntoIterator<Item = impl Into<String>>,
        vectors: Tensor<4>,
    ) -> Result<Components> {
        let labels: Vec<String> = labels.into_iter().map(Into::into).collect();
        let ([batch, pos], d_model) = (self.shape(), self.model.config().d_model());
        if vectors.dims() != [labels.len(), batch, pos, d_model] || labels.is_empty() {
            let expected = format!("[{}, {batch}, {pos}, {d_model}]", labels.len());
            let given = vectors.dims().to_vec();
            return Err(AnalysisError::Shape { what: "the shape of the vectors".into(), given, expected }.into());
        }
        let mut components = self.no_components(self.place(stage)?);
        for (place, label) in labels.into_iter().enumerate() {
            components.push(label, vectors.clone().narrow(0, place, 1).squeeze_dim(0));
        }
        Ok(components)
    }

    /// Applies the norm layer at the components' stage, with the scale frozen at the recorded value. The norm's weight
    /// is applied if it has not been folded. The norm's bias belongs to no component and is not applied.
    ///
    /// ```
    /// use hooklens::activations::Stage;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", Record::all())?;
    /// let analysis = model.analyze(&cache)?;
    /// let normed = analysis.apply_ln(analysis.decompose_resid(Stage::Final)?)?;
    /// // The parts sum to the input of the unembedding, except for the norm's bias.
    /// let whole = normed.sum() + model.weights().get::<1>("ln_final.b")?.unsqueeze();
    /// let gap = whole - cache.get(hook::final_normalized())?;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-3);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::NotRecorded`] if the norm's `hook_scale` was not recorded; [`AnalysisError::Normed`] if a norm
    /// was already applied to the components.
    pub fn apply_ln(&self, components: Components) -> Result<Components> {
        self.check_made_of(&components)?;
        self.check_norm(components.place)?;
        let none = FrozenNorm { scale: None, centers: false, weight: None };
        let norm = match self.norm_at(components.place) {
            Some((norm, scale)) if norm.is_norm() => FrozenNorm {
                scale: Some(self.recorded(scale)?),
                centers: norm.centers(),
                weight: norm.w.as_ref().map(|w| w.val()),
            },
            _ => none,
        };
        Ok(components.normed(norm)?)
    }

    /// Applies the norm at the components' stage to each component as if it were the whole residual stream, computing a
    /// separate scale for each and including the norm's weight and bias. The logit lens unembeds the result.
    ///
    /// ```
    /// use hooklens::activations::Stage;
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let (logits, cache) = model.run_with_cache("When Mary and John", "*hook_resid_{pre,post}")?;
    /// let analysis = model.analyze(&cache)?;
    /// let stages = analysis.normalize_each(&analysis.accumulated_resid(Stage::Final, Per::Layer)?)?;
    /// let lens = stages.vector("final_post")?.matmul(model.w_u().unsqueeze()) + model.b_u().unsqueeze();
    /// assert!((lens - logits).abs().max().into_scalar::<f32>() < 1e-3);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::Normed`] if a norm was already applied to the components.
    pub fn normalize_each(&self, components: &Components) -> Result<Components> {
        if components.is_normed() {
            return Err(AnalysisError::Normed.into());
        }
        self.check_made_of(components)?;
        let mut vectors = components.vectors();
        if let Some((norm, _)) = self.norm_at(components.place) {
            vectors = norm.without_hooks(vectors);
        }
        let mut each = components.emptied();
        for (place, label) in components.labels().iter().enumerate() {
            each.push(label, vectors.clone().narrow(0, place, 1).squeeze_dim(0));
        }
        Ok(each.normed(FrozenNorm { scale: None, centers: false, weight: None })?)
    }

    /// Stacks the activations of one hook point over the first `layers` layers, with layer as the first axis. `E` must
    /// be the point's rank plus one.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let cache = model.record("When Mary and John", "*attn.hook_z")?;
    /// let z: Tensor<5> = model.analyze(&cache)?.stack_activation("z", 4)?;
    /// assert_eq!(z.dims(), [4, 1, 5, 4, 16]); // [layer, batch, pos, head, d_head]
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`AnalysisError::NotRecorded`] if the point was not recorded in one of the layers; [`HookError::Rank`] if `E` is
    /// wrong.
    pub fn stack_activation<const E: usize>(&self, name: &str, layers: usize) -> Result<Tensor<E>> {
        let n_layers = self.model.config().n_layers();
        if layers == 0 || layers > n_layers {
            return Err(InputError::Layer { layer: layers as isize, n_layers }.into());
        }
        let of_layer = |layer: usize| {
            let held = self.cache.activation((name, layer));
            let held = held.map_err(not_recorded)?;
            Ok(held.reshape(&[&[1], held.shape()].concat()))
        };
        let parts = (0..layers).map(of_layer).collect::<Result<Vec<Activation>>>()?;
        Ok(Activation::cat(&parts, 0).to_tensor()?)
    }
}

/// Converts a "not recorded" error into one that suggests a selection to record.
fn not_recorded(error: HookError) -> hooklens_model::error::Error {
    match error {
        HookError::NotRecorded { name, .. } => {
            let record = match name.strip_prefix("blocks.").and_then(|rest| rest.split_once('.')) {
                Some((_, suffix)) => format!("*{suffix}"),
                None => name.clone(),
            };
            AnalysisError::NotRecorded { point: name, record }.into()
        }
        other => other.into(),
    }
}
