//! Decoder models.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hooklens::{
    Error, FromPretrained, HookedModel, HookedTransformer, LoadOptions, Processing, ProcessingError, SavePretrained,
    TransformerConfig, parse_device,
};
use hooklens_hooks::{Axis, PointInfo};
use hooklens_loading::loading::ComputeType;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::enter::enter;

/// A decoder model.
#[pyclass(frozen, module = "hooklens._native")]
pub(crate) struct Model {
    model: RwLock<Arc<HookedTransformer>>,
    /// Held during a change, so that changes from several threads follow one another.
    changing: Mutex<()>,
}

impl Model {
    pub(crate) fn new(model: HookedTransformer) -> Self {
        Self { model: RwLock::new(Arc::new(model)), changing: Mutex::new(()) }
    }

    /// A handle for a run. Weights that are replaced meanwhile do not change it.
    pub(crate) fn shared(&self) -> Arc<HookedTransformer> {
        self.model.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the model by a changed copy. Tensors that are not changed are shared.
    pub(crate) fn change(
        &self,
        py: Python<'_>,
        change: impl FnOnce(&mut HookedTransformer) -> hooklens::Result<()> + Send,
    ) -> PyResult<()> {
        // The lock is taken without the GIL, which the thread that holds it may need.
        enter(py, || {
            let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
            let mut changed = (*self.shared()).clone();
            change(&mut changed)?;
            *self.model.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(changed);
            Ok(())
        })
    }
}

/// Converts TransformerLens's names of weight processing steps, or the single name `standard`, to [`Processing`].
fn processing_of(steps: Vec<String>) -> PyResult<Processing> {
    if steps == ["standard"] {
        return Ok(Processing::standard());
    }
    steps.iter().try_fold(Processing::none(), |so_far, step| match step.as_str() {
        "fold_ln" => Ok(so_far.fold_ln()),
        "center_writing_weights" => Ok(so_far.center_writing_weights()),
        "center_unembed" => Ok(so_far.center_unembed()),
        "fold_value_biases" => Ok(so_far.fold_value_biases()),
        "refactor_factored_attn_matrices" => Ok(so_far.refactor_factored_attn_matrices()),
        other => Err(PyValueError::new_err(format!("{other:?} is not a weight processing step"))),
    })
}

#[pymethods]
impl Model {
    /// Loads a model from a folder, a GGUF file or the hub, or an embedded model.
    #[staticmethod]
    #[pyo3(signature = (name, *, processing=vec![], dtype=None, device=None, adapter=None))]
    fn from_pretrained(
        py: Python<'_>,
        name: &str,
        processing: Vec<String>,
        dtype: Option<&str>,
        device: Option<&str>,
        adapter: Option<std::path::PathBuf>,
    ) -> PyResult<Self> {
        let mut options = LoadOptions::new().process(processing_of(processing)?);
        if let Some(dtype) = dtype {
            let dtype: ComputeType = dtype.parse().map_err(PyValueError::new_err::<String>)?;
            options = dtype.set(options);
        }
        if let Some(adapter) = adapter {
            options = options.adapter(adapter);
        }
        let model = enter(py, || {
            if let Some(device) = device {
                options = options.device(&parse_device(device)?);
            }
            HookedTransformer::from_pretrained_with(name, options)
        })?;
        Ok(Self::new(model))
    }

    /// The configuration of a model with GPT-2's architecture and these sizes, as JSON.
    #[staticmethod]
    fn default_config(
        n_layers: usize,
        d_model: usize,
        n_heads: usize,
        d_vocab: usize,
        n_ctx: usize,
    ) -> PyResult<String> {
        let config = TransformerConfig::new(n_layers, d_model, n_heads, d_vocab, n_ctx);
        serde_json::to_string(&config).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// A model with random weights, from its configuration as JSON.
    #[staticmethod]
    fn random(py: Python<'_>, config: &str, seed: u64) -> PyResult<Self> {
        let config: TransformerConfig =
            serde_json::from_str(config).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let model = enter(py, || HookedTransformer::random(config, seed, &hooklens::default_device()?))?;
        Ok(Self::new(model))
    }

    /// A copy with processed weights. Steps that would change this model's predictions are left out.
    fn processed_where_allowed(&self, py: Python<'_>, steps: Vec<String>) -> PyResult<Self> {
        let mut model = (*self.shared()).clone();
        for step in steps {
            let processing = processing_of(vec![step])?;
            let before = model.clone();
            model = match enter(py, || match model.processed(&processing) {
                Err(Error::Processing(ProcessingError::WouldChangeOutputs { .. })) => Ok(None),
                done => done.map(Some),
            })? {
                Some(processed) => processed,
                None => before,
            };
        }
        Ok(Self::new(model))
    }

    /// Writes the model's files to a folder.
    fn save_pretrained(&self, py: Python<'_>, folder: std::path::PathBuf) -> PyResult<()> {
        let model = self.shared();
        enter(py, || model.save_pretrained(&folder))
    }

    /// The configuration as JSON.
    fn config(&self) -> PyResult<String> {
        serde_json::to_string(self.shared().config()).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// The device, by name.
    #[getter]
    fn device(&self) -> String {
        match self.shared().device() {
            device if device == hooklens::burn::tensor::Device::flex() => "cpu".into(),
            device => hooklens_hooks::device_label(&device),
        }
    }

    /// The element type of the activations.
    #[getter]
    fn dtype(&self) -> String {
        self.shared().dtype().to_string()
    }

    /// Names of all hook points in firing order, whether each is computed only when it is named, and the index of the
    /// axis of positions, counted from the end.
    fn hook_points(&self) -> Vec<(String, bool, Option<isize>)> {
        let model = self.shared();
        let position = |axis: &Axis| matches!(axis, Axis::Pos | Axis::Query | Axis::Key);
        let point = |point: &PointInfo| {
            let axis = point.axes.iter().position(position).map(|axis| axis as isize - point.axes.len() as isize);
            (point.name.to_string(), point.on_request, axis)
        };
        model.catalog().points().iter().map(point).collect()
    }
}
