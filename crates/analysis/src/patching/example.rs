//! One example of a patching sweep: a pair of prompts, or a prompt and an ablation.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use hooklens_hooks::{Activation, ActivationCache, PointId, Selection};

use super::base_run::BaseRun;
use super::differentiated::differentiated;
use super::metric::{Metric, read_values};
use super::model::Patchable;
use super::source::{Means, Source, mean_like, means};
use super::sweep::Patching;
use hooklens_model::driver::{ForwardOptions, RunOutput, for_copies};
use hooklens_model::error::Result;

/// One example of a [`Patching`]: the prompt whose run is patched, and the source of the patches.
pub(crate) struct Example<'p, M: Patchable> {
    model: &'p M,
    pub(crate) number: usize,
    /// Total number of examples.
    of: usize,
    pub(crate) prompt: &'p M::Prompt,
    pub(crate) metric: &'p Metric,
    source: &'p Source<M::Prompt>,
    means: Option<&'p Means>,
}

/// The values to patch in, one whole tensor per point, and the metric of the run that they come from, if any.
pub(crate) struct FromSource {
    pub(crate) values: BTreeMap<PointId, Activation>,
    pub(crate) metric: Option<f64>,
}

impl<M: Patchable> Patching<'_, M> {
    /// Calls `of` on each example, with patches at these points, and collects the results.
    pub(crate) fn each_example<R>(
        &self,
        ids: &[PointId],
        of: impl FnMut(Example<'_, M>) -> Result<R>,
    ) -> Result<Vec<R>> {
        self.each_example_from(&self.source, ids, of)
    }

    pub(super) fn each_example_from<R>(
        &self,
        source: &Source<M::Prompt>,
        ids: &[PointId],
        mut of: impl FnMut(Example<'_, M>) -> Result<R>,
    ) -> Result<Vec<R>> {
        let means = match source {
            Source::Mean { prompts, by_position } => Some(means(self.model(), prompts, *by_position, ids)?),
            _ => None,
        };
        let (model, metric, means, count) = (self.model(), &self.metric, means.as_ref(), self.examples());
        let example = |(number, prompt): (usize, &M::Prompt)| {
            of(Example { model, number, of: count, prompt, metric, source, means })
        };
        self.base.iter().enumerate().map(example).collect()
    }
}

impl<M: Patchable> Example<'_, M> {
    /// Runs the example without patches.
    pub(super) fn base_run(&self, points: Selection) -> Result<BaseRun> {
        match self.model.restarts(self.prompt) {
            Some((decoder, tokens)) => BaseRun::of_decoder(decoder, tokens, points, self.metric.needs()),
            None => BaseRun::whole(self.model, self, points),
        }
    }

    /// Runs the example without patches, from the beginning. Returns the recording and the metric.
    pub(crate) fn unpatched(&self, points: Selection) -> Result<(ActivationCache, f64)> {
        let base = BaseRun::whole(self.model, self, points)?;
        Ok((base.recorded, self.read(base.logits, "without a patch")?))
    }

    /// Computes the metric from the logits of the unpatched run or the source run. `which` describes the run in error
    /// messages.
    pub(super) fn read(&self, logits: Tensor<3>, which: &str) -> Result<f64> {
        Ok(read_values(self.metric.judge(logits, self.number)?, self.number, |_| which.to_string())?[0])
    }

    /// Runs the example without patches and computes gradients of the metric. Returns the output and the metric.
    pub(crate) fn with_gradients(&self, options: ForwardOptions<'_>) -> Result<(M::Output, f64)> {
        let needs = self.metric.needs();
        let options = M::making(for_copies(options, self.number, self.of), needs);
        let (output, judged) = differentiated(self.model, M::copies(self.prompt, 1)?, options, |scored| {
            let logits = self.model.read(scored, self.prompt, needs)?;
            Ok(self.metric.judge(logits, self.number)?)
        })?;
        Ok((output, read_values(judged, self.number, |_| "without a patch".to_string())?[0]))
    }

    /// Options of a run whose rows are copies of this example, so that scoped hooks treat each copy as the example's
    /// row of the batch.
    pub(crate) fn options<'h>(&self) -> ForwardOptions<'h> {
        for_copies(ForwardOptions::new(), self.number, self.of)
    }

    /// The values to patch into a run that recorded `unpatched`.
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
                let (prompt, needs) = (&prompts[self.number], self.metric.needs());
                let options = M::making(self.options().record(names.as_slice()), needs);
                let mut output = self.model.run(M::copies(prompt, 1)?, options)?;
                let logits = self.model.read(M::scored(&output)?, prompt, needs)?;
                let metric = Some(self.read(logits, "in the run that patches come from")?);
                let recorded = output.cache();
                Ok(FromSource { values: each(&|id| of(recorded, id))?, metric })
            }
            Source::Zero => {
                let zero = |id: PointId| {
                    let like = of(unpatched, id)?;
                    let shape = like.shape().to_vec();
                    let flat: Tensor<1> = like.reshape(&[shape.iter().product()]).to_tensor()?;
                    // Masked attention scores stay minus infinity.
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
