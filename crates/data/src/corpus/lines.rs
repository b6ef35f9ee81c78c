//! Prompts in lines of text or JSON.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use super::watch::{Watch, Watched};
use super::{Place, PlacedPrompts, Prompt, files, unpacked, value};
use crate::error::DumpError;
use hooklens_model::error::place_of_line;

/// Maximum line length in bytes, after decompression. Bounds memory on input without newlines.
const LONGEST: u64 = 1 << 24;
/// UTF-8 byte order mark, which some programs write at the start of a file.
const MARK: &[u8] = "\u{feff}".as_bytes();
/// File name extensions of compressed files.
const PACKED: [&str; 4] = ["gz", "gzip", "zst", "zstd"];

/// Opens the lines of a file; `-` is standard input.
pub(super) fn open(path: &Path, field: Option<&str>, watch: Option<Watch>) -> Result<PlacedPrompts, DumpError> {
    let failed = |source: std::io::Error| DumpError::File { path: path.to_path_buf(), source };
    let (reader, json): (Box<dyn Read>, bool) = match path == Path::new("-") {
        true => (Box::new(std::io::stdin()), field.is_some()),
        false => (files::open(path).map_err(failed)?, field.is_some() || is_json(path)),
    };
    let reader = unpacked::open(BufReader::with_capacity(1 << 16, Watched { reader, watch })).map_err(failed)?;
    Ok(Box::new(Lines { reader, path: path.into(), json, field: field.map(str::to_string), number: 0, ended: false }))
}

/// Whether the file name indicates JSON lines, compressed or not.
fn is_json(path: &Path) -> bool {
    let ending = |path: &Path| path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    let packed = ending(path).is_some_and(|ending| PACKED.contains(&&*ending));
    let name = if packed { path.with_extension("") } else { path.to_path_buf() };
    ending(&name).is_some_and(|ending| ["jsonl", "ndjson", "json"].contains(&&*ending))
}

struct Lines {
    reader: Box<dyn BufRead>,
    path: Arc<Path>,
    json: bool,
    field: Option<String>,
    number: usize,
    ended: bool,
}

impl Lines {
    /// Reads the next line that is not empty.
    fn line(&mut self) -> Result<Option<String>, DumpError> {
        let mut line = Vec::new();
        loop {
            line.clear();
            self.skip_ends()?;
            let read = (&mut self.reader).take(LONGEST + 1).read_until(b'\n', &mut line);
            let read = read.map_err(|source| DumpError::File { path: self.path.to_path_buf(), source })?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            if read as u64 > LONGEST {
                return Err(self.bad("the line is longer than 16 MiB", None));
            }
            if self.number == 1 && line.starts_with(MARK) {
                line.drain(..MARK.len());
            }
            let text = str::from_utf8(&line).map_err(|_| self.bad("the line is not UTF-8", None))?;
            let text = text.trim_end_matches('\n');
            let text = text.strip_suffix('\r').unwrap_or(text);
            if !text.trim().is_empty() {
                return Ok(Some(text.to_string()));
            }
        }
    }

    /// Skips many empty lines at once.
    fn skip_ends(&mut self) -> Result<(), DumpError> {
        loop {
            let failed = |source| DumpError::File { path: self.path.to_path_buf(), source };
            let bytes = self.reader.fill_buf().map_err(failed)?;
            let ends = bytes.iter().position(|byte| *byte != b'\n').unwrap_or(bytes.len());
            if ends == 0 {
                return Ok(());
            }
            self.reader.consume(ends);
            self.number += ends;
        }
    }

    /// Position of the last line read.
    fn place(&self) -> Place {
        place_of_line(&self.path, self.number)
    }

    fn bad(&self, reason: &str, source: Option<serde_json::Error>) -> DumpError {
        DumpError::Prompt { place: self.place(), reason: reason.to_string(), source }
    }

    fn prompt(&mut self) -> Result<Option<Prompt>, DumpError> {
        let Some(line) = self.line()? else { return Ok(None) };
        if !self.json {
            return Ok(Some(Prompt::Text(line)));
        }
        let found = value::prompt(&line, self.field.as_deref());
        let found = found.map_err(|error| self.bad("the line is not valid JSON", Some(error)))?;
        found.map(Some).map_err(|reason| self.bad(&reason, None))
    }
}

impl Iterator for Lines {
    type Item = Result<(Prompt, Place), DumpError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.prompt();
        // After an error, the reader's state is undefined.
        self.ended = !matches!(next, Ok(Some(_)));
        Some(next.transpose()?.map(|prompt| (prompt, self.place())))
    }
}
