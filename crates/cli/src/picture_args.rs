//! Options of the pictures that commands write.

use std::path::Path;

use clap::{Args, ValueEnum};

use super::out::write;
use super::{CliResult, Failure};
use hooklens_analysis::labeled::LabeledArray;
use hooklens_plot::{Colormap, Heatmap, LinePlot, Picture, PlotError};

/// Resolution of a .png.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct PngArg {
    /// Pixels of a .png per unit of the .svg: 1, 2 or 4
    #[arg(long, value_name = "SCALE", default_value_t = 2, value_parser = scale)]
    png_scale: u32,
}

/// Options of heatmaps.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(super) struct PictureArgs {
    /// In a heatmap, the values at the ends of the color scale, so that pictures can be compared: -1,1 (default: all
    /// values, with zero in the middle or at the lower end)
    #[arg(long, value_name = "LOW,HIGH", value_parser = range, allow_hyphen_values = true)]
    color_range: Option<(f64, f64)>,
    /// Colors of a heatmap (default: rdbu if there are negative values, otherwise blues)
    #[arg(long, value_enum)]
    colormap: Option<ColormapArg>,
    #[command(flatten)]
    png: PngArg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ColormapArg {
    /// Blue, white, red
    Rdbu,
    /// White to dark blue
    Blues,
    /// Dark blue, green, yellow
    Viridis,
    /// White to black
    Grays,
}

impl Default for PngArg {
    fn default() -> Self {
        Self { png_scale: 2 }
    }
}

impl From<PngArg> for PictureArgs {
    fn from(png: PngArg) -> Self {
        Self { png, ..Self::default() }
    }
}

impl PngArg {
    /// Saves a picture, at the requested scale if it is a .png. `save` writes the other formats.
    pub(super) fn save(
        self,
        picture: &impl Picture,
        path: &Path,
        save: impl FnOnce(&Path) -> Result<(), PlotError>,
    ) -> CliResult {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("png") => write(path, &picture.to_png(self.png_scale)?),
            _ => Ok(save(path)?),
        }
    }
}

impl PictureArgs {
    /// The options of a picture that is not a heatmap.
    pub(super) fn png_only(self) -> Result<PngArg, Failure> {
        if self.color_range.is_some() || self.colormap.is_some() {
            return Err(Failure::Usage("--color-range and --colormap apply to heatmaps only".into()));
        }
        Ok(self.png)
    }

    /// A closure that draws a heatmap to a file. `value` says what the numbers are, with their unit.
    pub(super) fn heatmap<'f>(
        self,
        array: &'f LabeledArray,
        title: impl Into<String> + 'f,
        value: impl Into<String> + 'f,
    ) -> impl FnOnce(&Path) -> CliResult + 'f {
        self.faded_heatmap(array, None, title, value)
    }

    /// A closure that draws effects to a file: a heatmap, or a line if they have one axis. With lower and upper bounds of
    /// intervals, places whose interval contains zero are faded, and a line has a band.
    pub(super) fn effects<'f>(
        self,
        array: &'f LabeledArray,
        bounds: Option<(LabeledArray, LabeledArray)>,
        title: impl Into<String> + 'f,
        value: impl Into<String> + 'f,
    ) -> impl FnOnce(&Path) -> CliResult + 'f {
        move |path| {
            if array.axes().len() != 1 {
                return self.faded_heatmap(array, bounds, title, value)(path);
            }
            let png = self.png_only()?;
            let mut plot = LinePlot::of(array)?.title(title).value(value);
            if let Some((low, high)) = &bounds {
                plot = plot.intervals(low, high)?;
            }
            png.save(&plot, path, |path| plot.save(path))
        }
    }

    /// [`PictureArgs::heatmap`] with lower and upper bounds of intervals. Cells whose interval contains zero are faded.
    pub(super) fn faded_heatmap<'f>(
        self,
        array: &'f LabeledArray,
        bounds: Option<(LabeledArray, LabeledArray)>,
        title: impl Into<String> + 'f,
        value: impl Into<String> + 'f,
    ) -> impl FnOnce(&Path) -> CliResult + 'f {
        move |path| {
            let mut map = Heatmap::of(array)?.title(title).value(value);
            if let Some((low, high)) = &bounds {
                map = map.intervals(low, high)?;
            }
            if let Some((least, most)) = self.color_range {
                map = map.range(least, most)?;
            }
            if let Some(colormap) = self.colormap {
                map = map.colormap(match colormap {
                    ColormapArg::Rdbu => Colormap::RdBu,
                    ColormapArg::Blues => Colormap::Blues,
                    ColormapArg::Viridis => Colormap::Viridis,
                    ColormapArg::Grays => Colormap::Grays,
                });
            }
            self.png.save(&map, path, |path| map.save(path))
        }
    }
}

fn scale(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(scale @ (1 | 2 | 4)) => Ok(scale),
        _ => Err("expected 1, 2 or 4".into()),
    }
}

fn range(text: &str) -> Result<(f64, f64), String> {
    let ends = text.split_once(',').and_then(|(low, high)| Some((low.trim().parse().ok()?, high.trim().parse().ok()?)));
    match ends {
        Some((low, high)) if low < high && f64::is_finite(low) && f64::is_finite(high) => Ok((low, high)),
        _ => Err("expected two numbers, with the smaller one first: -1,1".into()),
    }
}
