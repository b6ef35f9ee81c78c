//! The text model in a multimodal model: finds its part of `config.json` and its tensor names.

use serde_json::{Map, Value, json};

use super::{FAMILIES, architecture, is_known};
use crate::weight_files::{WeightFiles, WeightTable};
use hooklens_io::excerpt::excerpt;
use hooklens_model::error::ConfigError;

/// Names of the section with the text model's settings.
const WITHIN: [&str; 4] = ["text_config", "llm_config", "language_config", "decoder_config"];
/// Section that models with speech output use for the "thinker", which contains the text model.
const THINKER: &str = "thinker_config";

/// Models whose top-level settings include the settings of the text model, each with the family of its text model.
static BESIDE: [(&str, &str); 26] = [
    ("CambrianQwenForCausalLM", "qwen2"),
    ("DotsOCRForCausalLM", "qwen2"),
    ("Emu3ForCausalLM", "llama"),
    ("HulumedQwen2ForCausalLM", "qwen2"),
    ("HulumedQwen3ForCausalLM", "qwen3"),
    ("LISAForCausalLM", "llama"),
    ("LlavaGemmaForCausalLM", "gemma"),
    ("LlavaLlamaForCausalLM", "llama"),
    ("LlavaLlamaModel", "llama"),
    ("LlavaMistralForCausalLM", "mistral"),
    ("LlavaPhiForCausalLM", "phi"),
    ("LlavaQwen2ForCausalLM", "qwen2"),
    ("LlavaQwen3ForCausalLM", "qwen3"),
    ("LlavaQwenForCausalLM", "qwen2"),
    ("LlavaStableLMForCausalLM", "stablelm"),
    ("MobileLlamaForCausalLM", "llama"),
    ("Phi3VForCausalLM", "phi3"),
    ("Qwen2VLForConditionalGeneration", "qwen2_vl_text"),
    ("Qwen2VLModel", "qwen2_vl_text"),
    ("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text"),
    ("Qwen2_5_VLModel", "qwen2_5_vl_text"),
    ("Share4VLlamaForCausalLM", "llama"),
    ("VideoLlavaLlamaForCausalLM", "llama"),
    ("Videollama2MistralForCausalLM", "mistral"),
    ("Videollama2Qwen2ForCausalLM", "qwen2"),
    ("Videollama3Qwen2ForCausalLM", "qwen2"),
];

/// Text models that are identical to the models of a family that has a different name.
const RENAMED: [(&str, &str); 9] = [
    ("glm4v_text", "glm4"),
    ("kimi_k2", "deepseek_v3"),
    ("qwen2_vl_text", "qwen2"),
    ("qwen2_5_omni_text", "qwen2"),
    ("qwen2_5_vl_text", "qwen2"),
    ("qwen3_asr_text", "qwen3"),
    ("qwen3_omni_moe_text", "qwen3_moe"),
    ("qwen3_vl_text", "qwen3"),
    ("smolvlm_text", "llama"),
];

/// Models whose prompts have bidirectional attention.
const BOTH_WAYS: [&str; 3] = ["PaliGemmaForConditionalGeneration", "PaliGemmaModel", "ColPaliForRetrieval"];

/// Models with a separate section for the text model's settings, each with the family that its text model has in tested
/// checkpoints.
static TRIED: [(&str, &str); 31] = [
    ("FuyuForCausalLM", "persimmon"),
    ("Gemma3ForConditionalGeneration", "gemma3_text"),
    ("Gemma4ForConditionalGeneration", "gemma4_text"),
    ("Gemma4UnifiedForConditionalGeneration", "gemma4_unified_text"),
    ("Glm4vForConditionalGeneration", "glm4"),
    ("GotOcr2ForConditionalGeneration", "qwen2"),
    ("H2OVLChatModel", "mistral"),
    ("Idefics3ForConditionalGeneration", "llama"),
    ("InternS1ForConditionalGeneration", "qwen3"),
    ("InternVLForConditionalGeneration", "qwen2"),
    ("KimiK25ForConditionalGeneration", "deepseek_v3"),
    ("LightOnOCRForConditionalGeneration", "qwen3"),
    ("LightOnOcrForConditionalGeneration", "qwen3"),
    ("Llama4ForConditionalGeneration", "llama4_text"),
    ("LlavaForConditionalGeneration", "llama"),
    ("LlavaNextForConditionalGeneration", "mistral"),
    ("LlavaOnevisionForConditionalGeneration", "qwen2"),
    ("Mistral3ForConditionalGeneration", "mistral"),
    ("Ovis", "qwen2"),
    ("Ovis2_5", "qwen3"),
    ("Qwen2AudioForConditionalGeneration", "qwen2"),
    ("Qwen2_5OmniForConditionalGeneration", "qwen2"),
    ("Qwen3ASRForConditionalGeneration", "qwen3"),
    ("Qwen3OmniMoeForConditionalGeneration", "qwen3_moe"),
    ("Qwen3VLForConditionalGeneration", "qwen3"),
    ("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text"),
    ("Qwen3_5ForConditionalGeneration", "qwen3_5_text"),
    ("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text"),
    ("Sarashina2VisionForCausalLM", "llama"),
    ("SmolVLMForConditionalGeneration", "llama"),
    ("VibeVoiceForConditionalGeneration", "qwen2"),
];

/// Multimodal models, each with the family of its text model, in the format of [`super::listed`].
pub(super) fn listed() -> impl Iterator<Item = (&'static str, &'static str, &'static [&'static str])> {
    let row =
        |(name, kind): &'static (&'static str, &'static str)| ("decoder within", *kind, std::slice::from_ref(name));
    BESIDE.iter().chain(&TRIED).map(row)
}

/// Text model to assume if the settings don't name one.
const BY_DEFAULT: [(&str, &str); 12] = [
    ("blip-2", "opt"),
    ("gemma3", "gemma3_text"),
    ("gemma4", "gemma4_text"),
    ("gemma4_unified", "gemma4_unified_text"),
    ("idefics2", "mistral"),
    ("instructblip", "opt"),
    ("internvl", "qwen2"),
    ("llava_onevision", "qwen2"),
    ("mistral3", "mistral"),
    ("qwen2_audio", "qwen2"),
    ("qwen3_asr_thinker", "qwen3"),
    ("qwen3_vl", "qwen3_vl_text"),
];

/// Transformers's defaults for settings that a text model's section omits.
fn defaults(kind: &str) -> Value {
    match kind {
        "gemma" => json!({
            "vocab_size": 256_000, "max_position_embeddings": 8192, "hidden_size": 3072, "intermediate_size": 24_576,
            "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
        }),
        "gemma2" => json!({
            "vocab_size": 256_000, "max_position_embeddings": 8192, "hidden_size": 2304, "intermediate_size": 9216,
            "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        }),
        "gemma3_text" => json!({
            "vocab_size": 262_208, "max_position_embeddings": 131_072, "hidden_size": 2304, "intermediate_size": 9216,
            "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        }),
        "mistral" => json!({
            "vocab_size": 32_000, "max_position_embeddings": 131_072, "hidden_size": 4096, "intermediate_size": 14_336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": 4096,
        }),
        "opt" => json!({
            "vocab_size": 50_272, "max_position_embeddings": 2048, "hidden_size": 768, "ffn_dim": 3072,
            "num_hidden_layers": 12, "num_attention_heads": 12,
        }),
        "phi" => json!({
            "vocab_size": 51_200, "max_position_embeddings": 2048, "hidden_size": 2048, "intermediate_size": 8192,
            "num_hidden_layers": 24, "num_attention_heads": 32,
        }),
        "phi3" => json!({
            "vocab_size": 32_064, "max_position_embeddings": 4096, "hidden_size": 3072, "intermediate_size": 8192,
            "num_hidden_layers": 32, "num_attention_heads": 32, "original_max_position_embeddings": 4096,
        }),
        "qwen2" | "qwen3" => json!({
            "vocab_size": 151_936, "max_position_embeddings": 32_768, "hidden_size": 4096, "intermediate_size": 22_016,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        }),
        "qwen2_vl_text" | "qwen2_5_vl_text" => json!({
            "vocab_size": 152_064, "max_position_embeddings": 32_768, "hidden_size": 8192, "intermediate_size": 29_568,
            "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
            "rope_theta": 1e6, "max_window_layers": 80,
        }),
        "qwen3_vl_text" => json!({
            "vocab_size": 151_936, "max_position_embeddings": 128_000, "hidden_size": 4096, "intermediate_size": 22_016,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128,
            "rope_theta": 5e6,
        }),
        "llama" | "granite" => json!({
            "vocab_size": 32_000, "max_position_embeddings": 2048, "hidden_size": 4096, "intermediate_size": 11_008,
            "num_hidden_layers": 32, "num_attention_heads": 32,
        }),
        _ => json!({}),
    }
}

/// Extracts the text model's `config.json` from that of a multimodal model; `None` for other models.
///
/// # Errors
/// [`ConfigError`] if the text model belongs to no family, or if the multimodal model uses the text model for something
/// other than continuing text.
pub(crate) fn text_part(json: &Value) -> Result<Option<Value>, ConfigError> {
    let outer = architecture(json)?;
    if is_known(json, outer) {
        return Ok(None);
    }
    if BOTH_WAYS.contains(&outer) {
        let given = format!("{outer} (bidirectional attention within the prompt)");
        return Err(ConfigError::UnsupportedVariant { family: "gemma", field: "architectures", given });
    }
    let parts = json.get(THINKER).filter(|own| own.is_object()).unwrap_or(json);
    let given = |field: &str| parts.get(field).filter(|value| !value.is_null());
    let within = WITHIN.iter().find_map(|field| Some((*field, given(field)?)));
    let beside = BESIDE.iter().find(|(name, _)| *name == outer).map(|(_, kind)| *kind);
    let null = |of: &Value, field: &str| of.get(field).is_some_and(Value::is_null);
    if let (None, Some(field)) = (within, WITHIN.iter().find(|field| null(parts, field))) {
        return Err(ConfigError::Malformed { reason: format!("`{field}` is null, not an object") });
    }
    let (field, own, kind) = match (within, beside) {
        (Some((field, own)), _) if null(own, "model_type") => {
            return Err(ConfigError::Malformed { reason: format!("`model_type` of `{field}` is null, not a string") });
        }
        (Some((field, Value::Object(own))), _) => {
            let model = given("model_type").and_then(Value::as_str).unwrap_or_default();
            let usual = BY_DEFAULT.iter().find(|(name, _)| *name == model).map(|(_, kind)| *kind);
            let told = own.get("model_type").and_then(Value::as_str);
            (field, own, told.or(usual).or(beside).unwrap_or("llama"))
        }
        (Some((field, other)), _) => {
            let reason = format!("`{field}` is {}, not an object", excerpt(other));
            return Err(ConfigError::Malformed { reason });
        }
        (None, Some(kind)) => match parts.as_object() {
            Some(own) => ("", own, kind),
            None => return Ok(None),
        },
        (None, None) => return Ok(None),
    };
    let mut text = own.clone();
    let family = RENAMED.iter().find(|(name, _)| *name == kind).map_or(kind, |(_, family)| *family);
    let listed =
        text.get("architectures").and_then(Value::as_array).and_then(|all| all.first()).and_then(Value::as_str);
    let by_list = listed.and_then(|listed| FAMILIES.iter().find(|family| family.architectures.contains(&listed)));
    let architecture = match (FAMILIES.iter().find(|own| own.name == family), by_list) {
        (Some(by_type), Some(by_list)) if !field.is_empty() && by_type.name != by_list.name => {
            let reason = format!("its architecture belongs to {}, but its model_type is {kind}", by_list.name);
            return Err(ConfigError::Contradiction { field: "text_config", reason });
        }
        // If the family has several architectures, keep the listed architecture.
        (Some(_), Some(_)) if !field.is_empty() => listed.unwrap_or_default().to_string(),
        (Some(by_type), _) => by_type.architectures[0].to_string(),
        (None, Some(_)) => listed.unwrap_or_default().to_string(),
        (None, None) => {
            let supported = FAMILIES.iter().map(|family| family.architectures[0]).collect();
            return Err(ConfigError::UnknownArchitecture { given: format!("{outer} (text model {kind})"), supported });
        }
    };
    text.insert("architectures".into(), json!([architecture]));
    text.insert("model_type".into(), json!(family));
    if let Value::Object(defaults) = defaults(kind) {
        for (field, value) in defaults {
            // The `rope_parameters` of newer files replace the older field.
            let told = text.contains_key(&field) || (field == "rope_theta" && text.contains_key("rope_parameters"));
            if !told {
                text.insert(field, value);
            }
        }
    }
    tie(&mut text, given("tie_word_embeddings"));
    plain_rotation(&mut text);
    Ok(Some(Value::Object(text)))
}

/// Determines whether the unembedding is tied. Transformers 4 uses the text model's setting, version 5 the outer one,
/// and neither ties tensors that the files contain twice with different values.
fn tie(text: &mut Map<String, Value>, outside: Option<&Value>) {
    let inside = text.get("tie_word_embeddings").filter(|own| !own.is_null());
    match (inside, outside) {
        (None | Some(Value::Bool(false)), Some(Value::Bool(true))) => {
            text.insert(TIED_OUTSIDE.into(), json!(true));
        }
        (None, Some(outside)) => {
            text.insert("tie_word_embeddings".into(), outside.clone());
        }
        _ => {}
    }
}

/// Setting added to the configuration of a text model whose unembedding is tied unless the files contain a separate
/// unembedding.
const TIED_OUTSIDE: &str = "hooklens_tied_outside";

/// Removes multimodal rotary sections. For text, the position is the same along all axes, so the sectioned embedding
/// equals the plain one.
fn plain_rotation(text: &mut Map<String, Value>) {
    let Some(Value::Object(scaling)) = text.get_mut("rope_scaling") else { return };
    let sections = scaling.remove("mrope_section").is_some();
    scaling.remove("mrope_interleaved");
    for field in ["type", "rope_type"] {
        if scaling.get(field).is_some_and(|kind| kind == "mrope") {
            scaling.insert(field.into(), json!("default"));
        }
    }
    if sections && scaling.is_empty() {
        text.remove("rope_scaling");
    }
}

/// Naming scheme of the text model's tensors in a multimodal model's files.
#[derive(Debug, Clone, Copy)]
struct Scheme {
    /// Prefix of the whole name.
    before: &'static str,
    /// Replacement for the family's prefix, if any.
    model: Option<&'static str>,
}

/// Prefix of the thinker's tensors.
const THINKS: &str = "thinker.";

const SCHEMES: [Scheme; 9] = [
    Scheme { before: "language_model.", model: None },
    Scheme { before: "", model: Some("model.language_model.") },
    Scheme { before: "", model: Some("model.text_model.") },
    Scheme { before: "", model: None },
    Scheme { before: "", model: Some("language_model.") },
    Scheme { before: "", model: Some("text_model.") },
    Scheme { before: "llm.", model: None },
    Scheme { before: THINKS, model: None },
    Scheme { before: "model.llm.", model: None },
];

impl Scheme {
    /// Name of a family's tensor in this scheme.
    fn of(self, name: &str, prefix: &str) -> String {
        match (self.model, name.strip_prefix(prefix)) {
            (Some(model), Some(rest)) => format!("{model}{rest}"),
            _ => format!("{}{name}", self.before),
        }
    }
}

/// Adapts a weight table to the names of the text model's tensors in the files; all other tensors belong to other
/// parts. Returns whether the files contain the text model.
pub(crate) fn place(table: &mut WeightTable, text: &Value, files: &WeightFiles) -> bool {
    let Some(embedding) = table.sources.get("embed.W_E").map(|source| source.name.clone()) else { return false };
    let prefix = table.prefix;
    let there = |scheme: &&Scheme| files.info(&scheme.of(&embedding, prefix)).is_some();
    let Some(scheme) = SCHEMES.iter().find(there) else { return false };
    for source in table.sources.values_mut() {
        source.name = scheme.of(&source.name, prefix);
    }
    for (name, _) in table.others.values_mut() {
        *name = scheme.of(name, prefix);
    }
    table.prefix = "";
    if let (true, Some(unembedding)) = (text.get(TIED_OUTSIDE).is_some(), table.sources.get_mut("unembed.W_U")) {
        (unembedding.tied, unembedding.own_if_there) = (true, true);
    }
    // If the text model is at the top level, all tensors belong to it except those known to belong to other parts.
    let own = match (scheme.model, scheme.before) {
        (Some(model), _) => vec![model, "lm_head."],
        // The thinker's vision and audio towers share its prefix.
        (None, THINKS) => vec!["thinker.model.", "thinker.lm_head."],
        (None, before) => vec![before],
    };
    table.own = own;
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::text_part;
    use crate::families::{Described, read};
    use hooklens_model::config::{Layers, Settings, TransformerConfig};

    fn decoder(json: &serde_json::Value) -> (TransformerConfig, &'static str) {
        let text = text_part(json).unwrap().unwrap();
        match read(&text).unwrap() {
            Described::Decoder(family, config) => (*config, family.name),
            other => panic!("{other:?}"),
        }
    }

    /// Settings that published files omit get transformers's defaults.
    #[test]
    fn settings_that_published_files_leave_out() {
        let gemma = json!({
            "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
            "text_config": {
                "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
            },
        });
        let (config, family) = decoder(&gemma);
        assert_eq!((family, config.n_heads(), config.n_kv_heads(), config.d_head()), ("gemma3_text", 8, 4, 256));
        assert_eq!(
            (config.d_vocab(), config.rotary(5).unwrap().base, config.rotary(0).unwrap().base),
            (262_208, 1e6, 1e4)
        );
        let llava = json!({
            "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava",
            "text_config": {
                "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, "model_type": "llama",
                "rms_norm_eps": 1e-5, "vocab_size": 32064,
            },
        });
        let (config, family) = decoder(&llava);
        assert_eq!(
            (family, config.d_model(), config.d_mlp(), config.n_layers(), config.n_heads()),
            ("llama", 4096, 11008, 32, 32)
        );
        let qwen = json!({
            "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "hidden_size": 2048,
            "intermediate_size": 11008, "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 2,
            "rope_theta": 1e6, "tie_word_embeddings": true, "vocab_size": 151_936, "rms_norm_eps": 1e-6,
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "vision_config": {},
        });
        let (config, family) = decoder(&qwen);
        assert_eq!((family, config.d_model(), config.eps()), ("qwen2", 2048, 1e-6));
    }

    #[test]
    fn text_models_that_contradict_themselves_or_are_unknown() {
        let of = |text: serde_json::Value| {
            let json = json!({"architectures": ["XForConditionalGeneration"], "model_type": "x", "text_config": text});
            text_part(&json).unwrap_err().to_string()
        };
        assert_eq!(of(json!(3)), "not a model configuration: `text_config` is 3, not an object");
        let other = of(json!({"model_type": "llama", "architectures": ["MistralForCausalLM"]}));
        assert!(other.contains("invalid `text_config`: its architecture belongs to mistral"), "{other}");
        let unknown = of(json!({"model_type": "mamba9"}));
        assert!(unknown.starts_with("the architecture `XForConditionalGeneration (text model mamba9)`"), "{unknown}");
        let both =
            json!({"architectures": ["PaliGemmaForConditionalGeneration"], "text_config": {"model_type": "gemma"}});
        let both = text_part(&both).unwrap_err().to_string();
        assert!(both.contains("bidirectional attention"), "{both}");
        // Models without parts are not affected.
        assert!(text_part(&json!({"architectures": ["GPT2LMHeadModel"]})).unwrap().is_none());
        assert!(text_part(&json!({"architectures": ["SomethingElse"]})).unwrap().is_none());
    }
}
