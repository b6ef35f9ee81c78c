//! Formats template values as Python does.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Options of Python's `json.dumps`.
#[derive(Debug, Default)]
pub(super) struct JsonStyle {
    pub(super) ascii: bool,
    /// Number of spaces, or text, per indentation level; `None` for a single line.
    pub(super) indent: Option<Value>,
    /// Item and key separators.
    pub(super) separators: Option<Vec<String>>,
    pub(super) sorted: bool,
}

impl JsonStyle {
    /// Formats a value as `json.dumps` does.
    pub(super) fn json(&self, value: &Value) -> Result<String, Error> {
        let invalid = |reason: String| Error::new(ErrorKind::InvalidOperation, reason);
        let indent = match &self.indent {
            None => None,
            Some(indent) => Some(match (indent.as_str(), i64::try_from(indent.clone())) {
                (Some(text), _) => text.to_string(),
                (None, Ok(spaces)) if spaces <= 64 => " ".repeat(usize::try_from(spaces).unwrap_or(0)),
                _ => return Err(invalid(format!("`tojson` does not support an indent of {indent}"))),
            }),
        };
        let between = match &self.separators {
            None => [if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()],
            Some(given) => match &given[..] {
                [item, key] => [item.clone(), key.clone()],
                other => return Err(invalid(format!("`tojson` got {} separators; expected two", other.len()))),
            },
        };
        let mut written = String::new();
        let writer = Writer { style: self, indent, between };
        writer.write(value, 0, &mut written)?;
        Ok(written)
    }
}

struct Writer<'s> {
    style: &'s JsonStyle,
    indent: Option<String>,
    between: [String; 2],
}

/// Maximum nesting depth of a value. A namespace of a template can contain itself.
const DEEPEST: usize = 100;

fn check_depth(depth: usize) -> Result<(), Error> {
    if depth > DEEPEST {
        let reason = format!("a value is nested more than {DEEPEST} levels deep");
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    Ok(())
}

impl Writer<'_> {
    fn write(&self, value: &Value, depth: usize, written: &mut String) -> Result<(), Error> {
        check_depth(depth)?;
        match value.kind() {
            ValueKind::None => written.push_str("null"),
            ValueKind::Bool => written.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => written.push_str(&number(value)),
            ValueKind::String => quoted(value.as_str().unwrap_or_default(), self.style.ascii, written),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.map(|item| (None, item)).collect();
                self.write_all(['[', ']'], items, depth, written)?;
            }
            ValueKind::Map => {
                let mut items = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    let key = match key.kind() {
                        ValueKind::String => key.to_string(),
                        ValueKind::None | ValueKind::Bool | ValueKind::Number => self.style.json(&key)?,
                        kind => return Err(unwritable(kind)),
                    };
                    items.push((Some(key), item));
                }
                if self.style.sorted {
                    items.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.write_all(['{', '}'], items, depth, written)?;
            }
            kind => return Err(unwritable(kind)),
        }
        Ok(())
    }

    fn write_all(
        &self,
        [open, close]: [char; 2],
        items: Vec<(Option<String>, Value)>,
        depth: usize,
        written: &mut String,
    ) -> Result<(), Error> {
        let line = |depth: usize, written: &mut String| {
            if let Some(indent) = &self.indent {
                written.push('\n');
                written.push_str(&indent.repeat(depth));
            }
        };
        written.push(open);
        let empty = items.is_empty();
        for (at, (key, item)) in items.into_iter().enumerate() {
            if at > 0 {
                written.push_str(&self.between[0]);
            }
            line(depth + 1, written);
            if let Some(key) = key {
                quoted(&key, self.style.ascii, written);
                written.push_str(&self.between[1]);
            }
            self.write(&item, depth + 1, written)?;
        }
        if !empty {
            line(depth, written);
        }
        written.push(close);
        Ok(())
    }
}

fn unwritable(kind: ValueKind) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("`tojson` does not support a value of kind {kind}"))
}

/// Appends a quoted string, escaped as by `json.dumps`.
fn quoted(text: &str, ascii: bool, written: &mut String) {
    written.push('"');
    for letter in text.chars() {
        match letter {
            '"' => written.push_str("\\\""),
            '\\' => written.push_str("\\\\"),
            '\n' => written.push_str("\\n"),
            '\r' => written.push_str("\\r"),
            '\t' => written.push_str("\\t"),
            '\u{8}' => written.push_str("\\b"),
            '\u{c}' => written.push_str("\\f"),
            letter if letter < ' ' || (ascii && !(' '..='~').contains(&letter)) => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    written.push_str(&format!("\\u{unit:04x}"));
                }
            }
            letter => written.push(letter),
        }
    }
    written.push('"');
}

/// Formats a value as Python's `str` does.
///
/// # Errors
/// For values that are nested too deep.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.to_string()),
        _ => repr(value, 0),
    }
}

/// Formats a value as Python's `repr` does.
fn repr(value: &Value, depth: usize) -> Result<String, Error> {
    check_depth(depth)?;
    let items = || value.try_iter().into_iter().flatten();
    Ok(match value.kind() {
        ValueKind::None => "None".into(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.into(),
        ValueKind::Number => match f64::try_from(value.clone()) {
            Ok(float) if !float.is_finite() => float.to_string().to_lowercase(),
            _ => number(value),
        },
        ValueKind::String => repr_of_text(value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            let items = items().map(|item| repr(&item, depth + 1)).collect::<Result<Vec<_>, _>>()?;
            format!("[{}]", items.join(", "))
        }
        ValueKind::Map => {
            let item = |key: Value| {
                let item = value.get_item(&key).unwrap_or_default();
                Ok::<_, Error>(format!("{}: {}", repr(&key, depth + 1)?, repr(&item, depth + 1)?))
            };
            format!("{{{}}}", items().map(item).collect::<Result<Vec<_>, _>>()?.join(", "))
        }
        _ => value.to_string(),
    })
}

fn repr_of_text(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut written = String::from(quote);
    for letter in text.chars() {
        match letter {
            '\\' => written.push_str("\\\\"),
            '\n' => written.push_str("\\n"),
            '\r' => written.push_str("\\r"),
            '\t' => written.push_str("\\t"),
            letter if letter == quote => written.extend(['\\', letter]),
            letter if letter.is_control() => written.push_str(&format!("\\x{:02x}", u32::from(letter))),
            letter => written.push(letter),
        }
    }
    written.push(quote);
    written
}

/// Formats a number as Python does: the fewest digits that round-trip, with an exponent outside 1e-4 to 1e16.
fn number(value: &Value) -> String {
    let Ok(float) = f64::try_from(value.clone()) else { return value.to_string() };
    if value.is_integer() {
        return value.to_string();
    }
    if float.is_nan() {
        return "NaN".into();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if float != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{float}");
    if plain.contains('.') { plain } else { plain + ".0" }
}
