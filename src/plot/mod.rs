//! Pictures of what was found, as SVG and PNG.
//!
//! ```
//! use hooklens::patching::{Metric, Patching};
//! use hooklens::plot::Heatmap;
//! use hooklens::prelude::*;
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("patch.svg");
//! let model = HookedTransformer::from_pretrained("embedded:ioi")?;
//! let clean = "When Mary and John went to the store, John gave a drink to";
//! let corrupted = "When Mary and John went to the store, Mary gave a drink to";
//! let map = Patching::new(&model, clean, corrupted, Metric::logit_diff(&model, "Mary", "John")?)?.resid_pre()?;
//! Heatmap::of(&map.normalized())?.title("resid_pre patching").save(path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod colour;
mod error;
mod font;
mod heatmap;

pub use error::PlotError;
pub use heatmap::Heatmap;
