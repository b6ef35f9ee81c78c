//! The effect of changing features on the output (`--set`), and the decomposition of an attention score (`--looks`).

use burn::tensor::Tensor;
use burn::tensor::activation::softmax;
use serde_json::{Value, json};

use crate::feature_edit::FeatureEditArg;
use crate::terminal::note;
use hooklens_features::graph::{
    AttentionPairs, AttributionGraph, EditedFeature, FeatureEdit, GraphDetails, Hold, Replacement, generate_edited,
    intervened,
};
use hooklens_model::driver::HookedModel;
use hooklens_model::error::Result;
use hooklens_model::generation::GenerateOptions;
use hooklens_model::model::HookedTransformer;
use hooklens_model::tokens::token_text;

/// A model's output before and after features are changed.
pub(super) struct Changed {
    /// The edited features of the prompt.
    pub(super) edits: Vec<EditedFeature>,
    /// The most likely tokens.
    pub(super) tokens: Vec<ChangedToken>,
    /// Generated continuations before and after.
    pub(super) texts: Option<[String; 2]>,
}

/// A candidate for the next token, with its values before and after features are changed.
pub(super) struct ChangedToken {
    pub(super) text: String,
    pub(super) probabilities: [f32; 2],
    /// Logits relative to the mean of all logits, like the targets of graphs.
    pub(super) logits: [f32; 2],
}

/// Probabilities of the next token, and logits relative to their mean.
struct NextToken {
    probabilities: Vec<f32>,
    logits: Vec<f32>,
    edited: Vec<EditedFeature>,
}

/// Runs the model without and with features changed; `None` if no changes are given. Prints a note for each change that
/// has no effect because its feature is not active. `unit` is the noun for features in these notes.
pub(super) fn changed(
    graph: &AttributionGraph,
    model: &HookedTransformer,
    replacement: &Replacement,
    sets: &[FeatureEditArg],
    new: Option<usize>,
    (unit, top): (&str, usize),
) -> Result<Option<Changed>> {
    if sets.is_empty() {
        return Ok(None);
    }
    let edits: Vec<FeatureEdit> = sets.iter().map(|set| set.edit).collect();
    let prompt = || graph.tokens().to_vec();
    let text = |id: u32| token_text(model.tokenizer().ok(), id);
    let next_token = |edits: &[FeatureEdit]| -> Result<NextToken> {
        let made = intervened(model, prompt(), replacement, edits, Hold::Nothing)?;
        let last = made.logits.narrow(1, graph.tokens().len() - 1, 1);
        let values = |of: Tensor<3>| -> Vec<f32> { of.into_data().iter::<f32>().collect() };
        let (probabilities, mut logits) = (values(softmax(last.clone(), 2)), values(last));
        let mean = logits.iter().map(|x| f64::from(*x)).sum::<f64>() / logits.len().max(1) as f64;
        logits.iter_mut().for_each(|x| *x = (f64::from(*x) - mean) as f32);
        Ok(NextToken { probabilities, logits, edited: made.edited })
    };
    // Positions after the prompt belong to tokens that are not generated yet.
    let is_within = |set: &&FeatureEditArg| new.is_none() || set.position < graph.tokens().len();
    let within: Vec<FeatureEditArg> = sets.iter().filter(is_within).copied().collect();
    let edits_within: Vec<FeatureEdit> = within.iter().map(|set| set.edit).collect();
    let (before, after) = (next_token(&[])?, next_token(&edits_within)?);
    note_inactive(&within, &after.edited, graph.token_texts(), unit, new.is_some());
    let most = |id: usize| before.probabilities[id].max(after.probabilities[id]);
    let mut order: Vec<usize> = (0..before.probabilities.len()).collect();
    order.sort_by(|a, b| most(*b).total_cmp(&most(*a)));
    let token = |id: usize| ChangedToken {
        text: text(id as u32),
        probabilities: [before.probabilities[id], after.probabilities[id]],
        logits: [before.logits[id], after.logits[id]],
    };
    let tokens: Vec<ChangedToken> = order.into_iter().take(top).map(token).collect();
    let made = |edits: &[FeatureEdit], new: usize| -> Result<String> {
        let made = generate_edited(model, prompt(), replacement, edits, GenerateOptions::new().max_new_tokens(new))?;
        let row = made.rows.into_iter().next();
        Ok(row.map(|row| row.text.unwrap_or_else(|| format!("{:?}", row.new))).unwrap_or_default())
    };
    let texts =
        new.map(|new| Ok::<_, hooklens_model::error::Error>([made(&[], new)?, made(&edits, new)?])).transpose()?;
    Ok(Some(Changed { edits: after.edited, tokens, texts }))
}

/// Prints a note for each change that has no effect because its feature is not active.
fn note_inactive(
    sets: &[FeatureEditArg],
    edited: &[EditedFeature],
    texts: &[String],
    unit: &str,
    is_followed_by_more: bool,
) {
    for (number, set) in sets.iter().enumerate() {
        // The feature may be active at generated tokens.
        if is_followed_by_more && set.one_position().is_none() {
            continue;
        }
        let own: Vec<EditedFeature> = edited.iter().filter(|one| one.edit == number).copied().collect();
        if own.iter().any(|one| one.before != 0.0 || one.after != 0.0 || one.change != 0.0) {
            continue;
        }
        let (Some(first), Some(last)) = (own.first(), own.last()) else { continue };
        let at = if first.position == last.position {
            let text = texts.get(first.position).map_or("", String::as_str);
            format!("position {} ({text:?})", first.position)
        } else {
            format!("positions {} to {}", first.position, last.position)
        };
        note(format!(
            "{unit} {} of layer {} is not active at {at}, so {} changes nothing",
            first.latent,
            first.layer,
            set.change()
        ));
    }
}

impl Changed {
    pub(super) fn json(&self) -> Value {
        let edit = |edit: &EditedFeature| {
            json!({
                "layer": edit.layer, "position": edit.position, "latent": edit.latent,
                "before": edit.before, "after": edit.after,
            })
        };
        let token = |token: &ChangedToken| {
            let ([before, after], [logit_before, logit_after]) = (token.probabilities, token.logits);
            json!({
                "token": token.text, "before": before, "after": after,
                "logit_before": logit_before, "logit_after": logit_after,
            })
        };
        let texts = self.texts.as_ref().map(|[before, after]| json!({ "before": before, "after": after }));
        let edits: Vec<Value> = self.edits.iter().map(edit).collect();
        json!({ "edits": edits, "tokens": self.tokens.iter().map(token).collect::<Vec<_>>(), "text": texts })
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
