//! What a graph was made with, compared with what it is combined with.

use std::sync::Arc;

use hooklens_hooks::ModelIdentity;

use super::attribution_graph::{AttributionGraph, PrunedGraph};
use super::capture::{Captured, capture};
use super::replacement::Replacement;
use super::site::FeatureSite;
use crate::Units;
use crate::error::GraphError;
use hooklens_model::error::Result;
use hooklens_model::model::{HookedTransformer, Identified};

impl AttributionGraph {
    /// Fails if the graph was made with another model.
    pub(super) fn check_model(&self, given: &ModelIdentity) -> Result<()> {
        match &self.model {
            Some(own) if !own.is(given) => {
                let (what, given) = ("the model", format!("{} and {}", own.label(), given.label()));
                Err(GraphError::Setting { what, given, wanted: "the model of the graph" }.into())
            }
            _ => Ok(()),
        }
    }

    /// Fails if the graph's features are not these.
    pub(super) fn check_features(&self, given: &[Units]) -> Result<()> {
        let fails = |what, given| Err(GraphError::Setting { what, given, wanted: "the same as in the graph" }.into());
        if self.units().len() != given.len() {
            return fails("the number of sites with features", format!("{} and {}", self.units().len(), given.len()));
        }
        for (own, given) in self.units().iter().zip(given) {
            let same = match (own.dictionary(), given.dictionary()) {
                (Some(own), Some(given)) => own.has_latents_of(given)?,
                (own, given) => own.is_none() && given.is_none(),
            };
            if !same || own.point() != given.point() {
                return fails("a site of features", format!("{} and {}", features_of(own), features_of(given)));
            }
        }
        Ok(())
    }

    /// Fails if another graph was pruned.
    pub(super) fn check_pruned(&self, pruned: &PrunedGraph) -> Result<()> {
        if Arc::ptr_eq(&self.id, &pruned.graph) {
            return Ok(());
        }
        let given = format!("{} nodes and {} edges of another graph", pruned.nodes.len(), pruned.edges.len());
        let wanted = "the result of `prune` of the same graph or of a clone";
        Err(GraphError::Setting { what: "the pruned graph", given, wanted }.into())
    }

    /// Runs the graph's prompt again, for more about this graph. Fails if the graph was made with another model or with
    /// other features.
    pub(super) fn captured_again(
        &self,
        model: &HookedTransformer,
        replacement: &Replacement,
        left_out: usize,
    ) -> Result<Captured> {
        self.check_model(&model.identity())?;
        let captured = capture(model, self.tokens(), replacement, left_out)?;
        let units = captured.sites.iter().map(FeatureSite::units).collect::<Result<Vec<_>>>()?;
        self.check_features(&units)?;
        Ok(captured)
    }
}

/// The dictionary that the features are latents of, for messages.
fn features_of(units: &Units) -> String {
    let kind = units.dictionary().map_or("neurons".into(), |dictionary| format!("latents of `{}`", dictionary.name()));
    format!("{kind} at `{}`", units.point())
}
