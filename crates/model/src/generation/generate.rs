//! [`Generate`]: the trait of models that generate text.

use hooklens_hooks::Hook;

use super::{GenerateOptions, Generation};
use crate::driver::{Hooked, Input, private, unhooked};
use crate::error::Result;
use crate::model::HookedTransformer;

/// Text generation with a decoder, an encoder-decoder, or a decoder with persistent hooks. Persistent hooks run at
/// every step, before the hooks in the options. This trait is in the prelude.
///
/// ```
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let ablated = model.hooks([hook::z(1).zero()]);
/// let made = ablated.generate_with("king drum sun star king drum", GenerateOptions::new().max_new_tokens(2))?;
/// assert_ne!(made.rows[0].text.as_deref(), Some("sun star")); // the induction heads are ablated
/// # Ok::<(), hooklens::Error>(())
/// ```
pub trait Generate: private::Sealed {
    /// Continues one or more prompts with the given options.
    ///
    /// An encoder-decoder generates text for each input, starting with its start token and
    /// [`GenerateOptions::first_token`]. Its encoder runs once; hooks and recordings apply to the decoder's points.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let made = model.generate_with("king drum sun star king drum", GenerateOptions::new().max_new_tokens(2))?;
    /// assert_eq!(made.rows[0].text.as_deref(), Some("sun star"));
    ///
    /// let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5")?;
    /// let inputs = vec![vec![5, 6, 7, 1], vec![8, 9, 4, 1]];
    /// let made = model.generate_with(inputs, GenerateOptions::new().max_new_tokens(3))?;
    /// assert_eq!(made.rows.iter().map(|row| row.new.len()).collect::<Vec<_>>(), [3, 3]);
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails before anything runs if the input is invalid, if there would be more positions than the model's position
    /// table has, or if a setting is out of range or not supported by this kind of model (an encoder-decoder takes no
    /// cache and no cache kind). Also returns any error from a hook.
    fn generate_with(&self, input: impl Into<Input>, options: GenerateOptions<'_>) -> Result<Generation>;

    /// Continues one or more prompts with the default options: greedy decoding of up to 20 tokens.
    ///
    /// ```
    /// use hooklens::prelude::*;
    /// let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let made = model.generate("king drum sun star king drum")?;
    /// assert!(made.rows[0].text.as_deref().is_some_and(|text| text.starts_with("sun star")));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Generate::generate_with`].
    fn generate(&self, input: impl Into<Input>) -> Result<Generation> {
        self.generate_with(input, GenerateOptions::new())
    }
}

impl Generate for HookedTransformer {
    fn generate_with(&self, input: impl Into<Input>, options: GenerateOptions<'_>) -> Result<Generation> {
        self.generate_steps(input, options)?.collect_all()
    }
}

impl Generate for Hooked<'_, '_, HookedTransformer> {
    fn generate_with(&self, input: impl Into<Input>, options: GenerateOptions<'_>) -> Result<Generation> {
        self.with_hooks(|own| {
            let hooks = own.iter_mut().map(Hook::reborrow).chain(options.hooks).collect();
            unhooked(self).generate_with(input, GenerateOptions { hooks, ..options })
        })
    }
}
