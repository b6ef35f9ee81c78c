//! Top activating examples of a neuron, head or direction over many texts.

mod best;
mod found;
mod unit;

use burn::tensor::Tensor;
use hooklens_hooks::{Record, ResolveOne, Selection};

use hooklens_model::driver::{HookedModel, Input};
use hooklens_model::error::{Error, InputError, Result};
use hooklens_model::model::{DecoderInput, HookedTransformer};
use hooklens_model::tokens::{PaddingSide, Tokens};

use best::{Best, Firing};
use unit::{ReduceAxis, Unit};

pub use found::{FoundExample, FoundExamples, number};

/// Finds where a neuron, head or direction has its largest activations over many texts: the text, the position, and the
/// surrounding tokens. Texts are run in batches and not stored, so there can be any number of them.
///
/// ```
/// use hooklens::experiments::{TopExamples, ioi_prompts};
/// use hooklens::prelude::*;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("neuron.html");
/// let model = HookedTransformer::from_pretrained("embedded:ioi")?;
/// let texts = ioi_prompts(50, 0).into_iter().map(|prompt| prompt.text);
/// let found = TopExamples::new(hook::mlp_post(2)).neuron(5).k(3).run(&model, texts)?;
/// let top = &found.examples[0];
/// println!("{} in text {}: {}", top.token, top.text, top.value);
/// assert!(top.value >= found.examples[2].value);
/// ColoredText::of(&found)?.save(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct TopExamples {
    point: Selection,
    head: Option<usize>,
    along: Option<ReduceAxis>,
    k: usize,
    window: usize,
    batch_size: usize,
    exclude_bos: bool,
    one_per_text: bool,
}

impl TopExamples {
    /// Searches one point, given as a typed hook or by name, with axes `[batch, pos, d]` or `[batch, pos, head, d]`.
    /// Choose the unit with [`TopExamples::neuron`], [`TopExamples::direction`] or [`TopExamples::norm`]. By default,
    /// finds the ten largest activations, with ten tokens of context on each side, running eight texts at a time.
    pub fn new(point: impl Into<Selection>) -> Self {
        Self {
            point: point.into(),
            head: None,
            along: None,
            k: 10,
            window: 10,
            batch_size: 8,
            exclude_bos: false,
            one_per_text: false,
        }
    }

    /// Ranks by one index of the point's last axis: a neuron of an MLP, or a coordinate of a head or of the stream.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let message = TopExamples::new("mlp_post0").neuron(256).run(&model, ["When Mary"]).unwrap_err().to_string();
    /// assert_eq!(
    ///     message,
    ///     "`neuron` is 256; expected 0 to 255: `blocks.0.mlp.hook_post` [batch, pos, d_mlp] is 256 wide",
    /// );
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn neuron(mut self, neuron: usize) -> Self {
        self.along = Some(ReduceAxis::Neuron(neuron));
        self
    }

    /// Ranks by the dot product with a direction `[d]` as wide as the point's last axis. The direction is not
    /// normalized.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let mary = model.tokens_to_residual_directions("Mary")?.reshape([64]);
    /// let texts = ["When Mary and John went", "After Tom and Anna met"];
    /// let found = TopExamples::new("resid_post3").direction(mary).k(1).run(&model, texts)?;
    /// println!("Mary is predicted most strongly after `{}`", found.examples[0].token);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn direction(mut self, direction: Tensor<1>) -> Self {
        self.along = Some(ReduceAxis::Direction(Box::new(direction)));
        self
    }

    /// Ranks by the norm of the activation, for example to find where a head's output is largest.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let texts = ["When Mary and John went", "After Tom and Anna met"];
    /// let found = TopExamples::new(hook::result(1)).head(2).norm().k(2).run(&model, texts)?;
    /// assert!(found.heading().contains("head 2, norm"));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn norm(mut self) -> Self {
        self.along = Some(ReduceAxis::Norm);
        self
    }

    /// Selects the head, at a point with axes `[batch, pos, head, d]`.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let found = TopExamples::new(hook::z(1)).head(3).neuron(0).run(&model, ["When Mary and John went"])?;
    /// assert!(found.heading().contains("head 3, neuron 0") && found.examples.len() == 6);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn head(mut self, head: usize) -> Self {
        self.head = Some(head);
        self
    }

    /// Sets how many examples to find, at least one. Ties go to the first, and NaN comes last.
    #[must_use]
    pub fn k(mut self, k: usize) -> Self {
        self.k = k;
        self
    }

    /// Sets how many tokens of context to keep on each side.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let found = TopExamples::new("mlp_post0").neuron(7).window(1).k(1).run(&model, ["When Mary and John went"])?;
    /// let top = &found.examples[0];
    /// assert!(top.context.iter().any(|(position, token, _)| (position, token) == (&top.position, &top.token)));
    /// assert!(top.context.len() <= 3);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn window(mut self, tokens: usize) -> Self {
        self.window = tokens;
        self
    }

    /// Sets how many texts run in one batch, at least one. The batch size does not affect results, except for rounding.
    #[must_use]
    pub fn batch_size(mut self, texts: usize) -> Self {
        self.batch_size = texts.max(1);
        self
    }

    /// Excludes the first token of each text, where activations are often large regardless of the text.
    #[must_use]
    pub fn exclude_bos(mut self) -> Self {
        self.exclude_bos = true;
        self
    }

    /// Keeps only the largest activation of each text, so that one text does not fill the list.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    /// let texts = ["When Mary and John went", "After Tom and Anna met"];
    /// let found = TopExamples::new("mlp_post0").neuron(7).one_per_text().run(&model, texts)?;
    /// assert_eq!(found.examples.len(), 2);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    #[must_use]
    pub fn one_per_text(mut self) -> Self {
        self.one_per_text = true;
        self
    }

    /// Runs the model on these texts or rows of token ids, up to the point, and keeps the largest activations. Texts
    /// are tokenized as for [`HookedModel::forward`]. Texts and positions are counted from 0; an added BOS token counts
    /// as a position. Padding is ignored.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let rows = vec![vec![0u32, 51, 59], vec![0, 9]];
    /// let found = TopExamples::new("resid_post0").neuron(3).run(&model, rows)?;
    /// assert_eq!((found.searched, found.examples.len()), ([2, 5], 5));
    /// let error = TopExamples::new("resid_post0").neuron(3).run(&model, ["king", ""]).unwrap_err();
    /// assert_eq!(
    ///     hooklens::error_chain(&error),
    ///     "text 1, counted from 0: the text \"\" is empty; there is nothing to run on",
    /// );
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError`](hooklens_hooks::HookError) if there is no such point; [`InputError::Setting`] for a point with
    /// unsupported axes, a neuron or head that does not exist, a missing or unexpected head, or a `k` of 0;
    /// [`AnalysisError::Shape`](crate::activations::AnalysisError::Shape) for a direction of the wrong width;
    /// [`InputError::Empty`] if there are no texts; [`InputError::Text`] for a text that cannot be run.
    pub fn run(
        &self,
        model: &HookedTransformer,
        texts: impl IntoIterator<Item = impl Into<Input>>,
    ) -> Result<FoundExamples> {
        if self.k == 0 {
            let allowed = "1 or more".to_string();
            return Err(InputError::Setting { name: "k", given: "0".into(), allowed }.into());
        }
        let point = model.catalog().info(self.point.resolve_one(model.catalog())?);
        let unit = Unit::new(point, self.head, self.along.as_ref())?;
        let mut best = Best::new(self.k);
        let (mut ready, mut done, mut tokens) = (Vec::new(), 0, 0);
        for text in texts {
            let number = done + ready.len();
            let of_text = |error: Error| InputError::Text { number, source: Box::new(error) };
            for row in rows(model, text.into()).map_err(of_text)? {
                tokens += row.len();
                ready.push(row);
                if ready.len() == self.batch_size {
                    self.look(model, &unit, &ready, done, &mut best)?;
                    done += ready.len();
                    ready.clear();
                }
            }
        }
        if !ready.is_empty() {
            self.look(model, &unit, &ready, done, &mut best)?;
            done += ready.len();
        }
        if done == 0 {
            return Err(InputError::Empty { what: "the list of texts".into() }.into());
        }
        Ok(FoundExamples::new(model.tokenizer().ok(), &unit, [done, tokens], best))
    }

    /// Searches one batch. `before` is the number of texts in earlier batches.
    fn look(
        &self,
        model: &HookedTransformer,
        unit: &Unit<'_>,
        rows: &[Vec<u32>],
        before: usize,
        best: &mut Best,
    ) -> Result<()> {
        let tokens = Tokens::padded(rows, 0, PaddingSide::Right)?;
        let recorded = model.record(&tokens, Record::new(unit.point()))?;
        let values = unit.values(recorded.activation(unit.point())?, tokens.shape())?; // [batch, pos]
        let first = usize::from(self.exclude_bos);
        for (number, (ids, values)) in rows.iter().zip(values.outer_iter()).enumerate() {
            let firing = |position: usize| Firing { text: before + number, position, value: values[position] };
            let mut of_text = Best::new(1);
            for position in first..ids.len() {
                let best = if self.one_per_text { &mut of_text } else { &mut *best };
                best.offer(firing(position), || self.around(ids, values, position));
            }
            for (firing, around) in of_text.into_sorted() {
                best.offer(firing, || around);
            }
        }
        Ok(())
    }

    /// The tokens around a position with their activations.
    fn around(&self, ids: &[u32], values: ndarray::ArrayView1<'_, f32>, position: usize) -> best::Context {
        let start = position.saturating_sub(self.window);
        let end = ids.len().min(position.saturating_add(self.window).saturating_add(1));
        let places = (start..end).map(|place| (ids[place], values[place]));
        best::Context { start, places: places.collect() }
    }
}

/// The rows of token ids in an input, without padding.
fn rows(model: &HookedTransformer, text: Input) -> Result<Vec<Vec<u32>>> {
    let tokens = model.token_input(text)?;
    let row = |row: usize| {
        let ids = tokens.real(row);
        if ids.is_empty() {
            return Err(InputError::Empty { what: format!("row {row}") }.into());
        }
        model.check_length(ids.len())?;
        Ok(ids)
    };
    (0..tokens.shape()[0]).map(row).collect()
}
