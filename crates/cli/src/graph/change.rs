//! What changed features do to the output (`--set`), and the decomposition of an attention score (`--looks`).

use serde_json::{Value, json};

use crate::feature_edit::FeatureEditArg;
use hooklens_features::graph::{
    AttentionPairs, AttributionGraph, FeatureEdit, Hold, Replacement, generate_edited, intervene,
};
use hooklens_model::driver::HookedModel;
use hooklens_model::error::Result;
use hooklens_model::generation::GenerateOptions;
use hooklens_model::model::HookedTransformer;
use hooklens_model::tokens::token_text;

/// A model's output before and after features are changed.
pub(super) struct Changed {
    /// The most likely tokens, with their probabilities before and after.
    pub(super) tokens: Vec<(String, f32, f32)>,
    /// Generated continuations before and after.
    pub(super) texts: Option<[String; 2]>,
}

/// Runs the model without and with features changed; `None` if no changes are given.
pub(super) fn changed(
    graph: &AttributionGraph,
    model: &HookedTransformer,
    replacement: &Replacement,
    sets: &[FeatureEditArg],
    new: Option<usize>,
    top: usize,
) -> Result<Option<Changed>> {
    if sets.is_empty() {
        return Ok(None);
    }
    let edits: Vec<FeatureEdit> = sets.iter().map(|set| set.edit).collect();
    let prompt = || graph.tokens().to_vec();
    let text = |id: u32| token_text(model.tokenizer().ok(), id);
    let probabilities = |edits: &[FeatureEdit]| -> Result<Vec<f32>> {
        let logits = intervene(model, prompt(), replacement, edits, Hold::Nothing)?;
        let last = logits.narrow(1, graph.tokens().len() - 1, 1);
        Ok(burn::tensor::activation::softmax(last, 2).into_data().iter::<f32>().collect())
    };
    // Positions after the prompt belong to tokens that are not generated yet.
    let is_within = |set: &&FeatureEditArg| new.is_none() || set.position < graph.tokens().len();
    let within: Vec<FeatureEdit> = sets.iter().filter(is_within).map(|set| set.edit).collect();
    let (before, after) = (probabilities(&[])?, probabilities(&within)?);
    let mut order: Vec<usize> = (0..before.len()).collect();
    order.sort_by(|a, b| before[*b].max(after[*b]).total_cmp(&before[*a].max(after[*a])));
    let tokens = order.into_iter().take(top).map(|id| (text(id as u32), before[id], after[id])).collect();
    let made = |edits: &[FeatureEdit], new: usize| -> Result<String> {
        let made = generate_edited(model, prompt(), replacement, edits, GenerateOptions::new().max_new_tokens(new))?;
        let row = made.rows.into_iter().next();
        Ok(row.map(|row| row.text.unwrap_or_else(|| format!("{:?}", row.new))).unwrap_or_default())
    };
    let texts =
        new.map(|new| Ok::<_, hooklens_model::error::Error>([made(&[], new)?, made(&edits, new)?])).transpose()?;
    Ok(Some(Changed { tokens, texts }))
}

impl Changed {
    pub(super) fn json(&self) -> Value {
        let token =
            |(token, before, after): &(String, f32, f32)| json!({ "token": token, "before": before, "after": after });
        let texts = self.texts.as_ref().map(|[before, after]| json!({ "before": before, "after": after }));
        json!({ "tokens": self.tokens.iter().map(token).collect::<Vec<_>>(), "text": texts })
    }
}

/// An attention head, with a query and a key position.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScoreQuery {
    pub(super) head: (usize, usize),
    pub(super) positions: [usize; 2],
}

/// Parses `L3H0:14:2` or `3.0:14:2`.
pub(super) fn looks(text: &str) -> Result<ScoreQuery, String> {
    let wrong = || "expected HEAD:FROM:TO, such as L3H0:14:2".to_string();
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
    let [head, query, key] = text.split(':').collect::<Vec<_>>()[..] else { return Err(wrong()) };
    let named = head.strip_prefix('L').and_then(|head| head.split_once('H'));
    let (layer, head) = named.or(head.split_once('.')).ok_or_else(wrong)?;
    Ok(ScoreQuery { head: (number(layer)?, number(head)?), positions: [number(query)?, number(key)?] })
}

impl ScoreQuery {
    pub(super) fn pairs(
        self,
        graph: &AttributionGraph,
        model: &HookedTransformer,
        replacement: &Replacement,
        top: usize,
    ) -> Result<(Self, AttentionPairs)> {
        Ok((self, graph.attention_pairs(model, replacement, self.head, self.positions, top)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_positions_are_read() {
        assert_eq!(looks("3.0:14:2").unwrap().positions, [14, 2]);
        assert_eq!(looks("L3H0:14:2").unwrap().head, (3, 0));
        assert!(looks("3:14:2").is_err() && looks("3.0:14").is_err());
    }
}
