//! Errors from model inputs and options.

use thiserror::Error;

use super::BoxError;

/// Error from an input or option that a model cannot be run with.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let message = |input: Vec<u32>| model.forward(input).unwrap_err().to_string();
/// assert_eq!(message(vec![0, 63]), "token 63 at row 0, position 1 is outside the vocabulary of 63; ids are 0 to 62");
/// assert_eq!(message(vec![0; 80]), "the input has 80 positions, but the model's position table has 72");
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InputError {
    /// The operation needs all weights on one device, but the model is spread over several.
    #[error("{what} requires a single device, but the model uses several")]
    Spread {
        /// What was requested.
        what: &'static str,
    },
    /// The input has no tokens.
    #[error("{what} is empty; there is nothing to run on")]
    Empty {
        /// What is empty.
        what: String,
    },
    /// One of several texts cannot be run.
    #[error("text {number}, counted from 0")]
    Text {
        /// Index of the text, counted from 0.
        number: usize,
        /// Why it cannot be run.
        source: Box<super::Error>,
    },
    /// The inputs of encoder and decoder have different numbers of rows.
    #[error(
        "the encoder's input has {encoder} rows, but the decoder's has {decoder}; `Encoded::repeat` repeats each \
         encoder row"
    )]
    Rows {
        /// Number of rows in the encoder's input.
        encoder: usize,
        /// Number of rows in the decoder's input.
        decoder: usize,
    },
    /// The sentence encoder's pooling is not supported.
    #[error("{reason}; choose another pooling with `with_sentence_embedding`")]
    Sentences {
        /// What is not supported.
        reason: String,
    },
    /// The model's files do not contain this head.
    #[error("the model's files contain no {head} head")]
    NoHead {
        /// The requested head.
        head: &'static str,
    },
    /// A token id is outside the vocabulary.
    #[error(
        "token {token} at row {row}, position {position} is outside the vocabulary of {d_vocab}; ids are 0 to {}",
        d_vocab.saturating_sub(1)
    )]
    Token {
        /// The token id.
        token: i64,
        /// Row in the batch.
        row: usize,
        /// Position in the row.
        position: usize,
        /// Vocabulary size.
        d_vocab: usize,
    },
    /// The input has more positions than the model's position table.
    #[error("the input has {len} positions, but the model's position table has {n_ctx}")]
    TooLong {
        /// Number of positions in the input.
        len: usize,
        /// Number of positions in the table.
        n_ctx: usize,
    },
    /// A text is far too long for the model's position table, so its tokens were not counted.
    #[error("a text of {bytes} bytes has more tokens than the model's position table has entries ({n_ctx})")]
    TextTooLong {
        /// Length of the text in bytes.
        bytes: usize,
        /// Number of positions in the table.
        n_ctx: usize,
    },
    /// The input is longer than the limit up to which a sparse-attention model attends to all positions.
    #[error(
        "the input has {len} positions, but beyond {most} the model uses sparse attention over selected positions, \
         which is not supported"
    )]
    Sparse {
        /// Number of positions in the input.
        len: usize,
        /// Maximum number of positions with full attention.
        most: usize,
    },
    /// Attention mask and tokens differ in shape.
    #[error("the attention mask has shape {given:?}, but the input has shape {expected:?} [batch, pos]")]
    MaskShape {
        /// Shape of the input.
        expected: [usize; 2],
        /// Shape of the mask.
        given: [usize; 2],
    },
    /// A run that continues a cache was given an attention mask that covers neither just the new tokens nor the cached
    /// and new tokens together.
    #[error(
        "the attention mask has shape {given:?}, but the input has shape {expected:?} [batch, pos] after {past} cached \
         positions; pass a mask of the {} new positions, or of all {}",
        expected[1],
        past + expected[1]
    )]
    MaskBehind {
        /// Shape of the input.
        expected: [usize; 2],
        /// Shape of the mask.
        given: [usize; 2],
        /// Number of positions in the cache.
        past: usize,
    },
    /// Logits and tokens cover different positions.
    #[error("the logits have shape {given:?} [batch, pos, d_vocab], but the tokens have shape {tokens:?} [batch, pos]")]
    LogitsShape {
        /// Shape of the logits.
        given: [usize; 3],
        /// Shape of the tokens.
        tokens: [usize; 2],
    },
    /// Rows have different lengths where equal lengths are required.
    #[error("row {row} has {given} tokens, but the first row has {expected}; pad the rows with `Tokens::padded`")]
    Ragged {
        /// Index of the row.
        row: usize,
        /// Length of the first row.
        expected: usize,
        /// Length of this row.
        given: usize,
    },
    /// The model has no such layer.
    #[error("layer {layer} is not within the {n_layers} layers of the model")]
    Layer {
        /// The requested layer.
        layer: isize,
        /// Number of layers in the model.
        n_layers: usize,
    },
    /// The given residual stream has the wrong width.
    #[error("the given residual stream has shape {given:?}; expected [batch, pos, {d_model}]")]
    Residual {
        /// Shape given.
        given: Vec<usize>,
        /// Width of the model's residual stream.
        d_model: usize,
    },
    /// The given residual stream and the model are on different devices.
    #[error("the given residual stream is on {given}, but the model is on {model}")]
    Device {
        /// Device of the residual stream.
        given: String,
        /// Device of the model.
        model: String,
    },
    /// A setting has an invalid value.
    #[error("`{name}` is {given}; expected {allowed}")]
    Setting {
        /// Name of the setting.
        name: &'static str,
        /// Value given.
        given: String,
        /// Allowed values.
        allowed: String,
    },
    /// Labels do not match the shape of an array.
    #[error("the labels are for shape {labels:?}, but the array has shape {places:?}")]
    Labels {
        /// Number of labels for each axis.
        labels: Vec<usize>,
        /// Size of each axis.
        places: Vec<usize>,
    },
    /// An array has no axis with this name.
    #[error("there is no axis `{axis}`; the axes are {}", places(axes))]
    Axis {
        /// The requested name.
        axis: String,
        /// Name and size of each axis.
        axes: Vec<(String, usize)>,
    },
    /// Two arrays have different axes.
    #[error("the arrays have different axes: {} in one and {} in the other", one.join(", "), other.join(", "))]
    OtherAxes {
        /// Names of the axes of one array.
        one: Vec<String>,
        /// Names of the axes of the other.
        other: Vec<String>,
    },
    /// Two arrays have different labels.
    #[error(
        "the arrays have different labels: index {place} of axis `{axis}` is {} in one and {} in the other",
        label(one),
        label(other)
    )]
    OtherLabels {
        /// Name of the axis.
        axis: String,
        /// The first index at which labels differ.
        place: usize,
        /// Label in one array; `None` if its axis is shorter.
        one: Option<String>,
        /// Label in the other array.
        other: Option<String>,
    },
    /// An index is outside an array's axis.
    #[error("index {place} is out of range for axis `{axis}`; the axes are {}", places(axes))]
    Place {
        /// Name of the axis.
        axis: String,
        /// The requested index.
        place: isize,
        /// Name and size of each axis.
        axes: Vec<(String, usize)>,
    },
    /// This kind of model does not support the option.
    #[error("{model} does not support the option `{option}`")]
    NoSuchOption {
        /// Name of the option.
        option: &'static str,
        /// Kind of model.
        model: &'static str,
    },
    /// Two options exclude each other.
    #[error("`{option}` can't be combined with `{with}`: {reason}")]
    Conflict {
        /// Name of the option.
        option: &'static str,
        /// The option or method that it excludes.
        with: &'static str,
        /// Why the options conflict, and what to do instead.
        reason: &'static str,
    },
    /// The requested operation needs something that is missing.
    #[error("{what} needs {needs}")]
    Needs {
        /// What was requested.
        what: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// The operation needs the two runs of a prompt pair, but a zero or mean ablation has only one run.
    #[error("{what} needs pairs of prompts: a zero or mean ablation has no source run to patch from")]
    NeedsPairs {
        /// What was requested.
        what: &'static str,
    },
    /// A block's weights are for a different kind of mixer or MLP than the configuration describes.
    #[error("the weights of layer {layer} are for a different kind of mixer or MLP than the configuration describes")]
    OtherWeights {
        /// The layer.
        layer: usize,
    },
    /// A residual stream was given where tokens are required.
    #[error("the input must be tokens or text, not a residual stream")]
    NeedsTokens,
    /// The run would stop before the layer it starts at.
    #[error("the run would stop before layer {stop} and start at layer {start}; it can't stop before it starts")]
    StopBeforeStart {
        /// Layer that the run starts at.
        start: usize,
        /// Layer that the run stops before.
        stop: usize,
    },
    /// An output was not requested, or the run ended before computing it.
    #[error(
        "the run did not compute the {what}; request the {what} in the options, or use `run` or `record` if you only \
         need other outputs"
    )]
    NoOutput {
        /// Name of the output.
        what: &'static str,
    },
    /// The loss has nothing to predict: no unmasked token follows another.
    #[error("the loss predicts each next token, so it needs two consecutive unmasked tokens")]
    NothingToPredict,
    /// A hook ran the model of its own hook scope.
    #[error("a hook ran the model of its own hook scope; inside a hook, run the model that the scope was created from")]
    Reentered,
    /// The tokenizer lacks a special token.
    #[error("the tokenizer has no {token} token")]
    NoSpecialToken {
        /// Role of the token, such as `mask`.
        token: &'static str,
    },
    /// The model can output tokens for which it has no embedding, so it cannot continue its own text.
    #[error("the model can't generate text: it has logits for {d_vocab_out} tokens, but embeddings for only {d_vocab}")]
    NoEmbedding {
        /// Number of tokens that the model has logits for.
        d_vocab_out: usize,
        /// Number of tokens that the model has embeddings for.
        d_vocab: usize,
    },
    /// The layer has no plain or gated MLP.
    #[error("layer {layer} has no plain or gated MLP: the model is attention-only, or uses mixtures of experts")]
    NoMlp {
        /// The requested layer.
        layer: isize,
    },
    /// The operation is not defined for models that normalize the outputs of attention and MLPs.
    #[error("{what} is not defined for a model that normalizes the outputs of attention and MLPs (`post_norms`)")]
    PostNorms {
        /// What was requested.
        what: &'static str,
    },
    /// The operation is not defined for models with latent attention, whose heads do not read the residual stream
    /// directly.
    #[error(
        "{what} is not defined for a model with latent attention: its heads do not read the residual stream directly"
    )]
    Latent {
        /// What was requested.
        what: &'static str,
    },
    /// The operation is not defined for models whose residual stream is not the sum of the layers' outputs.
    #[error(
        "{what} is not defined for a model whose residual stream is normalized after each addition (`residual_norms`, \
         `normalized_residual`): the stream is not the sum of the layers' outputs"
    )]
    NormalizedStream {
        /// What was requested.
        what: &'static str,
    },
    /// The run starts after a layer whose keys and values a later layer reuses.
    #[error("layer {layer} reuses the keys and values of layer {from}, but the run starts after that layer")]
    KeysOfEarlierLayer {
        /// Layer that reuses the keys and values.
        layer: usize,
        /// Layer that computes the keys and values.
        from: usize,
    },
    /// The operation is not defined for models with this component.
    #[error("{what} is not defined for a model with {with}")]
    NotDefined {
        /// What was requested.
        what: &'static str,
        /// The component.
        with: &'static str,
    },
    /// The operation is not defined for models that clip queries, keys and values.
    #[error("{what} is not defined for a model that clips queries, keys and values (`qkv_clip`)")]
    Clipped {
        /// What was requested.
        what: &'static str,
    },
    /// The operation is not defined for models in which some layers have no attention.
    #[error("{what} is not defined for layers without attention, and layer {layer} has none")]
    NoAttention {
        /// What was requested.
        what: &'static str,
        /// First layer without attention.
        layer: usize,
    },
    /// The operation requires a single row without padding.
    #[error("{what} must be one row without padding; got {rows} {}{}", if *rows == 1 { "row" } else { "rows" },
        if *padded { ", padded" } else { "" })]
    NotOneRow {
        /// What must be a single row.
        what: &'static str,
        /// Number of rows given.
        rows: usize,
        /// Whether the rows are padded.
        padded: bool,
    },
    /// Text was given to a model without a tokenizer.
    #[error(
        "this model has no tokenizer; pass token ids, or put a tokenizer.json next to its weights (the only other \
         formats supported are Marian's SentencePiece files and ESM's vocab.txt)"
    )]
    NoTokenizer,
    /// The tokenizer failed to encode text or decode tokens.
    #[error("the tokenizer failed to encode the text or decode the tokens")]
    Tokenize {
        /// Underlying error from the `tokenizers` crate.
        source: BoxError,
    },
    /// A number is not a valid token id.
    #[error("{id} is not a token id; token ids are 0 or more")]
    NotAnId {
        /// The number.
        id: i64,
    },
    /// Token ids cannot be read from their device.
    #[error("the token ids can't be read from their device")]
    Unreadable {
        /// The device's error.
        source: BoxError,
    },
    /// A text contains words that are not in the vocabulary.
    #[error(
        "the vocabulary of {vocabulary} tokens lacks {}{} (`hooklens vocabulary --model MODEL` lists all tokens)",
        some_of(words),
        rather(nearest, first)
    )]
    UnknownWords {
        /// Missing words, each once; at most a hundred.
        words: Vec<String>,
        /// Vocabulary size.
        vocabulary: usize,
        /// Most similar tokens, best first.
        nearest: Vec<String>,
        /// First word-like tokens in the vocabulary.
        first: Vec<String>,
    },
    /// No token has this id.
    #[error("no token has the id {id}: the vocabulary has {vocabulary} tokens")]
    NoToken {
        /// The id.
        id: u32,
        /// Vocabulary size.
        vocabulary: usize,
    },
    /// A beginning-of-sequence token was requested, but the tokenizer has none.
    #[error("the tokenizer has no beginning-of-sequence token; set `prepend_bos` to false")]
    NoBos,
    /// A conversation cannot be formatted as text.
    #[error("can't format the conversation: {reason}")]
    Chat {
        /// What went wrong.
        reason: String,
        /// Underlying error from the template engine, if it failed.
        source: Option<BoxError>,
    },
    /// A substring does not occur exactly once in a text.
    #[error("`{part}` occurs {count} times in `{text}`; expected exactly once")]
    NotOnce {
        /// The substring.
        part: String,
        /// The text.
        text: String,
        /// Number of occurrences.
        count: usize,
    },
    /// A text is not exactly one token.
    #[error("`{text}` is {count} tokens, not one")]
    NotOneToken {
        /// The text.
        text: String,
        /// Number of tokens.
        count: usize,
    },
}

/// Maximum number of words in [`InputError::UnknownWords`].
pub(crate) const UNKNOWN_WORDS: usize = 100;

/// Formats the first few words: `Alice`, `gave` and 3 more.
fn some_of(words: &[String]) -> String {
    const MOST: usize = 5;
    let quoted: Vec<String> = words.iter().take(MOST).map(|word| format!("`{word}`")).collect();
    match words.len() - quoted.len() {
        0 => quoted.join(", "),
        // The list is truncated, so there may be more.
        more if words.len() >= UNKNOWN_WORDS => format!("{} and at least {more} more", quoted.join(", ")),
        more => format!("{} and {more} more", quoted.join(", ")),
    }
}

/// Suggests similar words, or else some words from the vocabulary.
fn rather(nearest: &[String], first: &[String]) -> String {
    match (nearest, first) {
        ([], []) => String::new(),
        ([], first) => format!("; it has {}, ...", some_of(first)),
        (nearest, _) => format!("; did you mean {}?", some_of(nearest)),
    }
}

/// A label in an error message.
fn label(label: &Option<String>) -> String {
    label.as_ref().map_or("missing".into(), |label| format!("`{label}`"))
}

/// Formats axes and their sizes: `layer (12), head (12)`.
fn places(axes: &[(String, usize)]) -> String {
    axes.iter().map(|(name, len)| format!("{name} ({len})")).collect::<Vec<_>>().join(", ")
}
