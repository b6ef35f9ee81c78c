//! How a circuit is discovered.

use clap::{Args, ValueEnum};

use crate::{CliResult, Failure};
use hooklens_analysis::attribution::{EdgeGraph, EdgeScores};
use hooklens_analysis::circuits::{Circuit, Discovery, LearnedMasks};
use hooklens_analysis::patching::Patching;

#[derive(Debug, Args)]
pub(super) struct MethodArgs {
    /// How edges are scored
    #[arg(long, value_enum, default_value = "mask-gradients", conflicts_with = "circuit")]
    method: MethodArg,
    /// Number of steps: of the integral for eap-ig and mask-gradients (5 by default), of the training for learned-masks
    /// (300 by default)
    #[arg(long, value_name = "N", conflicts_with = "circuit")]
    steps: Option<usize>,
    /// For acdc: edges whose ablation changes the metric by less than this are removed
    #[arg(long, value_name = "CHANGE", conflicts_with = "circuit")]
    threshold: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MethodArg {
    /// Gradients along the ablation of all edges (works with every --ablate)
    MaskGradients,
    /// Edge attribution patching
    Eap,
    /// Edge attribution patching with integrated gradients of the embeddings
    EapIg,
    /// Edge attribution patching with the rules of layer-wise relevance propagation
    Relp,
    /// Ablate each edge alone
    Exact,
    /// Train a mask that keeps --share of the edges
    LearnedMasks,
    /// Remove edges one after another, from the logits backward; slow
    Acdc,
}

/// What was discovered: scores or, with ACDC, a circuit.
pub(super) enum Found {
    Scores(EdgeScores),
    Circuit(Circuit),
}

impl MethodArgs {
    pub(super) fn check(&self) -> CliResult {
        let wrong = |message: &str| Err(Failure::Usage(message.into()));
        match (self.method, self.steps, self.threshold) {
            (MethodArg::Acdc, _, None) => wrong("--method acdc requires --threshold"),
            (MethodArg::Acdc, Some(_), _) | (MethodArg::Eap | MethodArg::Relp | MethodArg::Exact, Some(_), _) => {
                wrong("--steps requires --method mask-gradients, eap-ig or learned-masks")
            }
            (MethodArg::Acdc, ..) | (_, _, None) => Ok(()),
            (_, _, Some(_)) => wrong("--threshold requires --method acdc"),
        }
    }

    /// The method; `None` for ACDC. `share` is the share of edges to keep.
    fn discovery(&self, share: f64) -> Option<Discovery> {
        let steps = self.steps.unwrap_or(5);
        Some(match self.method {
            MethodArg::MaskGradients => Discovery::MaskGradients(steps),
            MethodArg::Eap => Discovery::Eap,
            MethodArg::EapIg => Discovery::EapIg(steps),
            MethodArg::Relp => Discovery::Relp,
            MethodArg::Exact => Discovery::Exact,
            MethodArg::LearnedMasks => {
                let settings = LearnedMasks::new().keep(share);
                Discovery::LearnedMasks(self.steps.map_or(settings.clone(), |steps| settings.steps(steps)))
            }
            MethodArg::Acdc => return None,
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
        match self.method {
            MethodArg::MaskGradients => format!("mask gradients, {} steps", self.steps.unwrap_or(5)),
            MethodArg::Eap => "EAP".into(),
            MethodArg::EapIg => format!("EAP-IG, {} steps", self.steps.unwrap_or(5)),
            MethodArg::Relp => "RelP".into(),
            MethodArg::Exact => "exact ablation of each edge".into(),
            MethodArg::LearnedMasks => format!("learned masks, {} steps", self.steps.unwrap_or(300)),
            MethodArg::Acdc => format!("ACDC, threshold {}", self.threshold.unwrap_or(0.0)),
        }
    }
}
