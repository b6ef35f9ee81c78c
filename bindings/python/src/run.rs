//! Runs of a model.

use hooklens::{ForwardOptions, HookedModel, Logits, Record};
use pyo3::prelude::*;

use crate::array::Array;
use crate::cache::Cache;
use crate::enter::enter;
use crate::hooks::{PythonHook, hooks_of};
use crate::input::{Given, tokens_of};
use crate::kv_cache::KvCache;
use crate::model::Model;

/// Results of a run.
#[pyclass(frozen, get_all, module = "hooklens._native")]
pub(crate) struct RunOutput {
    /// Logits, `[batch, pos, d_vocab]`, or the residual stream at `stop_at_layer`.
    output: Option<Py<Array>>,
    /// Mean loss per token, `[1]`.
    loss: Option<Py<Array>>,
    /// Loss of each next-token prediction, `[batch, pos]`.
    loss_per_token: Option<Py<Array>>,
    /// The recording.
    cache: Py<Cache>,
}

/// Activations to record.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Recorded {
    names: Vec<String>,
    /// Positions to record, counted from the start of the run; all if `None`.
    positions: Option<Vec<isize>>,
    remove_batch_dim: bool,
}

impl Recorded {
    pub(crate) fn record(self) -> Record {
        let mut record = Record::new(self.names);
        if let Some(positions) = self.positions {
            record = record.new_positions(positions);
        }
        if self.remove_batch_dim { record.remove_batch() } else { record }
    }
}

/// Results of a run, before they become Python objects.
pub(crate) struct Plain {
    output: Option<Array>,
    loss: Option<Array>,
    loss_per_token: Option<Array>,
    cache: Cache,
}

impl Plain {
    /// Reads the results, which waits for the device.
    pub(crate) fn read(made: hooklens::Output) -> hooklens::Result<Self> {
        let array = |activation: Option<hooklens::Activation>| activation.as_ref().map(Array::shared).transpose();
        Ok(Self {
            output: array(made.residual.or(made.logits).map(Into::into))?,
            loss: array(made.loss.map(Into::into))?,
            loss_per_token: array(made.loss_per_token.map(Into::into))?,
            cache: Cache { cache: made.cache },
        })
    }

    pub(crate) fn into_python(self, py: Python<'_>) -> PyResult<RunOutput> {
        let new = |array: Option<Array>| array.map(|array| Py::new(py, array)).transpose();
        Ok(RunOutput {
            output: new(self.output)?,
            loss: new(self.loss)?,
            loss_per_token: new(self.loss_per_token)?,
            cache: Py::new(py, self.cache)?,
        })
    }
}

#[pymethods]
impl Model {
    /// Runs the model.
    #[pyo3(signature = (
        input, *, mask=None, hooks=vec![], record=None, logits=true, loss=false, loss_per_token=false,
        start_at_layer=None, stop_at_layer=None, tokens=None, kv_cache=None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn run(
        &self,
        py: Python<'_>,
        input: Given,
        mask: Option<Vec<Vec<bool>>>,
        hooks: Vec<PythonHook>,
        record: Option<Recorded>,
        logits: bool,
        loss: bool,
        loss_per_token: bool,
        start_at_layer: Option<isize>,
        stop_at_layer: Option<isize>,
        tokens: Option<Vec<Vec<u32>>>,
        kv_cache: Option<Py<KvCache>>,
    ) -> PyResult<RunOutput> {
        let model = self.shared();
        let mut locked = kv_cache.as_ref().map(|cache| cache.get().lock()).transpose()?;
        let cache = locked.as_deref_mut();
        let made = enter(py, || {
            let logits = if logits { Logits::All } else { Logits::None };
            let mut options = ForwardOptions::new().logits(logits).hooks(hooks_of(hooks, model.catalog(), false)?);
            if loss {
                options = options.loss();
            }
            if loss_per_token {
                options = options.loss_per_token();
            }
            if let Some(layer) = start_at_layer {
                options = options.start_at_layer(layer);
            }
            if let Some(layer) = stop_at_layer {
                options = options.stop_at_layer(layer);
            }
            if let Some(record) = record {
                options = options.record(record.record());
            }
            if let Some(tokens) = tokens {
                options = options.tokens(&tokens_of(tokens, mask.clone())?);
            }
            if let Some(cache) = cache {
                options = options.kv_cache(cache);
            }
            Plain::read(model.run(input.into_input(mask)?, options)?)
        })?;
        made.into_python(py)
    }
}
