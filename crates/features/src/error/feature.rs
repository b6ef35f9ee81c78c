//! What can go wrong with dictionaries of features.

use std::path::PathBuf;

use hooklens_hooks::FolderLockError;
use thiserror::Error;

/// A dictionary (sparse autoencoder, transcoder) that can't be read or used.
///
/// ```
/// use hooklens::features::Dictionary;
/// let folder = tempfile::tempdir()?;
/// std::fs::write(folder.path().join("notes.txt"), "no dictionary")?;
/// let told = Dictionary::open(folder.path()).unwrap_err().to_string();
/// assert!(told.ends_with("no dictionary there; found: notes.txt"), "{told}");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FeatureError {
    /// No known format fits what is there.
    #[error("{}: no dictionary there; found: {}", path.display(), listed(found))]
    Unknown {
        /// The file or folder.
        path: PathBuf,
        /// Files, and the tensors in them.
        found: Vec<String>,
    },
    /// Several dictionaries, of which one has to be named.
    #[error("{}: several dictionaries; name one: {}", path.display(), listed(found))]
    Several {
        /// The folder.
        path: PathBuf,
        /// Their folders or files.
        found: Vec<String>,
    },
    /// A dictionary of a kind that is known and not supported.
    #[error("{}: {what} is not supported", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What is not supported.
        what: String,
    },
    /// A setting that makes no sense.
    #[error("{}: {reason}", path.display())]
    Setting {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A tensor that is missing.
    #[error("{}: the tensor `{tensor}` is missing; there are {}", path.display(), listed(there))]
    Missing {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Tensors that are there.
        there: Vec<String>,
    },
    /// A tensor of another shape than the others ask for.
    #[error("{}: the tensor `{tensor}` has shape {found:?}, wanted is {wanted:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape that fits the other tensors.
        wanted: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// A weight that is no finite number.
    #[error("{}: the tensor `{tensor}` holds {value} at [{row}, {column}]", path.display())]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The number.
        value: f32,
        /// Its row; 0 in a vector.
        row: usize,
        /// Its column.
        column: usize,
    },
    /// A factor of normalization that the files leave out.
    #[error(
        "{dictionary}: its inputs are to be scaled to an average norm, and the factor is not in its files: give it by \
         `with_scale`"
    )]
    NoScale {
        /// The dictionary.
        dictionary: String,
    },
    /// Activations of another width than the dictionary's.
    #[error("{dictionary}: {what} has width {given}, the dictionary's is {wanted}")]
    Width {
        /// The dictionary.
        dictionary: String,
        /// What was given.
        what: String,
        /// The dictionary's width.
        wanted: usize,
        /// The width given.
        given: usize,
    },
    /// Nothing says at which point of a model it goes.
    #[error("{dictionary}: its files do not say which point of a model it reads: give it by `at`")]
    NoPoint {
        /// The dictionary.
        dictionary: String,
    },
    /// It can't be put into this model.
    #[error("{dictionary} can't be put at `{point}`: {reason}")]
    Place {
        /// The dictionary.
        dictionary: String,
        /// The point.
        point: String,
        /// Why.
        reason: String,
    },
    /// It was trained on a model whose weights were processed otherwise, which makes another activation of its point.
    #[error(
        "{dictionary} was trained on a model processed {} `{step}`, which changes `{point}`, and this one is {} it: load \
         the model {}",
        with(*trained), with(!*trained),
        if *trained { "with `--process standard` (`Processing::standard()`)" } else { "without `--process`" }
    )]
    Processing {
        /// The dictionary.
        dictionary: String,
        /// The point that it reads or writes.
        point: String,
        /// The step of processing.
        step: &'static str,
        /// Whether the model that it was trained on went through the step; this one is otherwise.
        trained: bool,
    },
    /// What is asked for does not go with the dictionary's kind.
    #[error("{dictionary}: {reason}")]
    Kind {
        /// The dictionary.
        dictionary: String,
        /// Why.
        reason: String,
    },
    /// A folder that another process writes to.
    #[error(transparent)]
    Locked(#[from] FolderLockError),
    /// A latent that is not there.
    #[error("{dictionary} has no latent {latent}: they are 0 to {}", count.saturating_sub(1))]
    Latent {
        /// The dictionary.
        dictionary: String,
        /// The latent asked for.
        latent: usize,
        /// Number of latents.
        count: usize,
    },
}

fn with(done: bool) -> &'static str {
    if done { "with" } else { "without" }
}

/// The first few.
fn listed(all: &[String]) -> String {
    const SHOWN: usize = 12;
    let more = all.len().saturating_sub(SHOWN);
    let shown = all.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match (all.is_empty(), more) {
        (true, _) => "nothing".into(),
        (_, 0) => shown,
        (_, more) => format!("{shown} and {more} more"),
    }
}
