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
/// assert_eq!((place.file(), place.number()), (&*path, 3)); // empty lines count
/// assert!(place.to_string().ends_with("prompts.txt:3"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    file: Arc<Path>,
    number: usize,
    of_table: bool,
}

impl Place {
    /// Position of a line, counted from one.
    pub fn line(file: &Arc<Path>, number: usize) -> Self {
        Self { file: file.clone(), number, of_table: false }
    }

    /// Position of a row, counted from one.
    pub fn row(file: &Arc<Path>, number: usize) -> Self {
        Self { file: file.clone(), number, of_table: true }
    }

    /// Path of the file; `-` is standard input.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Line number (after decompression) or row number, counted from one.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Whether the file is a table, in which rows rather than lines are counted.
    pub fn is_of_table(&self) -> bool {
        self.of_table
    }
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
