//! [`Replacement`]: what ablated edges carry.

use burn::tensor::Tensor;

use super::order::RunOrder;
use super::pass::{Chunks, EdgePass};
use crate::error::PatchError;
use crate::patching::{Patching, Source};
use hooklens_model::driver::{ForwardOptions, HookedModel, Logits};
use hooklens_model::error::{InputError, Result};
use hooklens_model::model::HookedTransformer;
use hooklens_model::tokens::Tokens;

/// What ablated edges carry instead of the sender's output.
pub(super) enum Replacement<'p> {
    /// The output in a run on a different prompt of the same length.
    Runs(&'p [Vec<u32>]),
    Zeros,
    /// The mean output over prompts: `[sender, 1, d_model]`, or `[sender, 1, pos * d_model]` by position.
    Means {
        means: Chunks,
        by_position: Option<usize>,
    },
}

impl<'p> Replacement<'p> {
    pub(super) fn of(patching: &'p Patching<'_>, model: &HookedTransformer, order: &RunOrder) -> Result<Self> {
        match &patching.source {
            Source::Run(prompts) => Ok(Self::Runs(prompts)),
            Source::Zero => Ok(Self::Zeros),
            Source::Mean { prompts, by_position } => means(model, order, prompts, *by_position),
        }
    }

    /// What ablated edges carry in these examples, which have the same length: `[sender, row or 1, pos * d_model]`.
    pub(super) fn outputs(
        &self,
        patching: &Patching<'_>,
        model: &HookedTransformer,
        order: &RunOrder,
        examples: &[usize],
    ) -> Result<Chunks> {
        let pos = patching.base[examples[0]].len();
        match self {
            Self::Runs(prompts) => {
                collected(model, order, examples.iter().map(|example| prompts[*example].clone()).collect())
            }
            Self::Zeros => {
                let size = pos * model.config().d_model();
                let zeros =
                    |chunk: &Vec<usize>| Tensor::zeros([chunk.len(), 1, size], (&model.device(), model.dtype().burn()));
                Ok(order.chunks.iter().map(zeros).collect())
            }
            Self::Means { means, by_position: Some(len) } => {
                if *len != pos {
                    let reason =
                        format!("the mean is over prompts of {len} tokens, but example {} has {pos}", examples[0]);
                    return Err(PatchError::Mean { point: "the outputs of heads and MLPs".into(), reason }.into());
                }
                Ok(means.clone())
            }
            Self::Means { means, by_position: None } => {
                let tiled = |mean: &Tensor<3>| {
                    let [senders, _, d_model] = mean.dims();
                    mean.clone().expand([senders, pos, d_model]).reshape([senders, 1, pos * d_model])
                };
                Ok(means.iter().map(tiled).collect())
            }
        }
    }
}

/// The outputs of all senders in one forward pass.
fn collected(model: &HookedTransformer, order: &RunOrder, prompts: Vec<Vec<u32>>) -> Result<Chunks> {
    let pass = EdgePass { model, order, ablated: None };
    let tokens = Tokens::new(prompts)?;
    let options = ForwardOptions::new().logits(Logits::None);
    Ok(pass.run(|hooks| model.run(tokens, options.hooks(hooks)))?.1)
}

fn means<'p>(
    model: &HookedTransformer,
    order: &RunOrder,
    prompts: &[Vec<u32>],
    by_position: bool,
) -> Result<Replacement<'p>> {
    let first = prompts.first().ok_or_else(|| InputError::Empty { what: "the list of prompts to average".into() })?;
    let mut sums: Option<Chunks> = None;
    let (mut count, d_model) = (0, model.config().d_model());
    for prompt in prompts {
        if by_position && prompt.len() != first.len() {
            let reason = "the prompts differ in length".into();
            return Err(PatchError::Mean { point: "the outputs of heads and MLPs".into(), reason }.into());
        }
        let written = collected(model, order, vec![prompt.clone()])?;
        let summed = written.into_iter().map(|chunk| {
            if by_position {
                return chunk;
            }
            let [senders, _, _] = chunk.dims();
            chunk.reshape([senders, prompt.len(), d_model]).sum_dim(1)
        });
        count += if by_position { 1 } else { prompt.len() };
        sums = Some(match sums {
            None => summed.collect(),
            Some(sums) => sums.into_iter().zip(summed).map(|(sum, own)| sum + own).collect(),
        });
    }
    let means = sums.unwrap_or_default().into_iter().map(|sum| sum / count as f64).collect();
    Ok(Replacement::Means { means, by_position: by_position.then_some(first.len()) })
}
