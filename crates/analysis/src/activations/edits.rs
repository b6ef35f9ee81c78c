//! How an analysis accounts for what hooks changed in the recorded run.

use super::analysis::Analysis;
use super::components::Components;
use super::stage::{Reader, ResolvedStage};
use crate::error::AnalysisError;
use hooklens_model::error::Result;

/// Label of the component that holds what hooks added to the stream.
const ADDED_BY_HOOKS: &str = "added by hooks";

/// Points where an edit changes the stream directly, rather than through a layer's output.
const STREAM: &[&str] = &["hook_resid_pre", "hook_resid_mid", "hook_resid_post", "hook_resid_mid_per_layer"];
/// Points between the heads' outputs and what attention writes to the stream.
const HEADS: &[&str] = &["hook_attn_out", "ln1_post.hook_scale", "ln1_post.hook_normalized"];
/// Points between the neurons and what an MLP writes to the stream.
const NEURONS: &[&str] = &[
    "hook_mlp_out",
    "mlp.hook_out",
    "ln2_post.hook_scale",
    "ln2_post.hook_normalized",
    "mlp.shared.hook_out",
    "mlp.hook_experts_out",
    "mlp.experts_ln_post.hook_scale",
    "mlp.experts_ln_post.hook_normalized",
    "mlp.shared_ln_post.hook_scale",
    "mlp.shared_ln_post.hook_normalized",
];

/// Granularity of a decomposition of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Apart {
    Layers,
    Heads,
    HeadsAndNeurons,
}

impl Analysis<'_> {
    /// Layer and site of each point that hooks or spliced parts changed.
    fn edited(&self) -> impl Iterator<Item = (Option<usize>, &str)> {
        self.cache.edited().map(|name| {
            let of_block = name.strip_prefix("blocks.").and_then(|rest| rest.split_once('.'));
            match of_block.and_then(|(layer, site)| Some((layer.parse().ok()?, site))) {
                Some((layer, site)) => (Some(layer), site),
                None => (None, name),
            }
        })
    }

    pub(super) fn is_edited(&self, layer: usize, site: &str) -> bool {
        self.edited().any(|edited| edited == (Some(layer), site))
    }

    /// Adds a component for what hooks added to the stream, so that the components still sum to the stream. Does
    /// nothing if `parts` already account for all edits.
    pub(super) fn push_added(&self, apart: Apart, parts: &mut Components) -> Result<()> {
        let place = parts.place;
        let beside = |site: &str| {
            STREAM.contains(&site)
                || (apart != Apart::Layers && HEADS.contains(&site))
                || (apart == Apart::HeadsAndNeurons && NEURONS.contains(&site))
        };
        let before = |layer: usize| layer <= place.layers;
        if self.edited().any(|(layer, site)| layer.is_some_and(before) && beside(site)) {
            let added = self.stream_at(place)? - parts.sum();
            parts.push(ADDED_BY_HOOKS, added);
        }
        Ok(())
    }

    /// Fails if a hook changed the output of the norm that reads the stream at this stage.
    pub(super) fn check_norm(&self, place: ResolvedStage) -> Result<(), AnalysisError> {
        let point = match place.reader {
            Reader::Attn(layer) => format!("blocks.{layer}.ln1.hook_normalized"),
            Reader::Mlp(layer) => format!("blocks.{layer}.ln2.hook_normalized"),
            Reader::Unembed => "ln_final.hook_normalized".to_string(),
        };
        match self.cache.edited().any(|edited| edited == point) {
            true => Err(AnalysisError::EditedNorm { point }),
            false => Ok(()),
        }
    }
}
