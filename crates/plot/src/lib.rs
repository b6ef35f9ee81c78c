//! Plots as SVG and PNG, and interactive HTML pages for a browser or a notebook.

#![deny(missing_docs)]
#![deny(unsafe_code)]
// Documentation of internal crates includes private items.
#![allow(rustdoc::private_intra_doc_links)]

mod attention_view;
mod bars;
mod circuit_diagram;
mod color;
mod color_bar;
mod colored_examples;
mod colored_text;
mod draw;
pub mod error;
mod font;
mod frame;
mod heatmap;
mod histogram;
mod label_choice;
mod lens_table;
mod line;
mod line_plot;
mod notebook;
mod number_text;
mod page;
mod panel_grid;
mod pattern_grid;
mod patterns;
mod pen;
mod picture;
mod scatter;
mod ticks;
pub mod token_text;

pub use crate::error::PlotError;
pub use attention_view::{AttentionView, check_attention_view};
pub use bars::Bars;
pub use circuit_diagram::CircuitDiagram;
pub use color::Colormap;
pub use colored_text::ColoredText;
pub use heatmap::Heatmap;
pub use histogram::{Histogram, HistogramBins};
pub use lens_table::{LensCells, LensShade, LensTable};
pub use line::Line;
pub use line_plot::LinePlot;
pub use notebook::{Show, Shown, text_and_page};
pub use pattern_grid::PatternGrid;
pub use patterns::{AttentionPatterns, HeadAttention, ShownHeads};
pub use picture::Picture;
pub use scatter::Scatter;
