//! The threshold that BatchTopK's dictionaries are used with.

use hooklens_kernels::latents::bound;

use super::coder::Coder;
use super::source::Rows;
use super::trainer::{Trainer, chosen};

/// Tokens encoded at a time.
const TOGETHER: usize = 512;
/// How many times the mean of active latents a piece may have and still be counted exactly.
const MORE: f64 = 4.0;

impl Trainer {
    /// Sets BatchTopK's threshold to the one at which the final weights have k active latents per token on average over
    /// `batches`, as the least score of each batch is a property of that batch alone. Other kinds have none.
    pub(super) fn calibrate(&mut self, batches: &[Rows]) {
        let Some(k) = self.settings.objective.by_batch() else { return };
        let norms: Vec<Vec<f32>> = self.coders.iter().map(Coder::norms).collect();
        let (points, _) = self.settings.all_points();
        let d_in = self.coders[0].d_in.max(1);
        let (mut pool, mut tokens) = (Vec::new(), 0);
        for rows in batches {
            let all = self.rows(rows);
            for first in (0..all).step_by(TOGETHER) {
                let count = TOGETHER.min(all - first);
                let inputs: Vec<&[f32]> =
                    points.iter().map(|point| &rows[point][first * d_in..][..count * d_in]).collect();
                let scores = self.scores(&self.encoded(&self.scaled(&inputs)), &norms);
                // The largest of all are among the largest of each piece.
                let least = bound(&scores, chosen(MORE * k, count).min(scores.len()));
                pool.extend(scores.into_iter().filter(|score| *score >= least && *score > 0.0));
                tokens += count;
            }
        }
        self.threshold = bound(&pool, chosen(k, tokens));
    }
}
