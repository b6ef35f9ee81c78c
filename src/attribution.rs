//! Attribution patching (Nanda 2023): the first-order estimate of every patch, from two forward passes and one
//! backward.
//!
//! A patch changes an activation by some difference; to first order it changes the metric by that
//! difference times the metric's gradient. [`Patching::attribution`](crate::patching::Patching::attribution)
//! takes the gradient once, in the run that patches go into, and then answers for any sites; its
//! results read like those of real patching. Signs are theirs too: positive is what the patch adds
//! to the metric.
//!
//! [`Patching::edges`](crate::patching::Patching::edges) scores the edges between what writes to the
//! residual stream and what reads from it (edge attribution patching, Syed et al. 2023), and with
//! integrated gradients (Hanna et al. 2024) where one slope is a poor guide.
//!
//! ```
//! use hooklens::hook::Axis;
//! use hooklens::patching::{Metric, Patching, Sites};
//! use hooklens::prelude::*;
//!
//! let model = HookedTransformer::from_pretrained("embedded:ioi")?;
//! let clean = "When Mary and John went to the store, John gave a drink to";
//! let corrupted = "When Mary and John went to the store, Mary gave a drink to";
//! let patching = Patching::new(&model, clean, corrupted, Metric::logit_diff(&model, "Mary", "John")?)?;
//! let attribution = patching.attribution(["*hook_z", "*hook_resid_pre"])?;
//! let heads = attribution.sweep(&Sites::new("*hook_z").per([Axis::Head]))?; // [layer, head]
//! let real = patching.attn_head_out_all_pos()?;
//! assert_eq!(heads.mean().axes(), real.mean().axes());
//! # Ok::<(), hooklens::Error>(())
//! ```

pub mod graph;

pub use hooklens_analysis::attribution::{Attribution, EdgeScores, Gradient, Reads, Writes};
