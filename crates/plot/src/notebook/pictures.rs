//! Display of pictures and pages in notebooks.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{Show, Shown};
use crate::error::PlotError;
use crate::picture::Picture;
use crate::{
    AttentionPatterns, AttentionView, Bars, CircuitDiagram, ColoredText, Heatmap, Histogram, LensTable, LinePlot,
    PatternGrid, Scatter,
};
use hooklens_analysis::labeled::LabeledArray;
use hooklens_analysis::patching::PatchingResult;

/// Maximum length of an SVG in a notebook, in bytes. Larger pictures are shown as PNG.
const MOST: usize = 400_000;

/// A picture as SVG if it is small, otherwise as PNG.
fn image(svg: String, png: impl FnOnce() -> Result<Vec<u8>, PlotError>) -> Result<Shown, PlotError> {
    if svg.len() <= MOST {
        return Ok(Shown::svg(svg));
    }
    Ok(Shown { mime: "image/png", content: BASE64.encode(png()?) })
}

impl Show for Heatmap<'_> {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        Ok(vec![Shown::text("heatmap"), image(self.to_svg()?, || self.to_png(2))?])
    }
}

impl Show for LinePlot {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        Ok(vec![Shown::text("line plot"), image(self.to_svg()?, || self.to_png(2))?])
    }
}

impl Show for Scatter {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        Ok(vec![Shown::text("scatter plot"), image(self.to_svg()?, || self.to_png(2))?])
    }
}

impl Show for Histogram {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        Ok(vec![Shown::text("histogram"), image(self.to_svg()?, || self.to_png(2))?])
    }
}

impl Show for Bars {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        Ok(vec![Shown::text("bars"), image(self.to_svg()?, || self.to_png(2))?])
    }
}

impl Show for CircuitDiagram {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        Ok(vec![Shown::text("circuit"), image(self.to_svg()?, || self.to_png(2))?])
    }
}

impl Show for PatternGrid<'_> {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        Ok(vec![Shown::text("attention patterns"), image(self.to_svg()?, || self.to_png(2))?])
    }
}

impl Show for AttentionPatterns {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        AttentionView::of(self)?.shown()
    }
}

impl Show for AttentionView<'_> {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        Ok(vec![Shown::text("attention view"), Shown::html(self.to_html()?)])
    }
}

impl Show for ColoredText {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        Ok(vec![Shown::text("colored text"), Shown::html(self.to_html()?)])
    }
}

impl Show for LensTable {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        Ok(vec![Shown::text("lens table"), Shown::html(self.to_html()?)])
    }
}

/// Shows a heatmap of two to four axes, or a line over one axis.
impl Show for LabeledArray {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        if self.axes().len() == 1 { LinePlot::of(self)?.shown() } else { Heatmap::of(self)?.shown() }
    }
}

/// Shows normalized effects if the source run and the unpatched run have different metrics; otherwise, shows effects
/// without normalization.
impl Show for PatchingResult {
    fn shown(&self) -> Result<Vec<Shown>, PlotError> {
        match self.normalized() {
            Ok(shares) if self.source.is_some() => shares.shown(),
            _ => self.effect().shown(),
        }
    }
}
