//! What stands for parts of the model in a graph.

use crate::{Dictionary, Transcoders};

/// The features of an attribution graph, and what of the model they stand for.
///
/// ```
/// use hooklens::attribution::graph::Replacement;
/// use hooklens::features::{Dictionary, Transcoders};
/// let by_transcoders = Replacement::transcoders(Transcoders::open("embedded:ioi-transcoders")?);
/// let by_autoencoders = Replacement::dictionaries([Dictionary::open("embedded:ioi-sae")?]);
/// let by_neurons = Replacement::neurons(64); // no dictionary at all
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
    /// Transcoders in the place of every MLP, a layer's own or one across layers.
    pub fn transcoders(transcoders: Transcoders) -> Self {
        Self { kind: Kind::Transcoders(Box::new(transcoders)) }
    }

    /// Dictionaries of points of the residual stream, or transcoders of some layers. MLPs that none stands for are linear
    /// maps: of each neuron the ratio of its activation to its pre-activation is held.
    pub fn dictionaries(dictionaries: impl IntoIterator<Item = Dictionary>) -> Self {
        Self { kind: Kind::Dictionaries(dictionaries.into_iter().collect()) }
    }

    /// Its first dictionary, if there is one.
    pub fn dictionary(&self) -> Option<&Dictionary> {
        match &self.kind {
            Kind::Transcoders(all) => all.layers().first(),
            Kind::Dictionaries(some) => some.first(),
            Kind::Neurons(_) => None,
        }
    }

    /// The neurons of every MLP, and of each layer and position these many that write most; what the others write is an
    /// error node's.
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
