//! Plots as SVG and PNG, and interactive HTML pages for a browser or a notebook.
//!
//! ```
//! use hooklens::plot::Heatmap;
//! use hooklens::prelude::*;
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("patch.svg");
//! let model = HookedTransformer::from_pretrained("embedded:ioi")?;
//! let clean = "When Mary and John went to the store, John gave a drink to";
//! let corrupted = "When Mary and John went to the store, Mary gave a drink to";
//! let map = model.patching(clean, corrupted).logit_diff("Mary", "John")?.resid_pre()?;
//! Heatmap::of(&map.normalized()?)?.title("resid_pre patching").save(path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use hooklens_plot::{
    AttentionPatterns, AttentionView, Bars, CircuitDiagram, ColoredText, Colormap, Heatmap, Histogram, LensShade,
    LensTable, Line, LinePlot, PatternGrid, Picture, PlotError, Scatter, Show, Shown,
};
