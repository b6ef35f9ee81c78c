//! Prompts from a file.

use std::path::Path;

use serde_json::Value;

use crate::error::DumpError;

/// One prompt: text, or token ids already.
///
/// ```
/// use hooklens::dump::{Prompt, read_prompts};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("prompts.jsonl");
/// std::fs::write(&path, "{\"text\": \"red fox\"}\n[0, 1, 9]\n")?;
/// assert_eq!(read_prompts(&path)?, [Prompt::Text("red fox".into()), Prompt::Tokens(vec![0, 1, 9])]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Prompt {
    /// Text to tokenize.
    Text(String),
    /// Token ids, fed as they are.
    Tokens(Vec<u32>),
}

/// Reads a prompts file.
///
/// A name ending in `.jsonl` holds a JSON value a line: a string, an object with `text` (or
/// `prompt`) or with `tokens`, or a list of token ids. Any other file holds a prompt a line.
/// Empty lines are passed over.
///
/// ```
/// use hooklens::dump::{Prompt, read_prompts};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("prompts.txt");
/// std::fs::write(&path, "red fox\n\ntea owl\n")?; // a prompt a line
/// assert_eq!(read_prompts(&path)?, ["red fox", "tea owl"].map(|text| Prompt::Text(text.into())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`DumpError::File`], or [`DumpError::Prompt`] naming the line.
pub fn read_prompts(path: impl AsRef<Path>) -> Result<Vec<Prompt>, DumpError> {
    let path = path.as_ref();
    let bytes = std::fs::read(path).map_err(|source| DumpError::File { path: path.to_path_buf(), source })?;
    let told = |line: usize, reason: &str, source: Option<serde_json::Error>| {
        let (path, reason) = (path.to_path_buf(), reason.to_string());
        DumpError::Prompt { path, line, reason, source }
    };
    let bad = |line: usize, reason: &str| told(line, reason, None);
    let json_lines = path.extension().is_some_and(|e| e == "jsonl");
    let mut prompts = Vec::new();
    for (number, line) in bytes.split(|b| *b == b'\n').enumerate() {
        let line = std::str::from_utf8(line).map_err(|_| bad(number + 1, "not UTF-8"))?;
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.trim().is_empty() {
            continue;
        }
        prompts.push(match json_lines {
            false => Prompt::Text(line.to_string()),
            true => {
                let value = serde_json::from_str(line).map_err(|e| told(number + 1, "not JSON", Some(e)))?;
                prompt(&value).ok_or_else(|| bad(number + 1, "neither a text, nor `text`, `prompt` or `tokens`"))?
            }
        });
    }
    Ok(prompts)
}

fn prompt(value: &Value) -> Option<Prompt> {
    let ids = |list: &Vec<Value>| list.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect::<Option<Vec<_>>>();
    match value {
        Value::String(text) => Some(Prompt::Text(text.clone())),
        Value::Array(list) => ids(list).map(Prompt::Tokens),
        Value::Object(fields) => match fields.get("tokens") {
            Some(tokens) => ids(tokens.as_array()?).map(Prompt::Tokens),
            None => fields.get("text").or_else(|| fields.get("prompt"))?.as_str().map(|t| Prompt::Text(t.to_string())),
        },
        _ => None,
    }
}
