//! End- and beginning-of-sequence tokens from a model's files.

use serde_json::Value;

use hooklens_model::error::ConfigError;

const FIELD: &str = "eos_token_id";
/// Names in `config.json` of the submodels that generate text.
const PARTS: [&str; 3] = ["text_config", "decoder", "generator"];

/// Token ids of `eos_token_id`, which is one id or a list. As in Hugging Face, the field is looked up in
/// `generation_config.json`, then at the top level of `config.json`, then in its section for the text model.
///
/// # Errors
/// Fails if the value is neither an id nor a list of ids.
pub(super) fn ends(generation: Option<&Value>, config: &Value) -> Result<Vec<u32>, ConfigError> {
    for json in descriptions(generation, config) {
        let ids = named(json, FIELD)?;
        if !ids.is_empty() {
            return Ok(ids);
        }
    }
    Ok(Vec::new())
}

/// Token id of `bos_token_id`, looked up in the order of [`ends`].
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
            let reason = format!("`{field}` is {value}, not a token id or a list of token ids");
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
    fn the_first_file_that_names_any_decides() {
        let config = json!({"eos_token_id": 7, "text_config": {"eos_token_id": [8]}});
        let given = |generation: Value| ends(Some(&generation), &config).unwrap();
        assert_eq!(given(json!({"eos_token_id": [2, 267]})), [2, 267]);
        assert_eq!(given(json!({"eos_token_id": 0})), [0]);
        assert_eq!(given(json!({"eos_token_id": null})), [7]);
        assert_eq!(given(json!({})), [7]);
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
