//! Components that read from the residual stream.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A component that reads from the residual stream: the end of a path or of an edge. Negative layers count from the end
/// (-1 is the last).
///
/// ```
/// # use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
/// # use hooklens::hook::Axis;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// # let clean = "When Mary and John went to the store, John gave a drink to";
/// # let corrupted = "When Mary and John went to the store, Mary gave a drink to";
/// # let metric = Metric::logit_diff(&model, "Mary", "John")?;
/// let patching = Patching::new(&model, clean, corrupted, metric)?;
/// // How do the queries of the last layer's heads depend on earlier heads?
/// let queries: Vec<Receiver> = (0..4).map(|head| Receiver::Query(-1, head)).collect();
/// let heard = patching.path_from_heads(&queries, Freeze::AttentionAndMlps)?;
/// assert_eq!(heard.mean().values().shape(), [4, 4]);
/// assert!(heard.effect().values()[[3, 0]].abs() < 1e-4); // the receiver's own layer writes too late
/// assert_eq!([Receiver::Query(3, 0), Receiver::Logits].map(|receiver| receiver.to_string()), ["L3H0.q", "logits"]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Receiver {
    /// A head's queries: layer, head.
    Query(isize, usize),
    /// A head's keys: layer, key/value head.
    Key(isize, usize),
    /// A head's values: layer, key/value head.
    Value(isize, usize),
    /// A layer's MLP.
    Mlp(isize),
    /// The unembedding.
    Logits,
}

impl Receiver {
    /// Resolves a negative layer, for a model with `n_layers` layers.
    pub(crate) fn in_model(self, n_layers: usize) -> Self {
        let from_first = |layer: isize| if layer < 0 { layer.saturating_add_unsigned(n_layers) } else { layer };
        match self {
            Receiver::Query(layer, head) => Receiver::Query(from_first(layer), head),
            Receiver::Key(layer, head) => Receiver::Key(from_first(layer), head),
            Receiver::Value(layer, head) => Receiver::Value(from_first(layer), head),
            Receiver::Mlp(layer) => Receiver::Mlp(from_first(layer)),
            Receiver::Logits => Receiver::Logits,
        }
    }
}

impl Receiver {
    /// The layer, unless it is [`Receiver::Logits`].
    pub(crate) fn layer(self) -> Option<isize> {
        match self {
            Receiver::Query(layer, _) | Receiver::Key(layer, _) | Receiver::Value(layer, _) | Receiver::Mlp(layer) => {
                Some(layer)
            }
            Receiver::Logits => None,
        }
    }

    /// The head, or the key/value head.
    pub(crate) fn head(self) -> Option<usize> {
        match self {
            Receiver::Query(_, head) | Receiver::Key(_, head) | Receiver::Value(_, head) => Some(head),
            Receiver::Mlp(_) | Receiver::Logits => None,
        }
    }
}

impl fmt::Display for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Receiver::Query(layer, head) => write!(f, "L{layer}H{head}.q"),
            Receiver::Key(layer, head) => write!(f, "L{layer}H{head}.k"),
            Receiver::Value(layer, head) => write!(f, "L{layer}H{head}.v"),
            Receiver::Mlp(layer) => write!(f, "{layer}_mlp"),
            Receiver::Logits => f.write_str("logits"),
        }
    }
}
