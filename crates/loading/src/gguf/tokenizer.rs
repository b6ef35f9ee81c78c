//! Converts the tokenizer in a GGUF file to Hugging Face's `tokenizer.json`.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use hooklens_io::excerpt::excerpt;

/// Token type of special tokens.
const CONTROL: u64 = 3;
/// Token type of tokens that are matched before all others.
const USER_DEFINED: u64 = 4;
/// SentencePiece's symbol for a space.
const SPACE: &str = "\u{2581}";

/// Builds the contents of `tokenizer.json` and of `tokenizer_config.json`. The error says why the file's tokenizer
/// can't be used.
pub(super) fn of(all: &Map<String, Value>) -> Result<(Value, Value), String> {
    let get = |name: &str| all.get(&format!("tokenizer.ggml.{name}"));
    let kind = get("model").and_then(Value::as_str).ok_or("the file has no `tokenizer.ggml.model`")?;
    let tokens = texts(get("tokens")).ok_or("`tokenizer.ggml.tokens` is missing or not a list of strings")?;
    let kinds: Vec<u64> = get("token_type")
        .and_then(Value::as_array)
        .map(|kinds| kinds.iter().map(|kind| kind.as_u64().unwrap_or(1)).collect())
        .unwrap_or_default();
    let flag = |name: &str, default: bool| get(name).and_then(Value::as_bool).unwrap_or(default);
    let vocabulary: BTreeMap<&str, usize> = tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let mut json = match kind {
        "llama" => {
            let scores =
                get("scores").and_then(Value::as_array).ok_or("`tokenizer.ggml.scores` is missing or not a list")?;
            let scores: Vec<f64> = scores.iter().map(|score| score.as_f64().unwrap_or(f64::MIN)).collect();
            let prefix = flag("add_space_prefix", true);
            let unknown = get("unknown_token_id").and_then(Value::as_u64).unwrap_or(0);
            sentence_piece(&tokens, &scores, unknown as usize, prefix)?
        }
        "gpt2" => {
            let pre = get("pre").and_then(Value::as_str).unwrap_or("default");
            let merges = texts(get("merges")).ok_or("`tokenizer.ggml.merges` is missing or not a list of strings")?;
            byte_level(pre, &merges)?
        }
        other => {
            return Err(format!("tokenizers of type `{}` are not supported; `llama` and `gpt2` are", excerpt(other)));
        }
    };
    json["model"]["vocab"] = json!(vocabulary);
    json["version"] = "1.0".into();
    json["added_tokens"] = tokens
        .iter()
        .enumerate()
        .filter(|(id, token)| {
            !token.is_empty() && matches!(kinds.get(*id), Some(&(CONTROL | USER_DEFINED))) && vocabulary[*token] == *id
        })
        .map(|(id, token)| {
            json!({
                "id": id, "content": token, "special": kinds[id] == CONTROL, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        })
        .collect();
    let mut side = Map::new();
    for (name, field) in [("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("mask", "mask")] {
        let id = special(all, field);
        side.extend(id.filter(|id| (*id as usize) < tokens.len()).map(|id| (format!("{name}_token_id"), id.into())));
    }
    if let Some(template) = all.get("tokenizer.chat_template") {
        side.insert("chat_template".into(), template.clone());
    }
    Ok((json, Value::Object(side)))
}

/// llama.cpp's default ids of special tokens, for files that omit them.
fn by_default(kind: &str, name: &str) -> Option<u64> {
    match (kind, name) {
        ("llama", "bos") => Some(1),
        ("llama", "eos") => Some(2),
        _ => None,
    }
}

/// Tokens that end a text, turn or message. Generation stops at each of them.
pub(super) fn ends(all: &Map<String, Value>) -> Vec<u32> {
    ["eos", "eot", "eom"].into_iter().filter_map(|name| special(all, name)).collect()
}

/// Beginning-of-sequence token.
pub(super) fn beginning(all: &Map<String, Value>) -> Option<u32> {
    special(all, "bos")
}

fn special(all: &Map<String, Value>, name: &str) -> Option<u32> {
    let get = |name: &str| all.get(&format!("tokenizer.ggml.{name}"));
    let kind = get("model").and_then(Value::as_str).unwrap_or_default();
    let id = get(&format!("{name}_token_id")).and_then(Value::as_u64).or(by_default(kind, name));
    id.and_then(|id| u32::try_from(id).ok())
}

/// Settings for adding special tokens to texts, in the format of Hugging Face's `tokenizer_config.json`.
pub(super) fn habit(all: &Map<String, Value>, architecture: &str) -> Value {
    let get = |name: &str| all.get(&format!("tokenizer.ggml.{name}")).cloned().unwrap_or_default();
    let class = match architecture {
        "gpt2" => "GPT2Tokenizer",
        "gptneox" => "GPTNeoXTokenizer",
        _ => "",
    };
    json!({
        "add_bos_token": get("add_bos_token"), "add_eos_token": get("add_eos_token"), "tokenizer_class": class,
    })
}

fn texts(list: Option<&Value>) -> Option<Vec<&str>> {
    list?.as_array()?.iter().map(Value::as_str).collect()
}

/// SentencePiece BPE: the pair whose merged token has the highest score is merged first, and pieces that remain unknown
/// become bytes.
fn sentence_piece(tokens: &[&str], scores: &[f64], unknown: usize, prefix: bool) -> Result<Value, String> {
    if scores.len() != tokens.len() {
        return Err(format!("it has {} tokens but {} scores", tokens.len(), scores.len()));
    }
    if !scores.is_empty() && scores.iter().all(|score| *score == scores[0]) {
        return Err("all token scores are equal, so they do not determine the order of merges".into());
    }
    let ids: HashMap<&str, usize> = tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let mut merges: Vec<(f64, f64, f64, &str, &str)> = Vec::new();
    for (token, score) in tokens.iter().zip(scores) {
        let mut own = Vec::new();
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(l), Some(r)) = (ids.get(left), ids.get(right)) {
                own.push((*score, scores[*l], scores[*r], left, right));
            }
        }
        own.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.2.total_cmp(&a.2)));
        merges.extend(own);
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0));
    let merges: Vec<[&str; 2]> = merges.into_iter().map(|(.., left, right)| [left, right]).collect();
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let prepend = json!({"type": "Prepend", "prepend": SPACE});
    let normalizers: Vec<Value> = prefix.then_some(prepend).into_iter().chain([replace]).collect();
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(json!({
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "unk_token": tokens.get(unknown), "fuse_unk": true, "byte_fallback": true,
            "ignore_merges": false, "merges": merges,
        },
    }))
}

/// Byte-level BPE that follows the pre-tokenizer named `pre`.
fn byte_level(pre: &str, merges: &[&str]) -> Result<Value, String> {
    let splits = splits(pre).ok_or_else(|| format!("the pre-tokenizer `{}` is not supported", excerpt(pre)))?;
    let mut steps: Vec<Value> = splits
        .iter()
        .map(|regex| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false}))
        .collect();
    steps.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}));
    let pair = |merge: &&str| {
        // The first part may start with a space but contains no other, so a later space separates the parts.
        let at = merge.char_indices().skip(1).find(|(_, letter)| *letter == ' ').map(|(at, _)| at);
        at.map(|at| [merge[..at].to_string(), merge[at + 1..].to_string()])
            .ok_or_else(|| format!("the merge `{}` is not a pair of tokens", excerpt(merge)))
    };
    let merges: Vec<[String; 2]> = merges.iter().map(pair).collect::<Result<_, _>>()?;
    let normalizer = if COMPOSED.contains(&pre) { json!({"type": "NFC"}) } else { Value::Null };
    Ok(json!({
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {
            "type": "BPE", "unk_token": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": WHOLE.contains(&pre), "merges": merges,
        },
    }))
}

/// Pre-tokenizers of models whose Hugging Face tokenizers apply NFC normalization.
const COMPOSED: [&str; 2] = ["qwen2", "deepseek-r1-qwen"];
/// Pre-tokenizers of models whose tokenizers first look up the whole word in the vocabulary and apply merges only if it
/// is missing.
const WHOLE: [&str; 9] =
    ["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"];

const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// Regular expressions that a pre-tokenizer uses to split text, in order of application. `pre` is llama.cpp's name for
/// it.
fn splits(pre: &str) -> Option<&'static [&'static str]> {
    Some(match pre {
        "default" => &[r"[\p{P}\$\+<=>\^~\|]+", GPT_2, r"\p{N}+", "[0-9][0-9][0-9]"],
        "gpt-2" | "phi-2" | "olmo" | "mpt" | "jais" | "exaone4" | "mellum" | "modern-bert" | "trillion"
        | "granite-docling" | "roberta-bpe" => &[GPT_2],
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2" | "dbrx"
        | "smaug-bpe" | "chatglm-bpe" | "glm4" => &[LLAMA_3],
        "qwen2" | "deepseek-r1-qwen" | "megrez" | "stablelm2" | "hunyuan" => &[QWEN_2],
        "starcoder" | "smollm" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => &[r"\p{N}", GPT_2],
        "falcon" => &[r"[\p{P}\$\+<=>\^~\|`]+", GPT_2, "[0-9][0-9][0-9]"],
        "bloom" | "poro-chat" | "gpt3-finnish" => &[BLOOM],
        "viking" => &[BLOOM, r"\p{N}"],
        "gpt-4o" | "llama4" | "kanana2" => &[GPT_4O],
        "tekken" => &[TEKKEN],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_stops() {
        let given = |fields: Value| ends(fields.as_object().unwrap());
        let own = |eos: u32| json!({"tokenizer.ggml.eos_token_id": eos, "tokenizer.ggml.eot_token_id": 7});
        assert_eq!(given(own(3)), [3, 7]);
        let llama = json!({"tokenizer.ggml.model": "llama", "tokenizer.ggml.eom_token_id": 9});
        assert_eq!(given(llama), [2, 9]);
        assert!(given(json!({"tokenizer.ggml.model": "gpt2"})).is_empty());
    }

    #[test]
    fn habits_are_told_as_hugging_faces_files_do() {
        let fields = json!({"tokenizer.ggml.add_bos_token": false});
        let settings = habit(fields.as_object().unwrap(), "gpt2");
        assert_eq!((&settings["add_bos_token"], &settings["add_eos_token"]), (&Value::Bool(false), &Value::Null));
        assert_eq!(settings["tokenizer_class"], "GPT2Tokenizer");
    }
}
