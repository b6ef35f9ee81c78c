//! Several examples of equal length as the rows of one batch.

use burn::tensor::Tensor;

use super::Patching;
use super::differentiated::differentiated;
use super::metric::read_values;
use hooklens_model::driver::ForwardOptions;
use hooklens_model::error::Result;
use hooklens_model::model::{HookedTransformer, Output};
use hooklens_model::tokens::Tokens;

impl Patching<'_, HookedTransformer> {
    /// Examples of equal length, in batches of at most `at_once(len)` examples.
    pub(crate) fn batches(&self, at_once: impl Fn(usize) -> usize) -> Vec<Vec<usize>> {
        let mut batches: Vec<Vec<usize>> = Vec::new();
        let len = |example: usize| self.base[example].len();
        for example in 0..self.examples() {
            let most = at_once(len(example)).max(1);
            let fits = |batch: &&mut Vec<usize>| len(batch[0]) == len(example) && batch.len() < most;
            match batches.iter_mut().rev().find(fits) {
                Some(batch) => batch.push(example),
                None => batches.push(vec![example]),
            }
        }
        batches
    }

    /// The prompts of these examples, which have the same length.
    pub(crate) fn rows(&self, examples: &[usize]) -> Result<Tokens> {
        Ok(Tokens::new(examples.iter().map(|example| self.base[*example].clone()).collect::<Vec<_>>())?)
    }

    /// The metric of each row, from the logits that the metric needs.
    pub(crate) fn judge_rows(&self, logits: Tensor<3>, examples: &[usize]) -> Result<Tensor<1>> {
        if examples.iter().all(|example| *example == examples[0]) {
            return Ok(self.metric.judge(logits, examples[0])?);
        }
        let row = |(row, example): (usize, &usize)| self.metric.judge(logits.clone().narrow(0, row, 1), *example);
        Ok(Tensor::cat(examples.iter().enumerate().map(row).collect::<Result<Vec<_>, _>>()?, 0))
    }

    /// Reads metrics to the host. `site` describes the run in error messages.
    pub(crate) fn read_rows(&self, judged: Tensor<1>, examples: &[usize], site: &str) -> Result<Vec<f64>> {
        read_values(judged, examples[0], |_| site.to_string())
    }

    /// Runs these examples and differentiates the sum of their metrics. Returns the output with the gradients at the
    /// recorded points, and the metric of each row.
    pub(crate) fn rows_with_gradients(
        &self,
        examples: &[usize],
        options: ForwardOptions<'_>,
        site: &str,
    ) -> Result<(Output, Vec<f64>)> {
        let options = options.logits(self.metric.needs());
        let judge = |logits| self.judge_rows(logits, examples);
        let (output, judged) = differentiated(self.model(), self.rows(examples)?.into(), options, judge)?;
        Ok((output, self.read_rows(judged, examples, site)?))
    }
}
