//! Whether to prepend a beginning-of-sequence token, according to the tokenizer's files.

use serde_json::Value;

/// Tokenizers for which Hugging Face writes `add_bos_token: false` regardless of the setting and ignores the value on
/// load.
const UNHEEDED: [&str; 3] = ["GPT2Tokenizer", "GPTNeoXTokenizer", "CodeGenTokenizer"];

/// Applies the file's `add_bos_token` to a decoder's default; returns the ignored settings, each with the reason.
pub(super) fn heed(tokenizer_config: &Value, prepends: &mut bool) -> Vec<String> {
    let mut ignored = Vec::new();
    let class = tokenizer_config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    let class = class.strip_suffix("Fast").unwrap_or(class);
    match tokenizer_config.get("add_bos_token").and_then(Value::as_bool) {
        Some(adds) if adds != *prepends && UNHEEDED.contains(&class) => ignored.push(format!(
            "`add_bos_token: {adds}`, which Hugging Face ignores for {class}: texts get {} beginning-of-sequence \
             token; set `prepend_bos` to change that",
            if *prepends { "a" } else { "no" }
        )),
        Some(adds) => *prepends = adds,
        None => {}
    }
    if tokenizer_config.get("add_eos_token") == Some(&Value::Bool(true)) {
        let message = "`add_eos_token: true`: texts get no end-of-sequence token, so that the model continues them";
        ignored.push(message.into());
    }
    ignored
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_file_says_is_heeded_or_reported() {
        let given = |json: Value, mut prepends: bool| {
            let ignored = heed(&json, &mut prepends);
            (prepends, ignored.len())
        };
        assert_eq!(given(json!({}), true), (true, 0));
        assert_eq!(given(json!({"add_bos_token": false}), true), (false, 0));
        assert_eq!(given(json!({"add_bos_token": true, "tokenizer_class": "LlamaTokenizerFast"}), false), (true, 0));
        assert_eq!(given(json!({"add_bos_token": false, "tokenizer_class": "GPT2TokenizerFast"}), true), (true, 1));
        assert_eq!(given(json!({"add_bos_token": false, "tokenizer_class": "GPTNeoXTokenizer"}), false), (false, 0));
        assert_eq!(given(json!({"add_bos_token": null, "add_eos_token": true}), true), (true, 1));
    }
}
