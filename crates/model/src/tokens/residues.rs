//! Protein tokenizers (ESM), with one token per letter. Their folders contain a token list instead of `tokenizer.json`.

use serde_json::{Value, json};

/// Builds the equivalent `tokenizer.json` from the contents of `vocab.txt`, which has one token per line. `None` if the
/// files in `side` do not name an ESM tokenizer.
pub(super) fn described(vocabulary: &str, side: &[&Value]) -> Option<Value> {
    let named = |field: &str| side.iter().find_map(|json| json.get(field)?.as_str());
    if named("tokenizer_class") != Some("EsmTokenizer") {
        return None;
    }
    let tokens: Vec<&str> = vocabulary.lines().map(str::trim).collect();
    let place = |token: &str| tokens.iter().position(|own| *own == token);
    let special = |kind: &str, default: &'static str| {
        let text = named(&format!("{kind}_token")).unwrap_or(default).to_string();
        place(&text).map(|id| (text, id))
    };
    let [first, last, unknown] = [("cls", "<cls>"), ("eos", "<eos>"), ("unk", "<unk>")].map(|(k, d)| special(k, d));
    let [pad, mask] = [("pad", "<pad>"), ("mask", "<mask>")].map(|(k, d)| special(k, d));
    let (first, last, unknown) = (first?, last?, unknown?);
    let specials: Vec<usize> = [&Some(first.clone()), &Some(last.clone()), &Some(unknown.clone()), &pad, &mask]
        .into_iter()
        .flatten()
        .map(|(_, id)| *id)
        .collect();
    // Single letters are split out of a text by regular expression; longer tokens are added tokens.
    let letters: String = tokens.iter().filter(|token| token.chars().count() == 1).map(|t| escaped(t)).collect();
    let longer = |(id, token): (usize, &&str)| {
        (token.chars().count() > 1).then(|| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": specials.contains(&id)})
        })
    };
    let added: Vec<Value> = tokens.iter().enumerate().filter_map(longer).collect();
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.to_string(), json!(id))).collect();
    let token = |(text, _): &(String, usize)| json!({"SpecialToken": {"id": text, "type_id": 0}});
    let part = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
    let of = |(text, id): &(String, usize)| (text.clone(), json!({"id": text, "ids": [id], "tokens": [text]}));
    let special_tokens: serde_json::Map<String, Value> = [&first, &last].map(of).into_iter().collect();
    Some(json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Split", "pattern": {"Regex": format!("[{letters}]")}, "behavior": "Isolated", "invert": false},
        ]},
        "post_processor": {"type": "TemplateProcessing", "special_tokens": special_tokens,
            "single": [token(&first), part("A"), token(&last)],
            "pair": [token(&first), part("A"), token(&last), part("B"), token(&last)]},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": unknown.0},
    }))
}

/// Escapes a letter for a regular expression's character class.
fn escaped(letter: &str) -> String {
    if letter.chars().all(char::is_alphanumeric) { letter.to_string() } else { format!("\\{letter}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::{mask_token, tokenizer_of_parts};

    /// Expected values from `transformers`' `EsmTokenizer` with ESM-2's vocabulary.
    #[test]
    fn residues_are_tokenized_as_hugging_face_does() {
        let tokens = "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>";
        let side = [json!({"tokenizer_class": "EsmTokenizer", "mask_token": "<mask>", "pad_token": "<pad>"})];
        let described = described(&tokens.replace(' ', "\n"), &side.each_ref()).unwrap().to_string();
        let tokenizer = tokenizer_of_parts(described.as_bytes(), &side, "vocab.txt".as_ref()).unwrap();
        assert_eq!((tokenizer.pad(), mask_token(&tokenizer)), (1, Some(32)));
        for (text, ids) in [
            ("MKTV", &[0, 20, 15, 11, 7, 2][..]),
            ("MK TV<mask>A", &[0, 20, 15, 11, 7, 32, 5, 2]),
            ("mkTj-.", &[0, 3, 11, 3, 30, 29, 2]),
            ("ABJ foo", &[0, 5, 25, 3, 3, 2]),
            ("<null_1>M  K", &[0, 31, 20, 15, 2]),
            ("", &[0, 2]),
            ("M\nK<cls>", &[0, 20, 15, 0, 2]),
        ] {
            assert_eq!(tokenizer.encode_special(text, None).unwrap().0, ids, "{text}");
        }
        assert_eq!(tokenizer.encode_special("MK", Some("TV")).unwrap().0, [0, 20, 15, 2, 11, 7, 2]);
        assert!(super::described("a\nb", &[&json!({"tokenizer_class": "BertTokenizer"})]).is_none());
    }
}
