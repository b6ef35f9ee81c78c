//! Prompts of files: lines, JSON lines, compressed or not, one file or thousands, read one by one.

mod files;
mod lines;
mod sample;
#[cfg(feature = "arrow")]
mod table;
mod unpacked;
mod value;
mod watch;

use std::path::{Path, PathBuf};

use crate::error::DumpError;

pub use hooklens_model::error::Place;
pub use watch::Watch;

/// One prompt: text, or token ids already.
///
/// ```
/// use hooklens::dump::{Prompt, read_prompts};
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
    /// Token ids, fed as they are.
    Tokens(Vec<u32>),
}

/// Prompts of one file or of many, in constant memory.
///
/// A file whose name ends in `.jsonl`, `.ndjson` or `.json` holds a JSON value a line: a string, a list of token ids, or an
/// object, of which [`Corpus::field`] names what is read (`text`, `prompt` or `tokens` where nothing is named); where a field is
/// named, so does any file of lines. With the feature
/// `arrow`, `.parquet` files and `.arrow` files (of Hugging Face's `datasets`, too) hold a prompt a row of that column, dictionary-encoded or not. Any other
/// file holds a prompt a line. Any of them but `.parquet` and `.arrow` may be compressed with gzip or Zstandard, which its
/// first bytes say. A name with `*`, `?` or `[...]` is a pattern of names; `-` is standard input: lines of text or, where a
/// field is named, of JSON. Empty lines are passed over; a line of more than 16 MiB, unpacked, is refused.
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

/// Prompts, one by one.
pub type Prompts = Box<dyn Iterator<Item = Result<Prompt, DumpError>>>;

/// Prompts, one by one, each with its place.
pub type PlacedPrompts = Box<dyn Iterator<Item = Result<(Prompt, Place), DumpError>>>;

impl Corpus {
    /// These files, one behind the other; those of a pattern by name.
    pub fn new<P: AsRef<Path>>(names: impl IntoIterator<Item = P>) -> Self {
        let names = names.into_iter().map(|name| name.as_ref().to_path_buf()).collect();
        Self { names, ..Self::default() }
    }

    /// Reads this field of each JSON object, or this column; `meta.title` is a field of an object within.
    #[must_use]
    pub fn field(mut self, name: impl Into<String>) -> Self {
        self.field = Some(name.into());
        self
    }

    /// Leaves out the first prompts.
    #[must_use]
    pub fn skip(mut self, prompts: usize) -> Self {
        self.skip = prompts;
        self
    }

    /// Reads no more than this many, behind those that are left out.
    #[must_use]
    pub fn limit(mut self, prompts: usize) -> Self {
        self.limit = Some(prompts);
        self
    }

    /// Of those, so many by lot, in the order of the files: each set of as many is as likely. The same seed draws the same.
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

    /// Reports how much of files of lines was read.
    pub fn watched(mut self, watch: Watch) -> Self {
        self.watch = Some(watch);
        self
    }

    /// The files by name, patterns replaced by what they fit.
    ///
    /// # Errors
    /// [`DumpError::File`] for a pattern that fits no file.
    pub fn files(&self) -> Result<Vec<PathBuf>, DumpError> {
        files::expand(&self.names)
    }

    /// The prompts; a file is opened when its turn comes, and held to its end. Of a sample all are read at once.
    ///
    /// # Errors
    /// [`DumpError::File`] for a file that can't be read or a pattern that fits none, [`DumpError::Prompt`], which names the
    /// line, for one that holds no prompt.
    pub fn prompts(&self) -> Result<Prompts, DumpError> {
        Ok(Box::new(self.placed()?.map(|placed| placed.map(|(prompt, _)| prompt))))
    }

    /// [`Corpus::prompts`], each with its place: so that who refuses one can say which.
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
    /// As [`Corpus::prompts`].
    pub fn placed(&self) -> Result<PlacedPrompts, DumpError> {
        let files = self.files()?;
        let (field, watch) = (self.field.clone(), self.watch.clone());
        let all = files.into_iter().flat_map(move |file| match open(&file, field.as_deref(), watch.clone()) {
            Ok(prompts) => prompts,
            Err(error) => Box::new(std::iter::once(Err(error))),
        });
        // What can't be read is told, and not skipped.
        let all = all.scan(self.skip, |left, prompt| {
            let skipped = prompt.is_ok() && *left > 0;
            *left -= usize::from(skipped);
            Some((!skipped).then_some(prompt))
        });
        let all = all.flatten().take(self.limit.unwrap_or(usize::MAX));
        match self.sample {
            None => Ok(Box::new(all)),
            Some((count, seed)) => Ok(Box::new(sample::drawn(all, count, seed)?.into_iter().map(Ok))),
        }
    }
}

/// The prompts of one file.
fn open(path: &Path, field: Option<&str>, watch: Option<Watch>) -> Result<PlacedPrompts, DumpError> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
    match &*ending {
        #[cfg(feature = "arrow")]
        "parquet" | "arrow" | "feather" => table::open(path, field),
        #[cfg(not(feature = "arrow"))]
        "parquet" | "arrow" | "feather" => {
            let source = std::io::Error::other("this build reads no tables; build it with --features arrow");
            Err(DumpError::File { path: path.to_path_buf(), source })
        }
        _ => lines::open(path, field, watch),
    }
}

/// Reads all prompts of a file, as a [`Corpus`] does.
///
/// ```
/// use hooklens::dump::{Prompt, read_prompts};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("prompts.txt");
/// std::fs::write(&path, "red fox\n\ntea owl\n")?; // a prompt a line
/// assert_eq!(read_prompts(&path)?, ["red fox", "tea owl"].map(|text| Prompt::Text(text.into())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`DumpError::File`], or [`DumpError::Prompt`] naming the line.
pub fn read_prompts(path: impl AsRef<Path>) -> Result<Vec<Prompt>, DumpError> {
    open(path.as_ref(), None, None)?.map(|placed| placed.map(|(prompt, _)| prompt)).collect()
}
