//! Bounds how much longer a tokenizer can make a text.
//!
//! A `tokenizer.json` of a few kilobytes can turn one character into a terabyte through nested replacements, so its
//! components are checked before use.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

/// Maximum number of characters that one character may become.
const LONGEST: f64 = 1000.0;
/// Maximum number of special tokens added to a text.
const MOST_ADDED: usize = 10_000;

/// Components of `tokenizer.json` that change text.
#[derive(Deserialize)]
pub(super) struct Parts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    post_processor: Value,
}

impl Parts {
    /// Fails if tokenization could make a text far longer.
    pub(super) fn check(&self) -> Result<(), String> {
        for (name, part) in
            [("normalizer", &self.normalizer), ("pre_tokenizer", &self.pre_tokenizer), ("decoder", &self.decoder)]
        {
            let growth = growth(part);
            if growth > LONGEST {
                return Err(format!(
                    "its `{name}` may turn one character into {growth:e} characters; at most {LONGEST:e} are accepted"
                ));
            }
        }
        let added = added(&self.post_processor);
        if added > MOST_ADDED {
            return Err(format!(
                "its `post_processor` adds {added} special tokens to a text; at most {MOST_ADDED} are accepted"
            ));
        }
        Ok(())
    }
}

/// Components of a sequence. The name of the field depends on the kind of component.
fn parts(part: &Value) -> Option<&Vec<Value>> {
    ["normalizers", "pretokenizers", "decoders", "processors"].iter().find_map(|name| part.get(name)?.as_array())
}

/// Maximum number of characters that a component can turn one character into.
fn growth(part: &Value) -> f64 {
    if let Some(parts) = parts(part) {
        return parts.iter().map(growth).product();
    }
    let letters = |text: &Value| text.as_str().map_or(0, |text| text.chars().count()) as f64;
    let text = |name: &str| part.get(name).unwrap_or(&Value::Null);
    match part.get("type").and_then(Value::as_str) {
        Some("Replace") => match text("pattern").get("String") {
            Some(pattern) if letters(pattern) > 0.0 => (letters(text("content")) / letters(pattern)).max(1.0),
            // A regular expression may match the empty string, between any two characters.
            _ => letters(text("content")) + 1.0,
        },
        Some("Prepend") => letters(text("prepend")) + 1.0,
        Some("Precompiled") => longest_replacement(text("precompiled_charsmap").as_str().unwrap_or_default()) as f64,
        _ => 1.0,
    }
}

/// Length in bytes of the longest replacement in a `Precompiled` normalizer's table. The table consists of the length
/// of a trie, the trie, and zero-terminated strings.
fn longest_replacement(table: &str) -> usize {
    let table = STANDARD.decode(table).unwrap_or_default();
    let Some((len, rest)) = table.split_first_chunk() else { return 1 };
    // The tokenizer library allocates a trie of the claimed length.
    let Some(texts) = rest.get(u32::from_le_bytes(*len) as usize..) else { return usize::MAX };
    texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(1).max(1)
}

/// Number of special tokens that a template adds to a text or a pair of texts.
fn added(part: &Value) -> usize {
    if let Some(parts) = parts(part) {
        return parts.iter().map(added).fold(0, usize::saturating_add);
    }
    let ids = |name: &Value| -> usize {
        let token = part.get("special_tokens").and_then(|tokens| tokens.get(name.as_str()?));
        token.and_then(|token| token.get("ids")?.as_array()).map_or(1, Vec::len)
    };
    let of = |template: &str| -> usize {
        let pieces = part.get(template).and_then(Value::as_array).into_iter().flatten();
        let special = pieces.filter_map(|piece| piece.get("SpecialToken")?.get("id"));
        special.map(ids).fold(0, usize::saturating_add)
    };
    of("single").max(of("pair"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(normalizer: Value) -> Result<(), String> {
        serde_json::from_value::<Parts>(json!({"normalizer": normalizer, "model": {}})).unwrap().check()
    }

    #[test]
    fn what_tokenizers_do_passes() {
        of(Value::Null).unwrap();
        of(json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}, {"type": "NFKC"}]}))
        .unwrap();
    }

    #[test]
    fn what_grows_without_end_does_not() {
        let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(100)});
        of(replace.clone()).unwrap();
        let message = of(json!({"type": "Sequence", "normalizers": [replace, replace]})).unwrap_err();
        assert!(message.contains("`normalizer` may turn one character into 1e4"), "{message}");
        let table = [&0u32.to_le_bytes()[..], &[b'x'; 2000], &[0]].concat();
        of(json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(table)})).unwrap_err();
        of(json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="})).unwrap_err();
        let template = json!({"type": "TemplateProcessing", "single": vec![json!({"SpecialToken": {"id": "x"}}); 101],
            "special_tokens": {"x": {"ids": vec![0; 100]}}});
        let parts: Parts = serde_json::from_value(json!({"post_processor": template})).unwrap();
        assert!(parts.check().unwrap_err().contains("10100 special tokens"));
    }
}
