//! Output of results: a table on the terminal, or a file whose format follows from its extension.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use serde_json::Value;

use super::json_result::file_text;
use super::terminal::{Stdout, is_quiet, print_json, shown, stdout};
use super::{CliResult, Failure};
use hooklens_analysis::labeled::LabeledArray;
use hooklens_io::csv_text::CsvLabels;
use hooklens_io::numerals::grouped;
use hooklens_io::object_stores::is_url;
use hooklens_model::error::Error;

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
            _ => return Err(format!("`{text}` must end in .json, .csv, .svg, .png or .html")),
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

/// Whether an output path names a file or a folder.
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
                // Files are replaced, which requires permission to write to their folder. Pipes and devices are not
                // replaced.
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
    // Tests whether files can be created in the folder. The test file has no name (on most file systems), so that a
    // killed process leaves nothing behind. The text of an error is dropped, because its path means nothing to users.
    tempfile::tempfile_in(folder).map_err(|error| error.kind())?;
    Ok(())
}

/// A result in all forms in which it can be reported. Each is made only if it is needed.
pub(super) struct Finding<J, C, P, T> {
    /// The result as JSON, with its header (see [`with_header`](super::json_result::with_header)).
    pub(super) json: J,
    pub(super) csv: C,
    /// Draws a picture or page to a file.
    pub(super) picture: P,
    /// Prints the result for people.
    pub(super) text: T,
}

impl<J, C, P, T> Finding<J, C, P, T>
where
    J: FnOnce() -> Result<Value, Failure>,
    C: FnOnce() -> String,
    P: FnOnce(&Path) -> CliResult,
    T: FnOnce(&mut Stdout) -> CliResult,
{
    /// Writes the file, if there is one, and then prints the result as JSON or text. The file is written first, so that
    /// it is not lost if the reader of standard output goes away.
    pub(super) fn report(self, out: Option<&OutFile>, as_json: bool) -> CliResult {
        let kind = out.map(|out| out.kind);
        let json = if as_json || kind == Some(Kind::Json) { (self.json)()? } else { Value::Null };
        if let Some(OutFile { path, kind }) = out {
            match kind {
                Kind::Json => write(path, file_text(&json).as_bytes())?,
                Kind::Csv => write(path, (self.csv)().as_bytes())?,
                Kind::Picture | Kind::Page => (self.picture)(path)?,
            }
        }
        if as_json {
            // The name of the file is not printed, because the output would not be valid JSON.
            return Ok(print_json(&json)?);
        }
        (self.text)(&mut stdout())?;
        said_file(out)
    }
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

/// Prints where output was written, unless `--quiet` is given.
pub(super) fn said(path: &Path) -> CliResult {
    if !is_quiet() {
        writeln!(stdout(), "-> {}", path.display())?;
    }
    Ok(())
}

/// A count with its noun: `1 prompt`, `2 prompts`.
pub(super) fn plural(count: usize, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// Fails on NaN or infinite values, naming the position of the first one.
pub(super) fn check_finite(array: &LabeledArray) -> CliResult {
    let Some((place, _)) = array.values().indexed_iter().find(|(_, value)| !value.is_finite()) else { return Ok(()) };
    let labels = array.axes().iter().enumerate().map(|(axis, own)| format!("{} {}", own.name, own.labels[place[axis]]));
    let what = format!("the value at {}", labels.collect::<Vec<_>>().join(", "));
    Err(Error::NotANumber { what }.into())
}

/// A column of a printed table.
pub(super) struct Column<'a> {
    pub(super) name: &'a str,
    pub(super) values: &'a LabeledArray,
    /// Whether positive values have a sign.
    pub(super) is_signed: bool,
}

impl<'a> Column<'a> {
    pub(super) fn signed(name: &'a str, values: &'a LabeledArray) -> Self {
        Self { name, values, is_signed: true }
    }
}

/// Prints the `count` places where the first column is largest in magnitude, largest first, with the values of all
/// columns. Columns are arrays with the same axes, under a name with a unit.
pub(super) fn print_largest(out: &mut Stdout, columns: &[Column<'_>], count: usize) -> CliResult {
    let Some(Column { values: array, .. }) = columns.first() else { return Ok(()) };
    let mut places: Vec<_> = array.values().indexed_iter().collect();
    places.sort_by(|(_, a), (_, b)| b.abs().total_cmp(&a.abs()));
    // Line breaks in labels would break the table.
    let on_line = |label: &str| shown(label).replace('\n', "↵").replace('\t', "\\t");
    let width = |label: &String| on_line(label).chars().count();
    let widths: Vec<usize> =
        array.axes().iter().map(|axis| axis.labels.iter().map(width).max().unwrap_or(0).max(axis.name.len())).collect();
    let names = array.axes().iter().zip(&widths).map(|(axis, width)| format!("{:<width$}", axis.name));
    let values = columns.iter().map(|column| format!("{:>9}", column.name));
    writeln!(out, "{}", names.chain(values).collect::<Vec<_>>().join("  "))?;
    for (place, _) in places.into_iter().take(count) {
        let labels = array.axes().iter().enumerate().map(|(axis, own)| &own.labels[place[axis]]);
        let cells = labels.zip(&widths).map(|(label, width)| format!("{:<width$}", on_line(label)));
        let values = columns.iter().map(|column| {
            let (width, value) = (column.name.len().max(9), column.values.values()[&place]);
            if column.is_signed { format!("{value:>+width$.3}") } else { format!("{value:>width$.3}") }
        });
        writeln!(out, "{}", cells.chain(values).collect::<Vec<_>>().join("  "))?;
    }
    Ok(())
}
