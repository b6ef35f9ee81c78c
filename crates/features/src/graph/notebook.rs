//! Display of graphs in notebooks.

use super::attribution_graph::{AttributionGraph, NodeKind};
use super::graph_file::{GraphFile, GraphFileParts};
use hooklens_model::error::Result;
use hooklens_plot::error::PlotError;
use hooklens_plot::{Show, Shown, text_and_page};

/// Pruning thresholds, as fractions of the influence.
const SHARES: (f64, f64) = (0.8, 0.98);
/// Number of paths whose nodes are pinned.
const PATHS: usize = 8;

impl Show for AttributionGraph {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        let unread = |error| PlotError::Shown { reason: hooklens_model::error::error_chain(&error) };
        let pruned = self.prune(SHARES.0, SHARES.1).map_err(unread)?;
        let text = format!("attribution graph of {} nodes, {} of them shown", self.nodes().len(), pruned.nodes.len());
        // Promoted tokens require a model, which is not available here; `GraphFile::with_defaults` includes them.
        let target = self.nodes().iter().position(|node| matches!(node.kind, NodeKind::Logit { .. })).unwrap_or(0);
        let on_paths = self.paths(&pruned, target, PATHS).map_err(unread)?.into_iter().flat_map(|path| path.nodes);
        let on_paths: Vec<usize> = on_paths.collect();
        let file = GraphFile::new(self, &pruned).map_err(unread)?;
        Ok(text_and_page(text, &file.pruned_at(SHARES.0, SHARES.1).with_pinned(self, on_paths).page()))
    }
}

impl Show for GraphFile {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        let count = |key: &str| self.json()[key].as_array().map_or(0, Vec::len);
        let text = format!("attribution graph of {} nodes and {} links", count("nodes"), count("links"));
        Ok(text_and_page(text, &self.page()))
    }
}
