//! Text models inside multimodal models that are published with custom code: the same tensors and settings under other
//! names are the same model.

use std::fs;
use std::path::Path;

use hooklens::prelude::*;
use safetensors::{SafeTensors, serialize};
use serde_json::{Value, json};

use crate::parity::load;
use crate::support::{assert_close, fixtures};

/// Writes a fixture's settings and tensors to a folder as the architecture `outer` stores them: settings in a field or
/// at the top level, and tensors under other names.
fn written(folder: &Path, case: &str, outer: &str, within: Option<&str>, named: &dyn Fn(&str) -> String) {
    let own: Value = serde_json::from_slice(&fs::read(fixtures().join(case).join("config.json")).unwrap()).unwrap();
    let json = match within {
        Some(field) => json!({"architectures": [outer], "model_type": outer, field: own}),
        None => {
            let mut json = own;
            json["architectures"] = json!([outer]);
            json["model_type"] = json!(outer);
            json
        }
    };
    fs::write(folder.join("config.json"), json.to_string()).unwrap();
    let bytes = fs::read(fixtures().join(case).join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let renamed = tensors.iter().map(|(name, view)| (named(name), view));
    let tower = if within == Some("thinker_config") { "thinker.audio_tower.weight" } else { "vision_tower.weight" };
    let seen = tensors.iter().next().map(|(_, view)| (tower.to_string(), view));
    fs::write(folder.join("model.safetensors"), serialize(renamed.chain(seen), None).unwrap()).unwrap();
}

#[test]
fn names_of_published_models_are_known() {
    type Named = fn(&str) -> String;
    let (as_they_are, before): (Named, Named) = (str::to_string, |name| format!("language_model.{name}"));
    let llm: Named = |name| format!("llm.{name}");
    let thinker: Named = |name| format!("thinker.{name}");
    let inside: Named = |name| match name.strip_prefix("model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None => name.to_string(),
    };
    let cases = [
        ("qwen2", "CambrianQwenForCausalLM", None, as_they_are),
        ("llama", "Emu3ForCausalLM", None, as_they_are),
        ("llama", "LISAForCausalLM", None, as_they_are),
        ("llama", "MobileLlamaForCausalLM", None, as_they_are),
        ("glm4", "Glm4vForConditionalGeneration", Some("text_config"), inside),
        ("mistral-full", "H2OVLChatModel", Some("llm_config"), before),
        ("qwen3", "InternS1ForConditionalGeneration", Some("text_config"), inside),
        ("deepseek-v3", "KimiK25ForConditionalGeneration", Some("text_config"), before),
        ("qwen2", "Ovis", Some("llm_config"), llm),
        ("qwen3", "Ovis2_5", Some("llm_config"), llm),
        ("llama", "Sarashina2VisionForCausalLM", Some("text_config"), llm),
        ("qwen2", "Qwen2_5OmniForConditionalGeneration", Some("thinker_config"), thinker),
        ("qwen3", "Qwen3ASRForConditionalGeneration", Some("thinker_config"), thinker),
        ("qwen3-moe", "Qwen3OmniMoeForConditionalGeneration", Some("thinker_config"), thinker),
        ("mistral-full", "Videollama2MistralForCausalLM", None, as_they_are),
        ("qwen2", "VibeVoiceForConditionalGeneration", Some("decoder_config"), inside),
    ];
    let tokens = [1, 5, 9, 3, 7, 2];
    for (case, outer, within, named) in cases {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), case, outer, within, &named);
        if let Some(field) = within {
            let path = folder.path().join("config.json");
            let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            // The names that these use for a text model of another family.
            match outer {
                "Glm4vForConditionalGeneration" => {
                    json[field]["model_type"] = json!("glm4v_text");
                    json[field]["architectures"] = Value::Null;
                    json[field]["rope_scaling"] = json!({"type": "default", "mrope_section": [1, 1, 0]});
                }
                "Qwen2_5OmniForConditionalGeneration"
                | "Qwen3ASRForConditionalGeneration"
                | "Qwen3OmniMoeForConditionalGeneration" => {
                    let mut text = json[field].take();
                    text["model_type"] = json!(match case {
                        "qwen2" => "qwen2_5_omni_text",
                        "qwen3" => "qwen3_asr_text",
                        _ => "qwen3_omni_moe_text",
                    });
                    text["architectures"] = Value::Null;
                    json[field] = json!({"model_type": "a_thinker", "text_config": text});
                }
                "KimiK25ForConditionalGeneration" => json[field]["model_type"] = json!("kimi_k2"),
                _ => {}
            }
            fs::write(&path, json.to_string()).unwrap();
        }
        let model = HookedTransformer::from_pretrained(folder.path().to_str().unwrap())
            .unwrap_or_else(|error| panic!("{outer}: {error}"));
        let plain = load(case, LoadOptions::new());
        assert!(model.load_report().unused.is_empty(), "{outer}: {}", model.load_report());
        assert_eq!(model.config(), plain.config(), "{outer}");
        assert_close(&model.forward(tokens).unwrap(), &plain.forward(tokens).unwrap(), 0.0, outer);
    }
}
