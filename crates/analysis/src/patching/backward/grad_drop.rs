//! GradDrop: backward passes that skip what one layer adds to the residual stream.

use hooklens_hooks::{Catalog, Detach, Hook, at};

/// Points whose values a layer adds to the residual stream.
pub(super) fn added_by(catalog: &Catalog, layer: usize) -> Vec<String> {
    let name = |suffix: &&str| format!("blocks.{layer}.{suffix}");
    let names = ["hook_attn_out", "hook_mlp_out", "hook_per_layer_out"].iter().map(name);
    names.filter(|name| catalog.find(name).is_ok()).collect()
}

/// Hooks that cut the backward pass at these points.
pub(super) fn without(points: &[String]) -> Vec<Hook<'static>> {
    let cut = |point: &String| at(point.as_str()).edit_any(|values, _| Ok(Some(values.detached())));
    points.iter().map(cut).collect()
}

/// Mean magnitude of a node's effects, of which there is one per dropped layer. A node has no effect if its own layer
/// is dropped, so that layer is not counted.
pub(super) fn mean_magnitude(effects: &[f64]) -> f64 {
    effects.iter().map(|effect| effect.abs()).sum::<f64>() / effects.len().saturating_sub(1) as f64
}
