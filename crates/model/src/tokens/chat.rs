//! Chat templates, which format conversations as text.

use std::fmt::Write;
use std::io;

use minijinja::value::{Kwargs, Rest};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use serde::Serialize;

use super::python_values::{self, JsonStyle};
use super::templates::DEFAULT;
use super::tokenizer::Tokenizer;
use crate::error::InputError;

/// One message of a conversation.
///
/// ```
/// use hooklens::Message;
/// let talk = [Message::new("system", "Be brief."), Message::new("user", "Who are you?")];
/// assert_ne!(talk[0], talk[1]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Role, usually `system`, `user` or `assistant`; the model's training determines which are valid.
    role: String,
    /// Text of the message.
    content: String,
}

impl Message {
    /// Creates a message with the given role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

impl Tokenizer {
    /// Formats a conversation with the tokenizer's chat template, like Hugging Face's `apply_chat_template`. Uses the
    /// template called `default` if there are several. With `answer`, the text ends where the model's answer begins.
    ///
    /// # Errors
    /// [`InputError::Chat`] if there is no template or the template rejects the messages.
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
        self.chat_by(DEFAULT, messages, answer)
    }

    /// Like [`chat`](Tokenizer::chat), with the template of this name, such as `tool_use` or `rag`;
    /// [`chat_templates`](Tokenizer::chat_templates) returns the names of all templates.
    ///
    /// ```
    /// # use hooklens::prelude::*;
    /// use hooklens::Message;
    /// # let model = HookedTransformer::from_pretrained("embedded:induction")?;
    /// let refused = model.tokenizer()?.chat_by("rag", &[Message::new("user", "Hi")], true).unwrap_err();
    /// assert!(refused.to_string().contains("no chat template"));
    /// # Ok::<(), hooklens::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InputError::Chat`] if there is no such template or the template rejects the messages.
    pub fn chat_by(&self, template: &str, messages: &[Message], answer: bool) -> Result<String, InputError> {
        let refused =
            |reason: String, source: Option<Error>| InputError::Chat { reason, source: source.map(Into::into) };
        let Some((_, text)) = self.chat_templates().find(|(name, _)| *name == template) else {
            let names: Vec<&str> = self.chat_templates().map(|(name, _)| name).collect();
            let reason = match names.is_empty() {
                true => "the tokenizer has no chat template (`chat_template.jinja`, or `chat_template` in \
                    tokenizer_config.json)"
                    .to_string(),
                false => format!("there is no chat template `{template}`; the tokenizer has {}", names.join(", ")),
            };
            return Err(refused(reason, None));
        };
        let given = [
            ("messages".to_string(), Value::from_serialize(messages)),
            // Hugging Face passes `None` if there are no tools or documents, rather than leaving them undefined.
            ("tools".to_string(), Value::from(())),
            ("documents".to_string(), Value::from(())),
            ("add_generation_prompt".to_string(), Value::from(answer)),
        ];
        let special = self.special_texts.iter().map(|(name, text)| (name.clone(), Value::from_serialize(text)));
        let values: Value = special.chain(given).collect();
        let failed = |error: Error| refused("the template can't be rendered".into(), Some(error));
        // Jinja normalizes line endings to `\n`.
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let (environment, text) = (environment(), with_scopes(&text));
        let mut written = Bounded::default();
        let rendered = environment
            .template_from_str(&text)
            .and_then(|template| template.render_captured_to(values, &mut written).map(|_| ()));
        match rendered {
            Err(_) if written.full => {
                Err(refused(format!("the template's output is longer than {LONGEST_TEXT} bytes"), None))
            }
            Err(error) if error.kind() == ErrorKind::OutOfFuel => {
                Err(refused(format!("rendering the template takes more than {MOST_STEPS} steps"), None))
            }
            Err(error) => Err(failed(error)),
            Ok(()) => String::from_utf8(written.text)
                .map_err(|_| refused("the template's output is not valid UTF-8".into(), None)),
        }
    }
}

/// Maximum number of instructions a template may execute. Templates are untrusted and could loop for hours.
const MOST_STEPS: u64 = 10_000_000;

/// Maximum length of a conversation's text, in bytes.
const LONGEST_TEXT: usize = 1 << 26;

/// Maximum width accepted by the filters `indent`, `batch`, `slice` and `format`.
const WIDEST: usize = 1_000;

/// Output buffer with a maximum length.
#[derive(Default)]
struct Bounded {
    text: Vec<u8>,
    full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.full |= self.text.len() + bytes.len() > LONGEST_TEXT;
        if self.full {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Jinja environment configured as in Hugging Face.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, _, value| Ok(out.write_str(&python_values::text(value)?)?));
    let refuse = |reason: String| -> Result<String, Error> { Err(Error::new(ErrorKind::InvalidOperation, reason)) };
    environment.add_function("raise_exception", refuse);
    environment.add_function("strftime_now", now);
    environment.add_filter("string", |value: Value| python_values::text(&value));
    environment.add_filter("tojson", tojson);
    environment.add_filter("indent", indent);
    environment.add_filter(UNBOUNDED_INDENT, minijinja::filters::indent);
    environment.add_filter("batch", batch);
    environment.add_filter("slice", slice);
    environment.add_filter("format", format);
    environment.set_fuel(Some(MOST_STEPS));
    environment
}

/// Hugging Face's `tojson` filter, whose result is not HTML-escaped.
fn tojson(value: Value, ensure_ascii: Option<bool>, indent: Option<Value>, named: Kwargs) -> Result<String, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => named.get::<Option<Value>>("indent")?,
    };
    let separators = named.get::<Option<Vec<String>>>("separators")?;
    let style = JsonStyle {
        ascii: ensure_ascii.or(named.get("ensure_ascii")?).unwrap_or(false),
        indent: indent.filter(|indent| !indent.is_none()),
        separators,
        sorted: named.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    named.assert_all_used()?;
    style.json(&value)
}

/// Fails if a filter would reserve memory for more than [`WIDEST`] items or characters.
fn check_width(filter: &str, width: usize) -> Result<(), Error> {
    if width <= WIDEST {
        return Ok(());
    }
    let reason = format!("the filter `{filter}` was given {width}, but the maximum is {WIDEST}");
    Err(Error::new(ErrorKind::InvalidOperation, reason))
}

/// Jinja's `batch` filter with a maximum count.
fn batch(state: &State<'_, '_>, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    check_width("batch", count)?;
    minijinja::filters::batch(state, value, count, fill)
}

/// Jinja's `slice` filter with a maximum count.
fn slice(state: &State<'_, '_>, value: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    check_width("slice", count)?;
    minijinja::filters::slice(state, value, count, fill)
}

/// Jinja's `format` filter with a maximum width.
fn format(state: &State<'_, '_>, text: &Value, arguments: Rest<Value>) -> Result<Value, Error> {
    let numbers = text.as_str().unwrap_or_default().split(|char: char| !char.is_ascii_digit());
    let widest = numbers.filter(|digits| !digits.is_empty()).map(|digits| digits.parse().unwrap_or(usize::MAX)).max();
    check_width("format", widest.unwrap_or(0))?;
    minijinja::filters::format(state, text, arguments)
}

/// Name of minijinja's own `indent` filter, which accepts any width.
const UNBOUNDED_INDENT: &str = "indent of any width";

/// Jinja's `indent` filter with a maximum width.
fn indent(state: &State<'_, '_>, arguments: Rest<Value>) -> Result<Value, Error> {
    for argument in arguments.iter().skip(1) {
        let width = if argument.is_kwargs() { argument.get_attr("width")? } else { argument.clone() };
        check_width("indent", width.as_usize().unwrap_or(0))?;
    }
    state.apply_filter(UNBOUNDED_INDENT, &arguments)
}

/// Local time, formatted as by Python's `strftime`.
fn now(format: &str) -> Result<String, Error> {
    let mut text = String::new();
    let wrong = |_| Error::new(ErrorKind::InvalidOperation, format!("`{format}` is not a valid time format"));
    write!(text, "{}", chrono::Local::now().format(format)).map_err(wrong)?;
    Ok(text)
}

/// Replaces `{% generation %}` blocks, which matter only for training, with scopes, so that variables set inside stay
/// local. Text inside `{% raw %}` blocks is left unchanged.
fn with_scopes(template: &str) -> String {
    let mut written = String::with_capacity(template.len());
    let (mut rest, mut is_raw) = (template, false);
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        written.push_str(before);
        let len = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, behind) = tag.split_at(len);
        let word = tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim();
        match word {
            "endraw" => is_raw = false,
            _ if is_raw => {}
            "raw" => is_raw = true,
            _ => {}
        }
        match word {
            _ if is_raw => written.push_str(tag),
            "generation" => written.push_str(&tag.replacen(word, "with", 1)),
            "endgeneration" => written.push_str(&tag.replacen(word, "endwith", 1)),
            _ => written.push_str(tag),
        }
        rest = behind;
    }
    written + rest
}
