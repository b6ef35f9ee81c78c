//! Files written by transformers 5, which renamed some settings, compared with its results.

use std::fs;

use hooklens::encoder_decoder::HookedEncoderDecoder;
use hooklens::prelude::*;
use hooklens::{Error, InputError, LoadError, write_safetensors};
use serde_json::{Value, json};

use crate::parity::{Golden, Tally, load};
use crate::support::{fixtures, values};
use hooklens_model::config::Settings;

#[test]
fn decoders_are_read_as_transformers_5_writes_them() {
    let mut tally = Tally::default();
    let cases = [
        "v5-afmoe",
        "v5-afmoe-all",
        "v5-afmoe-heads",
        "v5-cohere2",
        "v5-cohere2-moe",
        "v5-cohere2-moe-rms",
        "v5-cohere2-moe-tied",
        "v5-deepseek-v2",
        "v5-deepseek-v3",
        "v5-deepseek-v32",
        "v5-deepseek-v32-biases",
        "v5-deepseek-v32-tied",
        "v5-exaone",
        "v5-exaone4",
        "v5-gemma3",
        "v5-gemma4",
        "v5-gemma4-dense",
        "v5-gemma4-experts",
        "v5-glm",
        "v5-glm-moe-dsa",
        "v5-glm-moe-dsa-biases",
        "v5-glm-moe-dsa-tied",
        "v5-glm4-moe-lite",
        "v5-glm4-moe-lite-biases",
        "v5-glm4-moe-lite-tied",
        "v5-gpt-oss",
        "v5-hunyuan",
        "v5-hy-v3",
        "v5-hy-v3-biases",
        "v5-hy-v3-tied",
        "v5-internlm3",
        "v5-lfm2",
        "v5-lfm2-biases",
        "v5-lfm2-heads",
        "v5-lfm2-moe",
        "v5-lfm2-moe-biases",
        "v5-lfm2-moe-plain",
        "v5-llama4",
        "v5-longrope",
        "v5-mamba2",
        "v5-mamba2-biases",
        "v5-mamba2-tied",
        "v5-mellum",
        "v5-mellum-dense",
        "v5-mellum-full",
        "v5-minimax-m2",
        "v5-minimax-m2-heads",
        "v5-minimax-m2-whole",
        "v5-ministral3",
        "v5-ministral3-heads",
        "v5-ministral3-window",
        "v5-nemotron-h",
        "v5-nemotron-h-biases",
        "v5-nemotron-h-experts",
        "v5-olmo3",
        "v5-qwen3-5",
        "v5-qwen3-5-first",
        "v5-qwen3-5-moe",
        "v5-qwen3-moe",
        "v5-sarvam-mla",
        "v5-sarvam-mla-groups",
        "v5-sarvam-mla-halves",
        "v5-sarvam-moe",
        "v5-sarvam-moe-biases",
        "v5-sarvam-moe-dense",
        "v5-smollm3",
        "v5-youtu",
        "v5-youtu-biases",
        "v5-youtu-halves",
    ];
    for case in cases {
        let (model, golden) = (load(case, LoadOptions::new()), Golden::of_file(case, "golden.safetensors"));
        let unused = &model.load_report().unused;
        // Only the tensors of a sparse-attention index are unused, because it selects all keys for prompts this short.
        assert!(unused.iter().all(|name| name.contains(".indexer.")), "{case}: {}", model.load_report());
        let sparse = case.starts_with("v5-deepseek-v32") || case.starts_with("v5-glm-moe-dsa");
        assert_eq!(unused.is_empty(), !sparse, "{case}");
        let logits = model.forward(golden.tokens("")).unwrap();
        tally.compare(case, &values(&logits), golden.get("logits").unwrap());
    }
    assert!(tally.compared == cases.len() && tally.problems.is_empty(), "{}", tally.problems.join("\n"));
}

#[test]
fn encoder_decoders_are_read_as_transformers_5_writes_them() {
    let mut tally = Tally::default();
    for case in ["v5-t5", "v5-t5-gated", "v5-mt5"] {
        let model = HookedEncoderDecoder::from_pretrained(fixtures().join(case).to_str().unwrap()).unwrap();
        let golden = Golden::of_file(case, "encoder.safetensors");
        assert!(model.load_report().unused.is_empty(), "{case}: {}", model.load_report());
        let logits = model.forward((golden.tokens(""), golden.tokens("decoder_"))).unwrap();
        tally.compare(case, &values(&logits), golden.get("logits").unwrap());
    }
    assert!(tally.compared == 3 && tally.problems.is_empty(), "{}", tally.problems.join("\n"));
}

/// Sequences for which an index would drop keys are rejected, instead of attending to all keys.
#[test]
fn sequences_beyond_what_an_index_chooses_are_refused() {
    let model = load("v5-glm-moe-dsa", LoadOptions::new());
    assert_eq!((model.config().n_ctx(), model.config().most_keys()), (40, Some(40)));
    let tokens = |len: u32| (0..len).map(|at| 2 + at % 40).collect::<Vec<_>>();
    let sparse = |error: Error| matches!(error, Error::Input(InputError::Sparse { len: 41, most: 40 }));
    assert!(model.forward(tokens(40)).is_ok() && sparse(model.forward(tokens(41)).unwrap_err()));
    let mut cache = model.prefill(tokens(39)).unwrap();
    assert!(model.forward_with(vec![3], ForwardOptions::new().kv_cache(&mut cache)).is_ok());
    assert!(sparse(model.forward_with(vec![3], ForwardOptions::new().kv_cache(&mut cache)).unwrap_err()));
    assert!(sparse(model.generate_with(tokens(40), GenerateOptions::new().max_new_tokens(2)).unwrap_err()));
    // Saving and loading preserves it.
    let folder = tempfile::tempdir().unwrap();
    model.save_pretrained(folder.path()).unwrap();
    let again = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap();
    assert!(sparse(again.forward(tokens(41)).unwrap_err()));
}

/// A soft cap that Gemma 3's configuration names but does not use is reported.
#[test]
fn settings_without_effect_are_told() {
    let model = load("v5-gemma3", LoadOptions::new());
    let message = model.load_report().to_string();
    assert!(message.contains("ignored: attn_logit_softcapping = 5, which Gemma 3 does not apply"), "{message}");
    let folder = fixtures().join("v5-gemma3");
    let said = crate::support::program()
        .args(["generate", "--tokens", "1,2", "--max-new-tokens", "1", "--model"])
        .arg(folder)
        .output();
    let said = String::from_utf8(said.unwrap().stderr).unwrap();
    assert!(said.contains("note: ignored: attn_logit_softcapping"), "{said}");
}

/// If versions of transformers disagree on which of two settings or tensors applies, the file is rejected.
#[test]
fn what_versions_take_differently_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |case: &str, changed: &[(&str, Value)]| {
        fs::copy(fixtures().join(case).join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
        let text = fs::read(fixtures().join(case).join("config.json")).unwrap();
        let mut json: Value = serde_json::from_slice(&text).unwrap();
        changed.iter().for_each(|(field, value)| json[*field] = value.clone());
        fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
        HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap_err()
    };
    let tied = refused("v5-longrope", &[("tie_word_embeddings", json!(true))]);
    assert!(matches!(&tied, Error::Load(LoadError::NotTied { unembedding, .. }) if unembedding == "lm_head.weight"));
    let twice = refused("v5-longrope", &[("original_max_position_embeddings", json!(32))]).to_string();
    assert!(twice.contains("it is 32, but 16 in"), "{twice}");
    let activation =
        refused("gemma", &[("hidden_activation", json!("relu")), ("hidden_act", json!("silu"))]).to_string();
    assert!(activation.contains("hidden_activation"), "{activation}");
    for case in ["gemma", "gemma2"] {
        let both = refused(case, &[("use_bidirectional_attention", json!(true))]).to_string();
        assert!(both.contains("use_bidirectional_attention"), "{both}");
    }
    // A model like Llama's, except for a rotary setting.
    let mut rotation = json!({"rope_type": "default", "rope_theta": 500.0});
    rotation["llama_4_scaling_beta"] = json!(0.3);
    let plain = |rotation: &Value| {
        [
            ("architectures", json!(["Llama7ForCausalLM"])),
            ("rope_parameters", rotation.clone()),
            ("model_type", json!("x")),
        ]
    };
    let other = refused("v5-longrope", &plain(&rotation)).to_string();
    assert!(other.contains("rope_parameters.llama_4_scaling_beta = 0.3"), "{other}");
}

/// An unembedding that is stored again although it equals the embedding is accepted.
#[test]
fn a_tied_unembedding_may_be_there_twice() {
    let folder = tempfile::tempdir().unwrap();
    let llama = fixtures().join("llama-biases");
    fs::copy(llama.join("config.json"), folder.path().join("config.json")).unwrap();
    let files = hooklens::WeightFiles::open(std::slice::from_ref(&llama)).unwrap();
    let read = |name: &str| {
        let data = files.read(name, DType::F32).unwrap();
        match data.shape().len() {
            1 => Activation::from(Tensor::<1>::from_data(data, &crate::support::device())),
            _ => Activation::from(Tensor::<2>::from_data(data, &crate::support::device())),
        }
    };
    let mut tensors: Vec<(String, Activation)> =
        files.tensors().map(|(name, _)| (name.to_string(), read(name))).collect();
    tensors.push(("lm_head.weight".into(), read("model.embed_tokens.weight")));
    let save = |tensors: &[(String, Activation)]| {
        let named = tensors.iter().map(|(name, tensor)| (name.clone(), tensor));
        write_safetensors(&folder.path().join("model.safetensors"), named, Default::default()).unwrap();
    };
    save(&tensors);
    let twice = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap();
    let once = HookedTransformer::from_pretrained(llama.to_str().unwrap()).unwrap();
    assert_eq!(values(&twice.forward([1, 2, 3]).unwrap()), values(&once.forward([1, 2, 3]).unwrap()));
    let last = tensors.len() - 1;
    let other =
        Tensor::<2>::from_data(files.read("model.embed_tokens.weight", DType::F32).unwrap(), &crate::support::device());
    tensors[last].1 = Activation::from(other * 1.001);
    save(&tensors);
    let error = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap_err();
    assert!(matches!(error, Error::Load(LoadError::NotTied { .. })), "{error}");
}

/// Experts stored in two stacked tensors, as Qwen 3.5 is published, equal three matrices each, as transformers writes
/// them.
#[test]
fn experts_may_lie_in_stacks() {
    let folder = tempfile::tempdir().unwrap();
    let case = fixtures().join("v5-qwen3-5-moe");
    fs::copy(case.join("config.json"), folder.path().join("config.json")).unwrap();
    let files = hooklens::WeightFiles::open(std::slice::from_ref(&case)).unwrap();
    let read = |name: &str| {
        let (data, device) = (files.read(name, DType::F32).unwrap(), crate::support::device());
        match data.shape().len() {
            1 => Activation::from(Tensor::<1>::from_data(data, &device)),
            2 => Activation::from(Tensor::<2>::from_data(data, &device)),
            _ => Activation::from(Tensor::<3>::from_data(data, &device)),
        }
    };
    let (experts, others): (Vec<_>, Vec<_>) =
        files.tensors().map(|(name, _)| name.to_string()).partition(|name| name.contains(".experts."));
    let mut tensors: Vec<(String, Activation)> = others.iter().map(|name| (name.clone(), read(name))).collect();
    assert_eq!(experts.len(), 4 * 5 * 3);
    for layer in 0..4 {
        let of = |expert: usize, part: &str| {
            let held = read(&format!("model.layers.{layer}.mlp.experts.{expert}.{part}.weight"));
            held.reshape(&[&[1], held.shape()].concat())
        };
        let both = |expert| Activation::cat(&[of(expert, "gate_proj"), of(expert, "up_proj")], 1);
        let stack = |of: &dyn Fn(usize) -> Activation| Activation::cat(&(0..5).map(of).collect::<Vec<_>>(), 0);
        let name = |part: &str| format!("model.layers.{layer}.mlp.experts.{part}");
        tensors.push((name("gate_up_proj"), stack(&both)));
        tensors.push((name("down_proj"), stack(&|expert| of(expert, "down_proj"))));
    }
    let named = tensors.iter().map(|(name, tensor)| (name.clone(), tensor));
    write_safetensors(&folder.path().join("model.safetensors"), named, Default::default()).unwrap();
    let stacked = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap();
    assert!(stacked.load_report().unused.is_empty(), "{}", stacked.load_report());
    let apart = load("v5-qwen3-5-moe", LoadOptions::new());
    let tokens = vec![vec![5, 6, 7, 8, 9]];
    assert_eq!(values(&stacked.forward(tokens.clone()).unwrap()), values(&apart.forward(tokens).unwrap()));
}
