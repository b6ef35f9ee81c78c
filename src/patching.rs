//! Which activation matters: put one from another run in its place and see what the model says.
//!
//! A [`Patching`] holds pairs of prompts and a [`Metric`]. Each sweep patches what the clean prompt
//! makes at one place after the other into the run on the corrupted one
//! ([`Patching::reversed`]: the other way round; [`Patching::ablating`]: zeros, means or another
//! prompt's activations).
//!
//! Nothing is computed that a patch can't change: a run restarts at the patched layer from the
//! stream recorded there, positions before the patch are read from the unpatched run's key-value
//! cache, and patches of all layers that begin at one position run on as one batch. A patch by
//! what is there already is not run at all.
//!
//! ```
//! use hooklens::prelude::*;
//!
//! let model = HookedTransformer::from_pretrained("embedded:ioi")?;
//! let clean = "When Mary and John went to the store, John gave a drink to";
//! let corrupted = "When Mary and John went to the store, Mary gave a drink to";
//! let map = model.patching(clean, corrupted).logit_diff("Mary", "John")?.resid_pre()?.normalized()?; // [layer, pos]
//! assert_eq!(map.values().shape(), [4, 15]);
//! // Before the first layer all that differs is the name that comes again.
//! assert!(map.values()[[0, 10]] > 0.99);
//! # Ok::<(), hooklens::Error>(())
//! ```

pub use hooklens_analysis::patching::{
    Ablation, Freeze, Metric, PatchError, PatchModel, PatchPrompts, Patching, PatchingResult, Receiver, Sites,
};
