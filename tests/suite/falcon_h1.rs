//! Falcon-H1: attention and Mamba 2 side by side, whose outputs Hugging Face scales and adds.

use hooklens::prelude::*;
use hooklens::{CacheKind, KeyValueCache};
use serde_json::Value;

use crate::parity::Golden;
use crate::seeded::fixture;
use crate::support::{assert_close, distance};

const CASES: [&str; 3] = ["falcon-h1", "falcon-h1-norm", "falcon-h1-norm-first"];

fn load(case: &str) -> HookedTransformer {
    HookedTransformer::from_pretrained(fixture(case).to_str().unwrap()).unwrap()
}

#[test]
fn parts_are_those_of_hugging_face() {
    for case in CASES {
        let (model, golden) = (load(case), Golden::read(case));
        let config: Value = serde_json::from_slice(&std::fs::read(fixture(case).join("config.json")).unwrap()).unwrap();
        let multiplier = |field: &str| config[field].as_f64().unwrap_or(1.0) as f32;
        let cache = model.record(golden.tokens(""), "*hook_{attn,mlp}_out").unwrap();
        for layer in 0..model.config().n_layers() {
            let part = |name: &str| golden.get(&format!("hf.layers.{layer}.{name}")).unwrap().clone();
            let both = part("mamba") * multiplier("ssm_out_multiplier")
                + part("self_attn") * multiplier("attention_out_multiplier");
            for (point, expected) in [("hook_attn_out", both), ("hook_mlp_out", part("feed_forward"))] {
                let name = format!("blocks.{layer}.{point}");
                let ours = cache.activation(&name).unwrap().to_ndarray().unwrap();
                let worst = distance(&ours, &expected);
                assert!(worst <= 1e-4, "{case}, {name}: {worst:e}");
            }
        }
    }
}

/// Tokens run one at a time, with keys, values and states in one cache of each kind.
#[test]
fn cached_tokens_are_those_of_hugging_face() {
    for case in CASES {
        let (model, golden) = (load(case), Golden::read(case));
        let Some(expected) = golden.get("cached.logits") else { continue };
        let ids = golden.get("tokens").unwrap();
        let tokens: Vec<Vec<u32>> =
            ids.rows().into_iter().map(|row| row.iter().map(|id| *id as u32).collect()).collect();
        let steps = expected.shape()[1];
        for kind in [CacheKind::GROWING, CacheKind::GROWING.limited(16)] {
            let mut cache = KeyValueCache::of_kind(model.config(), tokens.len(), kind).unwrap();
            let first = tokens[0].len() - steps;
            let mut run = |columns: std::ops::Range<usize>| {
                let rows: Vec<Vec<u32>> = tokens.iter().map(|row| row[columns.clone()].to_vec()).collect();
                model.forward_with(rows, ForwardOptions::new().kv_cache(&mut cache)).unwrap()
            };
            run(0..first);
            let logits: Vec<Tensor<3>> = (first..first + steps).map(|at| run(at..at + 1)).collect();
            let ours = hooklens::Activation::from(Tensor::cat(logits, 1)).to_ndarray().unwrap();
            let worst = distance(&ours, expected);
            assert!(worst <= 1e-4, "{case}, {kind:?}: {worst:e}");
        }
    }
}

/// Heads of attention and of the state space, MLPs and biases sum to the stream.
#[test]
fn heads_of_both_parts_add_up() {
    let model = load("falcon-h1");
    let cache = model.record([1, 2, 3, 4], Record::all()).unwrap();
    let analysis = model.analyze(&cache).unwrap();
    let heads = analysis.stack_head_results(hooklens::activations::Stage::Final).unwrap();
    let labels: Vec<&str> = heads.labels().iter().map(String::as_str).collect();
    assert!(labels.contains(&"L1H3") && labels.contains(&"L1S5"), "{labels:?}");
    let all = analysis.with_remainder(heads).unwrap().sum();
    assert_close(&all, &analysis.stream(hooklens::activations::Stage::Final).unwrap(), 1e-5, "all parts");
}
