//! How a circuit is discovered.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::{CliResult, Failure};
use hooklens_analysis::attribution::{EdgeGraph, EdgeScores};
use hooklens_analysis::circuits::{Circuit, Discovery, LearnedMasks};
use hooklens_analysis::patching::{Backward, Patching};

/// Number of steps between two checkpoints of learned masks.
const CHECKPOINT_STEPS: usize = 20;

#[derive(Debug, Args)]
pub(super) struct MethodArgs {
    /// How edges or nodes are scored (default: mask-gradients for edges, attribution for nodes)
    #[arg(long, value_enum, conflicts_with = "circuit")]
    method: Option<MethodArg>,
    /// Number of integration steps for eap-ig and mask-gradients (5 by default), or of training steps for learned-masks
    /// (300 by default)
    #[arg(long, value_name = "N", conflicts_with = "circuit")]
    steps: Option<usize>,
    /// For learned-masks: save the training to this file every 20 steps, and continue from it if it exists
    #[arg(long, value_name = "FILE", conflicts_with = "circuit")]
    checkpoint: Option<PathBuf>,
    /// For acdc: edges whose ablation changes the metric by less than this are removed
    #[arg(long, value_name = "CHANGE", conflicts_with = "circuit")]
    threshold: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MethodArg {
    /// Gradients averaged over steps that gradually ablate all edges (works with every --ablate)
    MaskGradients,
    /// Edge attribution patching
    Eap,
    /// Edge attribution patching with integrated gradients of the embeddings
    EapIg,
    /// Attribution patching with the rules of layer-wise relevance propagation
    Relp,
    /// Ablate each edge or node alone
    Exact,
    /// Train a mask that keeps --share of the edges
    LearnedMasks,
    /// Remove edges one after another, from the logits backward; slow
    Acdc,
    /// Attribution patching of nodes
    Attribution,
    /// Attribution patching of nodes, averaged over one gradient per layer, each of which skips its layer
    GradDrop,
}

/// How nodes are scored.
pub(super) enum NodeMethod {
    Gradients(Backward),
    Exact,
}

/// The method's name, for messages.
impl fmt::Display for NodeMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NodeMethod::Gradients(Backward::GradDrop) => "GradDrop, magnitudes",
            NodeMethod::Gradients(Backward::Relp { .. }) => "RelP",
            NodeMethod::Gradients(_) => "attribution patching",
            NodeMethod::Exact => "exact ablation of each node",
        })
    }
}

/// Result of the discovery: scores or, with ACDC, a circuit.
pub(super) enum Found {
    Scores(EdgeScores),
    Circuit(Circuit),
}

impl MethodArgs {
    /// Whether the method scores edges. ACDC only chooses them.
    pub(super) fn gives_scores(&self) -> bool {
        self.of_edges() != MethodArg::Acdc
    }

    pub(super) fn check(&self) -> CliResult {
        let wrong = |message: &str| Err(Failure::Usage(message.into()));
        if self.checkpoint.is_some() && self.of_edges() != MethodArg::LearnedMasks {
            return wrong("--checkpoint requires --method learned-masks");
        }
        match (self.of_edges(), self.steps, self.threshold) {
            (MethodArg::Attribution | MethodArg::GradDrop, ..) => {
                wrong("--method attribution and --method grad-drop require --nodes; use eap for edges")
            }
            (MethodArg::Acdc, _, None) => wrong("--method acdc requires --threshold"),
            (MethodArg::Acdc, Some(_), _) | (MethodArg::Eap | MethodArg::Relp | MethodArg::Exact, Some(_), _) => {
                wrong("--steps requires --method mask-gradients, eap-ig or learned-masks")
            }
            (MethodArg::Acdc, ..) | (_, _, None) => Ok(()),
            (_, _, Some(_)) => wrong("--threshold requires --method acdc"),
        }
    }

    fn of_edges(&self) -> MethodArg {
        self.method.unwrap_or(MethodArg::MaskGradients)
    }

    /// Whether the scores are trained on all prompts at once.
    pub(super) fn is_learned(&self) -> bool {
        self.of_edges() == MethodArg::LearnedMasks
    }

    /// The method for nodes.
    pub(super) fn of_nodes(&self) -> Result<NodeMethod, Failure> {
        let method = match self.method.unwrap_or(MethodArg::Attribution) {
            MethodArg::Attribution => NodeMethod::Gradients(Backward::default()),
            MethodArg::GradDrop => NodeMethod::Gradients(Backward::GradDrop),
            MethodArg::Relp => NodeMethod::Gradients(Backward::Relp { frozen_patterns: false }),
            MethodArg::Exact => NodeMethod::Exact,
            _ => {
                let message = "--nodes requires --method attribution, grad-drop, relp or exact; the others score edges";
                return Err(Failure::Usage(message.into()));
            }
        };
        if self.steps.is_some() || self.threshold.is_some() || self.checkpoint.is_some() {
            return Err(Failure::Usage("--nodes cannot be combined with --steps, --threshold or --checkpoint".into()));
        }
        Ok(method)
    }

    /// The method; `None` for ACDC. `share` is the fraction of edges to keep.
    fn discovery(&self, share: f64) -> Option<Discovery> {
        let steps = self.steps.unwrap_or(5);
        Some(match self.of_edges() {
            MethodArg::MaskGradients => Discovery::MaskGradients(steps),
            MethodArg::Eap => Discovery::Eap,
            MethodArg::EapIg => Discovery::EapIg(steps),
            MethodArg::Relp => Discovery::Relp,
            MethodArg::Exact => Discovery::Exact,
            MethodArg::LearnedMasks => {
                let mut settings = LearnedMasks::new().keep(share);
                if let Some(steps) = self.steps {
                    settings = settings.steps(steps);
                }
                if let Some(path) = &self.checkpoint {
                    settings = settings.checkpoint(path, CHECKPOINT_STEPS);
                }
                Discovery::LearnedMasks(settings)
            }
            MethodArg::Acdc | MethodArg::Attribution | MethodArg::GradDrop => return None,
        })
    }

    /// About how many passes over a prompt the discovery needs.
    pub(super) fn passes(&self, graph: &EdgeGraph, examples: usize, share: f64) -> usize {
        let acdc = (graph.len() + 1) * examples;
        self.discovery(share).map_or(acdc, |method| method.passes(graph, examples))
    }

    pub(super) fn discover(&self, patching: &Patching<'_>, share: f64) -> Result<Found, Failure> {
        Ok(match self.discovery(share) {
            Some(method) => Found::Scores(patching.discover(&method)?),
            None => Found::Circuit(patching.acdc(self.threshold.unwrap_or(0.0))?),
        })
    }

    /// The method's name, for messages.
    pub(super) fn name(&self) -> String {
        match self.of_edges() {
            MethodArg::MaskGradients => format!("mask gradients, {} steps", self.steps.unwrap_or(5)),
            MethodArg::Eap => "EAP".into(),
            MethodArg::EapIg => format!("EAP-IG, {} steps", self.steps.unwrap_or(5)),
            MethodArg::Relp => "RelP".into(),
            MethodArg::Exact => "exact ablation of each edge".into(),
            MethodArg::LearnedMasks => format!("learned masks, {} steps", self.steps.unwrap_or(300)),
            MethodArg::Acdc => format!("ACDC, threshold {}", self.threshold.unwrap_or(0.0)),
            MethodArg::Attribution | MethodArg::GradDrop => "attribution patching".into(),
        }
    }
}
