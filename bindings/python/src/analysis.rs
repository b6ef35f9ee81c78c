//! Decompositions of recorded residual streams.

use hooklens::activations::{Analysis, Analyze, Components, Direction, Neurons, Per, Stage};
use hooklens::{Activation, HookedModel, HookedTransformer, Positions};
use hooklens_analysis::activations::TokenChoice;
use pyo3::prelude::*;

use crate::array::Array;
use crate::cache::Cache;
use crate::enter::enter;
use crate::model::Model;

/// Where the residual stream is decomposed, and for which rows and positions.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Place {
    /// The layer before which the stream is decomposed; the final stream if `None`.
    layer: Option<isize>,
    /// Whether to decompose the stream before the layer's MLP instead.
    mlp_input: bool,
    /// Rows `start..end`; all if `None`.
    rows: Option<(usize, usize)>,
    /// Positions; all if `None`.
    positions: Option<Vec<isize>>,
}

/// The stage before a layer or its MLP; the final stage if `layer` is the number of layers.
pub(crate) fn stage_of(model: &HookedTransformer, layer: isize, mlp_input: bool) -> Stage {
    match () {
        () if mlp_input => Stage::BeforeMlp(layer),
        () if layer == model.config().n_layers() as isize => Stage::Final,
        () => Stage::Before(layer),
    }
}

impl Place {
    fn stage(&self, model: &HookedTransformer) -> Stage {
        self.layer.map_or(Stage::Final, |layer| stage_of(model, layer, self.mlp_input))
    }

    fn analysis<'a>(&self, model: &'a HookedTransformer, cache: &'a Cache) -> hooklens::Result<Analysis<'a>> {
        let mut analysis = model.analyze(&cache.cache)?;
        if let Some((start, end)) = self.rows {
            analysis = analysis.rows(start..end)?;
        }
        if let Some(positions) = &self.positions {
            analysis = analysis.positions(Positions::from(positions.clone()))?;
        }
        Ok(analysis)
    }
}

/// Components, `[component, batch, pos, d_model]`, and their labels.
type Stack = (Array, Vec<String>);

/// Tokens whose unembedding directions are used for logit attribution.
#[derive(FromPyObject)]
pub(crate) enum Answer {
    Id(u32),
    Text(String),
    Rows(Vec<u32>),
    Texts(Vec<String>),
    Places(Vec<Vec<u32>>),
}

impl From<Answer> for TokenChoice {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Id(id) => TokenChoice::Id(id),
            Answer::Text(text) => TokenChoice::Text(text),
            Answer::Rows(rows) => TokenChoice::Rows(rows),
            Answer::Texts(texts) => TokenChoice::Texts(texts),
            Answer::Places(places) => TokenChoice::Places(places),
        }
    }
}

impl Model {
    /// Decomposes the recorded stream. With `apply_ln`, also divides the components by the scale of the norm that reads
    /// the stream.
    fn stack(
        &self,
        py: Python<'_>,
        cache: &Cache,
        place: &Place,
        apply_ln: bool,
        decompose: impl FnOnce(&Analysis<'_>, Stage) -> hooklens::Result<Components> + Send,
    ) -> PyResult<Stack> {
        let model = self.shared();
        enter(py, || {
            let analysis = place.analysis(&model, cache)?;
            let mut parts = decompose(&analysis, place.stage(&model))?;
            if apply_ln {
                parts = analysis.apply_ln(parts)?;
            }
            Ok((Array::shared(&parts.vectors().into())?, parts.labels().to_vec()))
        })
    }

    /// Runs a computation on vectors of the stream, `[component, batch, pos, d_model]`.
    fn with_vectors(
        &self,
        py: Python<'_>,
        cache: &Cache,
        place: &Place,
        vectors: &Array,
        compute: impl FnOnce(&Analysis<'_>, Components) -> hooklens::Result<Activation> + Send,
    ) -> PyResult<Array> {
        let (model, vectors) = (self.shared(), vectors.activation());
        enter(py, || {
            let analysis = place.analysis(&model, cache)?;
            let vectors = vectors.to_tensor::<4>()?.to_device(&model.device());
            let labels = (0..vectors.dims()[0]).map(|number| number.to_string());
            let parts = analysis.components(place.stage(&model), labels, vectors)?;
            Array::shared(&compute(&analysis, parts)?)
        })
    }
}

#[pymethods]
impl Model {
    /// The stream before each layer; with `sublayers`, also between its sublayers.
    fn accumulated_resid(
        &self,
        py: Python<'_>,
        cache: &Cache,
        place: Place,
        sublayers: bool,
        apply_ln: bool,
    ) -> PyResult<Stack> {
        let per = if sublayers { Per::Sublayer } else { Per::Layer };
        self.stack(py, cache, &place, apply_ln, |analysis, stage| analysis.accumulated_resid(stage, per))
    }

    /// The contributions of each layer's attention and MLP to the stream. `only` is `all`, `attn` or `mlp`.
    fn decompose_resid(
        &self,
        py: Python<'_>,
        cache: &Cache,
        place: Place,
        only: &str,
        include_embeddings: bool,
        apply_ln: bool,
    ) -> PyResult<Stack> {
        self.stack(py, cache, &place, apply_ln, |analysis, stage| {
            let kept = analysis.decompose_resid(stage)?.filter(|label| match () {
                () if label.ends_with("attn_out") => only != "mlp",
                () if label.ends_with("mlp_out") => only != "attn",
                () => include_embeddings,
            });
            Ok(kept?)
        })
    }

    /// The stream as a sum of heads, MLPs or neurons, embeddings and biases.
    fn full_resid_decomposition(
        &self,
        py: Python<'_>,
        cache: &Cache,
        place: Place,
        expand_neurons: bool,
        apply_ln: bool,
    ) -> PyResult<Stack> {
        let neurons = if expand_neurons { Neurons::Apart } else { Neurons::Summed };
        self.stack(py, cache, &place, apply_ln, |analysis, stage| analysis.full_resid_decomposition(stage, neurons))
    }

    /// The contribution of each head to the stream.
    fn stack_head_results(
        &self,
        py: Python<'_>,
        cache: &Cache,
        place: Place,
        remainder: bool,
        apply_ln: bool,
    ) -> PyResult<Stack> {
        self.stack(py, cache, &place, apply_ln, |analysis, stage| {
            let parts = analysis.stack_head_results(stage)?;
            if remainder { analysis.with_remainder(parts) } else { Ok(parts) }
        })
    }

    /// The contribution of each neuron to the stream.
    fn stack_neuron_results(
        &self,
        py: Python<'_>,
        cache: &Cache,
        place: Place,
        remainder: bool,
        apply_ln: bool,
    ) -> PyResult<Stack> {
        self.stack(py, cache, &place, apply_ln, |analysis, stage| {
            let parts = analysis.stack_neuron_results(stage)?;
            if remainder { analysis.with_remainder(parts) } else { Ok(parts) }
        })
    }

    /// Divides vectors of the stream, `[component, batch, pos, d_model]`, by the scale of the norm that reads the
    /// stream.
    fn apply_ln(&self, py: Python<'_>, cache: &Cache, place: Place, vectors: &Array) -> PyResult<Array> {
        self.with_vectors(py, cache, &place, vectors, |analysis, parts| Ok(analysis.apply_ln(parts)?.vectors().into()))
    }

    /// Direct contribution of vectors of the stream, `[component, batch, pos, d_model]`, to the logits of tokens or to
    /// logit differences, `[component, batch, pos]`.
    #[pyo3(signature = (cache, place, vectors, tokens, incorrect=None))]
    fn logit_attrs(
        &self,
        py: Python<'_>,
        cache: &Cache,
        place: Place,
        vectors: &Array,
        tokens: Answer,
        incorrect: Option<Answer>,
    ) -> PyResult<Array> {
        let mut direction = Direction::token(tokens);
        if let Some(incorrect) = incorrect {
            direction = direction.minus(incorrect);
        }
        self.with_vectors(py, cache, &place, vectors, |analysis, parts| {
            Ok(analysis.logit_attrs(&parts, direction)?.into())
        })
    }
}
