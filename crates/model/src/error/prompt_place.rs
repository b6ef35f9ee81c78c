//! Position of a prompt in a corpus.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

/// Position of a prompt in a corpus: a line of a file, or a row of a table.
///
/// ```
/// use hooklens::corpus::Corpus;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("prompts.txt");
/// std::fs::write(&path, "red fox\n\ntea owl\n")?;
/// let (_, place) = Corpus::new([&path]).skip(1).placed()?.next().unwrap()?;
/// assert_eq!((&*place.file, place.number), (&*path, 3)); // empty lines count
/// assert!(place.to_string().ends_with("prompts.txt:3"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// Path of the file; `-` is standard input.
    pub file: Arc<Path>,
    /// Line number (after decompression) or row number, counted from one; in a part of a file, from the part's start.
    pub number: usize,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Line,
    /// A line in a part of a file; the part starts at this byte.
    LineAfter(u64),
    /// A line in a part of a compressed file; the part starts at this byte.
    LineInFrames(u64),
    Row,
    /// A row in a part of a table; this is the number of the part, counted from one.
    RowOf(usize),
}

/// Position of a line of a file, counted from one.
pub fn place_of_line(file: &Arc<Path>, number: usize) -> Place {
    Place { file: file.clone(), number, kind: Kind::Line }
}

/// Position of a line in the part of a file that starts at byte `start`; lines are counted from one within the part.
/// The lines before `start` are counted only when the position is printed.
pub fn place_of_line_after(file: &Arc<Path>, start: u64, number: usize) -> Place {
    Place { file: file.clone(), number, kind: if start == 0 { Kind::Line } else { Kind::LineAfter(start) } }
}

/// Position of a line in the part of a Zstandard file that starts with the frame at byte `start`; lines are counted
/// from one within the part.
pub fn place_of_line_in_frames(file: &Arc<Path>, start: u64, number: usize) -> Place {
    Place { file: file.clone(), number, kind: if start == 0 { Kind::Line } else { Kind::LineInFrames(start) } }
}

/// Position of a row of a table, counted from one.
pub fn place_of_row(file: &Arc<Path>, number: usize) -> Place {
    Place { file: file.clone(), number, kind: Kind::Row }
}

/// Position of a row in a part of a table; row and part are counted from one.
pub fn place_of_row_in(file: &Arc<Path>, part: usize, number: usize) -> Place {
    Place { file: file.clone(), number, kind: Kind::RowOf(part) }
}

/// The number of lines that end in the first `bytes` bytes of a file.
fn lines_before(file: &Path, bytes: u64) -> io::Result<usize> {
    let mut start = BufReader::with_capacity(1 << 18, File::open(file)?.take(bytes));
    let mut count = 0;
    loop {
        let read = start.fill_buf()?;
        if read.is_empty() {
            return Ok(count);
        }
        count += read.iter().filter(|byte| **byte == b'\n').count();
        let len = read.len();
        start.consume(len);
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, number) = (self.file.display(), self.number);
        match self.kind {
            _ if &*self.file == Path::new("-") => write!(f, "standard input:{number}"),
            Kind::Line => write!(f, "{file}:{number}"),
            Kind::LineAfter(start) => match lines_before(&self.file, start) {
                Ok(before) => write!(f, "{file}:{}", before + number),
                Err(_) => write!(f, "{file}, line {number} after byte {start}"),
            },
            Kind::LineInFrames(start) => write!(f, "{file}, line {number} after the frame at byte {start}"),
            Kind::Row => write!(f, "{file}, row {number}"),
            Kind::RowOf(part) => write!(f, "{file}, row {number} of part {part}"),
        }
    }
}
