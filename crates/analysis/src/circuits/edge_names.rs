//! [`EdgeNames`]: finds edges by the names of their sender and receiver.

use std::collections::HashMap;

use crate::attribution::{EdgeGraph, Sender};
use crate::error::CircuitError;
use crate::patching::Receiver;
use hooklens_hooks::nearest;

/// Naming scheme for senders and receivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Naming {
    /// As displayed: `L0H1`, `L2H0.q`, `3_mlp`, `embed`, `logits`.
    Own,
    /// As in MIB: `a0.h1`, `a2.h0<q>`, `m3`, `input`, `logits`. Keys and values have a name per query head.
    Mib,
}

/// Indices of senders and receivers by name.
pub(super) struct EdgeNames<'g> {
    graph: &'g EdgeGraph,
    senders: HashMap<String, usize>,
    receivers: HashMap<String, usize>,
}

impl<'g> EdgeNames<'g> {
    pub(super) fn new(graph: &'g EdgeGraph, naming: Naming) -> Self {
        let senders = graph.senders().iter().enumerate().map(|(from, own)| (sender(*own, naming), from)).collect();
        let receivers = (0..graph.receivers().len())
            .flat_map(|to| receiver_names(graph, to, naming).into_iter().map(move |name| (name, to)))
            .collect();
        Self { graph, senders, receivers }
    }

    /// Indices of an edge's sender and receiver.
    pub(super) fn place(&self, sender: &str, receiver: &str) -> Result<(usize, usize), CircuitError> {
        let from = find(&self.senders, "sender", sender)?;
        let to = find(&self.receivers, "receiver", receiver)?;
        self.graph.checked((from, to))
    }
}

pub(super) fn sender(sender: Sender, naming: Naming) -> String {
    match (naming, sender) {
        (Naming::Own, own) => own.to_string(),
        (Naming::Mib, Sender::Embed) => "input".into(),
        (Naming::Mib, Sender::Head(layer, head)) => format!("a{layer}.h{head}"),
        (Naming::Mib, Sender::Mlp(layer)) => format!("m{layer}"),
    }
}

/// All names of a receiver. In MIB's naming, a key/value head has one name per query head that shares it.
pub(super) fn receiver_names(graph: &EdgeGraph, to: usize, naming: Naming) -> Vec<String> {
    let receiver = graph.receivers()[to];
    let of = |layer: isize, heads: &[usize], letter: char| {
        heads.iter().map(|head| format!("a{layer}.h{head}<{letter}>")).collect()
    };
    let sharing = || -> Vec<usize> {
        graph
            .outputs_of(to)
            .into_iter()
            .filter_map(|from| match graph.senders()[from] {
                Sender::Head(_, head) => Some(head),
                Sender::Embed | Sender::Mlp(_) => None,
            })
            .collect()
    };
    match (naming, receiver) {
        (Naming::Own, own) => vec![own.to_string()],
        (Naming::Mib, Receiver::Query(layer, head)) => of(layer, &[head], 'q'),
        (Naming::Mib, Receiver::Key(layer, _)) => of(layer, &sharing(), 'k'),
        (Naming::Mib, Receiver::Value(layer, _)) => of(layer, &sharing(), 'v'),
        (Naming::Mib, Receiver::Mlp(layer)) => vec![format!("m{layer}")],
        (Naming::Mib, Receiver::Logits) => vec!["logits".into()],
    }
}

fn find(known: &HashMap<String, usize>, kind: &'static str, given: &str) -> Result<usize, CircuitError> {
    known.get(given).copied().ok_or_else(|| {
        let near = nearest(given, known.keys().map(String::as_str));
        CircuitError::Unknown { kind, given: given.chars().take(100).collect(), nearest: near }
    })
}
