//! Errors of dictionaries (sparse autoencoders and transcoders).

use std::path::PathBuf;

use hooklens_hooks::FolderLockError;
use thiserror::Error;

/// A dictionary (sparse autoencoder, transcoder) that cannot be read or used.
///
/// ```
/// use hooklens::features::Dictionary;
/// let folder = tempfile::tempdir()?;
/// std::fs::write(folder.path().join("notes.txt"), "no dictionary")?;
/// let message = Dictionary::open(folder.path()).unwrap_err().to_string();
/// assert!(message.ends_with("no dictionary of a known format; found: notes.txt"), "{message}");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FeatureError {
    /// No known dictionary format matches the files.
    #[error("{}: no dictionary of a known format; found: {}", path.display(), listed(found))]
    Unknown {
        /// Path of the file or folder.
        path: PathBuf,
        /// Files found, and the tensors in them.
        found: Vec<String>,
    },
    /// There are several dictionaries, and none was chosen.
    #[error("{}: contains several dictionaries; choose one of: {}", path.display(), listed(found))]
    Several {
        /// Path of the folder.
        path: PathBuf,
        /// Folders or files of the dictionaries.
        found: Vec<String>,
    },
    /// This kind of dictionary is not supported.
    #[error("{}: {what} is not supported", path.display())]
    Unsupported {
        /// Path of the file.
        path: PathBuf,
        /// The unsupported setting or feature.
        what: String,
    },
    /// A setting in the dictionary's files is invalid.
    #[error("{}: {reason}", path.display())]
    Setting {
        /// Path of the file.
        path: PathBuf,
        /// Why the setting is invalid.
        reason: String,
    },
    /// A tensor is missing.
    #[error("{}: the tensor `{tensor}` is missing; found: {}", path.display(), listed(there))]
    Missing {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Tensors in the file.
        there: Vec<String>,
    },
    /// The shape of a tensor does not match the others.
    #[error("{}: the tensor `{tensor}` has shape {found:?}; expected {wanted:?}", path.display())]
    Shape {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Shape that matches the other tensors.
        wanted: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// A weight is not finite.
    #[error("{}: the tensor `{tensor}` contains {value} at [{row}, {column}]; expected finite values", path.display())]
    NotFinite {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// The non-finite value.
        value: f32,
        /// Row of the value; 0 in a vector.
        row: usize,
        /// Column of the value.
        column: usize,
    },
    /// The files lack the normalization factor of the inputs.
    #[error(
        "{dictionary}: its inputs must be scaled to an average norm, but its files do not contain the factor; set it \
         with `with_normalization`"
    )]
    NoScale {
        /// Name of the dictionary.
        dictionary: String,
    },
    /// Activations have a different width than the dictionary.
    #[error("{dictionary}: {what} has width {given}; expected {wanted}")]
    Width {
        /// Name of the dictionary.
        dictionary: String,
        /// Name of the activations, such as `the input`.
        what: String,
        /// Width of the dictionary.
        wanted: usize,
        /// Width of the activations.
        given: usize,
    },
    /// The files do not name the hook point that the dictionary reads.
    #[error("{dictionary}: its files do not name the hook point that it reads; set it with `at`")]
    NoPoint {
        /// Name of the dictionary.
        dictionary: String,
    },
    /// The dictionary cannot be spliced into this model.
    #[error("{dictionary} cannot be used at `{point}`: {reason}")]
    Place {
        /// Name of the dictionary.
        dictionary: String,
        /// Name of the hook point.
        point: String,
        /// Why the dictionary cannot be used there.
        reason: String,
    },
    /// The dictionary was trained on a model with different weight processing, which changes the activation at its
    /// point.
    #[error(
        "{dictionary} was trained on a model processed {} `{step}`, which changes `{point}`, but this model was \
         processed {} it; load the model {}",
        with(*trained), with(!*trained),
        if *trained { "with `--process standard` (`Processing::standard()`)" } else { "without `--process`" }
    )]
    Processing {
        /// Name of the dictionary.
        dictionary: String,
        /// Hook point that the dictionary reads or writes.
        point: String,
        /// The processing step that differs.
        step: &'static str,
        /// Whether the step was applied to the model that the dictionary was trained on. The opposite is true of this
        /// model.
        trained: bool,
    },
    /// The dictionary's kind does not support the operation.
    #[error("{dictionary}: {reason}")]
    Kind {
        /// Name of the dictionary.
        dictionary: String,
        /// Why the operation is not supported.
        reason: String,
    },
    /// Another process is writing to the folder.
    #[error(transparent)]
    Locked(#[from] FolderLockError),
    /// The dictionary has no such latent.
    #[error("{dictionary} has no latent {latent}; valid latents are 0 to {}", count.saturating_sub(1))]
    Latent {
        /// Name of the dictionary.
        dictionary: String,
        /// Index of the requested latent.
        latent: usize,
        /// Number of latents.
        count: usize,
    },
}

fn with(done: bool) -> &'static str {
    if done { "with" } else { "without" }
}

/// Lists the first few names.
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
