//! What a model can't be run on.

use thiserror::Error;

use super::BoxError;

/// Something a model can't be run on.
///
/// ```
/// # use hooklens::prelude::*;
/// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let told = |input: Vec<u32>| model.forward(input).unwrap_err().to_string();
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
    #[error("text {number}, counted from 0")]
    Text {
        /// The text, counted from 0.
        number: usize,
        /// What is wrong with it.
        source: Box<super::Error>,
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
    /// A text that has more tokens than the model has position vectors, by far: they are not counted.
    #[error("a text of {bytes} bytes has more tokens than the model's position table has positions: {n_ctx}")]
    TextTooLong {
        /// Length of the text.
        bytes: usize,
        /// Positions the model has.
        n_ctx: usize,
    },
    /// More positions than a query sees in a model whose attention is sparse beyond them.
    #[error(
        "{len} positions, but of more than {most} the model attends to those that an index chooses, which is not supported"
    )]
    Sparse {
        /// Positions asked for.
        len: usize,
        /// Positions that are all attended to.
        most: usize,
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
    /// An option that this kind of model does not support.
    #[error("{model} has no use for the option `{option}`")]
    NoSuchOption {
        /// The option.
        option: &'static str,
        /// The kind of model.
        model: &'static str,
    },
    /// Two options that exclude each other.
    #[error("`{option}` does not go with `{with}`: {reason}")]
    Conflict {
        /// The option.
        option: &'static str,
        /// The option or method it excludes.
        with: &'static str,
        /// Why, and what to do instead.
        reason: &'static str,
    },
    /// Something asked for that needs something else.
    #[error("{what} needs {needs}")]
    Needs {
        /// What was asked for.
        what: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// An ablation where the two runs of a pair of prompts are compared.
    #[error("{what} needs pairs of prompts: an ablation has no run that patches come from")]
    NeedsPairs {
        /// What was asked for.
        what: &'static str,
    },
    /// A residual stream where tokens are needed.
    #[error("this needs tokens, not a residual stream")]
    NeedsTokens,
    /// A run that was to stop before the layer it starts at.
    #[error("the run would stop before layer {stop} and start at layer {start}; it can't stop before it starts")]
    StopBeforeStart {
        /// The layer it was to start at.
        start: usize,
        /// The layer it was to stop before.
        stop: usize,
    },
    /// An output that the run was not asked for, or ended before.
    #[error("the run made no {what}: ask for {what} in its options, or take its other outputs by `run` or `record`")]
    NoOutput {
        /// The output.
        what: &'static str,
    },
    /// A loss of tokens of which none has a real one before it.
    #[error("the loss predicts each next token: it needs two real tokens one behind the other")]
    NothingToPredict,
    /// A number to differentiate that no recorded activation has a part in.
    #[error("the number does not depend on any activation recorded: make it of the run's output, without detaching")]
    NoGradient,
    /// A hook that runs the model in whose scope it is.
    #[error("a hook ran its own scope's model; within a hook run `model()` of the scope, which has no hooks")]
    Reentered,
    /// A special token that the tokenizer lacks.
    #[error("the tokenizer names no {token} token")]
    NoSpecialToken {
        /// What the token is for: `mask`.
        token: &'static str,
    },
    /// A model that can't read all that it can write.
    #[error("the model has logits for {d_vocab_out} tokens and embeddings for {d_vocab}: it can't go on from its own")]
    NoEmbedding {
        /// Tokens it has logits for.
        d_vocab_out: usize,
        /// Tokens it has embeddings for.
        d_vocab: usize,
    },
    /// A layer without an MLP that has one matrix in and one out.
    #[error("layer {layer} has no plain or gated MLP: the model is attention-only, or its MLPs are of experts")]
    NoMlp {
        /// The layer asked for.
        layer: isize,
    },
    /// A model whose attention's and MLPs' outputs are normalized.
    #[error("{what} is not defined for a model that normalizes the outputs of attention and MLPs (`post_norms`)")]
    PostNorms {
        /// What was asked for.
        what: &'static str,
    },
    /// A model whose heads read latents of the residual stream.
    #[error("{what} is not defined for a model of latent attention: its heads do not read the stream itself")]
    Latent {
        /// What was asked for.
        what: &'static str,
    },
    /// A model whose residual stream is not the sum of what was written to it.
    #[error(
        "{what} is not defined for a model whose residual stream is normalized behind each addition (`residual_norms`, \
         `normalized_residual`): it is not the sum of what layers write"
    )]
    NormalizedStream {
        /// What was asked for.
        what: &'static str,
    },
    /// A run that starts behind a layer whose keys and values a later one reads.
    #[error("layer {layer} reads the keys and values of layer {from}, and the run starts behind that")]
    KeysOfEarlierLayer {
        /// The layer that reads.
        layer: usize,
        /// The layer whose keys and values they are.
        from: usize,
    },
    /// Something that is not defined for models with some part.
    #[error("{what} is not defined for a model with {with}")]
    NotDefined {
        /// What was asked for.
        what: &'static str,
        /// The part.
        with: &'static str,
    },
    /// A model whose queries, keys and values are clipped.
    #[error("{what} is not defined for a model that clips queries, keys and values (`qkv_clip`)")]
    Clipped {
        /// What was asked for.
        what: &'static str,
    },
    /// A model some of whose layers have no attention.
    #[error("{what} is not defined for layers without attention, and layer {layer} has none")]
    NoAttention {
        /// What was asked for.
        what: &'static str,
        /// The first such layer.
        layer: usize,
    },
    /// Several rows, or padding, where one row is wanted.
    #[error("{what} is one row without padding; given {} {rows}{}", if *rows == 1 { "is" } else { "are" },
        if *padded { ", padded" } else { "" })]
    NotOneRow {
        /// What was to be one row.
        what: &'static str,
        /// Rows given.
        rows: usize,
        /// Whether they are padded.
        padded: bool,
    },
    /// Text given to a model without a tokenizer.
    #[error(
        "this model has no tokenizer; pass token ids, or put tokenizer.json beside its weights (no other kind is read: \
         not SentencePiece's files, and vocab.txt of ESM only)"
    )]
    NoTokenizer,
    /// Text that can't be turned into tokens, or tokens that can't be turned into text.
    #[error("the tokenizer refuses the text or the tokens")]
    Tokenize {
        /// What the `tokenizers` crate reported.
        source: BoxError,
    },
    /// A number that is no token id.
    #[error("{id} is not a token id, which is 0 or more")]
    NotAnId {
        /// The number.
        id: i64,
    },
    /// Token ids that their device does not give.
    #[error("the token ids can't be read from their device")]
    Unreadable {
        /// What the device reported.
        source: BoxError,
    },
    /// A text with words that the vocabulary has no token for.
    #[error(
        "the vocabulary of {vocabulary} tokens lacks {}{}; `hooklens vocabulary --model MODEL` lists its tokens",
        some_of(words),
        rather(nearest, first)
    )]
    UnknownWords {
        /// The first hundred words, each once.
        words: Vec<String>,
        /// Size of the vocabulary.
        vocabulary: usize,
        /// The most similar tokens, best first.
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
        /// What the template's engine reported, if it refused the messages.
        source: Option<BoxError>,
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

/// Words that [`InputError::UnknownWords`] holds at most.
pub(crate) const UNKNOWN_WORDS: usize = 100;

/// The first of some words: `Alice`, `gave` and 3 more.
fn some_of(words: &[String]) -> String {
    const MOST: usize = 5;
    let quoted: Vec<String> = words.iter().take(MOST).map(|word| format!("`{word}`")).collect();
    match words.len() - quoted.len() {
        0 => quoted.join(", "),
        // Of those beyond nobody knows.
        more if words.len() >= UNKNOWN_WORDS => format!("{} and at least {more} more", quoted.join(", ")),
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
