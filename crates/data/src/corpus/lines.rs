//! Prompts in lines of text or JSON.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use super::watch::{Watch, Watched};
use super::{Place, PlacedPrompts, Prompt, files, unpacked, value};
use crate::error::DumpError;
use hooklens_model::error::{place_of_line_after, place_of_line_in_frames};

/// Maximum line length in bytes, after decompression. Bounds memory on input without newlines.
const LONGEST: u64 = 1 << 24;
/// UTF-8 byte order mark, which some programs write at the start of a file.
const MARK: &[u8] = "\u{feff}".as_bytes();
/// File name extensions of compressed files.
const PACKED: [&str; 4] = ["gz", "gzip", "zst", "zstd"];

/// Opens the lines of a file; `-` is standard input.
pub(super) fn open(path: &Path, field: Option<&str>, watch: Option<Watch>) -> Result<PlacedPrompts, DumpError> {
    let failed = |source: std::io::Error| DumpError::File { path: path.to_path_buf(), source };
    let reader: Box<dyn Read> = match path == Path::new("-") {
        true => Box::new(std::io::stdin()),
        false => files::open(path).map_err(failed)?,
    };
    let reader = unpacked::open(BufReader::with_capacity(1 << 16, Watched { reader, watch })).map_err(failed)?;
    Ok(Box::new(Lines::new(reader, path, field)))
}

/// Opens the lines of an uncompressed file that follow a newline in a range of bytes. A range that starts at 0 also
/// contains the first line. Consecutive ranges thus contain every line exactly once, even lines that cross a boundary
/// between ranges.
pub(super) fn open_range(
    path: &Path,
    range: Range<u64>,
    field: Option<&str>,
    watch: Option<Watch>,
) -> Result<Lines, DumpError> {
    let capacity = (range.end - range.start).clamp(1 << 12, 1 << 16) as usize;
    let reader = Box::new(reader_at(path, range.start, capacity, watch)?);
    let lines = Lines::new(reader, path, field);
    let end = Rc::new(Cell::new(range.end));
    Lines { start: range.start, at: range.start, begun: range.start, end, ..lines }.after_newline()
}

/// Like [`open_range`], for the frames in a range of bytes of a Zstandard file.
pub(super) fn open_frames(
    path: &Path,
    range: Range<u64>,
    field: Option<&str>,
    watch: Option<Watch>,
) -> Result<Lines, DumpError> {
    let start = range.start;
    let (reader, end) = unpacked::open_frames(reader_at(path, start, 1 << 16, watch)?, range);
    let lines = Lines::new(reader, path, field);
    Lines { start, end, is_packed: true, ..lines }.after_newline()
}

/// Opens a file for reading, starting at a byte offset.
fn reader_at(
    path: &Path,
    start: u64,
    capacity: usize,
    watch: Option<Watch>,
) -> Result<BufReader<Watched<Box<dyn Read>>>, DumpError> {
    let reader = files::open_at(path, start).map_err(|source| DumpError::File { path: path.to_path_buf(), source })?;
    Ok(BufReader::with_capacity(capacity, Watched { reader, watch }))
}

/// Whether the file name indicates JSON lines, compressed or not.
fn is_json(path: &Path) -> bool {
    let ending = |path: &Path| path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    let packed = ending(path).is_some_and(|ending| PACKED.contains(&&*ending));
    let name = if packed { path.with_extension("") } else { path.to_path_buf() };
    ending(&name).is_some_and(|ending| ["jsonl", "ndjson", "json"].contains(&&*ending))
}

/// Iterator over the prompts in a file's lines.
pub(super) struct Lines {
    reader: Box<dyn BufRead>,
    path: Arc<Path>,
    json: bool,
    field: Option<String>,
    /// Byte of the file at which the reader started.
    start: u64,
    /// Whether the file is compressed. Bytes are then counted after decompression, from where the reader started.
    is_packed: bool,
    /// Byte of the file at which the next line starts.
    at: u64,
    /// Byte of the file at which the last line read starts.
    begun: u64,
    /// Byte at which the range ends; a line that starts after this byte is not read. In a compressed file, the end is
    /// unknown until the reader reaches it.
    end: Rc<Cell<u64>>,
    number: usize,
    /// Whether the rest of a line that is too long has not been read.
    is_long: bool,
    ended: bool,
}

impl Lines {
    fn new(reader: Box<dyn BufRead>, path: &Path, field: Option<&str>) -> Self {
        let json = field.is_some() || is_json(path);
        let field = field.map(str::to_string);
        Self {
            reader,
            path: path.into(),
            json,
            field,
            start: 0,
            is_packed: false,
            at: 0,
            begun: 0,
            end: Rc::new(Cell::new(u64::MAX)),
            number: 0,
            is_long: false,
            ended: false,
        }
    }

    fn failed(&self, source: std::io::Error) -> DumpError {
        DumpError::File { path: self.path.to_path_buf(), source }
    }

    /// Skips the rest of a line that started before the range.
    fn after_newline(mut self) -> Result<Self, DumpError> {
        if self.start > 0 {
            self.skip_line()?;
            self.number = 1;
        }
        Ok(self)
    }

    /// Counts bytes that were read. The line that follows belongs to the range if the newline before the line does.
    fn passed(&mut self, bytes: usize) {
        self.at += bytes as u64;
        self.ended |= self.at > self.end.get();
    }

    /// Reads the next line that is not empty.
    fn line(&mut self) -> Result<Option<String>, DumpError> {
        let mut line = Vec::new();
        // Skip the rest of a line that was too long. That was not done before the error, as the line may never end.
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

    /// Skips the rest of a line, but reads little beyond the end of the range.
    fn skip_line(&mut self) -> Result<(), DumpError> {
        loop {
            let path = &self.path;
            let bytes =
                self.reader.fill_buf().map_err(|source| DumpError::File { path: path.to_path_buf(), source })?;
            let (len, newline) = (bytes.len(), bytes.iter().position(|byte| *byte == b'\n'));
            let skipped = newline.map_or(len, |newline| newline + 1);
            self.reader.consume(skipped);
            self.passed(skipped);
            if newline.is_some() || len == 0 || self.ended {
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
        match self.is_packed {
            true => place_of_line_in_frames(&self.path, self.start, self.number),
            false => place_of_line_after(&self.path, self.start, self.number),
        }
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
        // After a read error, the reader's state is undefined. After a line without a prompt, reading continues.
        self.ended |= !matches!(next, Ok(Some(_)) | Err(DumpError::Prompt { .. }));
        Some(next.transpose()?.map(|prompt| (prompt, self.place())))
    }
}
