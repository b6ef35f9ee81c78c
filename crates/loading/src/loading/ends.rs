//! The tokens that end and begin a text, as a model's files say.

use serde_json::Value;

use hooklens_model::error::ConfigError;

const FIELD: &str = "eos_token_id";
/// Parts of a model, by their names in `config.json`, whose text it writes.
const PARTS: [&str; 3] = ["text_config", "decoder", "generator"];

/// The ids of `eos_token_id`, one or a list, by the first file that names any: `generation_config.json`, then
/// `config.json`, of a model of several parts the whole's, then its text model's. This is Hugging Face's order.
///
/// # Errors
/// A value that is neither an id nor a list of ids.
pub(super) fn ends(generation: Option<&Value>, config: &Value) -> Result<Vec<u32>, ConfigError> {
    for json in descriptions(generation, config) {
        let ids = named(json, FIELD)?;
        if !ids.is_empty() {
            return Ok(ids);
        }
    }
    Ok(Vec::new())
}

/// `bos_token_id`, in the order of [`ends`].
pub(super) fn beginning(generation: Option<&Value>, config: &Value) -> Option<u32> {
    // Some files name several, or none by -1: then it says nothing of prompts.
    let id = |json: &Value| match named(json, "bos_token_id").ok()?[..] {
        [id] => Some(id),
        _ => None,
    };
    descriptions(generation, config).find_map(id)
}

/// What may name tokens, the first first: the model's files, and in a model of several parts those that write text.
fn descriptions<'j>(generation: Option<&'j Value>, config: &'j Value) -> impl Iterator<Item = &'j Value> {
    let parts = config.get("thinker_config").into_iter().chain([config]);
    let within = parts.flat_map(|part| PARTS.iter().filter_map(|name| part.get(name)));
    generation.into_iter().chain([config]).chain(within)
}

fn named(json: &Value, field: &str) -> Result<Vec<u32>, ConfigError> {
    let id = |value: &Value| match value.as_i64() {
        // Some files say -1 for none.
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
        let told = ends(None, &json!({"eos_token_id": [2, "x"]})).unwrap_err().to_string();
        assert!(told.contains("`eos_token_id` is \"x\", not a token id"), "{told}");
    }
}
