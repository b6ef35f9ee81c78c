//! Circuits of nodes as JSON.

use hooklens_hooks::Axis;
use serde::{Deserialize, Serialize};

use super::{NodeCircuit, list};
use crate::circuits::circuit_json::{excerpt, parsed, stored};
use crate::error::CircuitError;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: String,
    /// Hash of the model's weights and of spliced parts, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    points: Vec<String>,
    /// Names of the swept axes.
    per: Vec<String>,
    /// Number of nodes along each axis, the points first.
    shape: Vec<usize>,
    /// The nodes, each as one index per axis.
    nodes: Vec<Vec<usize>>,
}

const FORMAT: &str = "hooklens nodes 1";

impl NodeCircuit {
    /// The circuit as JSON, with the hash of the model's weights and of spliced dictionaries.
    ///
    /// ```
    /// use hooklens::circuits::NodeCircuit;
    /// use hooklens::hook::Axis;
    /// use hooklens::patching::Sites;
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let patching = model.ablating("Mary and John", Ablation::Zero).logit_diff("Mary", "John")?;
    /// let heads = patching.nodes(&Sites::new("*attn.hook_z").per([Axis::Head]))?;
    /// let late = heads.only([[3, 0], [3, 2]])?;
    /// assert_eq!(NodeCircuit::from_json(&heads, &late.to_json())?, late);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn to_json(&self) -> String {
        let stored = Stored {
            format: FORMAT.into(),
            model: self.model.clone(),
            points: self.points.to_vec(),
            per: self.per_names(),
            shape: self.kept.shape().to_vec(),
            nodes: self.nodes().collect(),
        };
        serde_json::to_string(&stored).unwrap_or_default()
    }

    /// Reads a circuit from the output of [`NodeCircuit::to_json`]. `all` has every node that the circuit may contain.
    ///
    /// # Errors
    /// Fails if the text is not a circuit of nodes, if it was saved for weights, spliced dictionaries, points or axes
    /// that differ from the ones in `all`, or if it contains a node that `all` lacks.
    pub fn from_json(all: &Self, text: &str) -> Result<Self, CircuitError> {
        let value = parsed(text)?;
        if value.get("edges").is_some() {
            return Err(CircuitError::File { reason: "it is a circuit of edges, not of nodes".into() });
        }
        let stored: Stored = stored(value, FORMAT)?;
        if let (Some(given), Some(expected)) = (&stored.model, &all.model)
            && given != expected
        {
            return Err(CircuitError::OtherModel { given: excerpt(given), expected: expected.clone() });
        }
        if stored.points[..] != all.points[..] || stored.per != all.per_names() || stored.shape != all.kept.shape() {
            let of = |points: &[String], per: &[String], shape: &[usize]| {
                format!("{} per [{}], {shape:?}", list(points), per.join(", "))
            };
            let given = excerpt(&of(&stored.points, &stored.per, &stored.shape));
            let expected = of(&all.points, &all.per_names(), all.kept.shape());
            return Err(CircuitError::File { reason: format!("its nodes are {given}; expected {expected}") });
        }
        all.only(stored.nodes)
    }

    fn per_names(&self) -> Vec<String> {
        self.per.iter().map(|axis: &Axis| axis.name().to_string()).collect()
    }
}
