//! Finds a tokenizer's chat templates.

use std::path::Path;

use serde_json::Value;

use crate::error::{LoadError, load_errors};
use hooklens_io::regular;

/// Name of the template used by default.
pub(super) const DEFAULT: &str = "default";

/// Templates stored in separate files, by name: `chat_template.jinja` and the files in `additional_chat_templates`.
pub(super) fn of_folder(folder: &Path) -> Result<Vec<(String, String)>, LoadError> {
    let read = |path: &Path| -> Result<String, LoadError> {
        let bytes = regular::read(path).map_err(load_errors::cant_read(path))?;
        // Python normalizes all line endings.
        let invalid = |error| std::io::Error::new(std::io::ErrorKind::InvalidData, error);
        let text = String::from_utf8(bytes).map_err(invalid).map_err(load_errors::cant_read(path))?;
        Ok(text.replace("\r\n", "\n").replace('\r', "\n"))
    };
    let mut templates = Vec::new();
    let own = folder.join("chat_template.jinja");
    if own.is_file() {
        templates.push((DEFAULT.to_string(), read(&own)?));
    }
    let more = folder.join("additional_chat_templates");
    if more.is_dir() {
        let entries = std::fs::read_dir(&more).map_err(load_errors::cant_read(&more))?;
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>();
        let mut paths = paths.map_err(load_errors::cant_read(&more))?;
        paths.sort();
        for path in paths {
            let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".jinja"));
            if let Some(name) = name.filter(|_| path.is_file()) {
                templates.push((name.to_string(), read(&path)?));
            }
        }
    }
    Ok(templates)
}

/// Templates in a `tokenizer_config.json`: a single string, or several with names.
pub(super) fn of_json(json: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().map(String::from);
    match json.get("chat_template") {
        Some(Value::String(template)) => vec![(DEFAULT.into(), template.clone())],
        Some(Value::Array(named)) => {
            named.iter().filter_map(|one| Some((text(one.get("name")?)?, text(one.get("template")?)?))).collect()
        }
        Some(Value::Object(named)) => {
            named.iter().filter_map(|(name, template)| Some((name.clone(), text(template)?))).collect()
        }
        _ => Vec::new(),
    }
}
