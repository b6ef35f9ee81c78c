//! Attention patterns of one text, from a recording.

use hooklens_hooks::{Activation, ActivationCache, HookError, Positions};
use ndarray::{Array2, Array3, ArrayD, Axis, Ix3, IxDyn};

use crate::error::PlotError;
use hooklens_analysis::labeled::{LabeledArray, LabeledAxis};
use hooklens_model::driver::{HookedModel, Input};
use hooklens_model::error::Result;
use hooklens_model::hook;
use hooklens_model::model::HookedTransformer;
use hooklens_model::tokens::{Tokenizer, Tokens, text_hash, token_text};

/// Attention patterns of one text: its tokens, and for each head a pattern `[query, key]`. Padding is no part
/// of it. What [`AttentionView`](super::AttentionView) and [`PatternGrid`](super::PatternGrid) show.
///
/// ```
/// use hooklens::plot::AttentionPatterns;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let tokens = model.to_tokens(["king drum sun king", "red fox"])?;
/// let cache = model.record(&tokens, "*hook_pattern")?;
/// let second = AttentionPatterns::of(&model, &cache, &tokens, 1)?.layers([1])?;
/// assert_eq!(second.tokens(), ["<bos>", "red", "fox"]);
/// assert_eq!(second.heads_shown().len(), 4);
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
    /// Its layer.
    pub layer: usize,
    /// Its number in the layer.
    pub head: usize,
    /// How much each query attends to each key, `[query, key]`.
    pub values: Array2<f32>,
}

impl HeadAttention {
    /// `L1H0`.
    pub fn name(&self) -> String {
        format!("L{}H{}", self.layer, self.head)
    }
}

impl AttentionPatterns {
    /// Patterns from anywhere: the texts of the tokens, and for some layers `[head, query, key]`.
    ///
    /// # Errors
    /// [`PlotError::NoPattern`], [`PlotError::Pattern`] for a pattern that is not of these tokens, and
    /// [`PlotError::Attention`] for a number below zero or none at all.
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

    /// Every recorded pattern of one row of a batch; `tokens` is what the model was run on.
    ///
    /// # Errors
    /// As [`AttentionPatterns::new`]; [`HookError::Rows`] for a row there is none of. Behind a key-value cache
    /// patterns have more keys than the run had tokens: stitch the recordings, or run the whole text.
    pub fn of(model: &impl HookedModel, cache: &ActivationCache, tokens: &Tokens, row: usize) -> Result<Self> {
        Self::recorded(model.tokenizer().ok(), cache, tokens, row)
    }

    /// Runs a model on one text, or one row of tokens, up to the last of these layers, and takes its patterns there;
    /// of all layers if none is named.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// use hooklens::plot::AttentionPatterns;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let patterns = AttentionPatterns::run(&model, "king drum sun king drum", &[1])?;
    /// assert_eq!(patterns.heads_shown()[0].values.dim(), (6, 6));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`HookedModel::record`] and [`AttentionPatterns::of`]; [`PlotError::Absent`] for layers the model
    /// lacks.
    pub fn run(model: &HookedTransformer, input: impl Into<Input>, layers: &[usize]) -> Result<Self> {
        let tokens = model.token_input(input.into())?;
        let all: Vec<usize> = (0..model.config().n_layers).collect();
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
            // Padding is where it was in the run.
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

    /// These layers only.
    ///
    /// # Errors
    /// [`PlotError::Absent`] for one there is no pattern of.
    pub fn layers(mut self, layers: impl IntoIterator<Item = usize>) -> Result<Self, PlotError> {
        let layers: Vec<usize> = layers.into_iter().collect();
        present("layer", &layers, &self.heads.iter().map(|head| head.layer).collect::<Vec<_>>())?;
        self.heads.retain(|head| layers.contains(&head.layer));
        self.some()
    }

    /// The heads of these numbers only, in every layer.
    ///
    /// # Errors
    /// [`PlotError::Absent`] for one there is no pattern of.
    pub fn heads(mut self, heads: impl IntoIterator<Item = usize>) -> Result<Self, PlotError> {
        let heads: Vec<usize> = heads.into_iter().collect();
        present("head", &heads, &self.heads.iter().map(|head| head.head).collect::<Vec<_>>())?;
        self.heads.retain(|head| heads.contains(&head.head));
        self.some()
    }

    /// These positions only, as queries and as keys: what queries pay to other keys is left out.
    ///
    /// # Errors
    /// [`HookError::Positions`] for positions the text lacks.
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

    /// The texts of the tokens.
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// The heads, by layer and number.
    pub fn heads_shown(&self) -> &[HeadAttention] {
        &self.heads
    }

    /// Whether no query attends to a later key.
    pub fn is_causal(&self) -> bool {
        let later = |head: &HeadAttention| head.values.indexed_iter().any(|((q, k), value)| k > q && *value != 0.0);
        !self.heads.iter().any(later)
    }

    /// All of it as one array `[head, query, key]`: heads are labeled `L1H0`, positions `5: king`.
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
        LabeledArray::of(axes, ArrayD::from_shape_fn(IxDyn(&[self.heads.len(), len, len]), at))
    }

    /// Position of the first token in its text.
    pub(super) fn first(&self) -> usize {
        self.first
    }

    fn some(self) -> Result<Self, PlotError> {
        if self.heads.is_empty() { Err(PlotError::NoPattern) } else { Ok(self) }
    }
}

/// Checks that everything asked for is there.
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
