//! A dump that can't be written or read.

use std::path::PathBuf;

use thiserror::Error;

use hooklens_model::error::Place;

/// A dump that can't be written or continued.
///
/// ```
/// use hooklens::dump::Dump;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// # let folder = tempfile::tempdir()?;
/// let rows = vec![vec![0, 5], vec![0, 99]];
/// let told = Dump::new("z0").run(&model, &rows, folder.path().join("out")).unwrap_err();
/// assert_eq!(hooklens::error_chain(&told), "prompt 2: token 99 at row 0, position 1 is outside the vocabulary of 63");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DumpError {
    /// The system starts no more threads.
    #[error("can't start the thread that writes")]
    Thread {
        /// Why.
        source: std::io::Error,
    },
    /// A point of the decoder behind an encoder, or its logits.
    #[error(
        "`{point}` belongs to the decoder, and the prompts of this dump are what the encoder reads: choose points of the \
         encoder (`encoder*`), or give what the decoder has written too (`--decoder-prompt`, `Dump::encoder_rows`)"
    )]
    OfDecoder {
        /// The point.
        point: String,
    },
    /// A point that has positions of the encoder, in a dump of what the decoder has written.
    #[error(
        "`{point}` has positions of what the encoder reads, and the prompts of this dump are what the decoder has written: \
         choose points of the decoder (`decoder*`) other than scores and patterns of cross attention"
    )]
    OfEncoder {
        /// The point.
        point: String,
    },
    /// A point that has no row a token, in a table.
    #[error(
        "`{point}` has no row for each token, and is no column of a table: write safetensors, or choose other points"
    )]
    NotByToken {
        /// The point.
        point: String,
    },
    /// What tables can't be.
    #[error("tables are folders of Parquet files, of f32 or f16, and not {what}")]
    NotOfTables {
        /// What was asked for.
        what: &'static str,
    },
    /// A file could not be read or written.
    #[error("can't read or write {}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file or folder can't be what was asked for: the output of this dump, a part to merge.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The file or folder.
        path: PathBuf,
        /// Why not, and what to do instead.
        reason: String,
    },
    /// The file in the place of a folder's manifest is none.
    #[error("{} is not the manifest of a dump", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The output exists already.
    #[error("{} exists; remove it, name another place, or continue a folder with --resume", path.display())]
    Exists {
        /// The output.
        path: PathBuf,
    },
    /// A value that is no finite number.
    #[error(
        "`{point}` holds {value}{}{}{}; `allow_non_finite` (--allow-non-finite) writes it all the same",
        prompt.map_or(String::new(), |prompt| format!(" at prompt {}", prompt + 1)),
        position.map_or(String::new(), |position| format!(", position {position}")),
        if *half { " (f16 ends at 65,504; bf16 and f32 do not)" } else { "" }
    )]
    NotFinite {
        /// The point.
        point: String,
        /// The value.
        value: f32,
        /// The prompt, counted from 0, where the tensor has a row for each.
        prompt: Option<usize>,
        /// Where among the positions kept, where it has such.
        position: Option<usize>,
        /// Whether it was written as f16.
        half: bool,
    },
    /// Another process writes to the folder.
    #[error("{} is being written by another run ({holder})", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
        /// The process that writes to it.
        holder: String,
    },
    /// The folder was begun with other settings.
    #[error("{} was begun with another {what}: {before} there, {now} now", path.display())]
    Mismatch {
        /// The manifest.
        path: PathBuf,
        /// The setting that differs.
        what: String,
        /// Its value in the manifest.
        before: String,
        /// Its value now.
        now: String,
    },
    /// A dump holds the activations of another model than the one at hand, or than another dump.
    #[error("the activations in {} come from other {what}: {dumped}, not {expected}", path.display())]
    AnotherModel {
        /// The dump.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// What the dump records.
        dumped: String,
        /// What was expected.
        expected: String,
    },
    /// A prompt that can't be run.
    #[error("prompt {number}")]
    Row {
        /// The prompt, from one.
        number: usize,
        /// What is wrong.
        source: Box<super::Error>,
    },
    /// A point that fires for a varying number of rows, which one file can't hold.
    #[error("`{point}` has as many rows as tokens were routed to it, which vary; dump to a folder, or leave it out")]
    NotRectangular {
        /// The point.
        point: String,
    },
    /// A prompt of a corpus that can't be tokenized or run.
    #[error("{place}")]
    PromptAt {
        /// The file, and the line or row.
        place: Place,
        /// What is wrong.
        source: Box<super::Error>,
    },
    /// A corpus has a line or a row that is no prompt.
    #[error("{place}: {reason}")]
    Prompt {
        /// The file, and the line or row.
        place: Place,
        /// What is wrong with it.
        reason: String,
        /// Where it stops being JSON, if it is none.
        source: Option<serde_json::Error>,
    },
}

impl From<hooklens_hooks::FolderLockError> for DumpError {
    fn from(error: hooklens_hooks::FolderLockError) -> Self {
        use hooklens_hooks::FolderLockError;

        match error {
            FolderLockError::Held { folder, holder } => Self::Locked { path: folder, holder },
            FolderLockError::Io { path, source } => Self::File { path, source },
            FolderLockError::Foreign { path } => {
                Self::Refused { path, reason: "it is not a lock of hooklens; move it away".to_string() }
            }
        }
    }
}
