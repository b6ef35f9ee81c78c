//! Parses the prompt in a line of JSON. Everything else is skipped during parsing, so that a line takes no more memory
//! than its prompt.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Prompt;

/// Maximum number of field names that an error lists.
const LISTED: usize = 8;
/// Fields read by default.
const USUAL: [&str; 3] = ["tokens", "text", "prompt"];

/// Parses the prompt of a JSON line. The inner error says why valid JSON contains no prompt.
pub(super) fn prompt(line: &str, field: Option<&str>) -> serde_json::Result<Result<Prompt, String>> {
    let mut reader = serde_json::Deserializer::from_str(line);
    let found = Reader { path: field, outermost: true }.deserialize(&mut reader)?;
    reader.end()?;
    Ok(match field {
        Some(field) => named(found, field),
        None => usual(found)
            .ok_or_else(|| "expected a string, token ids, or an object with `text`, `prompt` or `tokens`".into()),
    })
}

/// Prompt in the named field.
fn named(found: Found, field: &str) -> Result<Prompt, String> {
    let Found::Object { names, fields } = found else { return Err(format!("expected an object with `{field}`")) };
    let (exact, path): (Vec<_>, Vec<_>) = fields.into_iter().partition(|(name, _)| name == field);
    let within = |(_, outer): (String, Found)| {
        let mut path = field.split('.').skip(1);
        path.try_fold(outer, |outer, name| match outer {
            Found::Object { fields, .. } => fields.into_iter().rfind(|(own, _)| own == name).map(|(_, own)| own),
            _ => None,
        })
    };
    let value = match exact.into_iter().next_back() {
        Some((_, value)) => Some(value),
        None => path.into_iter().next_back().and_then(within),
    };
    match value {
        None => Err(format!("no field `{field}`; the fields are {}", names.join(", "))),
        Some(Found::Text(text)) => Ok(Prompt::Text(text)),
        Some(Found::Tokens(ids)) => Ok(Prompt::Tokens(ids)),
        Some(Found::List) => Err(format!("`{field}` is a list, but not of token ids")),
        Some(_) => Err(format!("`{field}` is neither a string nor a list of token ids")),
    }
}

/// Prompt in a value, or in one of its default fields.
fn usual(found: Found) -> Option<Prompt> {
    let fields = match found {
        Found::Text(text) => return Some(Prompt::Text(text)),
        Found::Tokens(ids) => return Some(Prompt::Tokens(ids)),
        Found::Object { fields, .. } => fields,
        _ => return None,
    };
    let [mut tokens, mut text, mut prompt] = [None, None, None];
    for (name, value) in fields {
        match &*name {
            "tokens" => tokens = Some(value),
            "text" => text = Some(value),
            _ => prompt = Some(value),
        }
    }
    match (tokens, text.or(prompt)) {
        (Some(Found::Tokens(ids)), _) => Some(Prompt::Tokens(ids)),
        (None, Some(Found::Text(text))) => Some(Prompt::Text(text)),
        _ => None,
    }
}

/// A parsed value, reduced to what may be or contain a prompt.
enum Found {
    Text(String),
    Tokens(Vec<u32>),
    /// A list that does not consist of token ids.
    List,
    Id(u32),
    Object {
        /// The first few field names, for an error message.
        names: Vec<String>,
        /// The fields that are searched for.
        fields: Vec<(String, Found)>,
    },
    Other,
}

/// Deserializes a value.
#[derive(Clone, Copy)]
struct Reader<'p> {
    /// Dotted path of the field to find in the value.
    path: Option<&'p str>,
    outermost: bool,
}

impl<'p> Reader<'p> {
    /// Reader for the field `name`; `None` if the field is not needed.
    fn field(self, name: &str) -> Option<Reader<'p>> {
        let whole = Reader { path: None, outermost: false };
        let Some(path) = self.path else { return (self.outermost && USUAL.contains(&name)).then_some(whole) };
        // A field name may contain dots itself.
        if self.outermost && name == path {
            return Some(whole);
        }
        match path.split_once('.') {
            Some((first, rest)) => (name == first).then_some(Reader { path: Some(rest), outermost: false }),
            None => (name == path).then_some(whole),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Found, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Found, E> {
        Ok(Found::Other)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Found, E> {
        Ok(Found::Other)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Found, E> {
        Ok(Found::Other)
    }

    fn visit_unit<E: Error>(self) -> Result<Found, E> {
        Ok(Found::Other)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Found, E> {
        Ok(u32::try_from(number).map_or(Found::Other, Found::Id))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Found, E> {
        Ok(Found::Text(text.to_string()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Found, A::Error> {
        let mut ids = Vec::new();
        while let Some(value) = list.next_element_seed(Reader { path: None, outermost: false })? {
            let Found::Id(id) = value else {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(Found::List);
            };
            ids.push(id);
        }
        Ok(Found::Tokens(ids))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
        let (mut names, mut fields) = (Vec::<String>::new(), Vec::<(String, Found)>::new());
        while let Some(name) = map.next_key::<String>()? {
            if names.len() < LISTED && !names.contains(&name) {
                names.push(name.clone());
            }
            match self.field(&name) {
                None => drop(map.next_value::<IgnoredAny>()?),
                Some(reader) => {
                    // The last of several fields with the same name wins.
                    fields.retain(|(own, _)| *own != name);
                    fields.push((name, map.next_value_seed(reader)?));
                }
            }
        }
        Ok(Found::Object { names, fields })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, field: Option<&str>) -> Result<Prompt, String> {
        prompt(line, field).unwrap()
    }

    #[test]
    fn prompts_are_found() {
        let text = |text: &str| Ok(Prompt::Text(text.into()));
        assert_eq!(read("\"a\"", None), text("a"));
        assert_eq!(read("[1, 2]", None), Ok(Prompt::Tokens(vec![1, 2])));
        assert_eq!(read(r#"{"id": [[1], {"text": 2}], "prompt": "b", "text": "a"}"#, None), text("a"));
        assert_eq!(read(r#"{"prompt": "b"}"#, None), text("b"));
        assert_eq!(read(r#"{"text": "a", "text": "b"}"#, None), text("b"));
        assert_eq!(read(r#"{"text": "a", "tokens": []}"#, None), Ok(Prompt::Tokens(vec![])));
        assert_eq!(read(r#"{"meta": {"title": {"de": "a"}}}"#, Some("meta.title.de")), text("a"));
        assert_eq!(read(r#"{"meta": {"title": "a"}, "meta.title": "b"}"#, Some("meta.title")), text("b"));
    }

    #[test]
    fn other_values_are_refused() {
        for line in
            ["1", "null", "-1.5", "true", "[1, -2]", "[[1]]", "{}", r#"{"tokens": "a"}"#, r#"{"text": {"text": "a"}}"#]
        {
            let message = read(line, None).unwrap_err();
            assert_eq!(
                message, "expected a string, token ids, or an object with `text`, `prompt` or `tokens`",
                "{line}"
            );
        }
        let refused = |line: &str| read(line, Some("a.b")).unwrap_err();
        assert_eq!(refused("[1]"), "expected an object with `a.b`");
        assert_eq!(refused(r#"{"c": 1, "a": 2}"#), "no field `a.b`; the fields are c, a");
        assert_eq!(refused(r#"{"a": {"b": [1, "x"]}}"#), "`a.b` is a list, but not of token ids");
        assert_eq!(refused(r#"{"a.b": {}}"#), "`a.b` is neither a string nor a list of token ids");
        assert!(prompt("[1", None).is_err() && prompt("1 2", None).is_err() && prompt("{\"a\": 01}", None).is_err());
    }
}
