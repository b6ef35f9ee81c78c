//! Weights by name.

use burn::tensor::Tensor;
use hooklens::circuits::{Biases, Circuits, Composition};
use hooklens::{Activation, HookedModel, ModelWeights, WeightError};
use hooklens_model::config::Layers;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::analysis::stage_of;
use crate::array::Array;
use crate::enter::enter;
use crate::error::raise;
use crate::labeled::Labeled;
use crate::model::Model;

/// Tries each rank until one fits, because the rank of a weight is part of its type.
macro_rules! of_its_rank {
    ($get:expr; $($rank:literal)*) => {{
        let mut found: hooklens::Result<Activation> = Err(hooklens::Error::Other("a weight has 1 to 5 axes".into()));
        $(if matches!(&found, Err(error) if is_other_rank(error) || $rank == 1) {
            let read: hooklens::Result<Tensor<$rank>> = $get;
            found = read.map(Activation::from);
        })*
        found
    }};
}

fn is_other_rank(error: &hooklens::Error) -> bool {
    matches!(error.downcast_ref::<WeightError>(), Some(WeightError::Rank { .. }))
}

#[pymethods]
impl Model {
    /// Names of all weights.
    fn weight_names(&self) -> Vec<String> {
        self.shared().weights().names()
    }

    /// A weight, as it is stored: matrices are `[in, out]`, with the heads side by side.
    fn weight(&self, py: Python<'_>, name: &str) -> PyResult<Array> {
        let model = self.shared();
        enter(py, || {
            let weights = model.weights();
            Array::shared(&of_its_rank!(weights.get(name); 1 2 3 4 5)?)
        })
    }

    /// Number of heads of an attention weight, such as `blocks.0.attn.W_K`.
    fn heads_of(&self, name: &str) -> PyResult<usize> {
        let model = self.shared();
        let (block, kind) = name.rsplit_once('_').unwrap_or_default();
        let layer = block.split('.').nth(1).and_then(|layer| layer.parse::<usize>().ok());
        let layer = layer.filter(|layer| *layer < model.config().n_layers());
        match (layer, kind) {
            (Some(_), "Q" | "O") => Ok(model.config().n_heads()),
            (Some(layer), "K" | "V") => Ok(model.config().n_kv_heads_of(layer)),
            _ => Err(PyValueError::new_err(format!("{name} is not a weight of attention heads"))),
        }
    }

    /// Replaces a weight in this model. Recordings and runs that are in progress keep the old one.
    fn set_weight(&self, py: Python<'_>, name: &str, value: &Array) -> PyResult<()> {
        let activation = value.activation();
        macro_rules! set {
            ($($rank:literal)*) => { match activation.shape().len() {
                $($rank => self.change(py, |model| {
                    let value = activation.to_tensor::<$rank>()?.to_device(&model.device());
                    model.weights_mut().set(name, value)
                }),)*
                rank => Err(PyValueError::new_err(format!("a weight has 1 to 5 axes, not {rank}"))),
            } };
        }
        set!(1 2 3 4 5)
    }

    /// A weight of all layers, `[layer, head, ..]`: `W_Q`, `b_O`, `W_in`, ...
    fn stacked(&self, py: Python<'_>, name: &str) -> PyResult<Array> {
        let model = self.shared();
        enter(py, || {
            let stacked = of_its_rank!(model.stacked(name).map_err(hooklens::Error::from); 1 2 3 4);
            Array::shared(&stacked?)
        })
    }

    /// One of `W_E`, `[d_vocab, d_model]`; `W_U`, `[d_model, d_vocab]`; `b_U`, `[d_vocab]`; or `W_pos`,
    /// `[n_ctx, d_model]`, which is `None` if positions are not learned.
    fn matrix(&self, py: Python<'_>, name: &str) -> PyResult<Option<Array>> {
        let model = self.shared();
        let found: Option<Activation> = match name {
            "W_E" => Some(model.w_e().into()),
            "W_U" => Some(model.w_u().into()),
            "b_U" => Some(model.b_u().into()),
            "W_pos" => model.w_pos().map(Into::into),
            other => return Err(PyValueError::new_err(format!("{other:?} is not W_E, W_U, b_U or W_pos"))),
        };
        found.as_ref().map(Array::shared).transpose().map_err(|error| raise(py, error))
    }

    /// Labels of all heads: `L0H0`, ...
    fn head_labels(&self) -> Vec<String> {
        self.shared().head_labels()
    }

    /// Number of weights.
    fn n_weights(&self) -> usize {
        self.shared().weights().count()
    }

    /// Sum of the output biases before a layer, `[d_model]`.
    #[pyo3(signature = (layer, *, mlp_input=false, include_mlp_biases=true))]
    fn accumulated_bias(
        &self,
        py: Python<'_>,
        layer: isize,
        mlp_input: bool,
        include_mlp_biases: bool,
    ) -> PyResult<Array> {
        let model = self.shared();
        let stage = stage_of(&model, layer, mlp_input);
        let biases = if include_mlp_biases { Biases::All } else { Biases::Attention };
        enter(py, || Array::shared(&model.accumulated_bias(stage, biases)?.into()))
    }

    /// Composition scores of all pairs of heads, `[writer, reader]`.
    fn composition_scores(&self, py: Python<'_>, mode: &str) -> PyResult<Labeled> {
        let mode = match mode {
            "Q" => Composition::Q,
            "K" => Composition::K,
            "V" => Composition::V,
            other => return Err(PyValueError::new_err(format!("mode must be \"Q\", \"K\" or \"V\", not {other:?}"))),
        };
        let model = self.shared();
        enter(py, || Ok(Labeled::new(model.composition_scores(mode)?)))
    }
}
