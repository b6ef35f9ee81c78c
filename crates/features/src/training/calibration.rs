//! Calibration of the threshold that BatchTopK dictionaries use at inference.

use hooklens_kernels::latents::bound;

use super::coder::Coder;
use super::source::Rows;
use super::trainer::{Trainer, chosen};

/// Number of tokens encoded at a time.
const TOGETHER: usize = 512;
/// Number of candidate scores kept per chunk, as a multiple of k times the chunk's tokens. The threshold is exact if no
/// chunk has more than this number of scores above the threshold.
const MORE: f64 = 4.0;

impl Trainer {
    /// Sets BatchTopK's threshold so that the final weights have k active latents per token on average over `batches`.
    /// A threshold taken from a single batch would depend on that batch alone. Does nothing for other objectives.
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
                // The overall largest scores are among the largest scores of the chunks.
                let least = bound(&scores, chosen(MORE * k, count).min(scores.len()));
                pool.extend(scores.into_iter().filter(|score| *score >= least && *score > 0.0));
                tokens += count;
            }
        }
        self.threshold = bound(&pool, chosen(k, tokens));
    }
}
