//! A key-value cache that does not fit.

use std::path::PathBuf;

use thiserror::Error;

use super::BoxError;
use crate::config::Window;

/// A key-value cache that can't be used as asked. The cache is left as it was.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let mut cache = model.prefill("king drum")?;
/// let two = vec![vec![51], vec![59]];
/// let told = model.forward_with(two.clone(), ForwardOptions::new().kv_cache(&mut cache)).unwrap_err();
/// assert_eq!(
///     told.to_string(),
///     "the cache holds 1 rows, the run has 2; one row serves any number once it is frozen",
/// );
/// cache.freeze();
/// assert!(model.forward_with(two, ForwardOptions::new().kv_cache(&mut cache)).is_ok());
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The run has another number of rows than the cache.
    #[error("the cache holds {cache} rows, the run has {run}; one row serves any number once it is frozen")]
    Batch {
        /// Rows of the cache.
        cache: usize,
        /// Rows of the run.
        run: usize,
    },
    /// Rows of a mask differ in length.
    #[error("the mask's rows differ in length")]
    Ragged,
    /// The text exceeds the context within which LongRoPE rotates by its short factors, or dynamic scaling as trained.
    #[error(
        "the cache's keys were rotated for texts of up to {original_context} positions, the text now has {len}; \
         beyond them this model rotates otherwise, so run the whole text without the cache"
    )]
    Outgrown {
        /// The model's original context.
        original_context: usize,
        /// Positions of the text.
        len: usize,
    },
    /// A cache that was cut to its beginning holds keys that LongRoPE, or dynamic scaling, rotated for a longer text.
    #[error(
        "the cache was cut to its beginning, and its keys are rotated for the {keys} positions of the longer text: this \
         model rotates a text of {len} in another way, so compute the cache again"
    )]
    RotatedForLonger {
        /// Positions of the longer text.
        keys: usize,
        /// Positions of the text now.
        len: usize,
    },
    /// The cache was made for a model with another number of layers.
    #[error("the cache is for {cache} layers, the model has {model}")]
    Layers {
        /// Layers of the cache.
        cache: usize,
        /// Layers of the model.
        model: usize,
    },
    /// The cache was made for a model with other heads.
    #[error("layer {layer} of the cache is for {cache:?} [kv_head, d_head], the model has {model:?}")]
    Model {
        /// The layer.
        layer: usize,
        /// `[kv_head, d_head]` of the cache.
        cache: [usize; 2],
        /// `[kv_head, d_head]` of the model.
        model: [usize; 2],
    },
    /// A layer's state can't be brought back to where it was before, nor told from which positions it is.
    #[error(
        "{what} is not possible here: layer {layer} has a state of all positions at once in place of keys and values"
    )]
    State {
        /// What was asked for.
        what: &'static str,
        /// The layer.
        layer: usize,
    },
    /// The cache was made for a model with another state, or none.
    #[error("layer {layer} of the cache holds {cache}, the model has {model}")]
    OtherState {
        /// The layer.
        layer: usize,
        /// What the cache holds.
        cache: String,
        /// What the model has.
        model: String,
    },
    /// Keys or values of another shape.
    #[error("{what} must be {expected:?} [batch, position, kv_head, d_head], not {given:?}")]
    Shape {
        /// Keys or values.
        what: &'static str,
        /// Shape by the cache.
        expected: [usize; 4],
        /// Shape given.
        given: [usize; 4],
    },
    /// An entry holds another number of positions than the mask.
    #[error("layer {layer} holds {entry} positions, the mask {mask}")]
    Length {
        /// The layer.
        layer: usize,
        /// Positions of the entry.
        entry: usize,
        /// Positions of the mask.
        mask: usize,
    },
    /// The cache holds another element type.
    #[error("the cache holds {cache}, the run computes in {run}")]
    DType {
        /// Element type of the cache.
        cache: String,
        /// Element type of the run.
        run: String,
    },
    /// The device does not have the element type that the cache is to hold.
    #[error("the device {device} has no {dtype}, in which the cache is to be held")]
    ElementType {
        /// Device of the run.
        device: String,
        /// Element type of the cache.
        dtype: String,
    },
    /// The cache lives on another device.
    #[error("the cache is on {cache}, the model on {run}")]
    Device {
        /// Device of the cache.
        cache: String,
        /// Device of the run.
        run: String,
    },
    /// There is no room left.
    #[error("the cache has room for {max_len} positions, and {needed} are needed")]
    Full {
        /// Positions there is room for.
        max_len: usize,
        /// Positions needed.
        needed: usize,
    },
    /// A row the cache lacks.
    #[error("row {slot} is not within the {batch} rows of the cache")]
    Slot {
        /// The row asked for.
        slot: usize,
        /// Rows of the cache.
        batch: usize,
    },
    /// More rows than there are from a row on.
    #[error("{count} rows from row {slot} on are not within the {batch} rows of the cache")]
    Slots {
        /// The first row asked for.
        slot: usize,
        /// Rows asked for.
        count: usize,
        /// Rows of the cache.
        batch: usize,
    },
    /// A layer is frozen and the cache is not, or the other way round.
    #[error(
        "layer {layer} is {} and the cache is {}; a run needs all layers alike",
        if *frozen { "frozen" } else { "not frozen" }, if *frozen { "not" } else { "frozen" }
    )]
    Mixed {
        /// The layer.
        layer: usize,
        /// Whether the layer is frozen.
        frozen: bool,
    },
    /// The operation is for an empty cache.
    #[error("the cache holds {held} positions; this is settled before it holds any")]
    NotEmpty {
        /// Positions held.
        held: usize,
    },
    /// Padding was to be found by token, and the cache has no padding token.
    #[error("the cache's shape names no `pad_token_id`, by which padding is told from tokens")]
    NoPadToken,
    /// The mask of a run contradicts that of the cache it goes on behind.
    #[error(
        "the attention mask of row {row} calls column {column} {}, and the cache holds {} there; \
         give the mask of the new tokens, or that of the cache before it",
        if *given { "a token" } else { "padding" }, if *given { "padding" } else { "a token" }
    )]
    PastMask {
        /// The row.
        row: usize,
        /// The column.
        column: usize,
        /// What the mask says of it.
        given: bool,
    },
    /// Keys and values on disk can't be written or read.
    #[error("the cache's temporary file can't be written or read")]
    Disk {
        /// What the system says.
        source: std::io::Error,
    },
    /// A layer the cache lacks.
    #[error("layer {layer} is not within the {layers} layers of the cache")]
    Layer {
        /// The layer asked for.
        layer: usize,
        /// Layers of the cache.
        layers: usize,
    },
    /// Fewer positions are held than are to be given up or kept.
    #[error("{asked} positions were asked for, and {held} are held")]
    TooFew {
        /// Positions held.
        held: usize,
        /// Positions asked for.
        asked: usize,
    },
    /// A window has dropped positions that are needed again.
    #[error("layer {layer} has dropped the positions before {first}; they are needed from {wanted} on")]
    Dropped {
        /// The layer.
        layer: usize,
        /// The first position still held.
        first: usize,
        /// The first position needed.
        wanted: usize,
    },
    /// The cache has dropped positions by another window than the model's.
    #[error("layer {layer} of the cache has the window {cache:?}, that of the model {model:?}")]
    Window {
        /// The layer.
        layer: usize,
        /// Window of the cache.
        cache: Option<Window>,
        /// Window of the model.
        model: Option<Window>,
    },
    /// The kind of cache can't do this.
    #[error("a {kind} cache can't {operation}")]
    Unsupported {
        /// The kind.
        kind: String,
        /// What it was asked to do.
        operation: &'static str,
    },
    /// A size of a cache is zero or absurd.
    #[error("`{field}` is {given}; it must be at least 1 and of a size a model can have")]
    Size {
        /// The size.
        field: &'static str,
        /// Its value.
        given: usize,
    },
    /// A mask of another length.
    #[error("a row of the mask has {given} entries for {expected} positions")]
    MaskLength {
        /// Positions.
        expected: usize,
        /// Entries given.
        given: usize,
    },
    /// Keys and values that their device does not give.
    #[error("the cache's keys and values can't be read from their device")]
    Unreadable {
        /// What the device reported.
        source: BoxError,
    },
    /// Plain data that does not fit together.
    #[error("the cache's data: {reason}")]
    Data {
        /// What is wrong.
        reason: String,
    },
    /// A saved cache that can't be read or written.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
        /// What the system or the reader of the format reported, if it found the fault.
        source: Option<BoxError>,
    },
    /// The keys and values in the cache were computed by another model: other weights, processing, adapters or element
    /// types.
    #[error("the cache was computed by another model ({cache}) than the one that runs ({model}); compute it again")]
    OtherWeights {
        /// The model that computed the cache.
        cache: String,
        /// The model that was to use it.
        model: String,
    },
    /// The cache holds the keys and values of another text.
    #[error("the cache holds keys and values of other tokens: at position {position} {cache}, where {given} was given")]
    OtherText {
        /// First position that differs.
        position: usize,
        /// The cache's token there.
        cache: String,
        /// The token given.
        given: String,
    },
    /// A cache whose first positions are hidden, where one of a whole text is wanted.
    #[error("the cache hides its first positions (`insert_starts`), so it does not continue the whole text")]
    Hides,
    /// Something that needs the tokens of a cache whose keys and values came without them.
    #[error("{what} need the tokens of the text before, and the cache's keys and values came without their tokens")]
    NoTokens {
        /// What needs them.
        what: &'static str,
    },
    /// A saved cache was made with another model.
    #[error("{} was made with another model (fingerprint {saved}; this one has {model})", path.display())]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// Fingerprint of the model it was made with.
        saved: String,
        /// Fingerprint of this model.
        model: String,
    },
    /// The operation would change a frozen cache.
    #[error("the cache is frozen")]
    Frozen,
    /// The prefix was made while hooks edited.
    #[error("the prefix was made under interventions ({interventions}); it is not one of the model's own")]
    Intervened {
        /// What acted.
        interventions: String,
    },
    /// A run with gradients, which a cache that grows would keep a part of.
    #[error("a run with gradients can't add to a key-value cache; freeze it")]
    Gradients,
    /// A model whose tokens see later ones has nothing to keep of them.
    #[error("a bidirectional model can't go on behind a cache: every token sees the later ones; run the whole text")]
    Bidirectional,
    /// The run leaves out layers, whose entries would fall behind.
    #[error("a run that leaves layers out would leave the cache uneven; freeze it first")]
    Partial,
}
