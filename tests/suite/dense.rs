//! Dense decoders whose configurations omit settings or contain unsupported settings.

use std::fs;

use hooklens::activations::Stage;
use hooklens::prelude::*;
use hooklens::{ActivationFn, Error, ModelConfig, Positional, RopeScaling, TransformerConfig, Window, inspect};
use ndarray::Axis;
use serde_json::{Value, json};

use crate::support::{distance, fixtures, values};
use hooklens_model::config::{Layers, Settings};

/// The parsed configuration of a fixture with these fields changed, or removed if null.
fn described(case: &str, changes: &Value) -> Result<TransformerConfig, Error> {
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read(fixtures().join(case).join("config.json")).unwrap();
    let mut json: Value = serde_json::from_slice(&text).unwrap();
    for (field, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(json.as_object_mut().unwrap().remove(field)),
            value => json[field] = value.clone(),
        }
    }
    fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
    let file = "model.safetensors";
    fs::copy(fixtures().join(case).join(file), folder.path().join(file)).unwrap();
    match inspect(folder.path().to_str().unwrap())?.config {
        ModelConfig::Decoder(config) => Ok(*config),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let cases = [
        ("mpt", "qk_ln", json!({"attn_config": {"qk_ln": true}})),
        ("mpt", "alibi", json!({"attn_config": {"alibi": false}})),
        ("mpt", "attn_type", json!({"attn_config": {"attn_type": "multiquery_attention"}})),
        ("mpt", "clip_qkv", json!({"attn_config": {"clip_qkv": -1.0}})),
        ("mpt", "softmax_scale", json!({"attn_config": {"softmax_scale": 0.0}})),
        ("mpt", "alibi_bias_max", json!({"attn_config": {"alibi_bias_max": 0}})),
        ("mpt", "no_bias", json!({"no_bias": false})),
        ("mpt", "norm_type", json!({"norm_type": "rmsnorm"})),
        ("trocr", "use_learned_position_embeddings", json!({"use_learned_position_embeddings": false})),
        ("marian-decoder", "max_position_embeddings", json!({"max_position_embeddings": 1 << 27})),
        ("llama4", "attn_temperature_tuning", json!({"attn_temperature_tuning": "on"})),
        ("phi3", "short_factor", json!({"rope_scaling": {"type": "yarn", "factor": 4.0}})),
        ("minicpm", "sparse_config", json!({"sparse_config": {"dense_len": 8192}})),
        ("minicpm", "is_causal", json!({"is_causal": false})),
        ("codegen", "auto_map", json!({"auto_map": {"AutoModelForCausalLM": "modeling_codegen.CodeGenForCausalLM"}})),
        ("minicpm", "num_experts", json!({"num_experts": 8})),
        ("minicpm", "rope_scaling", {
            let factors = [1.0, 1.5, 2.0];
            json!({"rope_scaling": {
                "rope_type": "longrope", "short_factor": factors, "long_factor": factors,
                "original_max_position_embeddings": 8
            }})
        }),
        ("jais", "alibi_scaling", json!({"alibi_scaling": {"type": "linear", "train_seq_len": 8}})),
        ("jais", "position_embedding_type", json!({"position_embedding_type": "rotary"})),
        ("nemotron", "rope_scaling", json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0}})),
        ("hunyuan", "use_qk_norm", json!({"use_qk_norm": false})),
        ("hunyuan", "use_cla", json!({"use_cla": true})),
        ("internlm", "rotary", json!({"rotary": {"type": "spiral"}})),
        ("xglm", "add_cross_attention", json!({"add_cross_attention": true})),
        ("exaone4", "sliding_window_pattern", json!({"sliding_window_pattern": "LLLG", "layer_types": null})),
        (
            "llama",
            "block_configs",
            json!({
                "architectures": ["DeciLMForCausalLM"], "block_configs": [{"attention": {"no_op": true}}]
            }),
        ),
    ];
    for (case, field, changes) in cases {
        let message = described(case, &changes).unwrap_err().to_string();
        assert!(message.contains(field), "{case} with {changes}: {message}");
    }
}

#[test]
fn fields_left_out_are_what_transformers_takes() {
    let of = |case: &str, changes: Value| described(case, &changes).unwrap();
    let turned = |config: &TransformerConfig| match config.positional() {
        Positional::Rotary(rotary) => rotary.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(of("helium", json!({"rms_norm_eps": null})).eps(), 1e-8);
    assert_eq!(of("glm", json!({"rms_norm_eps": null})).eps(), 1.5625e-7);
    assert_eq!(turned(&of("glm", json!({"partial_rotary_factor": null}))).dim, 4);
    assert_eq!(turned(&of("nemotron", json!({"partial_rotary_factor": null}))).dim, 4);
    assert_eq!(turned(&of("persimmon", json!({"rope_theta": null}))).base, 25_000.0);
    assert_eq!(turned(&of("ernie4-5", json!({"rope_theta": null}))).base, 500_000.0);
    let apertus = turned(&of("apertus-biases", json!({"rope_scaling": null, "rope_theta": null})));
    assert!(matches!(apertus.scaling, RopeScaling::Llama3 { original_context: 8192, .. }) && apertus.base == 12e6);
    for (case, function) in [("arcee", ActivationFn::Relu2), ("apertus", ActivationFn::Xielu)] {
        assert_eq!(of(case, json!({"hidden_act": null})).activation(), function, "{case}");
    }
    assert_eq!(of("openai-gpt", json!({"afn": null})).activation(), ActivationFn::GeluNew);
    assert_eq!(of("biogpt", json!({"scale_embedding": null})).embed_scale(), Some(24f64.sqrt()));
    let wide = Some(Window::Sliding(4096));
    let pattern = json!({"sliding_window": null, "layer_types": null, "sliding_window_pattern": null});
    for case in ["cohere2-pattern", "vaultgemma"] {
        let config = of(case, pattern.clone());
        let every = if case == "vaultgemma" { 2 } else { 4 };
        for layer in 0..config.n_layers() {
            let expected = if (layer + 1) % every == 0 { None } else { wide };
            assert_eq!(config.window(layer), expected, "{case}, layer {layer}");
        }
    }
    // If no layer has a window, EXAONE 4 uses rotary embeddings in all layers.
    assert!(of("exaone4-full", json!({})).rotary(0).is_some() && of("exaone4-still", json!({})).rotary(0).is_none());
    let scale = |case: &str| of(case, json!({"scale_embedding": null})).embed_scale();
    assert_eq!((scale("bart-decoder-untied"), scale("plbart-decoder-plain")), (None, Some(24f64.sqrt())));
    assert_eq!(of("marian-decoder-vocabulary", json!({})).d_vocab_out(), 50);
    let untied = of("marian-decoder-vocabulary", json!({"tie_word_embeddings": false}));
    assert_eq!((untied.d_vocab(), untied.d_vocab_out()), (50, 70));
    // transformers tests the temperature setting for Python truthiness.
    let tuned = |value: Value| of("llama4", json!({"attn_temperature_tuning": value}));
    let on = of("llama4", json!({})).query_growth();
    assert!(on.is_some());
    for value in [json!(4), json!(0.5), json!(-1), json!(true)] {
        assert_eq!(tuned(value.clone()).query_growth(), on, "{value}");
    }
    for value in [json!(0), json!(0.0), json!(false)] {
        assert_eq!(tuned(value.clone()).query_growth(), None, "{value}");
    }
    // Older files of Phi 3, and of no other family, call LongRoPE `yarn`.
    let factors = json!({"type": "yarn", "short_factor": [1.0, 1.5, 2.0], "long_factor": [1.5, 4.0, 9.0]});
    let long = turned(&of("phi3", json!({"rope_scaling": factors})));
    assert!(matches!(long.scaling, RopeScaling::Long { .. }), "{long:?}");
    let yarn = turned(&of("llama", json!({"rope_scaling": {"type": "yarn", "factor": 2.0}})));
    assert!(matches!(yarn.scaling, RopeScaling::Yarn { .. }), "{yarn:?}");
    let growth = of("v5-ministral3", json!({"rope_parameters": null})).query_growth().unwrap();
    assert_eq!((growth.rate, growth.context), (0.1, 16_384));
}

/// The load report lists settings and tensors without effect.
#[test]
fn settings_and_tensors_without_effect_are_reported() {
    let report = |case: &str| {
        let model = HookedTransformer::from_pretrained(fixtures().join(case).to_str().unwrap()).unwrap();
        assert!(model.load_report().unused.is_empty(), "{case}: {}", model.load_report());
        model.load_report().ignored.clone()
    };
    let ignored = ["attn_config.attn_uses_sequence_id: texts are not packed into one row"];
    assert_eq!(report("mpt-story"), ignored);
    for case in ["mpt", "mpt-clipped", "mpt-three"] {
        assert_eq!(report(case), [""; 0], "{case}");
    }
    // Four projections and a norm in each of two layers, each with a bias.
    let cross_attention = "20 tensors of cross-attention, since there is no encoder to attend to";
    let kinds = [("bart-decoder", 2), ("blenderbot-small-decoder", 2), ("marian-decoder", 0), ("pegasus-decoder", 1)];
    for (case, end) in kinds {
        let forced = format!("forced_eos_token_id = {end}, which generation applies only to encoder-decoders");
        assert_eq!(report(case), [forced.as_str(), cross_attention], "{case}");
    }
    assert_eq!(report("trocr"), [cross_attention]);
    let message = report("blenderbot-small-decoder-untied");
    assert!(message[0].starts_with("scale_embedding, which") && message[2].starts_with("30 tensors"), "{message:?}");
    let info = inspect(fixtures().join("bart-decoder").to_str().unwrap()).unwrap();
    let stored = info.weights.unwrap();
    assert_eq!(stored.other_parts.into_iter().collect::<Vec<_>>(), [("cross-attention".to_string(), 20)]);
    assert!(stored.unused.is_empty() && stored.missing.is_empty());
}

/// MPT's logit scale, which transformers reads but does not apply.
#[test]
fn logits_of_mpt_are_scaled() {
    let logits = |scale: Value| {
        let folder = tempfile::tempdir().unwrap();
        let from = fixtures().join("mpt");
        fs::copy(from.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
        let mut json: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
        json["logit_scale"] = scale;
        fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
        let model = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap();
        values(&model.forward([3, 4, 5]).unwrap())
    };
    let plain = logits(json!(null));
    for (scale, factor) in [(json!(2.0), 2.0), (json!("inv_sqrt_d_model"), 24f32.powf(-0.5))] {
        assert!(distance(&logits(scale), &(&plain * factor)) < 1e-5);
    }
}

/// Position embeddings that are normalized together with the token embeddings are part of `hook_embed`, which is the
/// first residual stream.
#[test]
fn an_embedding_that_is_normalized_with_positions_is_one_component() {
    for case in ["mbart-decoder", "bart-decoder"] {
        let model = HookedTransformer::from_pretrained(fixtures().join(case).to_str().unwrap()).unwrap();
        let tokens = Tokens::new(vec![vec![3, 3, 3]]).unwrap();
        let (_, cache) = model.run_with_cache(&tokens, Record::all()).unwrap();
        let embed = values(&cache.get(hook::embed()).unwrap());
        assert_eq!(embed, values(&cache.get(hook::resid_pre(0)).unwrap()), "{case}");
        // The same token differs by position.
        let at = |pos: usize| embed.index_axis(Axis(1), pos).to_owned();
        assert!(distance(&at(0), &at(1)) > 1e-2, "{case}");
        let message = cache.get(hook::pos_embed()).unwrap_err().to_string();
        assert!(message.contains("hook_pos_embed"), "{case}: {message}");
    }
    let model = HookedTransformer::from_pretrained(fixtures().join("mbart-decoder").to_str().unwrap()).unwrap();
    let cache = model.record([3, 4, 5], Record::all()).unwrap();
    let parts = model.analyze(&cache).unwrap().decompose_resid(Stage::Final).unwrap();
    assert_eq!(parts.labels()[..2], ["embed", "0_attn_out"]);
}
