//! [`GraphTarget`]: a quantity that a graph explains.

use burn::tensor::DType;

use super::capture::Captured;
use super::host;
use crate::error::GraphError;
use hooklens_model::cpu;
use hooklens_model::error::Result;
use hooklens_model::model::{HookedTransformer, ModelParts};

/// A target of a graph: a weighted sum of next-token logits, or a direction in the input of the unembedding.
///
/// ```
/// use hooklens::attribution::graph::{GraphOptions, GraphTarget};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let mary = GraphTarget::token(&model, "Mary")?;
/// let difference = GraphTarget::difference(&model, "Mary", "John")?;
/// let options = GraphOptions::new().target(mary).target(difference);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct GraphTarget {
    pub(super) label: String,
    pub(super) what: What,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum What {
    /// Tokens and the factors of their logits.
    Tokens(Vec<(u32, f32)>),
    Direction(Vec<f32>),
}

impl GraphTarget {
    /// The logit of a token given as text, relative to the mean of all logits.
    ///
    /// # Errors
    /// Fails if the text is not a single token or the model has no tokenizer.
    pub fn token(model: &HookedTransformer, text: &str) -> Result<Self> {
        Ok(Self::id(model, model.to_single_token(text)?))
    }

    /// The logit of a token given by id, relative to the mean of all logits.
    pub fn id(model: &HookedTransformer, id: u32) -> Self {
        Self { label: name(model, id), what: What::Tokens(vec![(id, 1.0)]) }
    }

    /// The difference between the logits of two tokens.
    ///
    /// # Errors
    /// Fails if a text is not a single token or the model has no tokenizer.
    pub fn difference(model: &HookedTransformer, answer: &str, wrong: &str) -> Result<Self> {
        Ok(difference_of_ids(model, model.to_single_token(answer)?, model.to_single_token(wrong)?))
    }

    /// The dot product of a direction, `[d_model]`, with the input of the unembedding.
    pub fn direction(label: impl Into<String>, direction: Vec<f32>) -> Self {
        Self { label: label.into(), what: What::Direction(direction) }
    }
}

/// A token's text, or its id.
pub(super) fn name(model: &HookedTransformer, id: u32) -> String {
    model.to_string(&[id]).unwrap_or_else(|_| format!("#{id}"))
}

/// Targets prepared for computation.
#[derive(Debug, Default)]
pub(super) struct PreparedTargets {
    /// The targets and their weights.
    pub(super) chosen: Vec<(GraphTarget, f32)>,
    pub(super) labels: Vec<String>,
    /// The token of each target that is a single token's logit.
    pub(super) tokens: Vec<Option<u32>>,
    /// Weight of each target, such as its probability.
    pub(super) weights: Vec<f32>,
    /// Gradients with respect to the stream before the final norm, `[target, d_model]`.
    pub(super) vectors: Vec<f32>,
    pub(super) constants: Vec<f64>,
    /// Values of the targets in the run.
    pub(super) values: Vec<f64>,
}

/// The most likely tokens: as many as are needed to reach a total probability of `share`, but at most `most`.
fn likeliest(probabilities: &[f32], most: usize, share: f64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..probabilities.len() as u32).collect();
    order.sort_by(|a, b| probabilities[*b as usize].total_cmp(&probabilities[*a as usize]).then(a.cmp(b)));
    order.truncate(most);
    let mut sum = 0.0;
    let enough = order.iter().position(|id| {
        sum += f64::from(probabilities[*id as usize]);
        sum >= share
    });
    order.truncate(enough.map_or(most, |place| place + 1));
    order
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f64> = logits.iter().map(|x| f64::from(x - most).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|x| (x / sum) as f32).collect()
}

/// The targets of a prompt.
pub(super) fn prepared_targets(
    model: &HookedTransformer,
    captured: &Captured,
    given: &[(GraphTarget, f32)],
    (most, share): (usize, f64),
) -> Result<PreparedTargets> {
    let [uncapped, logits] = &captured.logits;
    let probabilities = softmax(logits);
    if probabilities.iter().any(|p| p.is_nan()) {
        return Err(hooklens_model::error::Error::NotANumber { what: "a logit after the prompt".into() });
    }
    let chosen: Vec<(GraphTarget, f32)> = match given {
        [] => {
            let ids = likeliest(&probabilities, most, share).into_iter();
            ids.map(|id| (GraphTarget::id(model, id), probabilities[id as usize])).collect()
        }
        given => given.to_vec(),
    };
    let (unembed, pos) = (&model.parts().unembed, captured.active.len - 1);
    let matrix = unembed.matrix();
    let mean = host(matrix.clone().cast(DType::F32).mean_dim(1));
    let bias = unembed.bias.as_ref().map(|bias| host(bias.val()));
    let average = |of: &[f32]| of.iter().map(|x| f64::from(*x)).sum::<f64>() / of.len().max(1) as f64;
    let bias_mean = bias.as_deref().map_or(0.0, average);
    let turned = matrix.transpose();
    let mut targets = PreparedTargets::default();
    for (target, weight) in chosen {
        let (mut vector, mut constant, mut value) = (vec![0.0; mean.len()], 0.0, 0.0);
        match &target.what {
            What::Tokens(tokens) => {
                for (id, factor) in tokens {
                    if *id as usize >= logits.len() {
                        let reason = format!("the model has no logit for token {id}; it has {} logits", logits.len());
                        return Err(GraphError::Target { reason }.into());
                    }
                    let row = cpu::gather(&turned, &[*id]);
                    let own = vector.iter_mut().zip(&row).zip(&mean);
                    own.for_each(|((x, row), mean)| *x += factor * (row - mean));
                    let factor = f64::from(*factor);
                    constant += factor * (bias.as_ref().map_or(0.0, |bias| f64::from(bias[*id as usize])) - bias_mean);
                    value += factor * (f64::from(uncapped[*id as usize]) - average(uncapped));
                }
            }
            What::Direction(direction) => {
                if direction.len() != vector.len() {
                    let reason = format!(
                        "{} has {} elements, but the model's width is {}",
                        target.label,
                        direction.len(),
                        vector.len()
                    );
                    return Err(GraphError::Target { reason }.into());
                }
                vector.copy_from_slice(direction);
                value = captured.read_last(direction);
            }
        }
        if let Some(bias) = captured.last.bias() {
            constant += vector.iter().zip(bias).map(|(x, b)| f64::from(*x) * f64::from(*b)).sum::<f64>();
        }
        captured.last.back(&mut vector, pos);
        targets.tokens.push(match &target.what {
            What::Tokens(tokens) if tokens.len() == 1 => Some(tokens[0].0),
            _ => None,
        });
        targets.labels.push(target.label.clone());
        targets.weights.push(weight);
        targets.vectors.extend(vector);
        targets.constants.push(constant);
        targets.values.push(value);
        targets.chosen.push((target, weight));
    }
    Ok(targets)
}

/// Same as [`GraphTarget::difference`], for token ids.
pub fn difference_of_ids(model: &HookedTransformer, answer: u32, wrong: u32) -> GraphTarget {
    let label = format!("{} minus {}", name(model, answer), name(model, wrong));
    GraphTarget { label, what: What::Tokens(vec![(answer, 1.0), (wrong, -1.0)]) }
}
