//! Prompts from files: lines of text or JSON, compressed or not, from one file or thousands, read one at a time.

mod files;
mod frames;
mod lines;
mod pieces;
mod rows;
mod sample;
mod selection;
#[cfg(feature = "arrow")]
mod table;
mod unpacked;
mod value;
mod watch;

use std::path::{Path, PathBuf};

use crate::error::DumpError;

pub use hooklens_model::error::Place;
pub use pieces::{Pieces, pieces_of};
pub use rows::{CorpusRow, CorpusRows, RowIter, RowSource};
pub use watch::Watch;

/// A prompt: text, or token ids.
///
/// ```
/// use hooklens_data::corpus::{Prompt, read_prompts};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("prompts.jsonl");
/// std::fs::write(&path, "{\"text\": \"red fox\"}\n[0, 1, 9]\n")?;
/// assert_eq!(read_prompts(&path)?, [Prompt::Text("red fox".into()), Prompt::Tokens(vec![0, 1, 9])]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text to tokenize.
    Text(String),
    /// Token ids, used as they are.
    Tokens(Vec<u32>),
}

/// Prompts from one or many files, read in constant memory.
///
/// A file whose name ends in `.jsonl`, `.ndjson` or `.json` contains one JSON value per line: a string, a list of token
/// ids, or an object. [`Corpus::field`] names the field of the object to read (by default `text`, `prompt` or
/// `tokens`); if a field is set, text files with any other extension are read as JSON lines too. With the feature
/// `arrow`, `.parquet` and `.arrow` files (including files written by Hugging Face's `datasets`) contain one prompt per
/// row of the named column, which may be dictionary-encoded. Any other file contains one prompt per line.
///
/// All but `.parquet` and `.arrow` files may be compressed with gzip or Zstandard, which is detected from the first
/// bytes. A name with `*`, `?` or `[...]` is a pattern. `-` is standard input: lines of text or, if a field is set,
/// JSON lines. Empty lines are skipped; a line of more than 16 MiB after decompression is an error.
///
/// ```
/// use hooklens::corpus::{Corpus, Prompt};
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// std::fs::write(folder.join("a.jsonl"), "{\"body\": \"red fox\"}\n{\"body\": \"tea owl\"}\n")?;
/// std::fs::write(folder.join("b.jsonl"), "{\"body\": \"blue elk\"}\n")?;
/// let corpus = Corpus::new([folder.join("*.jsonl")]).field("body").skip(1);
/// let prompts: Vec<Prompt> = corpus.prompts()?.collect::<Result<_, _>>()?;
/// assert_eq!(prompts, ["tea owl", "blue elk"].map(|text| Prompt::Text(text.into())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Corpus {
    names: Vec<PathBuf>,
    field: Option<String>,
    skip: usize,
    limit: Option<usize>,
    sample: Option<(usize, u64)>,
    watch: Option<Watch>,
}

/// Iterator over prompts.
pub type Prompts = Box<dyn Iterator<Item = Result<Prompt, DumpError>>>;

/// Iterator over prompts, each with the number of its piece.
type InPieces = Box<dyn Iterator<Item = (usize, Result<(Prompt, Place), DumpError>)>>;

/// Iterator over prompts, each with its location in the corpus.
pub type PlacedPrompts = Box<dyn Iterator<Item = Result<(Prompt, Place), DumpError>>>;

impl Corpus {
    /// Creates a corpus of these files, in order. Files that match a pattern are sorted by name.
    pub fn new<P: AsRef<Path>>(names: impl IntoIterator<Item = P>) -> Self {
        let names = names.into_iter().map(|name| name.as_ref().to_path_buf()).collect();
        Self { names, ..Self::default() }
    }

    /// Sets which field of each JSON object, or which column of each table, contains the prompt; `meta.title` names a
    /// field of a nested object.
    #[must_use]
    pub fn field(mut self, name: impl Into<String>) -> Self {
        self.field = Some(name.into());
        self
    }

    /// Skips this many prompts at the start. Invalid prompts count, too.
    #[must_use]
    pub fn skip(mut self, prompts: usize) -> Self {
        self.skip = prompts;
        self
    }

    /// Reads at most this many prompts, after [`Corpus::skip`].
    #[must_use]
    pub fn limit(mut self, prompts: usize) -> Self {
        self.limit = Some(prompts);
        self
    }

    /// Draws a random sample of the prompts, in file order; every subset of this size is equally likely. The same seed
    /// draws the same sample.
    ///
    /// ```
    /// use hooklens::corpus::Corpus;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("prompts.txt");
    /// std::fs::write(&path, (0..1000).map(|n| format!("prompt {n}\n")).collect::<String>())?;
    /// let drawn = |seed| Corpus::new([&path]).sample(10, seed).prompts()?.collect::<Result<Vec<_>, _>>();
    /// assert_eq!((drawn(0)?.len(), drawn(0)?), (10, drawn(0)?));
    /// assert_ne!(drawn(0)?, drawn(1)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn sample(mut self, prompts: usize, seed: u64) -> Self {
        self.sample = Some((prompts, seed));
        self
    }

    /// Reads the prompts. Each file is opened when it is reached and kept open until its end. If a sample is drawn, all
    /// files are read immediately.
    ///
    /// # Errors
    /// [`DumpError::File`] if a file cannot be read or a pattern matches no file; [`DumpError::Prompt`], which names
    /// the line, if a line contains no prompt.
    pub fn prompts(&self) -> Result<Prompts, DumpError> {
        Ok(Box::new(self.placed()?.map(|placed| placed.map(|(prompt, _)| prompt))))
    }

    /// Like [`Corpus::prompts`], but also yields each prompt's location, so that a caller who rejects a prompt can say
    /// which one it is.
    ///
    /// ```
    /// use hooklens::corpus::{Corpus, Prompt};
    /// # let folder = tempfile::tempdir()?;
    /// # let folder = folder.path();
    /// std::fs::write(folder.join("a.txt"), "red fox\n")?;
    /// std::fs::write(folder.join("b.jsonl"), "\"tea owl\"\n[]\n")?;
    /// for placed in Corpus::new([folder.join("a.txt"), folder.join("b.jsonl")]).placed()? {
    ///     let (prompt, place) = placed?;
    ///     if prompt == Prompt::Tokens(Vec::new()) {
    ///         assert_eq!(place.to_string(), format!("{}:2", folder.join("b.jsonl").display()));
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Corpus::prompts`].
    pub fn placed(&self) -> Result<PlacedPrompts, DumpError> {
        let files = files_of(self)?;
        let (field, watch) = (self.field.clone(), self.watch.clone());
        let all = files.into_iter().flat_map(move |file| match open(&file, field.as_deref(), watch.clone()) {
            Ok(prompts) => prompts,
            Err(error) => Box::new(std::iter::once(Err(error))),
        });
        // Skip invalid prompts like valid ones, but keep errors about whole files.
        let all = all.scan(self.skip, |left, prompt| {
            let skipped = selection::is_prompt(&prompt) && *left > 0;
            *left -= usize::from(skipped);
            Some((!skipped).then_some(prompt))
        });
        let all = all.flatten().take(self.limit.unwrap_or(usize::MAX));
        let Some((count, seed)) = self.sample else { return Ok(Box::new(all)) };
        let all = all.map(|prompt| match prompt {
            Err(error @ DumpError::File { .. }) => Err(error),
            prompt => Ok(prompt),
        });
        Ok(Box::new(sample::drawn(all, count, seed)?.into_iter()))
    }

    /// Whether only some prompts are selected, by their numbers.
    fn selects(&self) -> bool {
        self.skip > 0 || self.limit.is_some() || self.sample.is_some()
    }
}

/// Adds a callback that reports how many bytes of the line-based files were read. If prompts are selected by their
/// numbers, only the bytes read to count the prompts are reported.
pub fn watched(corpus: Corpus, watch: Watch) -> Corpus {
    Corpus { watch: Some(watch), ..corpus }
}

/// Names of the files, with patterns expanded.
///
/// # Errors
/// [`DumpError::File`] if a pattern matches no file.
pub fn files_of(corpus: &Corpus) -> Result<Vec<PathBuf>, DumpError> {
    files::expand(&corpus.names)
}

/// Whether the file name has the extension of a table.
fn is_table(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    ["parquet", "arrow", "feather"].iter().any(|table| ending.eq_ignore_ascii_case(table))
}

/// Opens the prompts of one file.
fn open(path: &Path, field: Option<&str>, watch: Option<Watch>) -> Result<PlacedPrompts, DumpError> {
    match is_table(path) {
        #[cfg(feature = "arrow")]
        true => table::open(path, field),
        #[cfg(not(feature = "arrow"))]
        true => {
            let source = std::io::Error::other("this build cannot read tables; build with --features arrow");
            Err(DumpError::File { path: path.to_path_buf(), source })
        }
        false => lines::open(path, field, watch),
    }
}

/// Reads all prompts of a file, as a [`Corpus`] does.
///
/// ```
/// use hooklens_data::corpus::{Prompt, read_prompts};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("prompts.txt");
/// std::fs::write(&path, "red fox\n\ntea owl\n")?; // one prompt per line
/// assert_eq!(read_prompts(&path)?, ["red fox", "tea owl"].map(|text| Prompt::Text(text.into())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`DumpError::File`] if the file cannot be read; [`DumpError::Prompt`], which names the line, if a line contains no
/// prompt.
pub fn read_prompts(path: impl AsRef<Path>) -> Result<Vec<Prompt>, DumpError> {
    open(path.as_ref(), None, None)?.map(|placed| placed.map(|(prompt, _)| prompt)).collect()
}
