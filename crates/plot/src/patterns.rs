//! [`AttentionPatterns`] of one text, from a recording.

use hooklens_hooks::{Activation, ActivationCache, HookError, Positions, Provenance, ResolvePositions};
use ndarray::{Array2, Array3, ArrayD, Axis, Ix3, IxDyn};

use crate::error::PlotError;
use hooklens_analysis::labeled::{self, LabeledArray, LabeledAxis};
use hooklens_model::driver::{HookedModel, Input};
use hooklens_model::error::Result;
use hooklens_model::hook;
use hooklens_model::model::{DecoderInput, HookedTransformer};
use hooklens_model::tokens::{Tokenizer, Tokens, text_hash, token_text};

/// Attention patterns of one text: its tokens, and a pattern `[query, key]` for each head, without padding. They are
/// displayed by [`AttentionView`](super::AttentionView) and [`PatternGrid`](super::PatternGrid).
///
/// ```
/// use hooklens::plot::AttentionPatterns;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let tokens = model.to_tokens(["king drum sun king", "red fox"])?;
/// let cache = model.record(&tokens, "*hook_pattern")?;
/// let second = AttentionPatterns::of(&model, &cache, &tokens, 1)?.layers([1])?;
/// let patterns = second.to_labeled(); // [head, query, key]
/// assert_eq!(patterns.values().shape(), [4, 3, 3]);
/// assert_eq!(patterns.axes()[2].labels, ["0: <bos>", "1: red", "2: fox"]);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionPatterns {
    tokens: Vec<String>,
    /// Position of the first token in its text.
    first: usize,
    heads: Vec<HeadAttention>,
}

/// The attention pattern of one head.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HeadAttention {
    /// Layer of the head.
    pub layer: usize,
    /// Index of the head in its layer.
    pub head: usize,
    /// Attention weights, `[query, key]`.
    pub values: Array2<f32>,
}

impl HeadAttention {
    /// The head's name, such as `L1H0`.
    pub fn name(&self) -> String {
        format!("L{}H{}", self.layer, self.head)
    }
}

impl AttentionPatterns {
    /// Creates patterns from the texts of the tokens and an array `[head, query, key]` for each layer. The arrays may
    /// come from any source.
    ///
    /// # Errors
    /// [`PlotError::NoPattern`] without heads or tokens; [`PlotError::Pattern`] for a pattern that does not match the
    /// tokens; [`PlotError::Attention`] for a weight that is negative or not finite.
    pub fn new(
        tokens: impl IntoIterator<Item = impl Into<String>>,
        layers: impl IntoIterator<Item = (usize, Array3<f32>)>,
    ) -> Result<Self, PlotError> {
        let tokens: Vec<String> = tokens.into_iter().map(Into::into).collect();
        let mut heads = Vec::new();
        for (layer, pattern) in layers {
            let given @ [_, queries, keys] = pattern.dim().into();
            if [queries, keys] != [tokens.len(); 2] {
                return Err(PlotError::Pattern { layer, given: given.to_vec(), tokens: tokens.len() });
            }
            if let Some(((head, query, key), value)) =
                pattern.indexed_iter().find(|(_, value)| !(value.is_finite() && **value >= 0.0))
            {
                return Err(PlotError::Attention { layer, head, query, key, value: *value });
            }
            let each = pattern.outer_iter().enumerate();
            heads.extend(each.map(|(head, values)| HeadAttention { layer, head, values: values.to_owned() }));
        }
        if heads.is_empty() || tokens.is_empty() {
            return Err(PlotError::NoPattern);
        }
        heads.sort_by_key(|head| (head.layer, head.head));
        Ok(Self { tokens, first: 0, heads })
    }

    /// All recorded patterns of one row of a batch. `tokens` is the model's input.
    ///
    /// # Errors
    /// Same as [`AttentionPatterns::new`]; [`HookError::Rows`] for a row that does not exist. With a key-value cache,
    /// patterns have more keys than the run had tokens, so stitch the recordings or run the whole text.
    pub fn of(model: &impl HookedModel, cache: &ActivationCache, tokens: &Tokens, row: usize) -> Result<Self> {
        Self::recorded(model.tokenizer().ok(), cache, tokens, row)
    }

    /// Runs a model on one text or row of tokens, and records the patterns of these layers, or of all layers if the
    /// list is empty. The run stops after the last of these layers.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// use hooklens::plot::AttentionPatterns;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let patterns = AttentionPatterns::run(&model, "king drum sun king drum", &[1])?;
    /// assert_eq!(patterns.to_labeled().values().shape(), [4, 6, 6]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`HookedModel::record`] and [`AttentionPatterns::of`]; [`PlotError::Absent`] for layers that the model
    /// does not have.
    pub fn run(model: &HookedTransformer, input: impl Into<Input>, layers: &[usize]) -> Result<Self> {
        let tokens = model.token_input(input.into())?;
        let all: Vec<usize> = (0..model.config().n_layers()).collect();
        present("layer", layers, &all)?;
        let points = if layers.is_empty() { &all } else { layers };
        let points: Vec<_> = points.iter().map(|layer| hook::pattern(*layer as isize)).collect();
        let cache = model.record(&tokens, points)?;
        Self::of(model, &cache, &tokens, 0)
    }

    fn recorded(tokenizer: Option<&Tokenizer>, cache: &ActivationCache, tokens: &Tokens, row: usize) -> Result<Self> {
        let [batch, len] = tokens.shape();
        if row >= batch {
            return Err(HookError::Rows { asked: row..row + 1, batch }.into());
        }
        if !cache.origin().may_be_of(row, text_hash(tokens.real(row).into_iter())) {
            return Err(PlotError::OtherText { row }.into());
        }
        let real = |column: &usize| tokens.mask().is_none_or(|mask| mask[row * len + column]);
        let columns: Vec<usize> = match cache.recorded_rows() {
            // The recording determines which positions are padding.
            Ok(rows) if rows.positions().get(row).is_some_and(|own| own.len() == len) => {
                let own = &rows.positions()[row];
                (0..len).filter(|column| own[*column].is_some()).collect()
            }
            _ => (0..len).filter(real).collect(),
        };
        let texts = tokens.real(row).into_iter().map(|id| token_text(tokenizer, id));
        let mut layers = Vec::new();
        for layer in 0..cache.catalog().n_layers() {
            if !cache.contains(("pattern", layer as isize)) {
                continue;
            }
            let pattern = cache.get(hook::pattern(layer as isize))?;
            let given @ [rows, _, queries, keys] = pattern.dims();
            if [queries, keys] != [len; 2] || row >= rows {
                return Err(PlotError::Pattern { layer, given: given.to_vec(), tokens: len }.into());
            }
            let own = Activation::from(pattern.narrow(0, row, 1)).to_ndarray()?.index_axis_move(Axis(0), 0);
            let misshapen = |_| PlotError::Pattern { layer, given: given.to_vec(), tokens: len };
            let own = own.into_dimensionality::<Ix3>().map_err(misshapen)?;
            layers.push((layer, own.select(Axis(1), &columns).select(Axis(2), &columns)));
        }
        Ok(Self::new(texts, layers)?)
    }

    /// Keeps only these layers.
    ///
    /// # Errors
    /// [`PlotError::Absent`] for a layer without a pattern.
    pub fn layers(mut self, layers: impl IntoIterator<Item = usize>) -> Result<Self, PlotError> {
        let layers: Vec<usize> = layers.into_iter().collect();
        present("layer", &layers, &self.heads.iter().map(|head| head.layer).collect::<Vec<_>>())?;
        self.heads.retain(|head| layers.contains(&head.layer));
        self.some()
    }

    /// Keeps only the heads with these indices, in every layer.
    ///
    /// # Errors
    /// [`PlotError::Absent`] for a head without a pattern.
    pub fn heads(mut self, heads: impl IntoIterator<Item = usize>) -> Result<Self, PlotError> {
        let heads: Vec<usize> = heads.into_iter().collect();
        present("head", &heads, &self.heads.iter().map(|head| head.head).collect::<Vec<_>>())?;
        self.heads.retain(|head| heads.contains(&head.head));
        self.some()
    }

    /// Keeps only these positions, both as queries and as keys. Attention to other keys is dropped.
    ///
    /// # Errors
    /// [`HookError::Positions`] for positions that the text does not have.
    pub fn positions(mut self, positions: impl Into<Positions>) -> Result<Self, HookError> {
        let range = positions.into().resolve(self.tokens.len())?;
        let (start, end) = (range.start as isize, range.end as isize);
        for head in &mut self.heads {
            head.values = head.values.slice(ndarray::s![start..end, start..end]).to_owned();
        }
        self.first += range.start;
        self.tokens = self.tokens.drain(range).collect();
        Ok(self)
    }

    /// All patterns as one array `[head, query, key]`, with labels such as `L1H0` and `5: king`.
    pub fn to_labeled(&self) -> LabeledArray {
        let len = self.tokens.len();
        let places: Vec<String> =
            self.tokens.iter().enumerate().map(|(at, token)| format!("{}: {token}", self.first + at)).collect();
        let axes = [
            LabeledAxis::new("head", self.heads.iter().map(HeadAttention::name)),
            LabeledAxis::new("query", &places),
            LabeledAxis::new("key", &places),
        ];
        let at = |at: IxDyn| f64::from(self.heads[at[0]].values[[at[1], at[2]]]);
        labeled::matching(axes, ArrayD::from_shape_fn(IxDyn(&[self.heads.len(), len, len]), at))
    }

    /// Position of the first token in its text.
    pub(super) fn first(&self) -> usize {
        self.first
    }

    fn some(self) -> Result<Self, PlotError> {
        if self.heads.is_empty() { Err(PlotError::NoPattern) } else { Ok(self) }
    }
}

/// Access to the tokens and heads of attention patterns.
pub trait ShownHeads {
    /// The texts of the tokens.
    fn tokens(&self) -> &[String];

    /// The heads, ordered by layer and index.
    fn heads_shown(&self) -> &[HeadAttention];

    /// Whether no query attends to a later key.
    fn is_causal(&self) -> bool;
}

impl ShownHeads for AttentionPatterns {
    fn tokens(&self) -> &[String] {
        &self.tokens
    }

    fn heads_shown(&self) -> &[HeadAttention] {
        &self.heads
    }

    fn is_causal(&self) -> bool {
        let later = |head: &HeadAttention| head.values.indexed_iter().any(|((q, k), value)| k > q && *value != 0.0);
        !self.heads.iter().any(later)
    }
}

/// Checks that all requested indices exist.
fn present(what: &'static str, asked: &[usize], held: &[usize]) -> Result<(), PlotError> {
    match asked.iter().find(|one| !held.contains(one)) {
        None => Ok(()),
        Some(asked) => {
            let mut held = held.to_vec();
            held.sort_unstable();
            held.dedup();
            Err(PlotError::Absent { what, asked: *asked, held })
        }
    }
}
