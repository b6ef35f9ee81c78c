//! What the dumped attention patterns show at a glance.

use hooklens_hooks::Activation;

use crate::experiments::{HeadScores, head_scores};
use crate::tokens::Tokens;

/// Running means of every head's scores over the batches of a dump.
#[derive(Default)]
pub(super) struct Findings {
    /// Pattern name, and its heads' sums.
    layers: Vec<(String, Vec<HeadScores>)>,
    batches: usize,
}

impl Findings {
    /// Looks at one batch. A pattern that was sliced or lacks its tokens is passed over.
    pub(super) fn look(&mut self, tokens: &Tokens, tensors: &[(String, Activation)]) {
        self.batches += 1;
        for (name, pattern) in tensors.iter().filter(|(name, _)| name.ends_with("hook_pattern")) {
            let [_, len] = tokens.shape();
            if !matches!(pattern.shape(), [_, _, queries, keys] if *queries == len && *keys == len) {
                continue;
            }
            let Ok(scores) = head_scores(pattern, tokens) else { continue };
            match self.layers.iter_mut().find(|(held, _)| held == name) {
                Some((_, sums)) => sums.iter_mut().zip(scores).for_each(|(sum, new)| {
                    sum.previous_token += new.previous_token;
                    sum.duplicate_token += new.duplicate_token;
                    sum.induction += new.induction;
                }),
                None => self.layers.push((name.clone(), scores)),
            }
        }
    }

    /// A line for each head that mostly does one thing.
    pub(super) fn lines(&self) -> Vec<String> {
        const MOSTLY: f32 = 0.5;
        let mut lines = Vec::new();
        for (name, sums) in &self.layers {
            let layer = name.split('.').nth(1).unwrap_or("?");
            for (head, sum) in sums.iter().enumerate() {
                let mean = |total: f32| total / self.batches as f32;
                let kinds = [
                    (mean(sum.induction), "induction head: looks at what followed the token's earlier occurrence"),
                    (mean(sum.previous_token), "previous-token head: looks one token back"),
                    (mean(sum.duplicate_token), "duplicate-token head: looks at the token's earlier occurrence"),
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
