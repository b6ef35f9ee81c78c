//! Errors of circuits.

use std::path::PathBuf;

use thiserror::Error;

/// An error in building, reading or running a circuit.
///
/// ```
/// use hooklens::attribution::{EdgeGraph, Sender};
/// use hooklens::circuits::Circuit;
/// use hooklens::patching::Receiver;
/// use hooklens::prelude::*;
/// let graph = EdgeGraph::of(&HookedTransformer::from_pretrained("embedded:ioi")?)?;
/// let error = Circuit::of_edges(&graph, [(Sender::Mlp(3), Receiver::Query(0, 0))]).unwrap_err();
/// assert_eq!(error.to_string(), "there is no edge 3_mlp -> L0H0.q: 3_mlp writes after L0H0.q has read");
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CircuitError {
    /// The model lacks the component.
    #[error("the model has no {kind} `{given}`{}", did_you_mean(nearest))]
    Unknown {
        /// `sender`, `receiver`, `component`, `edge` or `node`.
        kind: &'static str,
        /// The name that was not found.
        given: String,
        /// The most similar names in the model.
        nearest: Vec<String>,
    },
    /// The sender writes after the receiver has read.
    #[error("there is no edge {sender} -> {receiver}: {sender} writes after {receiver} has read")]
    Order {
        /// The sender.
        sender: String,
        /// The receiver.
        receiver: String,
    },
    /// The circuit or the scores belong to an architecture with different edges.
    #[error(
        "the edges belong to another architecture: they connect {} senders to {} receivers, but the model has {} \
         senders and {} receivers{}", given.0, given.1, expected.0, expected.1, named(given, expected)
    )]
    OtherGraph {
        /// Number of senders and receivers of the circuit or the scores.
        given: (usize, usize),
        /// Number of senders and receivers of the model.
        expected: (usize, usize),
    },
    /// The circuit or the scores belong to a model with different weights.
    #[error(
        "the circuit or the scores were made with a model whose weights, weight processing or dictionaries differ: its \
         hash is {given}, but the hash of this model is {expected}"
    )]
    OtherModel {
        /// Hash of the weights that the circuit or the scores belong to.
        given: String,
        /// Hash of the model's weights.
        expected: String,
    },
    /// The fraction of edges or nodes to keep is not between 0 and 1.
    #[error("the fraction to keep is {given}, but must be at least 0 and at most 1")]
    Share {
        /// The given fraction.
        given: f64,
    },
    /// A score is NaN or infinite.
    #[error("the score of {place} is {value}, not a finite number")]
    NotFinite {
        /// The edge or the node.
        place: String,
        /// The score.
        value: f64,
    },
    /// Nodes belong to different sites.
    #[error("the nodes of {whose} differ from the circuit's: {what}")]
    OtherNodes {
        /// What was combined with the circuit.
        whose: &'static str,
        /// The difference.
        what: String,
    },
    /// Faithfulness is undefined: the metric is the same in the whole model and with all edges ablated.
    #[error(
        "faithfulness is undefined: the mean metric is {clean} both in the whole model and with all edges ablated; \
         choose prompts or a metric for which the two differ"
    )]
    NoDifference {
        /// The mean metric.
        clean: f64,
    },
    /// The file does not describe a circuit.
    #[error("cannot read the circuit: {reason}")]
    File {
        /// What is wrong.
        reason: String,
    },
    /// The file is not a checkpoint of this training.
    #[error("can't continue from {}: {reason}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A setting is out of range.
    #[error("{name} is {given}, but must be {expected}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// The given value.
        given: String,
        /// The allowed values.
        expected: &'static str,
    },
}

/// Message suffix for graphs of equal size.
fn named(given: &(usize, usize), expected: &(usize, usize)) -> &'static str {
    if given == expected { ", with other names" } else { "" }
}

/// `; did you mean ...?`, or nothing without suggestions.
fn did_you_mean(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; did you mean `{}`?", nearest.join("`, `")) }
}
