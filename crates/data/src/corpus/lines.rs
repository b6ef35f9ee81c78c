//! Prompts in lines of text or JSON.

use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::watch::{Watch, Watched};
use super::{Place, PlacedPrompts, Prompt, files, unpacked, value};
use crate::error::DumpError;
use hooklens_model::error::place_of_line_after;

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
    Ok(Box::new(Lines::new(reader, path, field, json)))
}

/// Opens the lines of an uncompressed file that follow a newline in a range of bytes. A range that starts at 0 also has
/// the first line. Consecutive ranges thus have every line once, although lines do not end where ranges do.
pub(super) fn open_range(
    path: &Path,
    range: Range<u64>,
    field: Option<&str>,
    watch: Option<Watch>,
) -> Result<Lines, DumpError> {
    let failed = |source: std::io::Error| DumpError::File { path: path.to_path_buf(), source };
    let reader = Watched { reader: files::open_at(path, range.start).map_err(failed)?, watch };
    let capacity = (range.end - range.start).clamp(1 << 12, 1 << 16) as usize;
    let reader = Box::new(BufReader::with_capacity(capacity, reader));
    let start = range.start;
    let lines = Lines::new(reader, path, field, field.is_some() || is_json(path));
    let mut lines = Lines { start, at: start, begun: start, ..lines };
    lines.left = Some(range.end - range.start);
    if range.start > 0 {
        lines.skip_to_newline()?;
    }
    Ok(lines)
}

/// Whether the file name indicates JSON lines, compressed or not.
fn is_json(path: &Path) -> bool {
    let ending = |path: &Path| path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    let packed = ending(path).is_some_and(|ending| PACKED.contains(&&*ending));
    let name = if packed { path.with_extension("") } else { path.to_path_buf() };
    ending(&name).is_some_and(|ending| ["jsonl", "ndjson", "json"].contains(&&*ending))
}

/// The prompts of lines.
pub(super) struct Lines {
    reader: Box<dyn BufRead>,
    path: Arc<Path>,
    json: bool,
    field: Option<String>,
    /// Byte of the file at which the reader started.
    start: u64,
    /// Bytes of the file at which the next line starts, and at which the last one did.
    at: u64,
    begun: u64,
    /// Number of bytes left of the range; a line that starts after the range is not read.
    left: Option<u64>,
    number: usize,
    /// Whether the rest of a line that is too long has not been read.
    is_long: bool,
    ended: bool,
}

impl Lines {
    fn new(reader: Box<dyn BufRead>, path: &Path, field: Option<&str>, json: bool) -> Self {
        let field = field.map(str::to_string);
        Self {
            reader,
            path: path.into(),
            json,
            field,
            start: 0,
            at: 0,
            begun: 0,
            left: None,
            number: 0,
            is_long: false,
            ended: false,
        }
    }

    fn failed(&self, source: std::io::Error) -> DumpError {
        DumpError::File { path: self.path.to_path_buf(), source }
    }

    /// Skips the rest of a line that started before the range. Without a newline, the range has no lines.
    fn skip_to_newline(&mut self) -> Result<(), DumpError> {
        let mut left = self.left.unwrap_or(u64::MAX);
        while left > 0 {
            let bytes =
                self.reader.fill_buf().map_err(|e| DumpError::File { path: self.path.to_path_buf(), source: e })?;
            let bytes = &bytes[..bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            let Some(newline) = bytes.iter().position(|byte| *byte == b'\n') else {
                let len = bytes.len();
                left -= len as u64;
                self.reader.consume(len);
                if len == 0 {
                    break;
                }
                continue;
            };
            self.reader.consume(newline + 1);
            let skipped = self.left.unwrap_or(left) - (left - newline as u64 - 1);
            self.at += skipped;
            self.left = Some(left - newline as u64 - 1);
            self.number = 1;
            return Ok(());
        }
        self.ended = true;
        Ok(())
    }

    /// Counts bytes that were read; whether the next line belongs to the range.
    fn passed(&mut self, bytes: usize) {
        self.at += bytes as u64;
        if let Some(left) = &mut self.left {
            match left.checked_sub(bytes as u64) {
                Some(rest) => *left = rest,
                None => (*left, self.ended) = (0, true),
            }
        }
    }

    /// Reads the next line that is not empty.
    fn line(&mut self) -> Result<Option<String>, DumpError> {
        let mut line = Vec::new();
        // The rest of a line that was too long; it may never end, so it was not skipped before the error.
        if std::mem::take(&mut self.is_long) {
            self.skip_line()?;
        }
        loop {
            line.clear();
            self.skip_ends()?;
            if self.ended {
                return Ok(None);
            }
            self.begun = self.at;
            let read = (&mut self.reader).take(LONGEST + 1).read_until(b'\n', &mut line);
            let read = read.map_err(|source| self.failed(source))?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            self.passed(read);
            if read as u64 > LONGEST {
                self.is_long = true;
                return Err(self.bad("the line is longer than 16 MiB", None));
            }
            if self.start == 0 && self.number == 1 && line.starts_with(MARK) {
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

    /// Skips the rest of a line.
    fn skip_line(&mut self) -> Result<(), DumpError> {
        loop {
            let path = &self.path;
            let bytes =
                self.reader.fill_buf().map_err(|source| DumpError::File { path: path.to_path_buf(), source })?;
            let (len, newline) = (bytes.len(), bytes.iter().position(|byte| *byte == b'\n'));
            let skipped = newline.map_or(len, |newline| newline + 1);
            self.reader.consume(skipped);
            self.passed(skipped);
            if newline.is_some() || len == 0 {
                return Ok(());
            }
        }
    }

    /// Skips many empty lines at once.
    fn skip_ends(&mut self) -> Result<(), DumpError> {
        loop {
            let path = &self.path;
            let bytes =
                self.reader.fill_buf().map_err(|source| DumpError::File { path: path.to_path_buf(), source })?;
            let ends = bytes.iter().position(|byte| *byte != b'\n').unwrap_or(bytes.len());
            if ends == 0 || self.ended {
                return Ok(());
            }
            self.reader.consume(ends);
            self.number += ends;
            self.passed(ends);
        }
    }

    /// The byte of the file at which the last line starts.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// Position of the last line read.
    fn place(&self) -> Place {
        place_of_line_after(&self.path, self.start, self.number)
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
        // After an error in reading, the reader's state is undefined. Lines follow a line that is not a prompt.
        self.ended |= !matches!(next, Ok(Some(_)) | Err(DumpError::Prompt { .. }));
        Some(next.transpose()?.map(|prompt| (prompt, self.place())))
    }
}
