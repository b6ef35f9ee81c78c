//! [`GraphOptions`]: options of attribution graphs.

use std::path::PathBuf;

use super::target::GraphTarget;
use crate::error::GraphError;
use hooklens_model::error::Result;

/// Options of an attribution graph.
///
/// ```
/// use hooklens::attribution::graph::GraphOptions;
/// let options = GraphOptions::new().max_nodes(1000).likely(5, 0.9); // up to five tokens, with 0.9 of the probability
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
    /// Default options: the targets are the most likely tokens, as many as are needed to reach a total probability of
    /// 0.95 but at most ten, and the graph has at most 7500 features.
    pub fn new() -> Self {
        Self::default()
    }

    /// Targets the most likely tokens: as many as reach a total probability of `share`, but at most `most`.
    pub fn likely(mut self, most: usize, share: f64) -> Self {
        self.likely = (most, share);
        self
    }

    /// Fails for options that are invalid for any prompt.
    pub(super) fn check(&self) -> Result<()> {
        let wrong = |what, given: String, wanted| Err(GraphError::Setting { what, given, wanted }.into());
        let (most, share) = self.likely;
        if most == 0 {
            return wrong("the number of likely tokens", most.to_string(), "at least 1");
        }
        if !(share > 0.0 && share <= 1.0) {
            return wrong("the probability of likely tokens", share.to_string(), "a value above 0 and at most 1");
        }
        if self.ranked_every == Some(0) || self.batch == Some(0) {
            return wrong("the batch size", "0".into(), "at least 1");
        }
        Ok(())
    }

    /// Adds a custom target, which replaces the most likely tokens. All custom targets have equal weight.
    pub fn target(self, target: GraphTarget) -> Self {
        weighted_target(self, target, 1.0)
    }

    /// Sets the maximum number of features in the graph. The features with the largest influence are chosen; effects on
    /// the others are not computed.
    pub fn max_nodes(mut self, max_nodes: usize) -> Self {
        self.max_nodes = max_nodes;
        self
    }

    /// Leaves out the features and errors of the first `positions` positions. By default, only a BOS token's features
    /// and errors are left out. MLP outputs at these positions count as constants.
    pub fn exclude_positions(mut self, positions: usize) -> Self {
        self.left_out = Some(positions);
        self
    }

    /// Sets how many bytes of effects are kept in memory. Beyond that, effects are stored in a temporary file.
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// Stores all effects in a folder as they are computed, and resumes from the effects already stored there for the
    /// same graph. An interrupted run loses at most one batch. The files are kept when the graph is finished.
    pub fn resumable(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }
}

/// Sets how many features are traced before the remaining ones are ranked again, if more than `max_nodes` are active.
/// The default is a quarter of the number of features traced so far, but at least 128.
pub fn ranked_every(options: GraphOptions, features: usize) -> GraphOptions {
    GraphOptions { ranked_every: Some(features), ..options }
}

/// Sets how many targets are computed together. The default is as many as fit in the CPU cache.
pub fn batch_size(options: GraphOptions, targets: usize) -> GraphOptions {
    GraphOptions { batch: Some(targets), ..options }
}

/// Adds a custom target like [`GraphOptions::target`], with this weight.
pub fn weighted_target(mut options: GraphOptions, target: GraphTarget, weight: f32) -> GraphOptions {
    options.targets.push((target, weight));
    options
}
