//! Position of a prompt in a corpus.

use std::fmt;
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
    /// Line number (after decompression) or row number, counted from one.
    pub number: usize,
    /// Whether the file is a table, in which rows rather than lines are counted.
    of_table: bool,
}

/// Position of a line of a file, counted from one.
pub fn place_of_line(file: &Arc<Path>, number: usize) -> Place {
    Place { file: file.clone(), number, of_table: false }
}

/// Position of a row of a table, counted from one.
pub fn place_of_row(file: &Arc<Path>, number: usize) -> Place {
    Place { file: file.clone(), number, of_table: true }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&*self.file == Path::new("-"), self.of_table) {
            (true, _) => write!(f, "standard input:{}", self.number),
            (false, false) => write!(f, "{}:{}", self.file.display(), self.number),
            (false, true) => write!(f, "{}, row {}", self.file.display(), self.number),
        }
    }
}
