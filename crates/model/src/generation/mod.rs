//! Text generation, token by token, with hooks.

mod generate;
mod on_device;
mod options;
mod sampler;
mod sampling;
mod steps;

use burn::tensor::Tensor;
use hooklens_hooks::ActivationCache;

use crate::driver::Input;
use crate::error::Result;
use crate::kv_cache::KeyValueCache;
use crate::model::HookedTransformer;
use crate::tokens::Tokens;

pub use generate::Generate;
pub use options::GenerateOptions;
pub(crate) use sampler::Sampler;
pub use sampling::Sampling;
pub use steps::{Step, Steps};

/// Why a row stopped generating.
///
/// ```
/// use hooklens::generation::Stop;
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let star = model.to_single_token("star")?;
/// let ended = |options| {
///     let made = model.generate_with("king drum sun star king drum", options)?;
///     Ok::<_, hooklens::Error>(made.rows[0].stop.clone())
/// };
/// assert_eq!(ended(GenerateOptions::new().max_new_tokens(1))?, Stop::Length);
/// assert_eq!(ended(GenerateOptions::new().stop_tokens([star]))?, Stop::Token(star));
/// assert_eq!(ended(GenerateOptions::new().stop_strings(["sun"]))?, Stop::Text("sun".into()));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// Reached the maximum number of new tokens.
    Length,
    /// Generated this stop token.
    Token(u32),
    /// Generated this stop string.
    Text(String),
}

/// Generated tokens and text of one row.
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let prompts = ["king drum sun king", "fox tea owl fox"];
/// let made = model.generate_with(prompts, GenerateOptions::new().max_new_tokens(2))?;
/// let row = &made.rows[1];
/// assert_eq!(model.to_string(&row.prompt)?, "<bos> fox tea owl fox");
/// assert_eq!((row.text.as_deref(), row.new.len()), (Some("tea owl"), 2));
/// assert!(row.log_probs.iter().all(|log_prob| *log_prob < 0.0));
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct GeneratedRow {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Newly generated tokens.
    pub new: Vec<u32>,
    /// Text of the new tokens; `None` without a tokenizer. Ids that the model has but the tokenizer lacks are skipped.
    pub text: Option<String>,
    /// Log-probability (natural logarithm) of each new token under the model's unmodified distribution.
    pub log_probs: Vec<f32>,
    /// Why generation stopped.
    pub stop: Stop,
}

/// Result of a generation.
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let options = GenerateOptions::new().max_new_tokens(3).record("*hook_pattern").logits();
/// let made = model.generate_with("king drum sun king", options)?;
/// assert_eq!(made.logits.as_ref().map(|logits| logits.dims()), Some([1, 3, 63]));
/// assert_eq!((made.steps.len(), made.columns.shape()), (3, [1, 7])); // the last token was not run
///
/// // Continue from the end.
/// let mut cache = made.kv_cache.ok_or("no cache")?;
/// let last = made.rows[0].new[2];
/// let more = model.generate_with([last], GenerateOptions::new().max_new_tokens(2).kv_cache(&mut cache))?;
/// assert_eq!((more.rows[0].new.len(), cache.len()), (2, 7 + 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Generation {
    /// Results of all rows, in input order.
    pub rows: Vec<GeneratedRow>,
    /// Tokens of all columns that were run, with padding masked; these are the tokens of [`Generation::recording`].
    /// Each row's last new token was chosen but not run.
    pub columns: Tokens,
    /// Recorded activations of each step: first the prompts, then one column per step.
    pub steps: Vec<ActivationCache>,
    /// Logits from which each new token was chosen, `[batch, new, d_vocab_out]`, if requested.
    pub logits: Option<Tensor<3>>,
    /// Keys and values of all columns that were run, including the columns of a frozen cache; like Hugging Face's
    /// `past_key_values`. `None` for an encoder-decoder, or if the caller's cache was filled instead.
    pub kv_cache: Option<KeyValueCache>,
}

impl Generation {
    /// Concatenates the recordings of all steps, as if all columns had been run at once.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let options = GenerateOptions::new().max_new_tokens(3).record("*hook_pattern");
    /// let made = model.generate_with("king drum sun king", options)?;
    /// let whole = model.record(&made.columns, "*hook_pattern")?.get(hook::pattern(1))?;
    /// let gap = made.recording()?.get(hook::pattern(1))? - whole;
    /// assert!(gap.abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`ActivationCache::stitched`].
    pub fn recording(&self) -> Result<ActivationCache> {
        let mut steps = self.steps.iter();
        let Some(first) = steps.next() else {
            return Err(crate::error::InputError::NoOutput { what: "recording" }.into());
        };
        Ok(steps.try_fold(first.clone(), |so_far, step| so_far.stitched(step))?)
    }
}

impl HookedTransformer {
    /// Like [`Generate::generate_with`], but returns an iterator that yields each row's next token as it is chosen.
    ///
    /// # Errors
    /// Fails before anything runs if the input is invalid, if there would be more positions than the model's position
    /// table has, or if a setting is out of range.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// for step in model.generate_steps("king drum sun star king drum", GenerateOptions::new())? {
    ///     let token = step?.tokens[0].expect("the one row goes on");
    ///     println!("{}", model.to_string(&[token])?);
    /// }
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn generate_steps<'m, 'h>(
        &'m self,
        input: impl Into<Input>,
        options: GenerateOptions<'h>,
    ) -> Result<Steps<'m, 'h>> {
        Steps::new(self, input.into(), options)
    }
}
