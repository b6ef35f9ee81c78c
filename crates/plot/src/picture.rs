//! [`Picture`]: plots as SVG and PNG.

use crate::error::PlotError;

/// Plots that can be drawn as SVG or PNG. The trait is part of the prelude. To write a file, call the plot's `save`.
///
/// ```
/// use hooklens::plot::{Line, LinePlot};
/// use hooklens::prelude::*;
/// let loss = Line::new("loss", [(0.0, 2.0), (1.0, 1.0)]);
/// let plot = LinePlot::new("step", "loss", [loss])?;
/// assert!(plot.to_svg()?.starts_with("<svg") && plot.to_png(2)?.starts_with(b"\x89PNG"));
/// # Ok::<(), hooklens::plot::PlotError>(())
/// ```
pub trait Picture {
    /// The picture as SVG.
    ///
    /// # Errors
    /// [`PlotError`] if the picture cannot be drawn.
    fn to_svg(&self) -> Result<String, PlotError>;

    /// The picture as PNG with `scale` pixels per unit of the SVG: 1, 2 (as `save` writes it) or 4.
    ///
    /// # Errors
    /// [`PlotError::Scale`] for any other scale; otherwise, same as [`Picture::to_svg`].
    fn to_png(&self, scale: u32) -> Result<Vec<u8>, PlotError>;
}
