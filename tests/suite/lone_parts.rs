//! Models with layers that lack attention or the MLP, like Nemotron-H.

use std::fs;

use hooklens::activations::Stage;
use hooklens::patching::{Metric, Patching};
use hooklens::prelude::*;
use hooklens::{CacheKind, Error, InputError};
use hooklens_model::model::{Block, Mixer, Mlp, ModelParts};
use safetensors::{SafeTensors, serialize};
use serde_json::{Value, json};

use crate::parity::load;
use crate::support::{assert_close, fixtures};

/// Llama with layers that lack a part, as found by architecture search, equals Llama with that part writing zeros.
#[test]
fn parts_left_out_are_parts_that_write_nothing() {
    let own: Value = serde_json::from_slice(&fs::read(fixtures().join("llama/config.json")).unwrap()).unwrap();
    let bytes = fs::read(fixtures().join("llama/model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let sharing = own["num_attention_heads"].as_u64().unwrap() / own["num_key_value_heads"].as_u64().unwrap();
    let attention = json!({"n_heads_in_group": sharing, "no_op": false, "replace_with_linear": false});
    let mlp = json!({"intermediate_size": own["intermediate_size"], "no_op": false, "replace_with_linear": false});
    let none = json!({"no_op": true});
    let blocks = [[&attention, &mlp], [&none, &mlp], [&attention, &none]];
    for (first, second) in [(0, 0), (1, 2), (2, 1)] {
        let folder = tempfile::tempdir().unwrap();
        let chosen = [blocks[first], blocks[second]];
        let mut json = own.clone();
        json["architectures"] = json!(["DeciLMForCausalLM"]);
        json["model_type"] = json!("nemotron-nas");
        (json["intermediate_size"], json["num_key_value_heads"]) = (Value::Null, Value::Null);
        json["block_configs"] =
            chosen.iter().map(|[attention, ffn]| json!({"attention": attention, "ffn": ffn})).collect();
        fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
        let lacks = |name: &str| {
            chosen.iter().enumerate().any(|(layer, parts)| {
                let of = |which: usize, folders: [&str; 2]| {
                    *parts[which] == none && folders.iter().any(|part| name.contains(&format!("layers.{layer}.{part}")))
                };
                of(0, ["self_attn", "input_layernorm"]) || of(1, ["mlp", "post_attention_layernorm"])
            })
        };
        let kept = tensors.iter().filter(|(name, _)| !lacks(name));
        fs::write(folder.path().join("model.safetensors"), serialize(kept, None).unwrap()).unwrap();
        let model = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap();
        assert!(model.load_report().unused.is_empty());
        let mut llama = load("llama", LoadOptions::new());
        for (layer, parts) in chosen.iter().enumerate() {
            let block = &mut llama.parts_mut().blocks[layer];
            let Block { mixer: Some(Mixer::Attention(attn)), mlp: Some(Mlp::Dense(mlp)), .. } = block else {
                panic!("not a Llama block");
            };
            let outputs = [Some(&mut attn.o), Some(&mut mlp.output)];
            for (output, part) in outputs.into_iter().flatten().zip(parts) {
                if **part == none {
                    output.weight = output.weight.clone().map(|weight| weight.zeros_like());
                }
            }
        }
        let rows = vec![vec![1, 5, 9, 3, 7], vec![2, 2, 8, 4, 6]];
        assert_close(&model.forward(rows.clone()).unwrap(), &llama.forward(rows).unwrap(), 1e-6, "logits");
    }
}

fn model() -> HookedTransformer {
    load("v5-nemotron-h", LoadOptions::new())
}

const TOKENS: [u32; 5] = [5, 6, 7, 8, 9];

/// Layers fire the points of the parts they have, and errors explain why others are absent.
#[test]
fn points_are_those_of_the_parts() {
    let model = model();
    let cache = model.record(TOKENS, "*hook_{attn_out,mlp_out,resid_mid}").unwrap();
    let names: Vec<&str> = cache.names().collect();
    let wanted = [(0, "attn"), (1, "mlp"), (2, "attn"), (3, "attn"), (4, "mlp")];
    let wanted: Vec<String> = wanted.iter().map(|(layer, part)| format!("blocks.{layer}.hook_{part}_out")).collect();
    assert_eq!(names, wanted);
    let message = |point: &str| model.record(TOKENS, point).unwrap_err().to_string();
    assert!(
        message("blocks.1.hook_attn_out").contains("this layer has only an MLP"),
        "{}",
        message("blocks.1.hook_attn_out")
    );
    assert!(message("blocks.1.attn.hook_pattern").contains("this layer has only an MLP"));
    assert!(message("blocks.0.hook_mlp_out").contains("this layer has no MLP"));
    let stream = model.analyze(&cache).unwrap().stream(Stage::BeforeMlp(0)).map(drop);
    assert!(matches!(stream, Err(Error::Input(InputError::NoMlp { layer: 0, .. }))));
}

/// The parts' outputs sum to the stream, and heads and neurons to the parts' outputs.
#[test]
fn parts_add_up_to_the_stream() {
    let model = model();
    let cache = model.record(TOKENS, Record::all()).unwrap();
    let analysis = model.analyze(&cache).unwrap();
    for stage in [Stage::Before(2), Stage::BeforeMlp(1), Stage::BeforeMlp(4), Stage::Final] {
        let stream = analysis.stream(stage).unwrap();
        assert_close(&analysis.decompose_resid(stage).unwrap().sum(), &stream, 1e-5, "parts");
        let full = analysis.full_resid_decomposition(stage, Neurons::Apart).unwrap();
        assert_close(&full.sum(), &stream, 1e-5, "heads and neurons");
    }
    let parts = analysis.decompose_resid(Stage::Final).unwrap();
    assert_eq!(parts.labels(), ["embed", "0_attn_out", "1_mlp_out", "2_attn_out", "3_attn_out", "4_mlp_out"]);
}

/// Layers without keys work with a cache of each kind, token by token, and after loading from files.
#[test]
fn layers_without_keys_count_positions_in_caches() {
    let model = model();
    let whole = model.forward(TOKENS).unwrap();
    for kind in [CacheKind::GROWING, CacheKind::GROWING.limited(8)] {
        let mut cache = KeyValueCache::of_kind(model.config(), 1, kind).unwrap();
        for (at, token) in TOKENS.iter().enumerate() {
            let one = model.forward_with([*token], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
            assert_close(&one, &whole.clone().narrow(1, at, 1), 1e-5, "a token");
        }
        assert!((&cache).into_iter().all(|entry| entry.len() == 5));
        assert_eq!((cache.memory()[1], cache.memory()[4]), (0, 0));
    }
}

#[test]
fn the_parts_that_are_there_are_patched() {
    let model = model();
    let (clean, corrupted) = (TOKENS.to_vec(), vec![5, 6, 11, 8, 9]);
    let metric = Metric::logit_diff(&model, 3, 4).unwrap();
    let patching = Patching::new(&model, vec![clean.clone()], vec![corrupted.clone()], metric).unwrap();
    for (swept, layers) in
        [(patching.attn_out().unwrap(), 3), (patching.mlp_out().unwrap(), 2), (patching.resid_pre().unwrap(), 5)]
    {
        assert_eq!(swept.mean().values().shape(), [layers, 5]);
    }
    // The last of them belongs to the fourth layer.
    let source = model.record(clean, hook::attn_out(3)).unwrap().get(hook::attn_out(3)).unwrap();
    let patch = hook::attn_out(3).edit(move |x, _| x.slice_assign([0..1, 4..5], source.clone().narrow(1, 4, 1)));
    let logits = model.run_with_hooks(corrupted, [patch]).unwrap().narrow(1, 4, 1);
    let of = |token: usize| logits.clone().narrow(2, token, 1).into_scalar::<f32>();
    let given = patching.attn_out().unwrap().mean().values()[[2, 4]];
    assert!((given - f64::from(of(3) - of(4))).abs() < 1e-4, "{given}");
}
