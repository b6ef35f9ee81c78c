//! What can go wrong with a picture.

use std::path::PathBuf;

use thiserror::Error;

/// A picture that can't be drawn or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlotError {
    /// An array with too many or too few axes.
    #[error("a heatmap shows two axes, or three as panels; this array has {} ({})", axes.len(), axes.join(", "))]
    Axes {
        /// Names of the array's axes.
        axes: Vec<String>,
    },
    /// An array with more places than a picture can show.
    #[error("{places} cells are more than a picture of {most} shows; choose fewer along {}", axes.join(" or "))]
    TooMany {
        /// Cells there would be.
        places: usize,
        /// Cells there may be.
        most: usize,
        /// The axes.
        axes: Vec<String>,
    },
    /// A file name that names no kind of picture.
    #[error("{}: a picture's name ends in .svg or .png", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
    },
    /// Drawing failed.
    #[error("the picture could not be drawn: {reason}")]
    Draw {
        /// What the drawing library reported.
        reason: String,
    },
    /// Writing failed.
    #[error("{}: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
}
