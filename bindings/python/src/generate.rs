//! Generation of text.

use hooklens::HookedModel;
use hooklens::generation::{Generate, GenerateOptions, Sampling};
use pyo3::prelude::*;

use crate::enter::enter;
use crate::hooks::{PythonHook, hooks_of};
use crate::input::Given;
use crate::kv_cache::KvCache;
use crate::model::Model;

/// New ids, their log-probabilities, and the new text of a row.
type Row = (Vec<u32>, Vec<f32>, Option<String>);

/// Settings of sampling.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Sampled {
    temperature: f64,
    top_k: Option<usize>,
    top_p: Option<f64>,
    frequency_penalty: f64,
    repetition_penalty: f64,
}

#[pymethods]
impl Model {
    /// Continues the input. Without `sampling`, takes the most likely token at each step.
    #[pyo3(signature = (
        input, *, mask=None, max_new_tokens=10, sampling=None, seed=0, stop_at_eos=true, stop_tokens=vec![], hooks=vec![],
        kv_cache=None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn generate(
        &self,
        py: Python<'_>,
        input: Given,
        mask: Option<Vec<Vec<bool>>>,
        max_new_tokens: usize,
        sampling: Option<Sampled>,
        seed: u64,
        stop_at_eos: bool,
        stop_tokens: Vec<u32>,
        hooks: Vec<PythonHook>,
        kv_cache: Option<Py<KvCache>>,
    ) -> PyResult<Vec<Row>> {
        let model = self.shared();
        let mut locked = kv_cache.as_ref().map(|cache| cache.get().lock()).transpose()?;
        let cache = locked.as_deref_mut();
        enter(py, || {
            let mut options = GenerateOptions::new()
                .max_new_tokens(max_new_tokens)
                .seed(seed)
                .stop_at_eos(stop_at_eos)
                .stop_tokens(stop_tokens)
                .hooks(hooks_of(hooks, model.catalog(), false)?);
            if let Some(own) = sampling {
                options = options.sampling(Sampling {
                    temperature: own.temperature,
                    top_k: own.top_k,
                    top_p: own.top_p,
                    frequency_penalty: own.frequency_penalty,
                    repetition_penalty: own.repetition_penalty,
                    ..Sampling::default()
                });
            }
            if let Some(cache) = cache {
                options = options.kv_cache(cache);
            }
            let made = model.generate_with(input.into_input(mask)?, options)?;
            Ok(made.rows.into_iter().map(|row| (row.new, row.log_probs, row.text)).collect())
        })
    }
}
