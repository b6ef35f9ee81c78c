//! What an attention head looks at, as three scores.

use hooklens_hooks::Activation;

use crate::error::Result;
use crate::tokens::Tokens;

/// How much of a head's attention goes to places of a known kind, each from 0 to 1: the mean,
/// over the queries that have such a place, of the attention paid to it.
///
/// ```
/// use hooklens::experiments::head_scores;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let tokens = model.to_tokens("king drum sun star king drum sun star")?;
/// let cache = model.record(&tokens, "*hook_pattern")?;
/// let scores = head_scores(cache.activation("pattern0")?, &tokens)?;
/// // Heads of layer 0 look one back; those of layer 1 read from there what to copy.
/// assert!(scores.iter().any(|head| head.previous_token > 0.4 && head.induction < 0.2));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct HeadScores {
    /// To the token right before the query.
    pub previous_token: f32,
    /// To earlier occurrences of the query's token.
    pub duplicate_token: f32,
    /// To the tokens right after earlier occurrences of the query's token: what follows there is
    /// what an induction head predicts here (Olsson et al. 2022).
    pub induction: f32,
}

/// Scores of every head of one layer, from its pattern `[batch, head, query, key]` on `tokens`.
///
/// A score is 0 where no query has such a place: no token occurs twice, say.
///
/// # Errors
/// If the pattern is not of rank four or can't be read from its device.
///
/// ```
/// use hooklens::experiments::head_scores;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let tokens = model.to_tokens("king drum sun star king drum sun star")?;
/// let cache = model.record(&tokens, hook::pattern(1))?;
/// let best = head_scores(cache.activation("pattern1")?, &tokens)?;
/// assert!(best.iter().any(|head| head.induction > 0.6));
/// # Ok::<(), hooklens::Error>(())
/// ```
pub fn head_scores(pattern: &Activation, tokens: &Tokens) -> Result<Vec<HeadScores>> {
    let mut sums = HeadSums::default();
    sums.add(pattern, tokens)?;
    Ok(sums.means())
}

/// Scores of one layer's heads over several batches.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeadSums {
    heads: Vec<HeadScores>,
    /// Queries that had such a place: before them, of their token, after their token.
    counts: [usize; 3],
}

impl HeadSums {
    /// Adds what one batch shows.
    pub(crate) fn add(&mut self, pattern: &Activation, tokens: &Tokens) -> Result<()> {
        let heads = pattern.to_tensor::<4>()?.dims()[1];
        let pattern = pattern.to_ndarray()?;
        let [batch, len] = tokens.shape();
        let real = |row: usize, at: usize| tokens.mask().is_none_or(|mask| mask[row * len + at]);
        self.heads.resize(heads, HeadScores::default());
        for row in 0..batch {
            let ids = tokens.row(row);
            for query in (1..len).filter(|query| real(row, *query)) {
                let earlier: Vec<usize> = (0..query).filter(|key| real(row, *key) && ids[*key] == ids[query]).collect();
                let after: Vec<usize> = earlier.iter().map(|key| key + 1).filter(|key| *key < query).collect();
                let before = if real(row, query - 1) { vec![query - 1] } else { vec![] };
                for (kind, keys) in [before, earlier, after].iter().enumerate().filter(|(_, keys)| !keys.is_empty()) {
                    self.counts[kind] += 1;
                    for (head, score) in self.heads.iter_mut().enumerate() {
                        let paid: f32 = keys.iter().map(|key| pattern[[row, head, query, *key]]).sum();
                        *[&mut score.previous_token, &mut score.duplicate_token, &mut score.induction][kind] += paid;
                    }
                }
            }
        }
        Ok(())
    }

    /// The scores of all batches together.
    pub(crate) fn means(&self) -> Vec<HeadScores> {
        let mean = |sum: f32, count: usize| if count == 0 { 0.0 } else { sum / count as f32 };
        let of = |sums: &HeadScores| HeadScores {
            previous_token: mean(sums.previous_token, self.counts[0]),
            duplicate_token: mean(sums.duplicate_token, self.counts[1]),
            induction: mean(sums.induction, self.counts[2]),
        };
        self.heads.iter().map(of).collect()
    }
}
