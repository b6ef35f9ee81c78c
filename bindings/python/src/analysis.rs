//! Decompositions of recorded residual streams.

use hooklens::activations::{Analysis, Analyze, Components, Direction, Neurons, Per, Stage};
use hooklens::{HookedModel, HookedTransformer, Positions};
use hooklens_analysis::activations::TokenChoice;
use pyo3::prelude::*;

use crate::array::Array;
use crate::cache::Cache;
use crate::enter::enter;
use crate::model::Model;

/// Where a stream is decomposed, and which part of it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Place {
    /// The layer before which the stream is decomposed; the final stream if `None`.
    layer: Option<isize>,
    /// Before the layer's MLP instead.
    mlp_input: bool,
    /// Rows `start..end`; all if `None`.
    rows: Option<(usize, usize)>,
    /// Positions; all if `None`.
    positions: Option<Vec<isize>>,
}

impl Place {
    fn stage(&self, model: &HookedTransformer) -> Stage {
        let n_layers = model.config().n_layers() as isize;
        match self.layer {
            None => Stage::Final,
            Some(layer) if layer == n_layers && !self.mlp_input => Stage::Final,
            Some(layer) if self.mlp_input => Stage::BeforeMlp(layer),
            Some(layer) => Stage::Before(layer),
        }
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

fn stack_of(components: &Components) -> hooklens::Result<Stack> {
    Ok((Array::shared(&components.vectors().into())?, components.labels().to_vec()))
}

/// Tokens whose directions are attributed.
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

#[pymethods]
impl Model {
    /// The stream before each layer, and after each sublayer with `sublayers`.
    fn accumulated_resid(
        &self,
        py: Python<'_>,
        cache: &Cache,
        place: Place,
        sublayers: bool,
        apply_ln: bool,
    ) -> PyResult<Stack> {
        let model = self.shared();
        enter(py, || {
            let analysis = place.analysis(&model, cache)?;
            let per = if sublayers { Per::Sublayer } else { Per::Layer };
            let parts = analysis.accumulated_resid(place.stage(&model), per)?;
            stack_of(&if apply_ln { analysis.apply_ln(parts)? } else { parts })
        })
    }

    /// What each layer's attention and MLP wrote to the stream. `only` is `all`, `attn` or `mlp`.
    fn decompose_resid(
        &self,
        py: Python<'_>,
        cache: &Cache,
        place: Place,
        only: &str,
        include_embeddings: bool,
        apply_ln: bool,
    ) -> PyResult<Stack> {
        let model = self.shared();
        enter(py, || {
            let analysis = place.analysis(&model, cache)?;
            let parts = analysis.decompose_resid(place.stage(&model))?;
            let kept = parts.filter(|label| match () {
                () if label.ends_with("attn_out") => only != "mlp",
                () if label.ends_with("mlp_out") => only != "attn",
                () => include_embeddings,
            })?;
            stack_of(&if apply_ln { analysis.apply_ln(kept)? } else { kept })
        })
    }

    /// The stream by heads, MLPs or neurons, embeddings and biases.
    fn full_resid_decomposition(
        &self,
        py: Python<'_>,
        cache: &Cache,
        place: Place,
        expand_neurons: bool,
        apply_ln: bool,
    ) -> PyResult<Stack> {
        let model = self.shared();
        enter(py, || {
            let analysis = place.analysis(&model, cache)?;
            let neurons = if expand_neurons { Neurons::Apart } else { Neurons::Summed };
            let parts = analysis.full_resid_decomposition(place.stage(&model), neurons)?;
            stack_of(&if apply_ln { analysis.apply_ln(parts)? } else { parts })
        })
    }

    /// What each head wrote to the stream.
    fn stack_head_results(
        &self,
        py: Python<'_>,
        cache: &Cache,
        place: Place,
        remainder: bool,
        apply_ln: bool,
    ) -> PyResult<Stack> {
        let model = self.shared();
        enter(py, || {
            let analysis = place.analysis(&model, cache)?;
            let mut parts = analysis.stack_head_results(place.stage(&model))?;
            if remainder {
                parts = analysis.with_remainder(parts)?;
            }
            stack_of(&if apply_ln { analysis.apply_ln(parts)? } else { parts })
        })
    }

    /// What each neuron wrote to the stream.
    fn stack_neuron_results(
        &self,
        py: Python<'_>,
        cache: &Cache,
        place: Place,
        remainder: bool,
        apply_ln: bool,
    ) -> PyResult<Stack> {
        let model = self.shared();
        enter(py, || {
            let analysis = place.analysis(&model, cache)?;
            let mut parts = analysis.stack_neuron_results(place.stage(&model))?;
            if remainder {
                parts = analysis.with_remainder(parts)?;
            }
            stack_of(&if apply_ln { analysis.apply_ln(parts)? } else { parts })
        })
    }

    /// Divides vectors of the stream, `[component, batch, pos, d_model]`, by the scale of the norm that reads it.
    fn apply_ln(&self, py: Python<'_>, cache: &Cache, place: Place, vectors: &Array) -> PyResult<Array> {
        let (model, vectors) = (self.shared(), vectors.activation());
        enter(py, || {
            let analysis = place.analysis(&model, cache)?;
            let vectors = vectors.to_tensor::<4>()?.to_device(&model.device());
            let labels = (0..vectors.dims()[0]).map(|number| number.to_string());
            let parts = analysis.components(place.stage(&model), labels, vectors)?;
            Array::shared(&analysis.apply_ln(parts)?.vectors().into())
        })
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
        let (model, vectors) = (self.shared(), vectors.activation());
        enter(py, || {
            let analysis = place.analysis(&model, cache)?;
            let vectors = vectors.to_tensor::<4>()?.to_device(&model.device());
            let labels = (0..vectors.dims()[0]).map(|number| number.to_string());
            let parts = analysis.components(place.stage(&model), labels, vectors)?;
            let mut direction = Direction::token(tokens);
            if let Some(incorrect) = incorrect {
                direction = direction.minus(incorrect);
            }
            Array::shared(&analysis.logit_attrs(&parts, direction)?.into())
        })
    }
}
