//! End- and beginning-of-sequence tokens from a model's files.

use serde_json::Value;

use hooklens_io::excerpt::excerpt;
use hooklens_model::error::ConfigError;

const FIELD: &str = "eos_token_id";
/// Names in `config.json` of the submodels that generate text.
const PARTS: [&str; 3] = ["text_config", "decoder", "generator"];

/// Token ids of `eos_token_id`, which is one id or a list. As in transformers 4.57, `generation_config.json` takes
/// precedence even if it lacks the field; without that file, the field is looked up at the top level of `config.json`,
/// then in its section for the text model.
///
/// # Errors
/// Fails if the value is neither an id nor a list of ids.
pub(super) fn ends(generation: Option<&Value>, config: &Value) -> Result<Vec<u32>, ConfigError> {
    if let Some(generation) = generation {
        return named(generation, FIELD);
    }
    for json in descriptions(None, config) {
        let ids = named(json, FIELD)?;
        if !ids.is_empty() {
            return Ok(ids);
        }
    }
    Ok(Vec::new())
}

/// What to report if `generation_config.json` has no end-of-sequence tokens, but `config.json` does.
pub(super) fn without_ends(generation: Option<&Value>, config: &Value) -> Option<String> {
    let none = generation.is_some_and(|generation| named(generation, FIELD).is_ok_and(|ids| ids.is_empty()));
    let ids = ends(None, config).ok().filter(|ids| none && !ids.is_empty())?;
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    Some(format!(
        "`{FIELD}` {} in config.json, because generation_config.json takes precedence (as in transformers) but lacks \
         it: generation stops only at the tokenizer's end-of-sequence token; add `{FIELD}` to generation_config.json",
        ids.join(", ")
    ))
}

/// Token id of `bos_token_id`: in `generation_config.json`, else where [`ends`] looks.
pub(super) fn beginning(generation: Option<&Value>, config: &Value) -> Option<u32> {
    // Some files contain several ids, or -1 for none; such values are skipped.
    let id = |json: &Value| match named(json, "bos_token_id").ok()?[..] {
        [id] => Some(id),
        _ => None,
    };
    descriptions(generation, config).find_map(id)
}

/// JSON objects that may name special tokens, in order of precedence.
fn descriptions<'j>(generation: Option<&'j Value>, config: &'j Value) -> impl Iterator<Item = &'j Value> {
    let parts = config.get("thinker_config").into_iter().chain([config]);
    let within = parts.flat_map(|part| PARTS.iter().filter_map(|name| part.get(name)));
    generation.into_iter().chain([config]).chain(within)
}

fn named(json: &Value, field: &str) -> Result<Vec<u32>, ConfigError> {
    let id = |value: &Value| match value.as_i64() {
        // Some files use -1 for none.
        Some(id) if id < 0 => Ok(None),
        Some(id) => Ok(u32::try_from(id).ok()),
        None => {
            let reason = format!("`{field}` is {}, not a token id or a list of token ids", excerpt(value));
            Err(ConfigError::Malformed { reason })
        }
    };
    let ids = match json.get(field) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(ids)) => ids.iter().map(id).collect::<Result<_, _>>()?,
        Some(one) => vec![id(one)?],
    };
    Ok(ids.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn generation_settings_decide_if_there_are_any() {
        let config = json!({"eos_token_id": 7, "text_config": {"eos_token_id": [8]}});
        let given = |generation: Value| ends(Some(&generation), &config).unwrap();
        assert_eq!(given(json!({"eos_token_id": [2, 267]})), [2, 267]);
        assert_eq!(given(json!({"eos_token_id": 0})), [0]);
        for none in [json!({"eos_token_id": null}), json!({})] {
            assert!(given(none.clone()).is_empty());
            assert!(without_ends(Some(&none), &config).unwrap().starts_with("`eos_token_id` 7 in config.json"));
        }
        assert_eq!(without_ends(Some(&json!({"eos_token_id": 2})), &config), None);
        assert_eq!(without_ends(None, &config), None);
        assert_eq!(ends(None, &config).unwrap(), [7]);
        assert_eq!(ends(None, &json!({"text_config": {"eos_token_id": [8, 9]}})).unwrap(), [8, 9]);
        let omni = json!({"thinker_config": {"text_config": {"eos_token_id": 5}}});
        assert_eq!(ends(None, &omni).unwrap(), [5]);
        assert!(ends(None, &json!({})).unwrap().is_empty());
        assert!(ends(None, &json!({"eos_token_id": -1})).unwrap().is_empty());
        let message = ends(None, &json!({"eos_token_id": [2, "x"]})).unwrap_err().to_string();
        assert!(message.contains("`eos_token_id` is \"x\", not a token id"), "{message}");
    }
}
