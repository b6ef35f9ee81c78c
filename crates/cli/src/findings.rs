//! A summary of the attention patterns that a dump recorded.

use hooklens_hooks::ActivationCache;
use serde_json::{Value, json};

use hooklens_analysis::experiments::HeadSums;
use hooklens_model::tokens::Tokens;

/// Scores of every head, summed over the batches of a dump.
#[derive(Default)]
pub(super) struct Findings {
    /// Layer index, with the sums over its heads.
    layers: Vec<(usize, HeadSums)>,
}

impl Findings {
    /// Adds one batch. Patterns with sliced positions are skipped.
    pub(super) fn look(&mut self, tokens: &Tokens, recorded: &ActivationCache) {
        let [_, len] = tokens.shape();
        for layer in 0..recorded.catalog().n_layers() {
            let Ok(pattern) = recorded.activation(("pattern", layer)) else { continue };
            if !matches!(pattern.shape(), [_, _, queries, keys] if *queries == len && *keys == len) {
                continue;
            }
            let place = self.layers.iter().position(|(held, _)| *held == layer).unwrap_or(self.layers.len());
            if place == self.layers.len() {
                self.layers.push((layer, HeadSums::default()));
            }
            // Errors are ignored here, since the dump itself reports them.
            let _ = self.layers[place].1.add(pattern, tokens);
        }
    }

    /// The heads with a high score.
    fn found(&self) -> Vec<Found> {
        const MOSTLY: f32 = 0.5;
        let mut found = Vec::new();
        for (layer, sums) in &self.layers {
            for (head, score) in sums.means().iter().enumerate() {
                let kinds = [
                    ("induction", score.induction),
                    ("previous token", score.previous_token),
                    ("duplicate token", score.duplicate_token),
                ];
                let best = kinds.into_iter().filter(|(_, s)| *s > MOSTLY).max_by(|a, b| a.1.total_cmp(&b.1));
                found.extend(best.map(|(pattern, score)| Found { head: format!("L{layer}H{head}"), pattern, score }));
            }
        }
        found
    }

    /// One line for each head with a high score.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |found: Found| {
            let what = match found.pattern {
                "induction" => "induction head: attends to the token after the current token's earlier occurrence",
                "previous token" => "previous-token head: attends to the previous token",
                _ => "duplicate-token head: attends to the current token's earlier occurrence",
            };
            format!("{}  {:.2}  {what}", found.head, found.score)
        };
        self.found().into_iter().map(line).collect()
    }

    /// The heads with a high score, as JSON.
    pub(super) fn json(&self) -> Vec<Value> {
        let one = |found: Found| json!({"head": found.head, "pattern": found.pattern, "score": found.score});
        self.found().into_iter().map(one).collect()
    }
}

/// A head with a high score.
struct Found {
    head: String,
    pattern: &'static str,
    score: f32,
}
