//! Errors of dumps and corpora.

use std::path::PathBuf;

use thiserror::Error;

use hooklens_model::error::Place;

/// A dump that cannot be written, read or resumed, or a corpus that cannot be read.
///
/// ```
/// use hooklens::dump::Dump;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// # let folder = tempfile::tempdir()?;
/// let rows = vec![vec![0, 5], vec![0, 99]];
/// let message = hooklens::error_chain(&Dump::new("z0").run(&model, &rows, folder.path().join("out")).unwrap_err());
/// assert_eq!(message, "prompt 2: token 99 at row 0, position 1 is outside the vocabulary of 63; ids are 0 to 62");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DumpError {
    /// The writer thread could not be started.
    #[error("can't start the writer thread")]
    Thread {
        /// Underlying I/O error.
        source: std::io::Error,
    },
    /// A decoder point or the logits of an encoder-decoder, in a dump of encoder prompts.
    #[error(
        "`{point}` belongs to the decoder, but the prompts of this dump are encoder inputs: choose points of the \
         encoder (`encoder*`), or also pass the tokens of the decoder (`--decoder-prompt`, `Dump::encoder_rows`)"
    )]
    OfDecoder {
        /// Name of the point.
        point: String,
    },
    /// A point with encoder positions, in a dump of decoder prompts.
    #[error(
        "`{point}` has encoder positions, but the prompts of this dump are decoder tokens: choose points of the \
         decoder (`decoder*`) other than cross-attention scores and patterns"
    )]
    OfEncoder {
        /// Name of the point.
        point: String,
    },
    /// A point without one row per token cannot be written to a table.
    #[error(
        "`{point}` does not have one row per token, so it can't be a column of a table: write safetensors, or choose \
         other points"
    )]
    NotByToken {
        /// Name of the point.
        point: String,
    },
    /// Tables do not support this output or element type.
    #[error("tables are folders of Parquet files in f32 or f16, not {what}")]
    NotOfTables {
        /// The requested output or element type.
        what: &'static str,
    },
    /// A file could not be read or written.
    #[error("can't access {}", path.display())]
    File {
        /// Path of the file or folder.
        path: PathBuf,
        /// Underlying I/O error.
        source: std::io::Error,
    },
    /// A file or folder cannot be used as requested, for example as the output of a dump or as a shard to merge.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// Path of the file or folder.
        path: PathBuf,
        /// Why it cannot be used, and what to do instead.
        reason: String,
    },
    /// A folder's manifest file is not a manifest.
    #[error("{} is not the manifest of a dump", path.display())]
    Manifest {
        /// Path of the manifest.
        path: PathBuf,
        /// Underlying parse error.
        source: serde_json::Error,
    },
    /// The output already exists.
    #[error("{} already exists; remove it, choose another output, or resume a folder with --resume", path.display())]
    Exists {
        /// Path of the output.
        path: PathBuf,
    },
    /// An activation is not finite.
    #[error(
        "`{point}` contains {value}{}{}{}; set `allow_non_finite` (--allow-non-finite) to write it anyway",
        prompt.map_or(String::new(), |prompt| format!(" at prompt {}", prompt + 1)),
        position.map_or(String::new(), |position| format!(", position {position}")),
        if *half { " (the largest f16 is 65,504; bf16 and f32 have a larger range)" } else { "" }
    )]
    NotFinite {
        /// Name of the point.
        point: String,
        /// The non-finite value.
        value: f32,
        /// Index of the prompt, counted from 0, if the tensor has one row per prompt.
        prompt: Option<usize>,
        /// Index among the kept positions, if the tensor has positions.
        position: Option<usize>,
        /// Whether the dump stores `f16`.
        half: bool,
    },
    /// Another process is writing to the folder.
    #[error("{} is being written by another run ({holder})", path.display())]
    Locked {
        /// Path of the folder.
        path: PathBuf,
        /// The process that holds the lock.
        holder: String,
    },
    /// The folder was started with different settings.
    #[error("{} was started with different settings ({what}: {before} before, {now} now)", path.display())]
    Mismatch {
        /// Path of the manifest.
        path: PathBuf,
        /// Name of the setting that differs.
        what: String,
        /// Value in the manifest.
        before: String,
        /// Value in this run.
        now: String,
    },
    /// The dump comes from a different model than the one given, or than another dump of the same store.
    #[error("the activations in {} were computed with different {what}: {dumped}, not {expected}", path.display())]
    AnotherModel {
        /// Path of the dump.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// Value recorded in the dump.
        dumped: String,
        /// What was expected.
        expected: String,
    },
    /// A prompt cannot be run.
    #[error("prompt {number}")]
    Row {
        /// Number of the prompt, counted from one.
        number: usize,
        /// Why it cannot be run.
        source: Box<super::Error>,
    },
    /// A point has a varying number of rows, which a single file cannot store.
    #[error(
        "`{point}` has one row per routed token, so its number of rows varies, which a single file cannot store; dump \
         to a folder, or leave the point out"
    )]
    NotRectangular {
        /// Name of the point.
        point: String,
    },
    /// A prompt in a corpus cannot be tokenized or run.
    #[error("{place}")]
    PromptAt {
        /// File, and line or row.
        place: Place,
        /// Why it cannot be tokenized or run.
        source: Box<super::Error>,
    },
    /// A line or row of a corpus does not contain a prompt.
    #[error("{place}: {reason}")]
    Prompt {
        /// File, and line or row.
        place: Place,
        /// Why the line or row contains no prompt.
        reason: String,
        /// Underlying parse error, if the line is not valid JSON.
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
                let reason = "it has the name of a lock file but was not created by hooklens; move it elsewhere";
                Self::Refused { path, reason: reason.to_string() }
            }
        }
    }
}
