//! ACDC (Conmy et al. 2023): removes edges one after another, from the logits backward.

use crate::circuits::Circuit;
use crate::circuits::edge_run::{EdgeRunner, mask_of};
use crate::error::CircuitError;
use crate::patching::Patching;
use hooklens_model::error::Result;

impl Patching<'_> {
    /// Automatic circuit discovery (Conmy et al. 2023): visits receivers from the logits backward and removes each edge
    /// whose ablation, in addition to the edges already removed, changes the mean metric by less than `threshold`.
    /// Slow: one forward pass per edge and batch of examples; edges into components that nothing in the circuit reads
    /// are removed without a pass.
    ///
    /// ```
    /// use hooklens::patching::{Ablation, Metric, Patching};
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let tokens = model.to_tokens("red fox red")?;
    /// let metric = Metric::logit_diff(&model, "fox", "red")?;
    /// let patching = Patching::ablating(&model, "red fox red", Ablation::Resample("dog fox red".into()), metric)?;
    /// let circuit = patching.acdc(0.5)?;
    /// assert!(circuit.len() < circuit.graph().len());
    /// # let _ = tokens;
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails for a threshold that is negative or NaN; otherwise, same as [`Patching::run_circuits`].
    pub fn acdc(&self, threshold: f64) -> Result<Circuit> {
        if threshold.is_nan() || threshold < 0.0 {
            let (name, given) = ("the threshold", threshold.to_string());
            return Err(CircuitError::Setting { name, given, expected: "0 or more" }.into());
        }
        let runner = EdgeRunner::new(self)?;
        let graph = runner.graph();
        let groups = runner.groups()?;
        let outputs = graph.outputs();
        let mut ablated = mask_of(&Circuit::full(graph));
        let mut current = runner.mean_metric(&groups, &ablated)?;
        let mut read = vec![false; graph.senders().len()];
        for to in (0..graph.receivers().len()).rev() {
            let used = outputs[to].is_empty() || outputs[to].iter().any(|from| read[*from]);
            for from in (0..graph.senders().len()).rev().filter(|from| graph.has((*from, to))) {
                ablated[[from, to]] = 1.0;
                if used {
                    let without = runner.mean_metric(&groups, &ablated)?;
                    if (without - current).abs() < threshold {
                        current = without;
                    } else {
                        ablated[[from, to]] = 0.0;
                        read[from] = true;
                    }
                }
            }
            self.tell(graph.receivers().len() - to, graph.receivers().len());
        }
        let kept = graph.places().filter(|place| ablated[*place] == 0.0);
        Ok(Circuit::of_places(graph, kept))
    }
}
