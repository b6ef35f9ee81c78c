//! Activation patching, attribution patching and edge scores.

use std::sync::Arc;

use burn::tensor::{Tensor, TensorData};
use hooklens::circuits::{Discovery, LearnedMasks};
use hooklens::patching::{Ablation, Metric, Patching, PatchingResult};
use hooklens::{Error, HookedTransformer, Input};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::analysis::Answer;
use crate::array::Array;
use crate::circuits::EdgeScores;
use crate::enter::{check_signals, end_run, enter};
use crate::error::to_python;
use crate::gradients::like;
use crate::input::Given;
use crate::labeled::Labeled;
use crate::model::Model;

/// The metric of a sweep.
#[derive(FromPyObject)]
pub(crate) enum Judge {
    /// Name (`logit_diff`, `logit` or `log_prob`), answer, and the wrong answer of a difference.
    Named(String, Answer, Option<Answer>),
    /// A function of logits, `[row, pos, d_vocab]`, the number of the example, and whether gradients are needed. It
    /// returns one number per row, or one pair per row: the number and its gradient, `[1, pos, d_vocab]`.
    Function(Py<PyAny>),
}

fn metric_of(judge: Judge, model: &HookedTransformer) -> hooklens::Result<Metric> {
    match judge {
        Judge::Named(name, answer, wrong) => match (name.as_str(), wrong) {
            ("logit_diff", Some(wrong)) => Metric::logit_diff(model, answer, wrong),
            ("logit", None) => Metric::logit(model, answer),
            ("log_prob", None) => Metric::log_prob(model, answer),
            _ => Err(Error::Other(
                format!("{name:?} is not a metric: use logit_diff with two answers, or logit or log_prob with one")
                    .into(),
            )),
        },
        Judge::Function(function) => Ok(Metric::all(move |logits, example| {
            check_signals();
            judged(&function, logits, example).unwrap_or_else(|raised| end_run(raised))
        })),
    }
}

/// The metric of each row. If the logits are tracked, its gradient is the one that the function returns.
fn judged(function: &Py<PyAny>, logits: Tensor<3>, example: usize) -> PyResult<Tensor<1>> {
    let (tracked, device) = (logits.is_autodiff(), logits.device().without_autodiff());
    let untracked = if tracked { logits.clone().without_autodiff() } else { logits.clone() };
    Python::attach(|py| {
        let array = Array::shared(&untracked.clone().into()).map_err(|error| to_python(py, &error))?;
        let returned = function.call1(py, (array, example, tracked))?;
        let numbers = |values: Vec<f32>| {
            let len = values.len();
            Tensor::<1>::from_data(TensorData::new(values, [len]), &device)
        };
        if !tracked {
            return Ok(numbers(returned.extract(py)?));
        }
        let pairs: Vec<(f32, PyRef<'_, Array>)> = returned.extract(py)?;
        let (values, slopes): (Vec<f32>, Vec<_>) = pairs.into_iter().unzip();
        let rows = slopes.len();
        let slopes = slopes.iter().map(|slope| Ok(slope.tensor::<3>()?.to_device(&device)));
        let slopes = slopes.collect::<hooklens::Result<Vec<_>>>();
        let slopes = slopes.and_then(|slopes| like(Tensor::cat(slopes, 0), &untracked));
        let slopes = slopes.map_err(|error| to_python(py, &error))?;
        // A linear function with this gradient and these values.
        let sums = |logits: Tensor<3>, slopes: Tensor<3>| (logits * slopes).sum_dim(2).sum_dim(1).reshape([rows]);
        let offset = numbers(values).cast(logits.dtype()) - sums(untracked, slopes.clone());
        Ok(sums(logits, slopes.autodiff()) + offset.autodiff())
    })
}

/// A metric of a model on pairs of prompts.
#[pyclass(frozen, module = "hooklens._native")]
pub(crate) struct PatchingTask {
    model: Arc<HookedTransformer>,
    clean: Input,
    corrupted: Input,
    metric: Metric,
}

/// A result of a sweep: its values, whose last axis is the example, and the metric of the clean and of the corrupted
/// run per example.
type Swept = (Labeled, Option<Vec<f64>>, Vec<f64>);

fn swept(result: PatchingResult) -> Swept {
    (Labeled::new(result.values), result.source, result.baseline)
}

/// The ablation with this name, for a circuit's complement.
fn ablation_named(name: &str, corrupted: &Input) -> PyResult<Ablation> {
    match name {
        "patching" => Ok(Ablation::Resample(corrupted.clone())),
        "zero" => Ok(Ablation::Zero),
        "mean" => Ok(Ablation::Mean(corrupted.clone())),
        "mean-positional" => Ok(Ablation::MeanByPosition(corrupted.clone())),
        other => Err(PyValueError::new_err(format!(
            "ablation must be \"patching\", \"zero\", \"mean\" or \"mean-positional\", not {other:?}"
        ))),
    }
}

impl PatchingTask {
    /// Runs `work` with the clean activations patched into the corrupted run.
    fn patching<T: Send>(
        &self,
        py: Python<'_>,
        progress: Option<Py<PyAny>>,
        work: impl FnOnce(&Patching<'_>) -> hooklens::Result<T> + Send,
    ) -> PyResult<T> {
        enter(py, || {
            let patching =
                Patching::new(&*self.model, self.clean.clone(), self.corrupted.clone(), self.metric.clone())?;
            work(&self.watched(patching, progress))
        })
    }

    /// Runs `work` with edges ablated in the clean run.
    pub(crate) fn ablating<T: Send>(
        &self,
        py: Python<'_>,
        ablation: &str,
        work: impl FnOnce(&Patching<'_>) -> hooklens::Result<T> + Send,
    ) -> PyResult<T> {
        let ablation = ablation_named(ablation, &self.corrupted)?;
        enter(py, || {
            let patching = Patching::ablating(&*self.model, self.clean.clone(), ablation, self.metric.clone())?;
            work(&self.watched(patching, None))
        })
    }

    fn watched<'m>(&self, patching: Patching<'m>, progress: Option<Py<PyAny>>) -> Patching<'m> {
        patching.on_progress(move |done, total| {
            check_signals();
            let Some(progress) = &progress else { return };
            if let Err(raised) = Python::attach(|py| progress.call1(py, (done, total))) {
                end_run(raised);
            }
        })
    }
}

#[pymethods]
impl PatchingTask {
    /// A task for pairs of prompts of equal length.
    #[new]
    fn new(py: Python<'_>, model: &Model, clean: Given, corrupted: Given, metric: Judge) -> PyResult<Self> {
        let model = model.shared();
        let (clean, corrupted, metric) =
            enter(py, || Ok((clean.into_input(None)?, corrupted.into_input(None)?, metric_of(metric, &model)?)))?;
        Ok(Self { model, clean, corrupted, metric })
    }

    /// Patches activations of the clean run into the corrupted run, one site at a time. `sweep` is one of
    /// TransformerLens's names without `get_act_patch_`.
    #[pyo3(signature = (sweep, progress=None))]
    fn sweep(&self, py: Python<'_>, sweep: &str, progress: Option<Py<PyAny>>) -> PyResult<Swept> {
        self.patching(py, progress, |patching| sweep_named(patching, sweep).map(swept))
    }

    /// Estimates the effects of a sweep from one gradient.
    fn attribution(&self, py: Python<'_>, sweep: &str) -> PyResult<Swept> {
        self.patching(py, None, |patching| {
            let estimate = |point: &str| patching.attribution(point);
            let made = match sweep {
                "resid_pre" => estimate("blocks.*.hook_resid_pre")?.resid_pre(),
                "attn_out" => estimate("blocks.*.hook_attn_out")?.attn_out(),
                "mlp_out" => estimate("blocks.*.hook_mlp_out")?.mlp_out(),
                "attn_head_out_all_pos" => estimate("blocks.*.attn.hook_z")?.attn_head_out_all_pos(),
                "attn_head_out_by_pos" => estimate("blocks.*.attn.hook_z")?.attn_head_out_by_pos(),
                other => Err(Error::Other(
                    format!(
                        "{other:?} cannot be estimated from one gradient; use resid_pre, attn_out, mlp_out, \
                         attn_head_out_all_pos or attn_head_out_by_pos"
                    )
                    .into(),
                )),
            };
            made.map(swept)
        })
    }

    /// Scores every edge between heads, MLPs, embeddings and logits.
    #[pyo3(signature = (method="eap-ig", *, steps=None, ablation="patching", keep=0.05))]
    fn edges(
        &self,
        py: Python<'_>,
        method: &str,
        steps: Option<usize>,
        ablation: &str,
        keep: f64,
    ) -> PyResult<EdgeScores> {
        let masks = LearnedMasks::new().keep(keep).steps(steps.unwrap_or(300));
        let steps = steps.unwrap_or(5);
        let method = match method {
            "eap" => Discovery::Eap,
            "eap-ig" => Discovery::EapIg(steps),
            "relp" => Discovery::Relp,
            "mask-gradients" => Discovery::MaskGradients(steps),
            "exact" => Discovery::Exact,
            "learned-masks" => Discovery::LearnedMasks(masks),
            other => {
                return Err(PyValueError::new_err(format!(
                    "method must be \"eap\", \"eap-ig\", \"relp\", \"mask-gradients\", \"exact\" or \"learned-masks\", \
                     not {other:?}"
                )));
            }
        };
        self.ablating(py, ablation, |patching| patching.discover(&method)).map(EdgeScores::new)
    }

    fn __repr__(&self) -> String {
        format!("Patching({:?})", self.metric)
    }
}

/// Declares the sweeps, named as in TransformerLens.
macro_rules! sweeps {
    ($($sweep:ident)*) => {
        fn sweep_named(patching: &Patching<'_>, name: &str) -> hooklens::Result<PatchingResult> {
            match name {
                $(stringify!($sweep) => patching.$sweep(),)*
                other => {
                    let known = [$(stringify!($sweep)),*].join(", ");
                    Err(Error::Other(format!("{other:?} is not a sweep; the sweeps are {known}").into()))
                }
            }
        }
    };
}

sweeps! {
    resid_pre resid_mid attn_out mlp_out block_every
    attn_head_out_by_pos attn_head_q_by_pos attn_head_k_by_pos attn_head_v_by_pos attn_head_pattern_by_pos
    attn_head_pattern_dest_src_pos attn_head_by_pos_every
    attn_head_out_all_pos attn_head_q_all_pos attn_head_k_all_pos attn_head_v_all_pos attn_head_pattern_all_pos
    attn_head_all_pos_every
}
