//! Head detection by comparison with an expected attention pattern (TransformerLens's `detect_head`).

use hooklens_hooks::Activation;
use ndarray::{Array2, ArrayD, ArrayView2, IxDyn};

use crate::activations::AnalysisError;
use crate::labeled::{LabeledArray, LabeledAxis, matching};
use hooklens_model::config::Layers;
use hooklens_model::driver::{HookedModel, Input};
use hooklens_model::error::{Error, Result};
use hooklens_model::hook;
use hooklens_model::model::{DecoderInput, HookedTransformer};

/// An expected attention pattern, as a function of the tokens.
///
/// ```
/// use hooklens::experiments::{HeadDetection, HeadPattern};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let text = "king drum sun star king drum sun";
/// let score = |pattern| {
///     let found = model.detect_heads(text, &HeadDetection::new(pattern).exclude_bos())?;
///     Ok::<_, hooklens::Error>(found.largest(1)[0].1)
/// };
/// assert!(score(HeadPattern::Induction)? > 0.4);
/// let everywhere = ndarray::Array2::ones((8, 8)); // a custom pattern
/// assert!((score(HeadPattern::Given(everywhere))? - 1.0).abs() < 1e-4);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum HeadPattern {
    /// Attention to the previous token.
    PreviousToken,
    /// Attention to earlier occurrences of the same token.
    DuplicateToken,
    /// Attention to the tokens after earlier occurrences of the same token.
    Induction,
    /// A custom pattern: the expected attention, `[query, key]`. Every row must have as many tokens as the pattern has
    /// queries.
    Given(Array2<f32>),
}

/// How a head's attention pattern is compared with the expected pattern.
///
/// ```
/// use hooklens::experiments::{HeadDetection, HeadError, HeadPattern};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let text = "king drum sun star king drum sun";
/// let by = |error| model.detect_heads(text, &HeadDetection::new(HeadPattern::PreviousToken).error(error));
/// // The fraction of attention that matches and the distance from the pattern give different scores.
/// assert_ne!(by(HeadError::Mul)?, by(HeadError::Abs)?);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum HeadError {
    /// The fraction of all attention that matches the pattern: `Σ attention · expected / Σ attention`.
    #[default]
    Mul,
    /// One minus the absolute difference between the patterns, summed over keys and averaged over queries.
    Abs,
}

/// Options of `HookedTransformer::detect_heads`.
///
/// ```
/// use hooklens::experiments::{HeadDetection, HeadPattern};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let text = "king drum sun star king drum sun";
/// let plain = HeadDetection::new(HeadPattern::Induction);
/// let sharp = plain.clone().exclude_bos().exclude_current_token();
/// let [plain, sharp] = [model.detect_heads(text, &plain)?, model.detect_heads(text, &sharp)?];
/// assert!(sharp.largest(1)[0].1 >= plain.largest(1)[0].1);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct HeadDetection {
    pattern: HeadPattern,
    error: HeadError,
    exclude_bos: bool,
    exclude_current_token: bool,
}

impl HeadDetection {
    /// Detects heads whose attention matches this pattern.
    pub fn new(pattern: HeadPattern) -> Self {
        Self { pattern, error: HeadError::Mul, exclude_bos: false, exclude_current_token: false }
    }

    /// Sets how patterns are compared.
    #[must_use]
    pub fn error(mut self, error: HeadError) -> Self {
        self.error = error;
        self
    }

    /// Excludes attention to the first token, which heads attend to when they find nothing else.
    #[must_use]
    pub fn exclude_bos(mut self) -> Self {
        self.exclude_bos = true;
        self
    }

    /// Excludes each query's attention to its own position.
    #[must_use]
    pub fn exclude_current_token(mut self) -> Self {
        self.exclude_current_token = true;
        self
    }

    /// The score of a head's attention pattern, `[query, key]`.
    fn score(&self, pattern: ArrayView2<'_, f32>, expected: &Array2<f32>) -> f64 {
        let counts =
            |query: usize, key: usize| !(self.exclude_bos && key == 0 || self.exclude_current_token && query == key);
        let (mut there, mut all, mut apart) = (0.0, 0.0, 0.0);
        for ((query, key), attention) in pattern.indexed_iter().filter(|((query, key), _)| counts(*query, *key)) {
            let (attention, expected) = (f64::from(*attention), f64::from(expected[[query, key]]));
            there += attention * expected;
            all += attention;
            apart += (attention - expected).abs();
        }
        match self.error {
            HeadError::Mul => {
                if all == 0.0 {
                    0.0
                } else {
                    there / all
                }
            }
            HeadError::Abs => 1.0 - apart / pattern.nrows() as f64,
        }
    }

    fn expected(&self, ids: &[u32]) -> Result<Array2<f32>, AnalysisError> {
        let len = ids.len();
        let mark = |is: &dyn Fn(usize, usize) -> bool| {
            Array2::from_shape_fn((len, len), |(query, key)| f32::from(u8::from(key <= query && is(query, key))))
        };
        Ok(match &self.pattern {
            HeadPattern::PreviousToken => mark(&|query, key| key + 1 == query),
            HeadPattern::DuplicateToken => mark(&|query, key| key < query && ids[key] == ids[query]),
            HeadPattern::Induction => mark(&|query, key| key > 0 && key - 1 != query && ids[key - 1] == ids[query]),
            HeadPattern::Given(given) if given.dim() == (len, len) => given.clone(),
            HeadPattern::Given(given) => {
                let expected = format!("[{len}, {len}], one query and one key per token");
                let given = given.shape().to_vec();
                return Err(AnalysisError::Shape { what: "the given pattern".into(), given, expected });
            }
        })
    }
}

/// Implements [`Experiments::detect_heads`](super::Experiments::detect_heads).
pub(super) fn detect_heads(model: &HookedTransformer, input: Input, detection: &HeadDetection) -> Result<LabeledArray> {
    let tokens = model.token_input(input)?;
    let (layers, heads): (Vec<usize>, _) = (model.config().attending().collect(), model.config().n_heads());
    let [batch, _] = tokens.shape();
    let mut sums = ArrayD::<f64>::zeros(IxDyn(&[layers.len(), heads]));
    for row in 0..batch {
        let ids = tokens.real(row);
        let expected = detection.expected(&ids)?;
        let recorded = model.record(&ids, "*hook_pattern")?;
        for (place, layer) in layers.iter().enumerate() {
            let pattern = Activation::from(recorded.get(hook::pattern(*layer))?).to_ndarray()?;
            for head in 0..heads {
                let own = pattern.slice(ndarray::s![0, head, .., ..]);
                sums[[place, head]] += detection.score(own, &expected) / batch as f64;
            }
        }
    }
    if let Some((place, _)) = sums.indexed_iter().find(|(_, score)| score.is_nan()) {
        return Err(Error::NotANumber { what: format!("the score of L{}H{}", layers[place[0]], place[1]) });
    }
    let axes = [LabeledAxis::new("layer", layers.iter().map(usize::to_string)), LabeledAxis::numbered("head", heads)];
    Ok(matching(axes, sums))
}
