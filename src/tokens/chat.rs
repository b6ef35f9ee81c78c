//! Chat templates: conversations as text.

use minijinja::{Environment, Error, ErrorKind, context};
use serde::Serialize;

use super::tokenizer::Tokenizer;
use crate::error::InputError;

/// One message of a conversation.
///
/// ```
/// use hooklens::Message;
/// let talk = [Message::new("system", "Be brief."), Message::new("user", "Who are you?")];
/// assert_eq!((talk[1].role.as_str(), talk[1].content.as_str()), ("user", "Who are you?"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// The role: `system`, `user` or `assistant`, as the model was trained.
    pub role: String,
    /// The message's text.
    pub content: String,
}

impl Message {
    /// A message of this role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

impl Tokenizer {
    /// The text of a conversation, by the tokenizer's own template; with `answer`, up to where the
    /// model's answer begins.
    ///
    /// # Errors
    /// [`InputError::Chat`] if there is no template or it refuses the messages.
    ///
    /// ```no_run
    /// use hooklens::prelude::*;
    /// use hooklens::Message;
    /// let model = HookedTransformer::from_pretrained("Qwen/Qwen2.5-0.5B-Instruct")?;
    /// let prompt = model.tokenizer()?.chat(&[Message::new("user", "What is the capital of France?")], true)?;
    /// let made = model.generate_with(prompt.as_str(), GenerateOptions::new().max_new_tokens(30))?;
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    pub fn chat(&self, messages: &[Message], answer: bool) -> Result<String, InputError> {
        let failed = |error: Error| InputError::Chat {
            reason: "the template can't be followed".into(),
            source: Some(error.into()),
        };
        let template = self.chat_template().ok_or_else(|| InputError::Chat {
            reason: "the tokenizer comes with no chat template (`chat_template` in tokenizer_config.json)".into(),
            source: None,
        })?;
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        let refuse = |reason: String| -> Result<String, Error> { Err(Error::new(ErrorKind::InvalidOperation, reason)) };
        environment.add_function("raise_exception", refuse);
        let text = |id: Option<u32>| id.and_then(|id| self.token(id)).unwrap_or_default();
        let values = context! {
            messages => messages,
            add_generation_prompt => answer,
            bos_token => text(self.bos()),
            eos_token => text(self.eos()),
        };
        environment.render_str(template, values).map_err(failed)
    }
}
