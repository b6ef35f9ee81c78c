//! [`Replacement`]: the features that replace parts of the model in a graph.

use crate::{Dictionary, Transcoders};

/// The features of an attribution graph, and the parts of the model that they replace.
///
/// ```
/// use hooklens::attribution::graph::Replacement;
/// use hooklens::features::{Dictionary, Transcoders};
/// let by_transcoders = Replacement::transcoders(Transcoders::open("embedded:ioi-transcoders")?);
/// let by_autoencoders = Replacement::dictionaries([Dictionary::open("embedded:ioi-sae")?]);
/// let by_neurons = Replacement::neurons(64); // needs no dictionary
/// # let _ = (by_transcoders, by_autoencoders, by_neurons);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Replacement {
    pub(super) kind: Kind,
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    Transcoders(Box<Transcoders>),
    Dictionaries(Vec<Dictionary>),
    Neurons(usize),
}

impl Replacement {
    /// Replaces every MLP with transcoders, per layer or cross-layer.
    pub fn transcoders(transcoders: Transcoders) -> Self {
        Self { kind: Kind::Transcoders(Box::new(transcoders)) }
    }

    /// Uses dictionaries on the residual stream, or transcoders of some layers. MLPs without a dictionary become linear
    /// maps: each neuron's ratio of activation to pre-activation is frozen.
    pub fn dictionaries(dictionaries: impl IntoIterator<Item = Dictionary>) -> Self {
        Self { kind: Kind::Dictionaries(dictionaries.into_iter().collect()) }
    }

    /// Uses the neurons of every MLP: at each layer and position, the `of_each_position` neurons with the largest
    /// outputs. The output of the other neurons belongs to the error node.
    pub fn neurons(of_each_position: usize) -> Self {
        Self { kind: Kind::Neurons(of_each_position) }
    }
}

impl From<Transcoders> for Replacement {
    fn from(transcoders: Transcoders) -> Self {
        Self::transcoders(transcoders)
    }
}

impl From<Dictionary> for Replacement {
    fn from(dictionary: Dictionary) -> Self {
        Self::dictionaries([dictionary])
    }
}
