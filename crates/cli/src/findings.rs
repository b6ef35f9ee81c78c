//! A summary of the attention patterns that a dump recorded.

use hooklens_hooks::ActivationCache;

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

    /// One line for each head with a high score.
    pub(super) fn lines(&self) -> Vec<String> {
        const MOSTLY: f32 = 0.5;
        let mut lines = Vec::new();
        for (layer, sums) in &self.layers {
            for (head, score) in sums.means().iter().enumerate() {
                let kinds = [
                    (
                        score.induction,
                        "induction head: attends to the token after the current token's earlier occurrence",
                    ),
                    (score.previous_token, "previous-token head: attends to the previous token"),
                    (score.duplicate_token, "duplicate-token head: attends to the current token's earlier occurrence"),
                ];
                if let Some((score, what)) =
                    kinds.into_iter().filter(|(s, _)| *s > MOSTLY).max_by(|a, b| a.0.total_cmp(&b.0))
                {
                    lines.push(format!("L{layer}H{head}  {score:.2}  {what}"));
                }
            }
        }
        lines
    }
}
