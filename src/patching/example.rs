//! One pair of prompts.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use hooklens_hooks::{Activation, ActivationCache, PointId, Selection};

use super::base_run::BaseRun;
use super::metric::{Metric, read_values};
use super::source::{Means, Source, mean_like, means};
use super::sweep::Patching;
use crate::driver::{ForwardOptions, HookedModel};
use crate::error::{InputError, Result};
use crate::model::{HookedTransformer, Output};

/// One example of a [`Patching`]: a prompt whose run is patched, and where patches come from.
pub(crate) struct Example<'p> {
    model: &'p HookedTransformer,
    pub(crate) number: usize,
    pub(crate) tokens: &'p [u32],
    pub(crate) metric: &'p Metric,
    source: &'p Source,
    means: Option<&'p Means>,
}

/// What is patched in: the points' tensors of a whole run, and the metric in the run they are of.
pub(crate) struct FromSource {
    pub(crate) values: BTreeMap<PointId, Activation>,
    pub(crate) metric: Option<f64>,
}

impl Patching<'_> {
    /// What `of` makes of each example, with patches at these points.
    pub(crate) fn each_example<R>(&self, ids: &[PointId], of: impl FnMut(Example<'_>) -> Result<R>) -> Result<Vec<R>> {
        self.each_example_from(&self.source, ids, of)
    }

    pub(super) fn each_example_from<R>(
        &self,
        source: &Source,
        ids: &[PointId],
        mut of: impl FnMut(Example<'_>) -> Result<R>,
    ) -> Result<Vec<R>> {
        let means = match source {
            Source::Mean { prompts, by_position } => Some(means(self.model(), prompts, *by_position, ids)?),
            _ => None,
        };
        let (model, metric, means) = (self.model(), &self.metric, means.as_ref());
        let example =
            |(number, tokens): (usize, &Vec<u32>)| of(Example { model, number, tokens, metric, source, means });
        self.base.iter().enumerate().map(example).collect()
    }
}

impl Example<'_> {
    /// The unpatched run.
    pub(super) fn base_run(&self, points: Selection) -> Result<BaseRun> {
        BaseRun::new(self.model, self.tokens, points, self.metric.needs())
    }

    /// The metric of a run of this prompt or its source's.
    pub(super) fn read(&self, logits: Tensor<3>, which: &str) -> Result<f64> {
        Ok(read_values(self.metric.judge(logits, self.number)?, self.number, |_| which.to_string())?[0])
    }

    /// The unpatched run with gradients of the metric, and the metric.
    pub(crate) fn with_gradients(&self, options: ForwardOptions<'_>) -> Result<(Output, f64)> {
        let mut judged = None;
        let output = self.model.run_with_gradients(self.tokens, options.logits(self.metric.needs()), |logits| {
            let (empty, made) = (logits.clone(), self.metric.judge(logits, self.number));
            // A metric that fails is reported below; what is returned then is not used.
            let number = made.as_ref().ok().cloned().unwrap_or_else(|| empty.sum());
            judged = Some(made);
            number
        })?;
        let judged = judged.ok_or(InputError::NoOutput { what: "logits" })??;
        Ok((output, read_values(judged, self.number, |_| "without a patch".to_string())?[0]))
    }

    /// Recordings of the unpatched run.
    pub(crate) fn own_run(&self, points: &[&str]) -> Result<ActivationCache> {
        self.model.record(self.tokens, points)
    }

    /// Recordings of the run that patches come from.
    pub(crate) fn source_run(&self, points: &[&str]) -> Result<ActivationCache> {
        match self.source {
            Source::Run(prompts) => self.model.record(&prompts[self.number], points),
            _ => Err(InputError::NeedsPairs { what: "this attribution" }.into()),
        }
    }

    /// What is patched into a run that recorded these activations.
    pub(crate) fn source(&self, unpatched: &ActivationCache, ids: &[PointId]) -> Result<FromSource> {
        let catalog = self.model.catalog();
        let of = |recorded: &ActivationCache, id: PointId| -> Result<Activation> {
            Ok(recorded.activation(&*catalog.info(id).name)?.clone())
        };
        let each = |of: &dyn Fn(PointId) -> Result<Activation>| -> Result<BTreeMap<PointId, Activation>> {
            ids.iter().map(|id| Ok((*id, of(*id)?))).collect()
        };
        match self.source {
            Source::Run(prompts) => {
                let names: Vec<&str> = ids.iter().map(|id| &*catalog.info(*id).name).collect();
                let options = ForwardOptions::new().logits(self.metric.needs()).record(names.as_slice());
                let output = self.model.run(&prompts[self.number], options)?;
                let logits = output.logits.ok_or(InputError::NoOutput { what: "logits" })?;
                let metric = Some(self.read(logits, "in the source's run")?);
                Ok(FromSource { values: each(&|id| of(&output.cache, id))?, metric })
            }
            Source::Zero => {
                let zero = |id: PointId| {
                    let like = of(unpatched, id)?;
                    let shape = like.shape().to_vec();
                    let flat: Tensor<1> = like.reshape(&[like.len()]).to_tensor()?;
                    // Where a query may not look, its score stays minus infinity.
                    let hidden = flat.clone().equal_elem(f32::NEG_INFINITY);
                    let zero = flat.zeros_like().mask_fill(hidden, f32::NEG_INFINITY);
                    Ok(Activation::from(zero).reshape(&shape))
                };
                Ok(FromSource { values: each(&zero)?, metric: None })
            }
            Source::Mean { .. } => {
                let own = |id: PointId| {
                    let like = of(unpatched, id)?;
                    let mean = self.means.and_then(|means| means.get(&id)).cloned().unwrap_or_else(|| like.clone());
                    Ok(mean_like(&mean, &like, catalog.info(id))?)
                };
                Ok(FromSource { values: each(&own)?, metric: None })
            }
        }
    }
}
