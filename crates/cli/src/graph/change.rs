//! The `--set` and `--looks` options: feature interventions, and the decomposition of an attention score.

use std::fmt;

use serde_json::{Value, json};

use hooklens_features::graph::{
    AttentionPairs, AttributionGraph, FeatureEdit, Hold, Replacement, generate_edited, intervene,
};
use hooklens_model::driver::HookedModel;
use hooklens_model::error::Result;
use hooklens_model::generation::GenerateOptions;
use hooklens_model::model::HookedTransformer;
use hooklens_model::tokens::token_text;

/// A feature intervention given with `--set`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Set {
    layer: usize,
    position: usize,
    latent: usize,
    /// Whether the edit also applies to all later positions.
    onward: bool,
    edit: FeatureEdit,
}

impl Set {
    /// The position that the edit changes, or `None` if the edit also applies to all later positions.
    pub(super) fn one_position(&self) -> Option<usize> {
        (!self.onward).then_some(self.position)
    }
}

/// Formats the edit as on the command line, without the value.
impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.layer, self.position, self.latent)
    }
}

/// Parses `3:14:12=0` or `3:14+:12=x2`.
pub(super) fn set(text: &str) -> Result<Set, String> {
    let wrong = || "expected LAYER:POS:LATENT=VALUE, such as 3:14:12=0, 3:14:12=x2 or 3:14+:12=5".to_string();
    let (place, value) = text.split_once('=').ok_or_else(wrong)?;
    let [layer, pos, latent] = place.split(':').collect::<Vec<_>>()[..] else { return Err(wrong()) };
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
    let (layer, latent, onward) = (number(layer)?, number(latent)?, pos.ends_with('+'));
    let pos = number(pos.strip_suffix('+').unwrap_or(pos))?;
    let (times, value) = value.strip_prefix('x').map_or((false, value), |value| (true, value));
    let value = value.parse::<f32>().ok().filter(|value| value.is_finite()).ok_or_else(wrong)?;
    let make = if times { FeatureEdit::times } else { FeatureEdit::set };
    let edit = make(layer, pos, latent, value);
    let edit = if onward { edit.onward() } else { edit };
    Ok(Set { layer, position: pos, latent, onward, edit })
}

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
    sets: &[Set],
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
    let is_within = |set: &&Set| new.is_none() || set.position < graph.tokens().len();
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

/// Parses `3.0:14:2`.
pub(super) fn looks(text: &str) -> Result<ScoreQuery, String> {
    let wrong = || "expected LAYER.HEAD:FROM:TO, such as 3.0:14:2".to_string();
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
    let [head, query, key] = text.split(':').collect::<Vec<_>>()[..] else { return Err(wrong()) };
    let (layer, head) = head.split_once('.').ok_or_else(wrong)?;
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
    fn changes_are_read() {
        assert_eq!(set("3:14:12=0.5").unwrap().edit, FeatureEdit::set(3, 14, 12, 0.5));
        assert_eq!(set("3:14+:12=x-2").unwrap().edit, FeatureEdit::times(3, 14, 12, -2.0).onward());
        for wrong in ["", "3:14=1", "3:14:12", "3:14:12=", "3:14:12=nan", "a:1:2=3", "1:2:3:4=5"] {
            assert!(set(wrong).unwrap_err().contains("LAYER:POS:LATENT=VALUE"), "{wrong}");
        }
        assert_eq!(looks("3.0:14:2").unwrap().positions, [14, 2]);
        assert!(looks("3:14:2").is_err() && looks("3.0:14").is_err());
    }
}
