//! Output of results: a table on the terminal, or a file whose format follows from its extension.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use serde_json::Value;

use super::terminal::{shown, stdout};
use super::{CliResult, Failure};
use hooklens_analysis::labeled::{LabeledArray, largest_places};
use hooklens_io::csv_text::CsvLabels;
use hooklens_io::object_stores::is_url;
use hooklens_model::error::Error;
use hooklens_plot::Heatmap;

/// A file to write results to.
#[derive(Debug, Clone)]
pub(super) struct OutFile {
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
}

/// File format, from the extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Json,
    Csv,
    Picture,
    Page,
}

impl FromStr for OutFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = PathBuf::from(text);
        let kind = match path.extension().and_then(|ending| ending.to_str()) {
            Some("json") => Kind::Json,
            Some("csv") => Kind::Csv,
            Some("svg" | "png") => Kind::Picture,
            Some("html" | "htm") => Kind::Page,
            _ => return Err("the file name must end in .json, .csv, .svg, .png or .html".into()),
        };
        Ok(Self { path, kind })
    }
}

/// How labels are written to a .csv file.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct CsvArg {
    /// In a .csv, put an apostrophe before labels that a spreadsheet would read as a formula (those starting with =, +,
    /// - or @), and before labels that start with an apostrophe
    #[arg(long)]
    spreadsheet_safe: bool,
}

impl CsvArg {
    pub(super) fn labels(self) -> CsvLabels {
        if self.spreadsheet_safe { CsvLabels::SpreadsheetSafe } else { CsvLabels::Exact }
    }
}

/// What an output path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    File,
    Folder,
}

/// Prepares an output before the work begins: creates the folder that it will be in. Fails if the output can't be
/// written, or if it would overwrite an input or a file in an input folder, even through a symlink.
pub(super) fn prepare(out: Option<&Path>, names: Names, inputs: impl IntoIterator<Item = PathBuf>) -> CliResult {
    let Some(out) = out.filter(|out| !is_url(out)) else { return Ok(()) };
    check_place(out, names).map_err(|error| unwritten(out, &error))?;
    // A path that does not exist yet overwrites nothing.
    let Ok(real) = out.canonicalize() else { return Ok(()) };
    for input in inputs.into_iter().filter_map(|path| path.canonicalize().ok()) {
        // A folder's files may be symlinks to files elsewhere.
        let entries = std::fs::read_dir(&input).into_iter().flatten().flatten();
        let mut files = entries.filter_map(|entry| entry.path().canonicalize().ok());
        if real == input || (real.is_file() && files.any(|file| file == real)) {
            let message =
                format!("{} is also an input ({}); choose another output path", out.display(), input.display());
            return Err(Failure::Failed(message.into()));
        }
    }
    Ok(())
}

fn check_place(out: &Path, names: Names) -> io::Result<()> {
    let refused = |reason| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    let folder = match out.canonicalize() {
        Ok(real) if names == Names::Folder => match real.is_dir() {
            true => real,
            false => return refused("it is a file; name a folder"),
        },
        Ok(real) => {
            hooklens_hooks::check_output(out)?;
            match real.parent() {
                // Files are replaced, which takes permission to write to their folder. Pipes and devices are not.
                Some(folder) if real.is_file() => folder.to_path_buf(),
                _ => return Ok(()),
            }
        }
        Err(_) => {
            let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            std::fs::create_dir_all(folder)?;
            if names == Names::File {
                hooklens_hooks::check_output(out)?;
            }
            folder.to_path_buf()
        }
    };
    // This file has no name (on most file systems), so that a killed process leaves nothing behind. The error's text
    // has a path that means nothing to users.
    tempfile::tempfile_in(folder).map_err(|error| error.kind())?;
    Ok(())
}

/// A result in the formats it can be written in.
pub(super) struct Finding {
    pub(super) json: Value,
    pub(super) csv: String,
}

impl Finding {
    /// Writes the file atomically; a picture is drawn only if requested. Call this before printing, so that a failing
    /// standard output does not lose the file.
    pub(super) fn write(self, out: &OutFile, picture: impl FnOnce(&Path) -> CliResult) -> CliResult {
        match out.kind {
            Kind::Json => write(&out.path, format!("{:#}\n", self.json).as_bytes()),
            Kind::Csv => write(&out.path, self.csv.as_bytes()),
            Kind::Picture | Kind::Page => picture(&out.path),
        }
    }
}

/// A closure that draws a heatmap to a file.
pub(super) fn heatmap<'f>(
    array: &'f LabeledArray,
    title: impl Into<String> + 'f,
) -> impl FnOnce(&Path) -> CliResult + 'f {
    move |path| Ok(Heatmap::of(array)?.title(title).save(path)?)
}

/// Writes a file atomically.
pub(super) fn write(path: &Path, bytes: &[u8]) -> CliResult {
    hooklens_hooks::write_file(path, bytes).map_err(|e| unwritten(path, &e))
}

/// Error for a file or folder that can't be written.
pub(super) fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Failed(format!("can't write {}: {error}", path.display()).into())
}

/// Prints where a file was written, if there is one.
pub(super) fn said_file(out: Option<&OutFile>) -> CliResult {
    out.map_or(Ok(()), |out| said(&out.path))
}

/// Prints where output was written.
pub(super) fn said(path: &Path) -> CliResult {
    writeln!(stdout(), "-> {}", path.display())?;
    Ok(())
}

/// Fails on NaN or infinite values, naming the position of the first one.
pub(super) fn check_finite(array: &LabeledArray) -> CliResult {
    let Some((place, _)) = array.values().indexed_iter().find(|(_, value)| !value.is_finite()) else { return Ok(()) };
    let labels = array.axes().iter().enumerate().map(|(axis, own)| format!("{} {}", own.name, own.labels[place[axis]]));
    let what = format!("the value at {}", labels.collect::<Vec<_>>().join(", "));
    Err(Error::NotANumber { what }.into())
}

/// Prints the `count` values of largest magnitude, largest first.
pub(super) fn print_largest(array: &LabeledArray, count: usize) -> CliResult {
    let mut out = stdout();
    let names: Vec<&str> = array.axes().iter().map(|axis| axis.name.as_str()).collect();
    writeln!(out, "{}", names.join("  "))?;
    let sized = array.map(|value| value.abs());
    // Line breaks in labels would break the table.
    let on_line = |label: &str| shown(label).replace('\n', "↵").replace('\t', "\\t");
    let width = |label: &String| on_line(label).chars().count();
    let widths: Vec<usize> =
        array.axes().iter().map(|axis| axis.labels.iter().map(width).max().unwrap_or(0).max(axis.name.len())).collect();
    for (labels, place) in largest_places(&sized, count) {
        let cells: Vec<String> =
            labels.iter().zip(&widths).map(|(label, width)| format!("{:<width$}", on_line(label))).collect();
        writeln!(out, "{}  {:+.3}", cells.join("  "), array.values()[&place])?;
    }
    Ok(())
}
