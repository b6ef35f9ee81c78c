//! Scores edges by integrating gradients while the ablated fraction of all edges grows from 0 to 1.

use ndarray::Array2;

use crate::attribution::EdgeScores;
use crate::circuits::Circuit;
use crate::circuits::edge_run::{EdgeRunner, mask_of};
use crate::patching::Patching;
use hooklens_model::error::Result;

impl Patching<'_> {
    /// Gradient of the metric with respect to the ablated fraction of each edge, averaged over the midpoints of `steps`
    /// equal intervals between no ablation and full ablation of all edges.
    pub(super) fn mask_gradients(&self, steps: usize) -> Result<EdgeScores> {
        let runner = EdgeRunner::new(self)?;
        let graph = runner.graph();
        let all = mask_of(&Circuit::empty(graph));
        let mut per_example = vec![Array2::zeros(all.raw_dim()); self.examples()];
        let mut done = 0;
        for batch in runner.batches() {
            let group = runner.group(batch)?;
            for step in 0..steps {
                let share = (step as f32 + 0.5) / steps as f32;
                let slopes = runner.gradient(&group, &all.mapv(|edge| edge * share))?;
                for (example, (_, slopes)) in group.examples.iter().zip(slopes) {
                    per_example[*example] = &per_example[*example] + &(slopes / steps as f64);
                }
                done += group.examples.len();
                self.tell(done, steps * self.examples());
            }
        }
        Ok(EdgeScores::of_graph(graph, &per_example))
    }
}
