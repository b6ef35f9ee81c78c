//! Loading: files, element types, reports, names.

use std::fs;
use std::path::Path;

use hooklens::ActivationFn;
use hooklens::prelude::*;
use hooklens::{NormKind, Positional, RopeScaling, Rotary, Window};
use serde_json::{Value, json};

use crate::support::{assert_close, random_model};

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
    assert_close(&again.forward(ROW, ()).unwrap(), &model.forward(ROW, ()).unwrap(), 1e-6, "two shards");

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
    let modern = TransformerConfig {
        positional: rotary,
        norm: NormKind::Rms,
        gated_mlp: true,
        n_kv_heads: 2,
        qk_norm: true,
        ..plain()
    };
    let alibi = TransformerConfig {
        positional: Positional::Alibi,
        windows: vec![Some(Window::Sliding(2)), None],
        post_norms: true,
        ..plain()
    };
    let experts = Some(hooklens::Experts { count: 3, per_token: 2, renormalise: true });
    let mixture = TransformerConfig { gated_mlp: true, experts, positional: Positional::Shortformer, ..plain() };
    for config in [plain(), modern, alibi, mixture] {
        let (model, folder) = saved(config);
        let exact = model.forward(ROW, ()).unwrap();
        // A mixture may choose other experts in another type: its distance says nothing.
        let loose = if model.config().experts.is_some() { 10.0 } else { 0.15 };
        for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F64, 1e-6), (DType::F16, loose), (DType::BF16, loose)] {
            let options = LoadOptions::new().dtype(dtype);
            let loaded = HookedTransformer::from_pretrained_with(folder.path().to_str().unwrap(), options).unwrap();
            let logits = loaded.forward(ROW, ()).unwrap();
            assert_eq!(logits.dtype(), dtype.burn());
            assert_close(&logits.cast(burn::tensor::FloatDType::F32), &exact, tolerance, &dtype.to_string());
            // Every point can be watched and every row padded in every type.
            let everything = Selection::matching(|_| true);
            loaded.record(ROW, everything).unwrap();
            let padded = Tokens::padded(&[ROW.to_vec(), vec![5]], 0, PaddingSide::Left).unwrap();
            loaded.loss(&padded, ()).unwrap();
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
    let logits = load(folder.path()).forward(ROW, ()).unwrap();
    assert_eq!(logits.dtype(), burn::tensor::DType::F32);
    assert_close(&logits, &model.forward(ROW, ()).unwrap(), 0.05, "bf16 on disk, f32 in memory");
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

/// What has no field in TransformerLens's format survives saving too.
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
        TransformerConfig {
            positional: rotary(yarn),
            norm: NormKind::RmsPre,
            windows: vec![Some(Window::Chunked(4)), Some(Window::Sliding(5))],
            ..plain()
        },
        TransformerConfig { positional: Positional::None, norm: NormKind::None, bidirectional: true, ..plain() },
        TransformerConfig { d_vocab_out: 7, output_logits_soft_cap: Some(30.0), default_prepend_bos: false, ..plain() },
    ] {
        let (model, folder) = saved(config.clone());
        let again = load(folder.path());
        assert_eq!(again.config(), &config);
        assert_close(&again.forward(ROW, ()).unwrap(), &model.forward(ROW, ()).unwrap(), 1e-6, "saved");
    }
}

/// A head that is neither there nor tied is missing, not made up.
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

/// A tensor the configuration asks for is never made up, be it a norm's weight or a bias.
#[test]
fn a_missing_norm_or_bias_is_named() {
    let gated = TransformerConfig { gated_mlp: true, activation: ActivationFn::Silu, ..plain() };
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

/// Weights of 16 bits are processed a piece at a time: the same model comes out.
#[test]
fn processing_in_pieces_is_processing() {
    let config = TransformerConfig { d_vocab: 3000, d_vocab_out: 3000, ..TransformerConfig::new(1, 512, 2, 3000, 16) };
    let (_, folder) = saved(config);
    let name = folder.path().to_str().unwrap();
    let loaded = |dtype| {
        let options = LoadOptions::new().dtype(dtype).process(Processing::standard());
        HookedTransformer::from_pretrained_with(name, options).unwrap()
    };
    let (whole, pieces) = (loaded(DType::F32), loaded(DType::BF16));
    let widened = pieces.weights.unembed.weight.val().cast(burn::tensor::FloatDType::F32);
    assert_close(&widened, &whole.weights.unembed.weight.val(), 1.6e-2, "unembedding");
    let widened = pieces.weights.unembed.bias.as_ref().unwrap().val().cast(burn::tensor::FloatDType::F32);
    assert_close(&widened, &whole.weights.unembed.bias.as_ref().unwrap().val(), 1.6e-2, "its bias");
}
