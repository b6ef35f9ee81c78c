//! [`EdgeGraph`]: the edges that a model's architecture has.

use super::edges::Sender;
use crate::error::CircuitError;
use crate::patching::Receiver;
use hooklens_hooks::nearest;
use hooklens_model::config::{Layers, ResidualScheme, Settings, TransformerConfig};
use hooklens_model::error::Result;
use hooklens_model::model::{DecoderChecks, HookedTransformer, Identified};

/// The edges of a model: each component that writes to the residual stream is connected to each component that reads
/// it afterwards. With grouped-query attention, there is one key receiver and one value receiver per key/value head.
///
/// ```
/// use hooklens::attribution::{EdgeGraph, Sender};
/// use hooklens::patching::Receiver;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let graph = EdgeGraph::of(&model)?;
/// assert_eq!((graph.senders().len(), graph.receivers().len(), graph.len()), (1 + 16 + 4, 3 * 16 + 4 + 1, 479));
/// assert!(graph.contains(Sender::Head(0, 1), Receiver::Query(1, 3)));
/// assert!(!graph.contains(Sender::Head(1, 3), Receiver::Query(1, 3)));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeGraph {
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
    /// Whether each layer's MLP reads the same stream as its attention.
    parallel: bool,
    /// Hash of the model's weights, if known.
    model: Option<String>,
}

impl EdgeGraph {
    /// The graph of a model.
    ///
    /// # Errors
    /// Fails for architectures in which the inputs of heads and MLPs are not sums of earlier outputs, such as models
    /// with a normalized residual stream, layers without attention, keys shared between layers, or per-layer inputs.
    pub fn of(model: &HookedTransformer) -> Result<Self> {
        let what = "a graph of edges";
        model.check_plain_layers(what)?;
        model.check_sums(what)?;
        let config = model.config();
        let model = model.identity().content().map(str::to_string);
        let parallel = config.residual() == ResidualScheme::Parallel;
        Ok(Self { senders: senders(config), receivers: receivers(config), parallel, model })
    }

    pub(crate) fn from_parts(
        senders: Vec<Sender>,
        receivers: Vec<Receiver>,
        parallel: bool,
        model: Option<String>,
    ) -> Self {
        Self { senders, receivers, parallel, model }
    }

    /// The components that write to the residual stream.
    pub fn senders(&self) -> &[Sender] {
        &self.senders
    }

    /// The components that read the residual stream, in the order of the forward pass.
    pub fn receivers(&self) -> &[Receiver] {
        &self.receivers
    }

    /// Number of edges.
    pub fn len(&self) -> usize {
        self.edges().count()
    }

    /// Whether there are no edges.
    pub fn is_empty(&self) -> bool {
        self.edges().next().is_none()
    }

    /// All edges, ordered by sender.
    pub fn edges(&self) -> impl Iterator<Item = (Sender, Receiver)> {
        self.places().map(|(from, to)| (self.senders[from], self.receivers[to]))
    }

    /// Whether the model has this edge.
    pub fn contains(&self, sender: Sender, receiver: Receiver) -> bool {
        self.place(sender, receiver).is_ok()
    }

    /// Indices of the sender and the receiver of each edge.
    pub(crate) fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        let senders = 0..self.senders.len();
        senders.flat_map(|from| (0..self.receivers.len()).map(move |to| (from, to))).filter(|place| self.has(*place))
    }

    pub(crate) fn has(&self, (from, to): (usize, usize)) -> bool {
        precedes(self.senders[from], self.receivers[to], self.parallel)
    }

    pub(crate) fn n_layers(&self) -> usize {
        let layers = self.senders.iter().filter_map(|sender| match sender {
            Sender::Head(layer, _) | Sender::Mlp(layer) => Some(layer + 1),
            Sender::Embed => None,
        });
        layers.max().unwrap_or(0)
    }

    /// Number of heads and of key/value heads of a layer.
    pub(crate) fn heads_of(&self, layer: isize) -> [usize; 2] {
        let count = |is: fn(&Receiver) -> bool| {
            self.receivers.iter().filter(|own| is(own) && own.layer() == Some(layer)).count()
        };
        [count(|own| matches!(own, Receiver::Query(..))), count(|own| matches!(own, Receiver::Key(..)))]
    }

    /// For each receiver, the indices of the senders whose outputs are computed from what it reads.
    pub(crate) fn outputs(&self) -> Vec<Vec<usize>> {
        (0..self.receivers.len()).map(|to| self.outputs_of(to)).collect()
    }

    /// Indices of the senders whose outputs are computed from what a receiver reads.
    pub(crate) fn outputs_of(&self, to: usize) -> Vec<usize> {
        let receiver = self.receivers[to];
        let Some(layer) = receiver.layer() else { return Vec::new() };
        let [heads, kv_heads] = self.heads_of(layer);
        let group = heads / kv_heads.max(1);
        let computes = |sender: &Sender| match (receiver, *sender) {
            (Receiver::Query(..), Sender::Head(at, head)) => (Some(head), at as isize) == (receiver.head(), layer),
            (Receiver::Key(..) | Receiver::Value(..), Sender::Head(at, head)) => {
                (Some(head / group.max(1)), at as isize) == (receiver.head(), layer)
            }
            (Receiver::Mlp(_), Sender::Mlp(at)) => at as isize == layer,
            _ => false,
        };
        let places = self.senders.iter().enumerate();
        places.filter(|(_, sender)| computes(sender)).map(|(from, _)| from).collect()
    }

    /// Indices of an edge's sender and receiver. Negative layers count from the end.
    pub(crate) fn place(&self, sender: Sender, receiver: Receiver) -> Result<(usize, usize), CircuitError> {
        let receiver = receiver.in_model(self.n_layers());
        let from = self.senders.iter().position(|own| *own == sender);
        let to = self.receivers.iter().position(|own| *own == receiver);
        let from = from.ok_or_else(|| unknown("sender", &sender.to_string(), &self.senders))?;
        let to = to.ok_or_else(|| unknown("receiver", &receiver.to_string(), &self.receivers))?;
        self.checked((from, to))
    }

    /// The name of an edge, for messages.
    pub(crate) fn edge_name(&self, (from, to): (usize, usize)) -> String {
        format!("{} -> {}", self.senders[from], self.receivers[to])
    }

    /// Fails if the sender writes after the receiver has read.
    pub(crate) fn checked(&self, (from, to): (usize, usize)) -> Result<(usize, usize), CircuitError> {
        if self.has((from, to)) {
            return Ok((from, to));
        }
        let (sender, receiver) = (self.senders[from].to_string(), self.receivers[to].to_string());
        Err(CircuitError::Order { sender, receiver })
    }

    /// Checks that `other` has the same edges and, if both models are known, belongs to the same model.
    pub(crate) fn check_same(&self, other: &Self) -> Result<(), CircuitError> {
        let edges = |graph: &Self| (graph.senders.len(), graph.receivers.len());
        if (&self.senders, &self.receivers, self.parallel) != (&other.senders, &other.receivers, other.parallel) {
            return Err(CircuitError::OtherGraph { given: edges(other), expected: edges(self) });
        }
        match (&self.model, &other.model) {
            (Some(own), Some(given)) if own != given => {
                Err(CircuitError::OtherModel { given: given.clone(), expected: own.clone() })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    pub(crate) fn is_parallel(&self) -> bool {
        self.parallel
    }
}

fn unknown<T: ToString>(kind: &'static str, given: &str, known: &[T]) -> CircuitError {
    let names: Vec<String> = known.iter().map(ToString::to_string).collect();
    let near = nearest(given, names.iter().map(String::as_str));
    CircuitError::Unknown { kind, given: given.to_string(), nearest: near }
}

/// Whether `sender` writes before `receiver` reads.
pub(super) fn precedes(sender: Sender, receiver: Receiver, parallel: bool) -> bool {
    // Number the writes and reads in order: twice the layer, plus one for the second half of a block.
    let written = match sender {
        Sender::Embed => 0,
        Sender::Head(layer, _) => 2 * layer as isize + if parallel { 2 } else { 1 },
        Sender::Mlp(layer) => 2 * layer as isize + 2,
    };
    let read = match receiver {
        Receiver::Query(layer, _) | Receiver::Key(layer, _) | Receiver::Value(layer, _) => 2 * layer,
        Receiver::Mlp(layer) => 2 * layer + isize::from(!parallel),
        Receiver::Logits => isize::MAX,
    };
    written <= read
}

pub(super) fn senders(config: &TransformerConfig) -> Vec<Sender> {
    let heads =
        (0..config.n_layers()).flat_map(|layer| (0..config.n_heads()).map(move |head| Sender::Head(layer, head)));
    let mlps = config.mlp_layers().map(Sender::Mlp);
    heads.chain(mlps).chain([Sender::Embed]).collect()
}

pub(super) fn receivers(config: &TransformerConfig) -> Vec<Receiver> {
    let mut receivers = Vec::new();
    for layer in 0..config.n_layers() {
        let number = layer as isize;
        receivers.extend((0..config.n_heads()).map(|head| Receiver::Query(number, head)));
        receivers.extend((0..config.n_kv_heads_of(layer)).map(|head| Receiver::Key(number, head)));
        receivers.extend((0..config.n_kv_heads_of(layer)).map(|head| Receiver::Value(number, head)));
        if config.has_mlp(layer) {
            receivers.push(Receiver::Mlp(number));
        }
    }
    receivers.push(Receiver::Logits);
    receivers
}
