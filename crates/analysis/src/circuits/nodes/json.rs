//! Circuits of nodes as JSON.

use hooklens_hooks::Axis;
use serde::{Deserialize, Serialize};

use super::NodeCircuit;
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
            points: self.points.clone(),
            per: self.per_names(),
            shape: self.kept.shape().to_vec(),
            nodes: self.nodes().collect(),
        };
        serde_json::to_string(&stored).unwrap_or_default()
    }

    /// Reads a circuit of some of the nodes in `all` from [`NodeCircuit::to_json`].
    ///
    /// # Errors
    /// Fails if the text is something else, if the weights, spliced dictionaries, points or axes are others, and for a node
    /// that `all` does not contain.
    pub fn from_json(all: &Self, text: &str) -> Result<Self, CircuitError> {
        let excerpt = |text: &str| text.chars().take(200).collect::<String>();
        let unreadable = |source: serde_json::Error| CircuitError::File { reason: excerpt(&source.to_string()) };
        let stored: Stored = serde_json::from_str(text).map_err(unreadable)?;
        if stored.format != FORMAT {
            let reason = format!("its format is `{}`, but this version reads `{FORMAT}`", excerpt(&stored.format));
            return Err(CircuitError::File { reason });
        }
        if let (Some(given), Some(expected)) = (&stored.model, &all.model)
            && given != expected
        {
            return Err(CircuitError::OtherModel { given: excerpt(given), expected: expected.clone() });
        }
        let (given, expected) = ((&stored.points, &stored.per), (&all.points, &all.per_names()));
        if given != expected || stored.shape != all.kept.shape() {
            let reason = format!(
                "its nodes are {:?} at {} points per [{}], but these are {:?} at {} points per [{}]",
                stored.shape,
                stored.points.len(),
                excerpt(&stored.per.join(", ")),
                all.kept.shape(),
                all.points.len(),
                all.per_names().join(", ")
            );
            return Err(CircuitError::File { reason });
        }
        all.only(stored.nodes)
    }

    fn per_names(&self) -> Vec<String> {
        self.per.iter().map(|axis: &Axis| axis.name().to_string()).collect()
    }
}
