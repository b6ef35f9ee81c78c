//! LoRA adapters are read and applied as in PEFT.

use hooklens::{FromPretrained, ModelWeights};
use std::fs;

use hooklens::encoder_decoder::HookedEncoderDecoder;
use hooklens::{HookedModel, HookedTransformer, LoadOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::parity::{Golden, Tally, load};
use crate::support::{assert_close, fixtures, values};

/// A copy of an adapter's folder with some settings changed.
fn changed(case: &str, base: &str, changes: Value) -> TempDir {
    let (folder, from) = (tempfile::tempdir().unwrap(), fixtures().join(case));
    let mut json: Value = serde_json::from_slice(&fs::read(from.join("adapter_config.json")).unwrap()).unwrap();
    changes.as_object().unwrap().iter().for_each(|(field, value)| json[field] = value.clone());
    json["base_model_name_or_path"] = json!(fixtures().join(base));
    fs::write(folder.path().join("adapter_config.json"), json.to_string()).unwrap();
    let weights = "adapter_model.safetensors";
    fs::copy(from.join(weights), folder.path().join(weights)).unwrap();
    folder
}

fn open(folder: &TempDir) -> hooklens::Result<HookedTransformer> {
    HookedTransformer::from_pretrained(folder.path().to_str().unwrap())
}

/// Whether weights are `[in, out]` depends on the base model, not on the adapter's flag.
#[test]
fn fan_in_fan_out_changes_nothing() {
    for (case, base) in [("lora-llama", "llama"), ("lora-gpt2", "gpt2"), ("dora-gpt2", "gpt2"), ("dora-llama", "llama")]
    {
        let expected = load(case, LoadOptions::new()).forward([1, 2, 3]).unwrap();
        for flag in [json!(true), json!(false), Value::Null] {
            let model = open(&changed(case, base, json!({"fan_in_fan_out": flag}))).unwrap();
            assert_close(&model.forward([1, 2, 3]).unwrap(), &expected, 0.0, case);
        }
    }
}

/// Embeddings and unembedding are separate modules, even if they share one tensor.
#[test]
fn adapted_modules_of_an_encoder_decoder_are_apart() {
    for case in ["lora-bart", "lora-bart-head", "lora-bart-shared"] {
        let golden = Golden::of_file(case, "encoder_decoder.safetensors");
        let model = HookedEncoderDecoder::from_pretrained(fixtures().join(case).to_str().unwrap()).unwrap();
        let rows = |name: &str| -> Vec<Vec<u32>> {
            golden.get(name).unwrap().rows().into_iter().map(|row| row.iter().map(|id| *id as u32).collect()).collect()
        };
        let logits = model.forward((rows("tokens"), rows("decoder_tokens"))).unwrap();
        let mut tally = Tally::default();
        tally.compare("logits", &values(&logits), golden.get("logits").unwrap());
        assert!(tally.problems.is_empty(), "{case}: {:?}", tally.problems);
        let unused = model.load_report().ignored.iter().any(|ignored| ignored.contains("model.shared.weight"));
        assert_eq!(unused, case == "lora-bart-shared", "{:?}", model.load_report().ignored);
    }
}

/// PEFT uses the first pattern that matches, in the order of the file.
#[test]
fn patterns_that_do_not_match_or_parse_say_so() {
    let error = |changes| open(&changed("lora-patterns", "llama", changes)).unwrap_err().to_string();
    assert!(error(json!({"rank_pattern": {"q_proj(": 4}})).contains("invalid regular expression"));
    assert!(error(json!({"alpha_pattern": {"q_proj": null}})).contains("maps `q_proj` to null, which is not a number"));
    let swapped = json!({"alpha_pattern": {"proj": 1, ".*_proj": 9, "q_proj": 7}, "rank_pattern": {}});
    assert!(error(swapped).contains("lora_"));
}

/// A setting without its tensors, tensors without their setting, and adapters that mix both kinds are rejected, as in
/// PEFT.
#[test]
fn added_biases_need_their_setting() {
    let error = |case, base, changes| open(&changed(case, base, changes)).unwrap_err().to_string();
    let without = error("lora-added-to-biases", "gpt2", json!({"lora_bias": false}));
    assert!(without.contains("requires `lora_bias`"), "{without}");
    let lacking = error("lora-gpt2", "gpt2", json!({"lora_bias": true}));
    assert!(lacking.contains("has no `lora_B.bias`"), "{lacking}");
    let both = error("dora-gpt2", "gpt2", json!({"lora_bias": true}));
    assert!(both.contains("both set"), "{both}");
    for field in ["arrow_config", "kasa_config", "use_bdlora", "monteclora_config"] {
        let message = error("lora-gpt2", "gpt2", json!({field: {"r": 1}}));
        assert!(message.contains(field), "{message}");
    }
}
