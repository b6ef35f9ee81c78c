//! [`LensReading`]: logits decoded from each stage of the residual stream.

use std::sync::Arc;

use burn::tensor::{Int, Tensor, activation};
use hooklens_hooks::{Activation, Positions};
use ndarray::{Array3, ArrayD, Axis};

use super::tuned::TunedLens;
use crate::activations::{Analysis, MadeOf, Per, Stage};
use hooklens_model::driver::HookedModel;
#[cfg(doc)]
use hooklens_model::error::ProcessingError;
use hooklens_model::error::{Error, InputError, Result};

/// Logits decoded from every stage of the residual stream, `[stage, batch, pos, d_vocab_out]`.
///
/// ```
/// # use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let (logits, cache) = model.run_with_cache("king drum sun king drum", "*hook_resid_{pre,post}")?;
/// let reading = model.analyze(&cache)?.logit_lens(Per::Layer)?;
/// assert_eq!(reading.labels, ["0_pre", "1_pre", "final_post"]);
/// // The last stage is the model's own prediction.
/// let far = reading.kl_to_final(); // [stage, batch, pos]
/// assert!(far.clone().narrow(0, 2, 1).abs().max().into_scalar::<f32>() < 1e-4);
/// assert!(far.narrow(0, 0, 1).min().into_scalar::<f32>() > 1e-4);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LensReading {
    /// Labels of the stages, from `0_pre` to `final_post`.
    pub labels: Vec<String>,
    /// The logits, `[stage, batch, pos, d_vocab_out]`.
    pub logits: Tensor<4>,
    /// The rows and positions of the recording that were decoded.
    made_of: Arc<MadeOf>,
}

/// The most likely tokens at a stage and position, each with its probability.
pub type TopTokens = Vec<(u32, f32)>;

impl Analysis<'_> {
    /// The logit lens (nostalgebraist 2020): the final norm and the unembedding applied to the stream before each layer
    /// and after the last layer. With [`Per::Sublayer`], also applied to the stream before each MLP.
    ///
    /// # Errors
    /// [`AnalysisError::NotRecorded`](crate::activations::AnalysisError::NotRecorded), as for
    /// [`Analysis::accumulated_resid`].
    pub fn logit_lens(&self, per: Per) -> Result<LensReading> {
        self.through(per, |_, stream| Ok(stream))
    }

    /// The tuned lens (Belrose et al. 2023): like the logit lens, but each stream is first transformed by its layer's
    /// learned translator.
    ///
    /// # Errors
    /// Same as [`Analysis::logit_lens`]. Also fails if the lens and the model differ in width or number of layers, and
    /// with [`ProcessingError::Centered`] if the model's residual stream was centered. Other processing steps are fine:
    /// they change neither the stream nor the predicted probabilities.
    pub fn tuned_lens(&self, lens: &TunedLens) -> Result<LensReading> {
        lens.check(self.model())?;
        self.through(Per::Layer, |place, stream| Ok(lens.translate(place, stream)))
    }

    fn through(&self, per: Per, change: impl Fn(usize, Tensor<3>) -> Result<Tensor<3>>) -> Result<LensReading> {
        let stack = self.accumulated_resid(Stage::Final, per)?;
        let mut logits = Vec::new();
        for (place, label) in stack.labels().iter().enumerate() {
            let stream = change(place, stack.vector(label)?)?;
            logits.push(self.model().unembed(stream)?.unsqueeze_dim(0));
        }
        Ok(LensReading::new(stack.labels().to_vec(), Tensor::cat(logits, 0), self.made_of().clone()))
    }
}

/// Whether a row of a reading may come from this text. False only if the recording identifies its texts and the row's
/// text is a different one.
pub fn may_be_of(reading: &LensReading, row: usize, tokens: &[u32]) -> bool {
    reading.made_of.may_be_of(row, tokens)
}

impl LensReading {
    pub(super) fn new(labels: Vec<String>, logits: Tensor<4>, made_of: Arc<MadeOf>) -> Self {
        Self { labels, logits, made_of }
    }

    /// Restricts the reading to these positions.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// let last = model.logit_lens(([5, 6, 7, 1], [0, 4, 9]))?.positions(-1)?;
    /// assert_eq!(last.logits.dims()[2], 1);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails for positions that the reading does not include.
    pub fn positions(self, positions: impl Into<Positions>) -> Result<Self> {
        let places = self.made_of.choose(&positions.into())?;
        let device = self.logits.device();
        let of_row = |(row, places): (usize, &Vec<usize>)| {
            let places: Vec<i32> = places.iter().map(|place| *place as i32).collect();
            let places = Tensor::<1, Int>::from_ints(places.as_slice(), &device);
            self.logits.clone().narrow(1, row, 1).select(2, places)
        };
        let logits = Tensor::cat(places.iter().enumerate().map(of_row).collect(), 1);
        Ok(Self { logits, made_of: Arc::new(self.made_of.at(&places)), ..self })
    }

    /// Log-probabilities, `[stage, batch, pos, d_vocab_out]`, in nats.
    pub fn log_probs(&self) -> Tensor<4> {
        activation::log_softmax(self.logits.clone(), 3)
    }

    /// The `count` most likely tokens of each stage, row and position, most likely first.
    ///
    /// # Errors
    /// Fails if the logits cannot be read from their device.
    pub fn top(&self, count: usize) -> Result<Vec<Vec<Vec<TopTokens>>>> {
        let log_probs = self.host()?;
        let place = |place: ndarray::ArrayViewD<'_, f32>| {
            let mut order: Vec<(u32, f32)> = place.iter().enumerate().map(|(id, p)| (id as u32, *p)).collect();
            let count = count.min(order.len());
            if count < order.len() {
                order.select_nth_unstable_by(count, |a, b| b.1.total_cmp(&a.1));
            }
            order.truncate(count);
            order.sort_by(|a, b| b.1.total_cmp(&a.1));
            order.into_iter().map(|(id, p)| (id, p.exp())).collect()
        };
        let rows = |row: ndarray::ArrayViewD<'_, f32>| row.axis_iter(Axis(0)).map(place).collect();
        let stages = |stage: ndarray::ArrayViewD<'_, f32>| stage.axis_iter(Axis(0)).map(rows).collect();
        Ok(log_probs.axis_iter(Axis(0)).map(stages).collect())
    }

    /// The rank of a token among all tokens, 0 for the most likely, `[stage, batch, pos]`.
    ///
    /// # Errors
    /// Fails for an id that has no logit.
    pub fn rank(&self, token: u32) -> Result<Array3<usize>> {
        self.of_token(token, |place, own| place.iter().filter(|other| **other > own).count())
    }

    /// The probability of a token, `[stage, batch, pos]`.
    ///
    /// # Errors
    /// Fails for an id that has no logit.
    pub fn prob(&self, token: u32) -> Result<Array3<f32>> {
        self.of_token(token, |_, own| own.exp())
    }

    /// Entropy of each stage's next-token distribution, `[stage, batch, pos]`, in nats.
    pub fn entropy(&self) -> Tensor<3> {
        let log_probs = self.log_probs();
        -(log_probs.clone().exp() * log_probs).sum_dim(3).squeeze_dim::<3>(3)
    }

    /// Kullback-Leibler divergence KL(final ‖ stage) for each stage, `[stage, batch, pos]`, in nats.
    pub fn kl_to_final(&self) -> Tensor<3> {
        let log_probs = self.log_probs();
        let last = log_probs.clone().narrow(0, self.labels.len() - 1, 1);
        (last.clone().exp() * (last - log_probs)).sum_dim(3).squeeze_dim::<3>(3)
    }

    fn of_token<T: Clone + Default>(
        &self,
        token: u32,
        of: impl Fn(ndarray::ArrayView1<'_, f32>, f32) -> T,
    ) -> Result<Array3<T>> {
        let [stages, batch, pos, d_vocab] = self.logits.dims();
        if token as usize >= d_vocab {
            return Err(InputError::Token { token: i64::from(token), row: 0, position: 0, d_vocab }.into());
        }
        let log_probs = self.host()?;
        Ok(Array3::from_shape_fn([stages, batch, pos], |(stage, row, place)| {
            let all = log_probs.slice(ndarray::s![stage, row, place, ..]);
            of(all, all[token as usize])
        }))
    }

    fn host(&self) -> Result<ArrayD<f32>> {
        let log_probs = Activation::from(self.log_probs()).to_ndarray()?;
        let strange = log_probs.outer_iter().position(|stage| stage.iter().any(|value| value.is_nan()));
        match strange {
            Some(stage) => Err(Error::NotANumber { what: format!("the prediction at `{}`", self.labels[stage]) }),
            None => Ok(log_probs),
        }
    }
}
