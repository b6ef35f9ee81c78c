//! Attribution patching (Nanda 2023): a first-order estimate of every patch, from two forward passes and one backward
//! pass.
//!
//! A patch changes an activation by some difference. To first order, the metric changes by that difference times the
//! metric's gradient with respect to the activation. [`Patching::attribution`](crate::patching::Patching::attribution)
//! computes the gradient once, in the unpatched run, and can then estimate the effect of patching any site. Results
//! have the same form and sign as the results of actual patching: positive values increase the metric.
//!
//! [`Patching::edges`](crate::patching::Patching::edges) scores edges between components that write to the residual
//! stream and components that read from it (edge attribution patching, Syed et al. 2023). Integrated gradients (Hanna
//! et al. 2024) help where a single gradient is a poor estimate.
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

pub use hooklens_analysis::attribution::{Attribution, EdgeGraph, EdgeScores, Gradient, Sender};
pub use hooklens_analysis::patching::Backward;
