//! Error types. Each carries the thing, what was expected and what was given.

use std::path::PathBuf;

use hooklens_hooks::{Halt, HookError};
use thiserror::Error;

use crate::config::Window;

/// Any error of hooklens.
///
/// ```
/// use hooklens::{Error, HookError};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// match model.record("red fox", "blocks.0.attn.hook_patern") {
///     Err(Error::Hook(HookError::UnknownPoint { nearest, .. })) => {
///         assert_eq!(nearest[0], "blocks.0.attn.hook_pattern"); // before anything has run
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A hook, a selection or a recorded activation.
    #[error(transparent)]
    Hook(#[from] HookError),
    /// A configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A model's files.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// What a model was run on.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A key-value cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A dump of activations.
    #[error(transparent)]
    Dump(#[from] DumpError),
    /// An analysis of a recording.
    #[error(transparent)]
    Analysis(#[from] crate::activations::AnalysisError),
    /// A sweep of patches.
    #[error(transparent)]
    Patch(#[from] crate::patching::PatchError),
    /// A factored matrix.
    #[error(transparent)]
    Matrix(#[from] crate::circuits::MatrixError),
    /// A picture.
    #[error(transparent)]
    Plot(#[from] crate::plot::PlotError),
    /// Processing of weights.
    #[error(transparent)]
    Processing(#[from] ProcessingError),
    /// A device.
    #[error("the device `{name}` can't be used: {reason}")]
    Device {
        /// The name given.
        name: String,
        /// Why it can't be used.
        reason: String,
    },
    /// A device's memory is full.
    #[error("out of memory on {devices}: {asked} were asked for; try fewer rows at once, or record fewer points")]
    OutOfMemory {
        /// The devices of the model.
        devices: String,
        /// How much the allocation that failed asked for.
        asked: String,
    },
    /// A device failed during a computation; a remote one when its server is gone.
    #[error("the device {device} failed: {reason}")]
    DeviceFailed {
        /// The device.
        device: String,
        /// What it says.
        reason: String,
    },
}

impl From<Halt> for Error {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::Error(error) => error.into(),
            Halt::Done => InputError::Options("the run ended early").into(),
        }
    }
}

/// Result of anything that can go wrong in hooklens.
///
/// ```
/// fn last_layer(name: &str) -> hooklens::Result<usize> {
///     let model = hooklens::HookedTransformer::from_pretrained(name)?;
///     Ok(model.config().n_layers - 1)
/// }
/// assert_eq!(last_layer("embedded:ioi")?, 3);
/// # Ok::<(), hooklens::Error>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A configuration that can't be built.
///
/// ```
/// use hooklens::TransformerConfig;
/// let config = TransformerConfig { n_layers: 0, ..TransformerConfig::new(2, 64, 4, 100, 32) };
/// let told = config.validate().unwrap_err().to_string();
/// assert_eq!(told, "`n_layers` is 0; it must be at least 1 and of a size a model can have");
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A size is zero or absurdly large.
    #[error("`{field}` is {given}; it must be at least 1 and of a size a model can have")]
    BadSize {
        /// The field.
        field: &'static str,
        /// Its value.
        given: usize,
    },
    /// Two fields do not fit each other.
    #[error("`{field}` does not fit: {reason}")]
    Contradiction {
        /// The field.
        field: &'static str,
        /// What it does not fit.
        reason: String,
    },
    /// A field's value is not one hooklens knows.
    #[error("`{field}` is `{given}`; known are {known}")]
    UnknownValue {
        /// The field.
        field: &'static str,
        /// Its value.
        given: String,
        /// The values known.
        known: &'static str,
    },
    /// The file names an architecture no family covers.
    #[error("the architecture `{given}` is not supported; supported are {}", supported.join(", "))]
    UnknownArchitecture {
        /// The architecture.
        given: String,
        /// Those supported.
        supported: Vec<&'static str>,
    },
    /// An architecture no family covers, with Llama's settings but not only those, or not Llama's tensors.
    #[error(
        "the architecture `{given}` is not supported, and it is not Llama under another name:{}",
        unaccounted(missing, unused, fields)
    )]
    NotLlama {
        /// The architecture.
        given: String,
        /// Tensors that Llama has and the files lack.
        missing: Vec<String>,
        /// Tensors of the files that Llama lacks.
        unused: Vec<String>,
        /// Settings that Llama lacks, with their values.
        fields: Vec<String>,
    },
    /// The model is of another kind than the type that was to load it.
    #[error("a {family} model is {kind}: load it with `{load}::from_pretrained`")]
    OtherKind {
        /// The family.
        family: &'static str,
        /// What its models are.
        kind: &'static str,
        /// The type that loads them.
        load: &'static str,
    },
    /// The weights are quantized.
    #[error(
        "the weights of this {architecture} are quantized ({method}); load it with transformers, dequantized, and save \
         it in bf16"
    )]
    Quantized {
        /// The architecture.
        architecture: String,
        /// How they are quantized.
        method: String,
    },
    /// The family is known, but not this variant of it.
    #[error("`{field}` = {given} is a variant of {family} that is not supported")]
    UnsupportedVariant {
        /// The family.
        family: &'static str,
        /// The field that asks for the variant.
        field: &'static str,
        /// Its value.
        given: String,
    },
    /// The file is not a configuration.
    #[error("not a model configuration: {reason}")]
    Malformed {
        /// What is wrong.
        reason: String,
    },
}

/// A model that can't be loaded.
///
/// ```
/// use hooklens::{Error, HookedTransformer, LoadError};
/// let error = HookedTransformer::from_pretrained("embedded:gpt2").unwrap_err();
/// assert_eq!(error.to_string(), "no model at `embedded:gpt2`: embedded models are induction, ioi");
/// assert!(matches!(error, Error::Load(LoadError::NotFound { .. })));
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file could not be read.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// No model goes by this name.
    #[error("no model at `{name}`: {reason}")]
    NotFound {
        /// The name given.
        name: String,
        /// What was tried, and what to do instead.
        reason: String,
    },
    /// A weights file is damaged or hostile.
    #[error("{}: not a sound file of weights: {reason}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A shard the index names is not there.
    #[error("shard `{shard}`, named by {}, is missing", index.display())]
    MissingShard {
        /// The shard's file name.
        shard: String,
        /// The index that names it.
        index: PathBuf,
    },
    /// A tensor the architecture needs is not in the files.
    #[error("the tensor `{name}` is missing{}", near(nearest))]
    MissingTensor {
        /// The tensor.
        name: String,
        /// Nearest names in the files, best first.
        nearest: Vec<String>,
    },
    /// A tensor has another shape than the configuration says.
    #[error("the tensor `{name}` has shape {given:?}, but the configuration asks for {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Shape by the configuration.
        expected: Vec<usize>,
        /// Shape in the file.
        given: Vec<usize>,
    },
    /// A tensor's element type can't be computed with.
    #[error("the tensor `{name}` holds {given}; weights are f64, f32, f16 or bf16")]
    DType {
        /// The tensor.
        name: String,
        /// Its element type.
        given: String,
    },
    /// A reference to compare with can't be used.
    #[error("the reference {}: {reason}", path.display())]
    Reference {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// An adapter can't be merged.
    #[error("the adapter {}: {reason}", path.display())]
    Adapter {
        /// Its folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The tokenizer file can't be used.
    #[error("{}: not a usable tokenizer: {reason}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

fn unaccounted(missing: &[String], unused: &[String], fields: &[String]) -> String {
    let kinds = [("it lacks", missing), ("it has besides", unused), ("it sets", fields)];
    let kinds = kinds.into_iter().filter(|(_, names)| !names.is_empty());
    kinds.map(|(what, names)| format!("\n  {what} {}", names.join(", "))).collect()
}

fn near(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; the files hold {}", nearest.join(", ")) }
}

/// An input, or a combination of options, that a model can't be run on.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let told = |input: Vec<u32>| model.forward(input, ()).unwrap_err().to_string();
/// assert_eq!(told(vec![0, 63]), "token 63 at row 0, position 1 is outside the vocabulary of 63");
/// assert_eq!(told(vec![0; 80]), "80 positions, but the model's position table has 72");
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InputError {
    /// Something that needs all weights in one place, of a model whose blocks are spread over devices.
    #[error("{what} runs on one device, and this would spread over several")]
    Spread {
        /// What was asked for.
        what: &'static str,
    },
    /// No tokens at all.
    #[error("{what} is empty; there is nothing to run on")]
    Empty {
        /// What is empty.
        what: String,
    },
    /// One of several texts can't be run.
    #[error("text {number}, counted from 0: {source}")]
    Text {
        /// The text, counted from 0.
        number: usize,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// Inputs of encoder and decoder with other numbers of rows.
    #[error("the encoder has {encoder} rows and the decoder {decoder}; `Encoded::repeat` gives each input several")]
    Rows {
        /// Rows of the encoder's input.
        encoder: usize,
        /// Rows of the decoder's input.
        decoder: usize,
    },
    /// A sentence encoder's own way of making one vector is not supported.
    #[error("{reason}; choose a way with `with_sentence_embedding`")]
    Sentences {
        /// What is not supported.
        reason: String,
    },
    /// The model's files hold no such head.
    #[error("the model has no {head} head: its files hold none")]
    NoHead {
        /// The head asked for.
        head: &'static str,
    },
    /// A token the vocabulary lacks.
    #[error("token {token} at row {row}, position {position} is outside the vocabulary of {d_vocab}")]
    Token {
        /// The token.
        token: i64,
        /// Row of the batch.
        row: usize,
        /// Position in the row.
        position: usize,
        /// Size of the vocabulary.
        d_vocab: usize,
    },
    /// More positions than the model has position vectors.
    #[error("{len} positions, but the model's position table has {n_ctx}")]
    TooLong {
        /// Positions asked for.
        len: usize,
        /// Positions the model has.
        n_ctx: usize,
    },
    /// The attention mask has another shape than the tokens.
    #[error("the attention mask is {given:?}, but the input is {expected:?} [batch, pos]")]
    MaskShape {
        /// Shape of the input.
        expected: [usize; 2],
        /// Shape of the mask.
        given: [usize; 2],
    },
    /// The attention mask of a run behind a cache fits neither the new tokens nor these and the cache's.
    #[error(
        "the attention mask is {given:?}, but the input is {expected:?} [batch, pos] behind {past} positions of the \
         cache: give the mask of the {} new positions, or of all {}",
        expected[1],
        past + expected[1]
    )]
    MaskBehind {
        /// Shape of the input.
        expected: [usize; 2],
        /// Shape of the mask.
        given: [usize; 2],
        /// Positions of the cache.
        past: usize,
    },
    /// Logits for other positions than the tokens'.
    #[error("the logits are {given:?} [batch, pos, d_vocab], the tokens {tokens:?} [batch, pos]")]
    LogitsShape {
        /// The logits' shape.
        given: [usize; 3],
        /// The tokens' shape.
        tokens: [usize; 2],
    },
    /// Rows of different lengths where one length is needed.
    #[error("row {row} has {given} tokens where the first has {expected}; pad them with `Tokens::padded`")]
    Ragged {
        /// The row.
        row: usize,
        /// Length of the first row.
        expected: usize,
        /// Length of this row.
        given: usize,
    },
    /// A layer the model lacks.
    #[error("layer {layer} is not within the {n_layers} layers of the model")]
    Layer {
        /// The layer asked for.
        layer: isize,
        /// Layers of the model.
        n_layers: usize,
    },
    /// A residual stream of another width.
    #[error("the residual stream given is {given:?}; expected [batch, pos, {d_model}]")]
    Residual {
        /// Shape given.
        given: Vec<usize>,
        /// Width of the model's stream.
        d_model: usize,
    },
    /// A residual stream on another device.
    #[error("the residual stream given is on {given}, the model on {model}")]
    Device {
        /// Where the residual stream lives.
        given: String,
        /// Where the model lives.
        model: String,
    },
    /// A setting with an invalid value.
    #[error("`{name}` is {given}; it may be {allowed}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        given: String,
        /// Values it may have.
        allowed: String,
    },
    /// Labels that don't fit an array.
    #[error("labels for {labels:?} places, but the array has {places:?}")]
    Labels {
        /// Labels of each axis.
        labels: Vec<usize>,
        /// Places along each axis.
        places: Vec<usize>,
    },
    /// A place that an array doesn't have.
    #[error("no place {place} along `{axis}`; this array has {}", places(axes))]
    Place {
        /// The axis asked for.
        axis: String,
        /// The place asked for.
        place: isize,
        /// Each axis, and how many places it has.
        axes: Vec<(String, usize)>,
    },
    /// Options of one run that exclude each other.
    #[error("{0}")]
    Options(&'static str),
    /// Text given to a model without a tokenizer.
    #[error("this model has no tokenizer; pass token ids, or put tokenizer.json beside its weights")]
    NoTokenizer,
    /// Text that can't be turned into tokens or back.
    #[error("can't tokenize: {reason}")]
    Tokenize {
        /// What went wrong.
        reason: String,
    },
    /// A text with words that the vocabulary has no token for.
    #[error(
        "the vocabulary of {vocabulary} tokens lacks {}{}; `hooklens vocabulary --model MODEL` lists its tokens",
        some_of(words),
        rather(nearest, first)
    )]
    UnknownWords {
        /// The words, each once.
        words: Vec<String>,
        /// Size of the vocabulary.
        vocabulary: usize,
        /// Tokens like them, best first.
        nearest: Vec<String>,
        /// The first tokens of the vocabulary that are words.
        first: Vec<String>,
    },
    /// An id that is no token's.
    #[error("no token has the id {id}: the vocabulary has {vocabulary} tokens")]
    NoToken {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// A beginning-of-sequence token was asked for, and the tokenizer has none.
    #[error("the tokenizer names no beginning-of-sequence token; pass prepend_bos false")]
    NoBos,
    /// A conversation that can't be made a text.
    #[error("no text of the conversation: {reason}")]
    Chat {
        /// What went wrong.
        reason: String,
    },
    /// A part that is not in a text exactly once.
    #[error("`{part}` is {count} times in `{text}`, not once")]
    NotOnce {
        /// The part.
        part: String,
        /// The text.
        text: String,
        /// How often it is there.
        count: usize,
    },
    /// A text that is not exactly one token.
    #[error("`{text}` is {count} tokens, not one")]
    NotOneToken {
        /// The text.
        text: String,
        /// How many tokens it is.
        count: usize,
    },
}

/// A key-value cache that can't be used as asked. The cache is left as it was.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let mut cache = model.prefill("king drum")?;
/// let two = vec![vec![51], vec![59]];
/// let told = model.forward(two.clone(), ForwardOptions::new().kv_cache(&mut cache)).unwrap_err();
/// assert_eq!(
///     told.to_string(),
///     "the cache holds 1 rows, the run has 2; one row serves any number once it is frozen",
/// );
/// cache.freeze();
/// assert!(model.forward(two, ForwardOptions::new().kv_cache(&mut cache)).is_ok());
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
    /// The text outgrows the context within which LongRoPE rotates by its short factors.
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
    /// Tokens were to tell of padding, and the cache knows no padding token.
    #[error("the cache's shape names no `pad_token_id`, by which padding is told from tokens")]
    NoPadToken,
    /// The mask of a run contradicts that of its cache.
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
    #[error("the cache's temporary file: {source}")]
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
    /// Keys and values that can't be read, or inconsistent plain data.
    #[error("the cache's data: {reason}")]
    Data {
        /// What is wrong.
        reason: String,
    },
    /// A saved cache that can't be read.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
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
    /// The run skips layers, whose entries would lack its positions.
    #[error("a run that leaves layers out would leave the cache uneven; freeze it first")]
    Partial,
}

/// Weights that can't be processed as asked.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let told = model.processed(&Processing::none().fold_ln()).map(drop).unwrap_err();
/// assert_eq!(
///     told.to_string(),
///     "`fold_ln` can't be applied to this model: position vectors are added behind the norm, \
///      where its weights would reach them",
/// );
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcessingError {
    /// A model of this kind has nothing to process.
    #[error("{kind} is not processed: its weights stay as published")]
    Kind {
        /// What the model is.
        kind: &'static str,
    },
    /// The step would change the model's outputs.
    #[error("`{step}` can't be applied to this model: {reason}")]
    WouldChangeOutputs {
        /// The step.
        step: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// Weights could not be read from their device.
    #[error("`{step}` can't read the weights of layer {layer}: {reason}")]
    Unreadable {
        /// The step.
        step: &'static str,
        /// The layer.
        layer: usize,
        /// What its device says.
        reason: String,
    },
    /// The factorization did not converge.
    #[error("`{step}` failed in layer {layer}, head {head}: {reason}")]
    Numeric {
        /// The step.
        step: &'static str,
        /// The layer.
        layer: usize,
        /// The head.
        head: usize,
        /// What went wrong.
        reason: String,
    },
}

/// A dump that can't be written or continued.
///
/// ```
/// use hooklens::dump::Dump;
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// # let folder = tempfile::tempdir()?;
/// let rows = vec![vec![0, 5], vec![0, 99]];
/// let told = Dump::new("z0").run(&model, &rows, folder.path().join("out")).unwrap_err().to_string();
/// assert_eq!(told, "prompt 2: token 99 at row 0, position 1 is outside the vocabulary of 63");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DumpError {
    /// A file could not be read or written.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// The output exists already.
    #[error("{} exists; remove it, name another place, or continue a folder with --resume", path.display())]
    Exists {
        /// The output.
        path: PathBuf,
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
    /// A prompt that can't be run.
    #[error("prompt {number}: {source}")]
    Row {
        /// The prompt, from one.
        number: usize,
        /// What is wrong.
        source: Box<Error>,
    },
    /// A point that fires for a varying number of rows, which one file can't hold.
    #[error("`{point}` has as many rows as tokens were routed to it, which vary; dump to a folder, or leave it out")]
    NotRectangular {
        /// The point.
        point: String,
    },
    /// A prompts file has a line that is no prompt.
    #[error("{}:{line}: {reason}", path.display())]
    Prompt {
        /// The file.
        path: PathBuf,
        /// The line, from one.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
}

/// The first of some words: `Alice`, `gave` and 3 more.
fn some_of(words: &[String]) -> String {
    const MOST: usize = 5;
    let quoted: Vec<String> = words.iter().take(MOST).map(|word| format!("`{word}`")).collect();
    match words.len() - quoted.len() {
        0 => quoted.join(", "),
        more => format!("{} and {more} more", quoted.join(", ")),
    }
}

/// What to write in their place: words like them, else words there are.
fn rather(nearest: &[String], first: &[String]) -> String {
    match (nearest, first) {
        ([], []) => String::new(),
        ([], first) => format!("; it has {}, ...", some_of(first)),
        (nearest, _) => format!("; did you mean {}?", some_of(nearest)),
    }
}

/// Axes and how long they are: `layer (12), head (12)`.
fn places(axes: &[(String, usize)]) -> String {
    axes.iter().map(|(name, len)| format!("{name} ({len})")).collect::<Vec<_>>().join(", ")
}
