//! How a graph is made.

use std::path::PathBuf;

use super::target::GraphTarget;
use crate::error::GraphError;
use hooklens_model::error::Result;

/// How an attribution graph is made.
///
/// ```
/// use hooklens::attribution::graph::GraphOptions;
/// let options = GraphOptions::new().max_nodes(1000).likely(5, 0.9); // up to five tokens, or 0.9 of the probability
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct GraphOptions {
    pub(super) targets: Vec<(GraphTarget, f32)>,
    pub(super) likely: (usize, f64),
    pub(super) max_nodes: usize,
    pub(super) left_out: Option<usize>,
    pub(super) ranked_every: Option<usize>,
    pub(super) batch: Option<usize>,
    pub(super) memory: usize,
    pub(super) folder: Option<PathBuf>,
}

impl Default for GraphOptions {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            likely: (10, 0.95),
            max_nodes: 7500,
            left_out: None,
            ranked_every: None,
            batch: None,
            memory: 1 << 30,
            folder: None,
        }
    }
}

impl GraphOptions {
    /// The ten likeliest tokens, or fewer that have 0.95 of the probability; 7500 features.
    pub fn new() -> Self {
        Self::default()
    }

    /// The likeliest tokens as targets: `most`, or fewer whose probabilities sum to `share`.
    pub fn likely(mut self, most: usize, share: f64) -> Self {
        self.likely = (most, share);
        self
    }

    /// An error where the options make no sense, whatever the prompt.
    pub(super) fn check(&self) -> Result<()> {
        let wrong = |what, given: String, wanted| Err(GraphError::Setting { what, given, wanted }.into());
        let (most, share) = self.likely;
        if most == 0 {
            return wrong("the number of likely tokens", most.to_string(), "at least 1");
        }
        if !(share > 0.0 && share <= 1.0) {
            return wrong("the probability of likely tokens", share.to_string(), "above 0 and at most 1");
        }
        if self.ranked_every == Some(0) || self.batch == Some(0) {
            return wrong("a batch size", "0".into(), "at least 1");
        }
        Ok(())
    }

    /// One more target of one's own, instead of the likeliest tokens; all count alike.
    pub fn target(self, target: GraphTarget) -> Self {
        self.weighted_target(target, 1.0)
    }

    /// [`GraphOptions::target`] that counts this much.
    pub fn weighted_target(mut self, target: GraphTarget, weight: f32) -> Self {
        self.targets.push((target, weight));
        self
    }

    /// Features of the graph, those with the largest influence; the effects of others are not looked at.
    pub fn max_nodes(mut self, max_nodes: usize) -> Self {
        self.max_nodes = max_nodes;
        self
    }

    /// Positions at the beginning whose features and errors are left out: by default the token of a prompt's beginning.
    /// What MLPs write there is constant.
    pub fn leaving_out(mut self, positions: usize) -> Self {
        self.left_out = Some(positions);
        self
    }

    /// After how many features the others are ranked anew, where there are more than are wanted; by default a quarter of
    /// those found.
    pub fn ranked_every(mut self, features: usize) -> Self {
        self.ranked_every = Some(features);
        self
    }

    /// Targets computed together; by default as many as fill the cache.
    pub fn batch_size(mut self, targets: usize) -> Self {
        self.batch = Some(targets);
        self
    }

    /// Bytes of effects that are kept in memory; more of them go to a temporary file.
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// Keeps all effects in a folder as they are computed, and goes on from those of the same graph that it finds there: a
    /// run that was killed loses at most a batch. Files stay when the graph is done.
    pub fn resumable(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }
}
