//! Scores each edge by ablating that edge alone.

use ndarray::Array2;

use crate::attribution::EdgeScores;
use crate::circuits::edge_run::EdgeRunner;
use crate::patching::Patching;
use hooklens_model::error::Result;

impl Patching<'_> {
    /// Change in the metric when one edge is ablated, for each edge. Several edges of one example run as one batch.
    pub(super) fn exact_edges(&self) -> Result<EdgeScores> {
        let runner = EdgeRunner::new(self)?;
        let graph = runner.graph();
        let shape = (graph.senders().len(), graph.receivers().len());
        let edges: Vec<(usize, usize)> = graph.places().collect();
        let (mut per_example, examples) = (Vec::new(), self.examples());
        for example in 0..examples {
            let clean = runner.clean(&[example])?[0];
            let group = runner.group(vec![example])?;
            let mut scores = Array2::zeros(shape);
            let mut done = example * edges.len();
            for chunk in edges.chunks(runner.rows_at_once(self.base[example].len())) {
                let mask = |edge: &(usize, usize)| {
                    let mut mask = Array2::zeros(shape);
                    mask[*edge] = 1.0;
                    mask
                };
                let values = runner.metric_per_mask(&group, &chunk.iter().map(mask).collect::<Vec<_>>())?;
                for (edge, value) in chunk.iter().zip(values) {
                    scores[*edge] = value - clean;
                }
                done += chunk.len();
                self.tell(done, examples * edges.len());
            }
            per_example.push(scores);
        }
        Ok(EdgeScores::of_graph(graph, &per_example))
    }
}
