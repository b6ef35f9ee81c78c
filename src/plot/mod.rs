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

mod attention_view;
mod bars;
mod color;
mod colored_text;
mod draw;
mod font;
mod frame;
mod heatmap;
mod histogram;
mod lens_table;
mod line;
mod line_plot;
mod notebook;
mod page;
mod pattern_grid;
mod patterns;
mod pen;
mod scatter;
mod ticks;
pub(crate) mod token_text;

pub use crate::error::PlotError;
pub use attention_view::AttentionView;
pub use bars::Bars;
pub use colored_text::ColoredText;
pub use heatmap::Heatmap;
pub use histogram::Histogram;
pub use lens_table::{LensShade, LensTable};
pub use line::Line;
pub use line_plot::LinePlot;
pub use notebook::{Show, Shown};
pub use pattern_grid::PatternGrid;
pub use patterns::{AttentionPatterns, HeadAttention};
pub use scatter::Scatter;
