//! Loading: files, dtypes, reports, names.

use std::fs;
use std::path::Path;

use hooklens::ActivationFn;
use hooklens::PaddingSide;
use hooklens::prelude::*;
use hooklens::{NormKind, Positional, RopeScaling, Rotary, Window};
use serde_json::{Value, json};

use crate::support::{assert_close, fixtures, has, random_model, values};
use hooklens_model::config::{Layers, Settings};

const ROW: [u32; 4] = [1, 2, 3, 4];

fn saved(config: TransformerConfig) -> (HookedTransformer, tempfile::TempDir) {
    let model = random_model(config, 11);
    let folder = tempfile::tempdir().unwrap();
    model.save_pretrained(folder.path()).unwrap();
    (model, folder)
}

fn load(folder: &Path) -> HookedTransformer {
    HookedTransformer::from_pretrained(folder.to_str().unwrap()).unwrap()
}

fn plain() -> TransformerConfig {
    TransformerConfig::new(2, 16, 4, 20, 32)
}

#[test]
fn shards_and_an_index_are_one_model() {
    let (model, folder) = saved(plain());
    let whole = fs::read(folder.path().join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&whole).unwrap();
    let mut map = serde_json::Map::new();
    for shard in 0..2 {
        let file = format!("model-0000{}-of-00002.safetensors", shard + 1);
        let part: Vec<_> = tensors.iter().enumerate().filter(|(i, _)| i % 2 == shard).map(|(_, t)| t).collect();
        for (name, _) in &part {
            map.insert(name.to_string(), Value::String(file.clone()));
        }
        fs::write(folder.path().join(&file), safetensors::serialize(part, None).unwrap()).unwrap();
    }
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let index = json!({"metadata": {}, "weight_map": map}).to_string();
    fs::write(folder.path().join("model.safetensors.index.json"), &index).unwrap();
    let again = load(folder.path());
    assert_close(&again.forward(ROW).unwrap(), &model.forward(ROW).unwrap(), 1e-6, "two shards");

    fs::remove_file(folder.path().join("model-00002-of-00002.safetensors")).unwrap();
    let missing = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap_err().to_string();
    assert!(missing.contains("model-00002-of-00002.safetensors"), "{missing}");
    fs::write(folder.path().join("model.safetensors.index.json"), index.replace("model-00002", "../model-00002"))
        .unwrap();
    let outside = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap_err().to_string();
    assert!(outside.contains("outside the folder"), "{outside}");
}

#[test]
fn stored_and_computed_types_are_chosen_apart() {
    let rotary = Positional::Rotary(Rotary { dim: 2, base: 500.0, adjacent_pairs: false, scaling: RopeScaling::None });
    let modern = plain()
        .with_kv_heads(2)
        .with_gated_mlp(true)
        .with_positional(rotary)
        .with_norm(NormKind::Rms)
        .with_qk_norm(hooklens_model::config::QkNorm::HEADS);
    let alibi = plain()
        .with_positional(Positional::Alibi)
        .with_post_norms(true)
        .with_windows([Some(Window::Sliding(2)), None])
        .unwrap();
    let experts = Some(hooklens_model::config::Experts::new(3, 2));
    let mixture = plain().with_gated_mlp(true).with_mixture(experts).with_positional(Positional::Shortformer);
    for config in [plain(), modern, alibi, mixture] {
        let (model, folder) = saved(config);
        let exact = model.forward(ROW).unwrap();
        // An MoE model may choose other experts in another dtype, so its deviation is meaningless.
        let loose = if model.config().experts().is_some() { 10.0 } else { 0.15 };
        for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F64, 1e-6), (DType::F16, loose), (DType::BF16, loose)] {
            if !has(dtype) {
                continue;
            }
            let options = LoadOptions::new().dtype(dtype);
            let loaded = HookedTransformer::from_pretrained_with(folder.path().to_str().unwrap(), options).unwrap();
            let logits = loaded.forward(ROW).unwrap();
            assert_eq!(logits.dtype(), dtype.burn());
            assert_close(&logits.cast(burn::tensor::FloatDType::F32), &exact, tolerance, &dtype.to_string());
            // Every point can be recorded and every row padded in every dtype.
            let everything = Selection::matching(|_| true);
            loaded.record(ROW, everything).unwrap();
            let padded = Tokens::padded(&[ROW.to_vec(), vec![5]], 0, PaddingSide::Left).unwrap();
            loaded.loss(&padded).unwrap();
        }
    }
}

#[test]
fn half_stored_files_are_widened() {
    let (model, folder) = saved(plain());
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&whole).unwrap();
    let halves: Vec<_> = tensors
        .iter()
        .map(|(name, view)| {
            let floats = view.data().as_chunks::<4>().0.iter().map(|b| half::bf16::from_f32(f32::from_le_bytes(*b)));
            let bytes: Vec<u8> = floats.flat_map(|x| x.to_le_bytes()).collect();
            (name.to_string(), view.shape().to_vec(), bytes)
        })
        .collect();
    let views = halves.iter().map(|(name, shape, bytes)| {
        (name, safetensors::tensor::TensorView::new(safetensors::Dtype::BF16, shape.clone(), bytes).unwrap())
    });
    fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    let logits = load(folder.path()).forward(ROW).unwrap();
    assert_eq!(logits.dtype(), burn::tensor::DType::F32);
    assert_close(&logits, &model.forward(ROW).unwrap(), 0.05, "bf16 on disk, f32 in memory");
}

#[test]
fn the_report_names_what_was_not_used() {
    let (_, folder) = saved(plain());
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&whole).unwrap();
    let mut all: Vec<_> = tensors.iter().map(|(name, view)| (name.to_string(), view)).collect();
    all.push(("something.else".into(), all[0].1.clone()));
    all.push(("blocks.0.attn.mask".into(), all[0].1.clone()));
    fs::write(&path, safetensors::serialize(all, None).unwrap()).unwrap();
    let report = load(folder.path()).load_report().clone();
    assert_eq!(report.unused, ["something.else"]);
    assert!(report.applied.contains(&"blocks.1.mlp.W_out".to_string()));
    assert!(report.to_string().contains("unused: something.else"), "{report}");
}

#[test]
fn a_missing_or_misshapen_tensor_is_named() {
    let (_, folder) = saved(plain());
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&whole).unwrap();
    let without: Vec<_> = tensors.iter().filter(|(name, _)| *name != "blocks.1.attn.W_O").collect();
    fs::write(&path, safetensors::serialize(without, None).unwrap()).unwrap();
    let error = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap_err().to_string();
    assert!(error.contains("`blocks.1.attn.W_O` is missing") && error.contains("blocks.0.attn.W_O"), "{error}");

    let config = fs::read_to_string(folder.path().join("config.json")).unwrap();
    fs::write(&path, &whole).unwrap();
    fs::write(folder.path().join("config.json"), config.replace("\"d_mlp\": 64", "\"d_mlp\": 60")).unwrap();
    let error = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap_err().to_string();
    assert!(error.contains("blocks.0.mlp.W_in") && error.contains("[16, 64]") && error.contains("[16, 60]"), "{error}");
}

#[test]
fn names_that_are_no_model_say_what_to_do() {
    let error = |name: &str| HookedTransformer::from_pretrained(name).unwrap_err().to_string();
    assert!(error("./no/such/folder").contains("no such folder"));
    assert!(error("embedded:none").contains("induction"));
    let empty = tempfile::tempdir().unwrap();
    assert!(error(empty.path().to_str().unwrap()).contains("config.json"));
    fs::write(
        empty.path().join("config.json"),
        json!({"architectures": ["GPT2LMHeadModel"], "n_embd": 16, "n_head": 4,
        "n_layer": 1, "vocab_size": 9, "n_positions": 8})
        .to_string(),
    )
    .unwrap();
    assert!(error(empty.path().to_str().unwrap()).contains("model.safetensors"));
    fs::write(empty.path().join("pytorch_model.bin"), "").unwrap();
    assert!(error(empty.path().to_str().unwrap()).contains("pytorch_model.bin"));
}

/// Settings without a field in TransformerLens's format survive saving, too.
#[test]
fn every_choice_is_saved() {
    let rotary = |scaling| Positional::Rotary(Rotary { dim: 2, base: 500.0, adjacent_pairs: true, scaling });
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        attention_factor: 1.14,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_context: 8,
        truncate: false,
    };
    for config in [
        plain()
            .with_positional(rotary(yarn))
            .with_norm(NormKind::RmsPre)
            .with_windows([Some(Window::Chunked(4)), Some(Window::Sliding(5))])
            .unwrap(),
        plain().with_positional(Positional::None).with_norm(NormKind::None).with_bidirectional(true),
        plain().with_positional(Positional::LearnedNormalized).with_post_embedding_norm(true),
        plain().with_d_vocab_out(7).with_output_logits_soft_cap(30.0).with_default_prepend_bos(false),
    ] {
        let (model, folder) = saved(config.clone());
        let again = load(folder.path());
        assert_eq!(again.config(), &config);
        assert_close(&again.forward(ROW).unwrap(), &model.forward(ROW).unwrap(), 1e-6, "saved");
    }
}

/// An unembedding that is neither in the file nor tied is an error. It is not initialized with other values.
#[test]
fn an_untied_model_needs_its_unembedding() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(crate::support::fixtures().join("gpt2").join(file), folder.path().join(file)).unwrap();
    }
    load(folder.path());
    let config = fs::read_to_string(folder.path().join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["tie_word_embeddings"] = false.into();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let error = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap_err().to_string();
    assert!(error.contains("`lm_head.weight` is missing"), "{error}");
}

/// If a required weight or bias of a norm is missing, that is an error. It is not initialized with other values.
#[test]
fn a_missing_norm_or_bias_is_named() {
    let gated = plain().with_gated_mlp(true).with_activation(ActivationFn::Silu);
    let (_, own) = saved(plain());
    let (_, own_gated) = saved(gated);
    let copied = |fixture: &str| {
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(crate::support::fixtures().join(fixture).join(file), folder.path().join(file)).unwrap();
        }
        folder
    };
    let (biased, qwen, neox) = (copied("llama-biases"), copied("qwen2"), copied("neox-serial"));
    for (folder, gone) in [
        (&own, "blocks.0.ln1.w"),
        (&own, "ln_final.b"),
        (&own, "blocks.1.attn.b_V"),
        (&own, "unembed.b_U"),
        (&own_gated, "blocks.0.mlp.b_gate"),
        (&biased, "model.layers.1.self_attn.o_proj.bias"),
        (&biased, "model.layers.0.mlp.up_proj.bias"),
        (&qwen, "model.layers.0.self_attn.k_proj.bias"),
        (&neox, "gpt_neox.layers.0.attention.query_key_value.bias"),
        (&neox, "gpt_neox.layers.1.mlp.dense_h_to_4h.bias"),
    ] {
        let path = folder.path().join("model.safetensors");
        let whole = fs::read(&path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&whole).unwrap();
        let without: Vec<_> = tensors.iter().filter(|(name, _)| *name != gone).collect();
        assert_eq!(without.len() + 1, tensors.len(), "{gone} is not there to be left out");
        fs::write(&path, safetensors::serialize(without, None).unwrap()).unwrap();
        let error = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains(gone), "{error}");
        let info = hooklens::inspect(folder.path().to_str().unwrap()).unwrap();
        assert_eq!(info.weights.unwrap().missing, [gone]);
        fs::write(&path, &whole).unwrap();
        load(folder.path());
    }
}

/// A saved model keeps its tokenizer.
#[test]
fn a_saved_tokenizer_comes_back() {
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let folder = tempfile::tempdir().unwrap();
    model.save_pretrained(folder.path()).unwrap();
    let again = load(folder.path());
    let text = "red fox blue red";
    assert_eq!(again.to_tokens(text).unwrap(), model.to_tokens(text).unwrap());
    let (before, after) = (model.tokenizer().unwrap(), again.tokenizer().unwrap());
    assert_eq!((after.bos(), after.eos(), after.pad()), (before.bos(), before.eos(), before.pad()));
    assert_eq!(again.fingerprint().unwrap(), model.fingerprint().unwrap());
}

/// 16-bit weights are processed piecewise, with the same result.
#[test]
fn processing_in_pieces_is_processing() {
    if !has(DType::BF16) {
        return;
    }
    let config = TransformerConfig::new(1, 512, 2, 3000, 16).with_d_vocab_out(3000);
    let (_, folder) = saved(config);
    let name = folder.path().to_str().unwrap();
    let loaded = |dtype| {
        let options = LoadOptions::new().dtype(dtype).process(Processing::standard());
        HookedTransformer::from_pretrained_with(name, options).unwrap()
    };
    let (whole, pieces) = (loaded(DType::F32), loaded(DType::BF16));
    let widened = pieces.weights().get::<2>("unembed.W_U").unwrap().cast(burn::tensor::FloatDType::F32);
    assert_close(&widened, &whole.weights().get("unembed.W_U").unwrap(), 1.6e-2, "unembedding");
    let widened = pieces.weights().get::<1>("unembed.b_U").unwrap().cast(burn::tensor::FloatDType::F32);
    assert_close(&widened, &whole.weights().get("unembed.b_U").unwrap(), 1.6e-2, "its bias");
}

fn fixture(name: &str) -> String {
    fixtures().join(name).to_str().unwrap().to_string()
}

/// A file written by llama2.c's `export.py`, with seven integers and all tensors, gives the original model.
#[test]
fn a_binary_export_is_the_model_it_was_made_from() {
    let bytes = fs::read(fixtures().join("llama2c/model.safetensors")).unwrap();
    let stored = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let model = HookedTransformer::from_pretrained(fixture("llama2c")).unwrap();
    let c = model.config();
    let sizes = [c.d_model(), c.d_mlp(), c.n_layers(), c.n_heads(), c.n_kv_heads()];
    let mut export: Vec<u8> = sizes.iter().flat_map(|n| (*n as i32).to_le_bytes()).collect();
    export.extend((-(c.d_vocab() as i32)).to_le_bytes());
    export.extend((c.n_ctx() as i32).to_le_bytes());
    export.extend(stored.tensor("tok_embeddings.weight").unwrap().data());
    let parts = ["attention_norm", "attention.wq", "attention.wk", "attention.wv", "attention.wo", "ffn_norm"];
    let parts = parts.into_iter().chain(["feed_forward.w1", "feed_forward.w2", "feed_forward.w3"]);
    for part in parts {
        for layer in 0..c.n_layers() {
            export.extend(stored.tensor(&format!("layers.{layer}.{part}.weight")).unwrap().data());
        }
    }
    export.extend(stored.tensor("norm.weight").unwrap().data());
    export.extend(vec![0; 4 * c.n_ctx() * c.d_head()]);
    export.extend(stored.tensor("tok_embeddings.weight").unwrap().data());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stories.bin");
    fs::write(&path, &export).unwrap();
    let again = HookedTransformer::from_pretrained(path.to_str().unwrap()).unwrap();
    assert!(again.load_report().unused.is_empty(), "{}", again.load_report());
    assert_close(&again.forward(ROW).unwrap(), &model.forward(ROW).unwrap(), 1e-6, "binary export");

    fs::write(&path, &export[..export.len() - 4]).unwrap();
    let short = HookedTransformer::from_pretrained(path.to_str().unwrap()).unwrap_err().to_string();
    assert!(short.contains("config.json"), "{short}");
}

#[test]
fn an_adapter_for_another_base_says_so() {
    let options = |adapter: &str| LoadOptions::new().adapter(fixture(adapter));
    let error = |model: &str, adapter: &str| {
        HookedTransformer::from_pretrained_with(fixture(model), options(adapter)).unwrap_err().to_string()
    };
    let other = error("gpt2", "lora-llama");
    assert!(other.contains("q_proj") || other.contains("down_proj"), "{other}");
    assert!(other.contains("../llama"), "{other}");
    let shape = error("llama3", "lora-llama");
    assert!(shape.contains("lora_") && shape.contains("shape"), "{shape}");
    // A base with the same shapes is accepted.
    let merged = HookedTransformer::from_pretrained_with(fixture("llama"), options("lora-llama")).unwrap();
    let direct = HookedTransformer::from_pretrained(fixture("lora-llama")).unwrap();
    assert_close(&merged.forward(ROW).unwrap(), &direct.forward(ROW).unwrap(), 0.0, "by option and by folder");

    let folder = tempfile::tempdir().unwrap();
    let json = fs::read_to_string(fixtures().join("lora-llama/adapter_config.json")).unwrap();
    for (from, to, says) in [
        ("\"use_dora\": false", "\"use_dora\": true", "use_dora"),
        ("\"use_dora\": false", "\"use_dora\": \"true\"", "`use_dora` is \"true\", not true or false"),
        ("\"use_rslora\": false", "\"use_rslora\": 1", "`use_rslora`"),
        ("\"fan_in_fan_out\": false", "\"fan_in_fan_out\": \"no\"", "`fan_in_fan_out`"),
        ("\"use_qalora\": false", "\"use_qalora\": true", "`use_qalora` is not supported"),
        ("\"layer_replication\": null", "\"layer_replication\": [[0, 2]]", "`layer_replication`"),
        ("\"use_dora\": false", "\"use_dora\": false, \"alora_invocation_tokens\": [1]", "`alora_invocation_tokens`"),
        ("\"r\": 3", "\"r\": 3.7", "`r` is 3.7"),
        (
            "\"alpha_pattern\": {}",
            "\"alpha_pattern\": {\"q_proj\": \"64\"}",
            "maps `q_proj` to \"64\", which is not a number",
        ),
        ("\"alpha_pattern\": {}", "\"alpha_pattern\": [64]", "`alpha_pattern` is [64], not an object"),
        ("\"lora_alpha\": 7", "\"lora_alpha\": 1e300", "`lora_alpha`"),
        ("\"peft_type\": \"LORA\"", "\"peft_type\": \"IA3\"", "IA3"),
        ("\"r\": 3", "\"r\": 0", "`r`"),
        ("\"r\": 3", "\"r\": 3", "adapter_model"),
    ] {
        assert!(json.contains(from), "{from}");
        fs::write(folder.path().join("adapter_config.json"), json.replace(from, to)).unwrap();
        if says != "adapter_model" {
            let weights = "adapter_model.safetensors";
            fs::copy(fixtures().join("lora-llama").join(weights), folder.path().join(weights)).unwrap();
        } else {
            fs::remove_file(folder.path().join("adapter_model.safetensors")).unwrap();
        }
        let options = LoadOptions::new().adapter(folder.path());
        let error = HookedTransformer::from_pretrained_with(fixture("llama"), options).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    // A second factor without the first.
    let weights = fs::read(fixtures().join("lora-llama/adapter_model.safetensors")).unwrap();
    let text = String::from_utf8_lossy(&weights).find(".lora_A.").unwrap();
    let mut orphaned = weights;
    orphaned[text..text + 8].copy_from_slice(b".lora_X.");
    fs::write(folder.path().join("adapter_model.safetensors"), orphaned).unwrap();
    fs::write(folder.path().join("adapter_config.json"), &json).unwrap();
    let options = LoadOptions::new().adapter(folder.path());
    let error = HookedTransformer::from_pretrained_with(fixture("llama"), options).unwrap_err().to_string();
    assert!(error.contains("no matching"), "{error}");
}

/// An architecture of no known family loads if it is Llama under another name, and only then.
#[test]
fn llama_under_another_name_loads_if_everything_is_accounted_for() {
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("model.safetensors");
    fs::copy(fixtures().join("llama3/model.safetensors"), &weights).unwrap();
    let json: Value = serde_json::from_slice(&fs::read(fixtures().join("llama3/config.json")).unwrap()).unwrap();
    let write = |changes: &[(&str, Value)]| {
        let mut json = json.clone();
        json["architectures"] = json!(["YodaForCausalLM"]);
        json["model_type"] = json!("yoda");
        changes.iter().for_each(|(field, value)| json[*field] = value.clone());
        fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
    };
    write(&[("use_scaled_force", json!(false))]);
    let model = load(folder.path());
    let llama = HookedTransformer::from_pretrained(fixture("llama3")).unwrap();
    assert_close(&model.forward(ROW).unwrap(), &llama.forward(ROW).unwrap(), 0.0, "another name");

    let error = || HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap_err().to_string();
    write(&[("residual_multiplier", json!(0.5))]);
    assert!(error().contains("unexpected settings: residual_multiplier = 0.5"), "{}", error());
    write(&[("num_hidden_layers", json!(1))]);
    assert!(error().contains("unexpected tensors: model.layers.1."), "{}", error());
    write(&[("attention_bias", json!(true))]);
    assert!(error().contains("missing tensors: model.layers.0.self_attn.k_proj.bias"), "{}", error());
    write(&[("model_type", json!("helium"))]);
    assert!(error().contains("rotary embeddings to adjacent pairs"), "{}", error());
    write(&[("hidden_size", json!("wide"))]);
    assert!(error().contains("supported architectures are"), "{}", error());
}

/// The parsed configuration of a fixture with some fields changed and others removed.
fn described(case: &str, changes: Value, without: &[&str]) -> TransformerConfig {
    let folder = tempfile::tempdir().unwrap();
    let mut json: Value =
        serde_json::from_slice(&fs::read(fixtures().join(case).join("config.json")).unwrap()).unwrap();
    without.iter().for_each(|field| drop(json.as_object_mut().unwrap().remove(*field)));
    changes.as_object().unwrap().iter().for_each(|(field, value)| json[field] = value.clone());
    fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
    let file = folder.path().join("model.safetensors");
    fs::copy(fixtures().join(case).join("model.safetensors"), file).unwrap();
    match hooklens::inspect(folder.path().to_str().unwrap()).unwrap().config {
        hooklens::ModelConfig::Decoder(config) => *config,
        other => panic!("{other:?}"),
    }
}

/// A missing field gets Hugging Face's default; a null field has no value.
#[test]
fn absent_fields_have_hugging_faces_defaults() {
    let none = json!({});
    let width = |config: &TransformerConfig, layer: usize| config.window(layer).map(Window::width);
    let base = |config: &TransformerConfig, layer: usize| config.rotary(layer).unwrap().base;
    let mistral = described("mistral-window", none.clone(), &["sliding_window"]);
    assert_eq!(width(&mistral, 0), Some(4096));
    assert_eq!(width(&described("mistral-window", json!({"sliding_window": null}), &[]), 0), None);
    let by_layer =
        json!({"layer_types": ["full_attention", "sliding_attention"], "architectures": ["MinistralForCausalLM"]});
    let ministral = described("mistral-window", by_layer, &[]);
    assert_eq!([width(&ministral, 0), width(&ministral, 1)], [None, Some(3)]);
    let gemma2 =
        described("gemma2", none.clone(), &["sliding_window", "attn_logit_softcapping", "final_logit_softcapping"]);
    assert_eq!(
        (width(&gemma2, 0), gemma2.attn_scores_soft_cap(), gemma2.output_logits_soft_cap()),
        (Some(4096), Some(50.0), Some(30.0))
    );
    assert_eq!(described("gemma2", json!({"attn_logit_softcapping": null}), &[]).attn_scores_soft_cap(), None);
    assert_eq!(base(&described("mixtral", none.clone(), &["rope_theta"]), 0), 1e6);
    assert_eq!(base(&described("smollm3", none.clone(), &["rope_theta"]), 0), 2e6);
    let oss = described("gpt-oss", none.clone(), &["rope_theta", "rope_scaling", "sliding_window"]);
    assert_eq!((base(&oss, 0), width(&oss, 0), width(&oss, 1)), (150_000.0, Some(128), None));
    assert!(matches!(oss.rotary(0).unwrap().scaling, RopeScaling::Yarn { factor: 32.0, truncate: false, .. }));
    let neo = described("gpt-neo", none.clone(), &["attention_types", "attention_layers", "window_size"]);
    assert_eq!([width(&neo, 0), width(&neo, 1)], [None, Some(256)]);
    assert_eq!(described("llama", none.clone(), &["max_position_embeddings"]).n_ctx(), 2048);
    assert_eq!(described("llama", json!({"max_sequence_length": 512}), &["max_position_embeddings"]).n_ctx(), 512);
    assert!(described("olmo2", none, &[]).window(0).is_none());
}

/// Newer files keep all rotary settings in one object, by layer type if layers differ.
#[test]
fn rope_parameters_are_read_by_type_of_layer() {
    let newer = json!({"rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 30.0}
    }});
    let config = described("gemma3", newer, &["rope_theta", "rope_local_base_freq", "rope_scaling"]);
    let (near, far) = (config.rotary(0).unwrap(), config.rotary(1).unwrap());
    assert_eq!((near.base, &near.scaling), (30.0, &RopeScaling::None));
    assert_eq!((far.base, &far.scaling), (1e6, &RopeScaling::Linear { factor: 8.0 }));
    let share = json!({"rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.25}});
    assert_eq!(described("phi", share, &["partial_rotary_factor"]).rotary(0).unwrap().dim, 2);
}

#[test]
fn adapters_that_cannot_be_merged_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let from = fixtures().join("lora-llama");
    let json: Value = serde_json::from_slice(&fs::read(from.join("adapter_config.json")).unwrap()).unwrap();
    let weights = "adapter_model.safetensors";
    fs::copy(from.join(weights), folder.path().join(weights)).unwrap();
    let with = |field: &str, value: Value| {
        let mut json = json.clone();
        json[field] = value;
        fs::write(folder.path().join("adapter_config.json"), json.to_string()).unwrap();
    };
    let path = folder.path().to_str().unwrap();
    let merged = || {
        let options = LoadOptions::new().adapter(folder.path());
        HookedTransformer::from_pretrained_with(fixture("llama"), options).unwrap_err().to_string()
    };
    let named = || HookedTransformer::from_pretrained(path).unwrap_err().to_string();
    with("init_lora_weights", json!("pissa_niter_4"));
    assert!(merged().contains("pissa"), "{}", merged());
    with("rank_pattern", json!({"^model.layers.0.self_attn.q_proj": 5}));
    assert!(merged().contains("lora_A") && merged().contains("[5, 24]"), "{}", merged());
    with("rank_pattern", json!({"q_proj": 5}));
    assert!(merged().contains("lora_A") && merged().contains("[5, 24]"), "{}", merged());
    with("base_model_name_or_path", json!(""));
    assert!(named().contains("does not name a base model"), "{}", named());
    with("base_model_name_or_path", json!(path));
    assert!(named().contains("an adapter too"), "{}", named());
    let twice = LoadOptions::new().adapter(fixtures().join("lora-llama"));
    let twice = HookedTransformer::from_pretrained_with(fixture("lora-llama"), twice).unwrap_err().to_string();
    assert!(twice.contains("only one adapter can be merged"), "{twice}");
}

/// LongRoPE's factors are chosen by each row's own length, not by the longest row of the batch.
#[test]
fn a_long_row_does_not_turn_a_short_one() {
    let model = HookedTransformer::from_pretrained(fixture("phi3-longer")).unwrap();
    let short = vec![5, 6, 7];
    let alone = model.forward(vec![short.clone()]).unwrap();
    for side in [PaddingSide::Left, PaddingSide::Right] {
        let both = Tokens::padded(&[short.clone(), vec![8; 7]], 0, side).unwrap();
        let from = if side == PaddingSide::Left { 4 } else { 0 };
        let beside = model.forward(&both).unwrap().narrow(0, 0, 1).narrow(1, from, 3);
        assert_close(&beside, &alone, 1e-5, "beside a long row");
    }
}

/// Files that were read instead of mapped are not needed any more.
#[cfg(unix)]
#[test]
fn files_that_were_read_may_be_overwritten_in_place() {
    use std::io::Write;
    let options = || LoadOptions::new().mmap(false);
    let kinds =
        [(fixture("llama2c"), "f32"), (fixture("gpt2"), "f32"), (fixture("nanogpt"), "f32"), (fixture("gpt2"), "bf16")];
    for (name, dtype) in kinds {
        let folder = tempfile::tempdir().unwrap();
        let mut weights = Vec::new();
        for entry in fs::read_dir(&name).unwrap().map(Result::unwrap) {
            let copy = folder.path().join(entry.file_name());
            fs::copy(entry.path(), &copy).unwrap();
            if ["safetensors", "bin", "pt"].iter().any(|e| copy.extension().is_some_and(|own| own == *e)) {
                weights.push(copy);
            }
        }
        assert!(!weights.is_empty(), "{name}");
        let dtype: DType = dtype.parse().unwrap();
        if !has(dtype) {
            continue;
        }
        let model = HookedTransformer::from_pretrained_with(folder.path().to_str().unwrap(), options().dtype(dtype));
        let model = model.unwrap();
        let mapped = HookedTransformer::from_pretrained_with(&name, LoadOptions::new().dtype(dtype)).unwrap();
        assert_eq!(model.fingerprint().unwrap(), mapped.fingerprint().unwrap(), "{name}");
        for path in weights {
            // Overwrite the file in place with other bytes, then truncate it.
            let mut file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all(&vec![0xff; fs::metadata(&path).unwrap().len() as usize]).unwrap();
            file.set_len(0).unwrap();
        }
        let (given, expected) = (model.forward([1, 2, 3]).unwrap(), mapped.forward([1, 2, 3]).unwrap());
        assert_eq!(given.into_data(), expected.into_data(), "{name}");
    }
}

/// A file that is read is rejected for the same reasons as a mapped one.
#[test]
fn unsound_files_are_refused_unmapped_too() {
    let (_, folder) = saved(TransformerConfig::new(1, 16, 2, 20, 16));
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let message = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        [true, false].map(|mmap| {
            let options = LoadOptions::new().mmap(mmap);
            let path = folder.path().to_str().unwrap();
            hooklens::error_chain(&HookedTransformer::from_pretrained_with(path, options).unwrap_err())
        })
    };
    let long = [&whole[..], &[0; 4]].concat();
    let mut huge = whole.clone();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut wrong = whole.clone();
    wrong[8..12].copy_from_slice(b"none");
    for bytes in [&[], &whole[..4], &whole[..8], &whole[..100], &whole[..whole.len() - 1], &long, &huge, &wrong] {
        let [mapped, read] = message(bytes);
        assert_eq!(mapped, read);
    }
}

mod once {
    use super::*;

    /// A checkpoint with damage anywhere is rejected or read, without a panic, and its code is never run.
    #[test]
    fn damaged_checkpoints_never_panic() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["nanogpt/ckpt.pt", "gpt2-bin/pytorch_model.bin"] {
            let bytes = fs::read(fixtures().join(name)).unwrap();
            let path = folder.path().join("pytorch_model.pt");
            fs::copy(fixtures().join("gpt2-bin/config.json"), folder.path().join("config.json")).unwrap();
            let config = proptest::test_runner::Config { cases: 150, failure_persistence: None, ..Default::default() };
            proptest::proptest!(config, |(at in 0..bytes.len(), byte: u8, cut in proptest::option::of(0..bytes.len()))| {
                let mut bytes = bytes.clone();
                bytes[at] = byte;
                bytes.truncate(cut.unwrap_or(bytes.len()));
                fs::write(&path, bytes).unwrap();
                if let Ok(model) = HookedTransformer::from_pretrained(path.to_str().unwrap()) {
                    let _ = model.forward([1, 2]);
                }
            });
        }
    }
}

/// Baichuan 2 divides the rows of its unembedding by their norms. A row of zeros, as padding of the vocabulary has, stays
/// zero.
#[test]
fn a_row_of_zeros_has_no_direction() {
    let folder = tempfile::tempdir().unwrap();
    let from = fixtures().join("baichuan2");
    fs::copy(from.join("config.json"), folder.path().join("config.json")).unwrap();
    let mut bytes = fs::read(from.join("model.safetensors")).unwrap();
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let info = metadata.info("lm_head.weight").unwrap();
    let row = info.data_offsets.1.abs_diff(info.data_offsets.0) / info.shape[0];
    let start = 8 + header + info.data_offsets.0;
    bytes[start + row..start + 2 * row].fill(0);
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    let model = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap();
    let logits = model.forward([1, 2, 3]).unwrap();
    assert!(values(&logits.narrow(2, 1, 1)).iter().all(|logit| *logit == 0.0));
}
