//! Errors from key-value caches.

use std::path::PathBuf;

use thiserror::Error;

use super::BoxError;
use crate::config::Window;

/// Error from a key-value cache that cannot be used as requested. The cache is left unchanged.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let mut cache = model.prefill("king drum")?;
/// let two = vec![vec![51], vec![59]];
/// let message = model.forward_with(two.clone(), ForwardOptions::new().kv_cache(&mut cache)).unwrap_err();
/// assert_eq!(
///     message.to_string(),
///     "the cache has 1 rows, but the run has 2; a frozen cache of one row can be used with any number of rows",
/// );
/// cache.freeze();
/// assert!(model.forward_with(two, ForwardOptions::new().kv_cache(&mut cache)).is_ok());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CacheError {
    /// Run and cache have different numbers of rows.
    #[error(
        "the cache has {cache} rows, but the run has {run}; a frozen cache of one row can be used with any number of \
         rows"
    )]
    Batch {
        /// Number of rows in the cache.
        cache: usize,
        /// Number of rows in the run.
        run: usize,
    },
    /// The rows of a mask differ in length.
    #[error("the mask's rows differ in length")]
    Ragged,
    /// The text is longer than the context for which LongRoPE uses its short factors, or for which dynamic scaling uses
    /// the trained frequencies.
    #[error(
        "the cache's keys were rotated for texts of up to {original_context} positions, but the text now has {len}; \
         this model rotates longer texts differently, so run the whole text without the cache"
    )]
    Outgrown {
        /// Original context length of the model.
        original_context: usize,
        /// Number of positions in the text.
        len: usize,
    },
    /// The cache was truncated, but its keys were rotated for a longer text by LongRoPE or dynamic scaling.
    #[error(
        "the cache was truncated, but its keys were rotated for a longer text of {keys} positions; this model rotates \
         a text of {len} positions differently, so compute the cache again"
    )]
    RotatedForLonger {
        /// Number of positions in the longer text.
        keys: usize,
        /// Number of positions in the text now.
        len: usize,
    },
    /// The cache has a different number of layers than the model, or than the cache whose rows it replaces.
    #[error("the cache has {cache} layers; expected {model}")]
    Layers {
        /// Number of layers in the cache.
        cache: usize,
        /// Number of layers in the model, or in the other cache.
        model: usize,
    },
    /// The cache was created for a model with different heads.
    #[error("layer {layer} of the cache has shape {cache:?} [kv_head, d_head]; expected {model:?}")]
    Model {
        /// Index of the layer.
        layer: usize,
        /// `[kv_head, d_head]` of the cache.
        cache: [usize; 2],
        /// `[kv_head, d_head]` of the model, or of the other cache.
        model: [usize; 2],
    },
    /// A recurrent layer's state cannot be rewound or split by position.
    #[error(
        "{what} is not possible: layer {layer} has a single recurrent state for all positions instead of keys and \
         values"
    )]
    State {
        /// The requested operation.
        what: &'static str,
        /// Index of the layer.
        layer: usize,
    },
    /// The cache was created for a model with a different recurrent state, or none.
    #[error("layer {layer} of the cache holds {cache}; expected {model}")]
    OtherState {
        /// Index of the layer.
        layer: usize,
        /// State in the cache.
        cache: String,
        /// State of the model, or in the other cache.
        model: String,
    },
    /// Keys or values have the wrong shape.
    #[error("{what} must have shape {expected:?} [batch, position, kv_head, d_head], not {given:?}")]
    Shape {
        /// Either `keys` or `values`.
        what: &'static str,
        /// Shape required by the cache.
        expected: [usize; 4],
        /// Shape given.
        given: [usize; 4],
    },
    /// An entry and the mask cover different numbers of positions.
    #[error("layer {layer} holds {entry} positions, but the mask has {mask}")]
    Length {
        /// Index of the layer.
        layer: usize,
        /// Number of positions in the entry.
        entry: usize,
        /// Number of positions in the mask.
        mask: usize,
    },
    /// Cache and run use different element types.
    #[error("the cache has element type {cache}, but the run computes in {run}")]
    DType {
        /// Element type of the cache.
        cache: String,
        /// Element type of the run.
        run: String,
    },
    /// The device does not support the cache's element type.
    #[error("the device {device} does not support {dtype}, the cache's element type")]
    ElementType {
        /// Device of the run.
        device: String,
        /// Element type of the cache.
        dtype: String,
    },
    /// Cache and model are on different devices.
    #[error("the cache is on {cache}, but the model is on {run}")]
    Device {
        /// Device of the cache.
        cache: String,
        /// Device of the run.
        run: String,
    },
    /// The cache is full.
    #[error("the cache has room for {max_len} positions, but {needed} are needed")]
    Full {
        /// Capacity in positions.
        max_len: usize,
        /// Number of positions needed.
        needed: usize,
    },
    /// The cache has no such row.
    #[error("row {slot} is not within the {batch} rows of the cache")]
    Slot {
        /// The requested row.
        slot: usize,
        /// Number of rows in the cache.
        batch: usize,
    },
    /// A range of rows exceeds the cache.
    #[error("{count} rows starting at row {slot} are not within the {batch} rows of the cache")]
    Slots {
        /// First requested row.
        slot: usize,
        /// Number of requested rows.
        count: usize,
        /// Number of rows in the cache.
        batch: usize,
    },
    /// Some layers are frozen and others are not.
    #[error(
        "layer {layer} is {} and the cache is {}; freeze all layers or none",
        if *frozen { "frozen" } else { "not frozen" }, if *frozen { "not" } else { "frozen" }
    )]
    Mixed {
        /// Index of the layer.
        layer: usize,
        /// Whether the layer is frozen.
        frozen: bool,
    },
    /// The operation requires an empty cache.
    #[error("the cache already holds {held} positions; set its element type and devices while it is empty")]
    NotEmpty {
        /// Number of positions in the cache.
        held: usize,
    },
    /// The operation detects padding by its token id, but the cache's shape has no padding token.
    #[error(
        "the cache's shape has no padding token, which is needed to detect padding; set it with `CacheShape::pad_token`"
    )]
    NoPadToken,
    /// The mask of a run contradicts the mask of the cache it continues.
    #[error(
        "the attention mask of row {row} marks column {column} as {}, but the cache holds {} there; pass the mask of \
         the new tokens only, or repeat the cache's mask before it",
        if *given { "a token" } else { "padding" }, if *given { "padding" } else { "a token" }
    )]
    PastMask {
        /// Row of the mask.
        row: usize,
        /// Column of the mask.
        column: usize,
        /// The value that the mask gives there.
        given: bool,
    },
    /// The temporary file of a cache on disk cannot be written or read.
    #[error("the cache's temporary file can't be written or read")]
    Disk {
        /// Underlying I/O error.
        source: std::io::Error,
    },
    /// The cache has no such layer.
    #[error("layer {layer} is not within the {layers} layers of the cache")]
    Layer {
        /// The requested layer.
        layer: usize,
        /// Number of layers in the cache.
        layers: usize,
    },
    /// The cache has fewer positions than the operation was asked to remove or keep.
    #[error("{asked} positions were requested, but the cache holds {held}")]
    TooFew {
        /// Number of positions in the cache.
        held: usize,
        /// Number of positions requested.
        asked: usize,
    },
    /// An attention window has dropped positions that are needed.
    #[error("layer {layer} has dropped the positions before {first}, but positions starting at {wanted} are needed")]
    Dropped {
        /// Index of the layer.
        layer: usize,
        /// First position still in the cache.
        first: usize,
        /// First position needed.
        wanted: usize,
    },
    /// The cache's attention window differs from the model's.
    #[error("layer {layer} of the cache has the attention window {cache:?}, but the model's layer has {model:?}")]
    Window {
        /// Index of the layer.
        layer: usize,
        /// Window of the cache.
        cache: Option<Window>,
        /// Window of the model.
        model: Option<Window>,
    },
    /// This kind of cache does not support the operation.
    #[error("a {kind} cache can't {operation}")]
    Unsupported {
        /// Kind of the cache.
        kind: String,
        /// The requested operation.
        operation: &'static str,
    },
    /// A list has the wrong number of entries.
    #[error("`{field}` has {given} entries, but the cache has {expected} layers")]
    Entries {
        /// Name of the list.
        field: &'static str,
        /// Number of entries given.
        given: usize,
        /// Number of layers.
        expected: usize,
    },
    /// A size is zero, too large, or does not match the cache.
    #[error("`{field}` is {given}, which is not a valid size for this cache")]
    Size {
        /// Name of the size.
        field: &'static str,
        /// Value given.
        given: usize,
    },
    /// A mask has the wrong length.
    #[error("a row of the mask has {given} entries for {expected} positions")]
    MaskLength {
        /// Number of positions.
        expected: usize,
        /// Number of entries in the mask.
        given: usize,
    },
    /// Keys and values cannot be read from their device.
    #[error("the cache's keys and values can't be read from their device")]
    Unreadable {
        /// The device's error.
        source: BoxError,
    },
    /// The data to build a cache from is inconsistent.
    #[error("invalid cache data: {reason}")]
    Data {
        /// What is wrong.
        reason: String,
    },
    /// A saved cache cannot be read or written.
    #[error("{}: {reason}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
        /// Underlying error from the system or the file format's reader, if any.
        source: Option<BoxError>,
    },
    /// The cache was computed by a different model: other weights, processing, adapters or element types.
    #[error("the cache was computed by a different model ({cache}) than the one running ({model}); compute it again")]
    OtherWeights {
        /// The model that computed the cache.
        cache: String,
        /// The model that is running.
        model: String,
    },
    /// The cache belongs to a different text.
    #[error("the cache was computed for a different text: position {position} holds {cache}, but {given} was given")]
    OtherText {
        /// First position that differs.
        position: usize,
        /// The cache's token at that position.
        cache: String,
        /// The given token at that position.
        given: String,
    },
    /// The cache masks its first positions, but a cache of the whole text is needed.
    #[error("the cache masks its first positions (`insert_starts`), so it can't be used to continue the full text")]
    Hides,
    /// The cached keys and values came without their tokens, which the operation needs.
    #[error("{what} need the tokens of the preceding text, but the cache's keys and values came without their tokens")]
    NoTokens {
        /// What needs the tokens.
        what: &'static str,
    },
    /// A saved cache was computed by a different model.
    #[error("{} was computed by a different model (fingerprint {saved}; the given model has {model})", path.display())]
    OtherModel {
        /// Path of the file.
        path: PathBuf,
        /// Fingerprint of the model that computed it.
        saved: String,
        /// Fingerprint of this model.
        model: String,
    },
    /// The operation would change a frozen cache.
    #[error("the cache is frozen and can't be changed; unfreeze it first")]
    Frozen,
    /// The prefix was computed under hooks that edit activations.
    #[error("the prefix was computed under interventions ({interventions}); compute it with the unmodified model")]
    Intervened {
        /// The interventions.
        interventions: String,
    },
    /// A run with gradients would append to a cache that is not frozen.
    #[error("a run with gradients can't add to a key-value cache; freeze it first")]
    Gradients,
    /// A bidirectional model cannot use a cache, since its tokens attend to later ones.
    #[error(
        "a bidirectional model can't continue a cache, because every token attends to the later ones; run the whole \
         text"
    )]
    Bidirectional,
    /// The run skips layers, so the cache would not grow in those layers.
    #[error("a run that skips layers would leave the cache's layers at different lengths; freeze the cache first")]
    Partial,
}
