//! Activation patching: replaces activations of one run with those of another and measures the effect on the logits.
//!
//! A [`Patching`] holds pairs of prompts and a [`Metric`]. A sweep patches the clean run's activations into the
//! corrupted run, one site at a time. [`Patching::reversed`] swaps the two runs, and [`Patching::ablating`] patches in
//! zeros, means or another prompt's activations.
//!
//! Sweeps skip what a patch cannot change. A patched run starts at the patched layer from the recorded residual stream,
//! reads keys and values of positions before the patch from the unpatched run's cache, and is batched with runs whose
//! patches are in other layers but start at the same position. Patches equal to the unpatched values are not run at
//! all.
//!
//! ```
//! use hooklens::prelude::*;
//!
//! let model = HookedTransformer::from_pretrained("embedded:ioi")?;
//! let clean = "When Mary and John went to the store, John gave a drink to";
//! let corrupted = "When Mary and John went to the store, Mary gave a drink to";
//! let map = model.patching(clean, corrupted).logit_diff("Mary", "John")?.resid_pre()?.normalized()?; // [layer, pos]
//! assert_eq!(map.values().shape(), [4, 15]);
//! // Before the first layer, the runs differ only at the repeated name.
//! assert!(map.values()[[0, 10]] > 0.99);
//! # Ok::<(), hooklens::Error>(())
//! ```

pub use hooklens_analysis::patching::{
    Ablation, Freeze, Metric, PatchError, PatchModel, PatchPrompts, Patching, PatchingResult, Receiver, Sites,
};
