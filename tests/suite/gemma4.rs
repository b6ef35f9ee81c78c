//! Features of Gemma 4, on models as written by transformers 5: keys shared with later layers, per-layer inputs,
//! residual scale factors, and experts with their own norms.

use std::fs;

use hooklens::attribution::Gradient;
use hooklens::attribution::graph::{AttributionGraph, GraphOptions, Replacement};
use hooklens::hook::Axis;
use hooklens::kv_cache::compat::HuggingFaceCache;
use hooklens::prelude::*;
use hooklens::{CacheError, CacheKind, Error, InputError, PaddingSide, ResidualScheme, write_safetensors};
use hooklens_model::config::{Experts, Layers, SharedExpert};
use serde_json::{Value, json};

use crate::parity::{Golden, Tally, load};
use crate::support::{assert_close, device, fixtures, log_probs, values};

/// A model with per-layer inputs and shared keys, a model of plain layers, and a model with experts.
const CASES: [&str; 3] = ["v5-gemma4", "v5-gemma4-dense", "v5-gemma4-experts"];

fn row(len: u32) -> Vec<u32> {
    (0..len).map(|at| 2 + at * 7 % 45).collect()
}

#[test]
fn streams_are_those_of_transformers() {
    let mut tally = Tally::default();
    for case in CASES {
        let (model, golden) = (load(case, LoadOptions::new()), Golden::of_file(case, "golden.safetensors"));
        let cache = model.record(golden.tokens(""), "*hook_resid_pre").unwrap();
        for layer in 0..model.config().n_layers() {
            let name = format!("hf.hidden.{layer}");
            tally.compare(
                &format!("{case} {name}"),
                &values(&cache.get(hook::resid_pre(layer)).unwrap()),
                golden.get(&name).unwrap(),
            );
        }
    }
    assert!(tally.compared == 12 && tally.problems.is_empty(), "{}", tally.problems.join("\n"));
}

#[test]
fn text_models_beside_images() {
    let mut tally = Tally::default();
    for case in ["v5-part-gemma4", "v5-part-gemma4-unified"] {
        let (model, golden) = (load(case, LoadOptions::new()), Golden::of_file(case, "golden.safetensors"));
        tally.compare(case, &values(&model.forward(golden.tokens("")).unwrap()), golden.get("logits").unwrap());
    }
    assert!(tally.compared == 2 && tally.problems.is_empty(), "{}", tally.problems.join("\n"));
}

#[test]
fn behind_a_cache_token_by_token() {
    let kinds = [CacheKind::GROWING, CacheKind::GROWING.limited(32), CacheKind::GROWING.sliding()];
    for (case, kind) in CASES.into_iter().flat_map(|case| kinds.map(|kind| (case, kind))) {
        let model = load(case, LoadOptions::new());
        let tokens = row(17);
        let whole = model.forward(vec![tokens.clone()]).unwrap();
        let mut cache = KeyValueCache::of_kind(model.config(), 1, kind).unwrap();
        for (at, token) in tokens.iter().enumerate() {
            let one = model.forward_with([*token], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
            assert_close(&one, &whole.clone().narrow(1, at, 1), 1e-5, &format!("{case} {kind:?} token {at}"));
        }
        assert!((&cache).into_iter().all(|entry| entry.len() == 17));
        // Rows of different lengths, padded left and right.
        let rows = vec![row(9), row(5)];
        for side in [PaddingSide::Left, PaddingSide::Right] {
            let padded = Tokens::padded(&rows, 0, side).unwrap();
            let mut cache = KeyValueCache::of_kind(model.config(), 2, kind).unwrap();
            let first = model.forward_with(&padded, ForwardOptions::new().kv_cache(&mut cache)).unwrap();
            let next = model.forward_with(vec![vec![3], vec![3]], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
            for (number, own) in rows.iter().enumerate() {
                let alone = model.forward(vec![[own.clone(), vec![3]].concat()]).unwrap();
                let last = alone.clone().narrow(1, own.len(), 1);
                assert_close(&next.clone().narrow(0, number, 1), &last, 1e-5, "behind padding");
                let from = if side == PaddingSide::Left { 9 - own.len() } else { 0 };
                let begun = first.clone().narrow(0, number, 1).narrow(1, from, own.len());
                assert_close(&begun, &alone.narrow(1, 0, own.len()), 1e-5, "padded");
            }
        }
    }
}

/// Keys that later layers reuse are stored once.
#[test]
fn shared_keys_are_held_once() {
    let model = load("v5-gemma4", LoadOptions::new());
    let reads: Vec<Option<usize>> = (0..6).map(|layer| model.config().reads_keys_of(layer)).collect();
    assert_eq!(reads, [None, None, None, Some(2), Some(1), Some(2)]);
    let cache = model.prefill(row(8)).unwrap();
    let bytes = cache.memory();
    assert!(bytes[..3].iter().all(|bytes| *bytes > 0) && bytes[3..].iter().all(|bytes| *bytes == 0), "{bytes:?}");
    assert_eq!(cache[4].keys().unwrap().dims(), [1, 0, 0, 8]);
    // All cache operations work on such caches.
    let whole = model.forward(vec![[row(8), vec![5]].concat()]).unwrap().narrow(1, 8, 1);
    let goes_on = |mut cache: KeyValueCache, what: &str| {
        let batch = cache.batch();
        let next = model.forward_with(vec![vec![5]; batch], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        for row in 0..batch {
            assert_close(&next.clone().narrow(0, row, 1), &whole, 1e-5, what);
        }
    };
    goes_on(KeyValueCache::from_data(&cache.to_data().unwrap(), &device()).unwrap(), "data");
    let tuples = cache.to_legacy_cache().unwrap();
    assert_eq!(tuples.len(), 3);
    goes_on(KeyValueCache::from_legacy_cache(model.config(), tuples, None).unwrap(), "tuples");
    goes_on(cache.to_kind(CacheKind::GROWING.limited(16)).unwrap(), "another kind");
    goes_on(cache.clone().fork(3).unwrap(), "forks");
    let mut shortened = model.prefill([row(8), vec![9, 9]].concat()).unwrap();
    shortened.truncate(8).unwrap();
    goes_on(shortened, "shortened");
    let mut batch = model.prefill(vec![row(6), row(6)]).unwrap();
    batch.insert(&cache, 1).unwrap();
    let next = model.forward_with(vec![vec![5]; 2], ForwardOptions::new().kv_cache(&mut batch)).unwrap();
    assert_close(&next.narrow(0, 1, 1), &whole, 1e-5, "inserted");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.safetensors");
    cache.save(&path, &model).unwrap();
    goes_on(KeyValueCache::load(&path, &model).unwrap(), "file");
    // A cache whose layers all have keys belongs to another model.
    let other = model.config().clone().with_shared_keys(Vec::new()).unwrap();
    let mut other = KeyValueCache::new(&other, 1);
    let message = model.forward_with([1], ForwardOptions::new().kv_cache(&mut other)).unwrap_err();
    assert!(matches!(message, Error::Cache(CacheError::Model { layer: 3, .. })), "{message}");
}

/// Attention inputs can be edited for one layer alone, or for all layers that share the keys.
#[test]
fn keys_are_changed_for_one_reader_or_for_all() {
    let model = load("v5-gemma4", LoadOptions::new());
    let recorded = |hooks: Vec<hook::Hook<'_>>| model.hooks(hooks).record(row(8), "*hook_pattern").unwrap();
    let pattern = |cache: &ActivationCache, layer: usize| cache.get(hook::pattern(layer)).unwrap();
    let moved = |before: &ActivationCache, after: &ActivationCache, layer| {
        (pattern(before, layer) - pattern(after, layer)).abs().max().into_scalar::<f32>() > 1e-4
    };
    let plain = recorded(vec![]);
    let none = |layer: usize| hook::rot_k(layer).edit(|k, _| k.zeros_like());
    let own = recorded(vec![none(3)]);
    assert!(!moved(&plain, &own, 2) && moved(&plain, &own, 3));
    // Rows of a pattern without keys are uniform.
    let even = pattern(&own, 3).narrow(2, 7, 1);
    assert_close(&even, &(even.zeros_like() + 1.0 / 8.0), 1e-5, "even");
    let all = recorded(vec![none(2)]);
    for layer in [2, 3, 5] {
        let even = pattern(&all, layer).narrow(2, 7, 1);
        assert_close(&even, &(even.zeros_like() + 1.0 / 8.0), 1e-5, "even");
    }
    let message = model.record(row(3), hook::k(3)).unwrap_err().to_string();
    assert!(message.contains("reuses the keys and values of an earlier layer"), "{message}");
    let keys = model.stacked::<4>("W_K").unwrap();
    assert_eq!(keys.dims(), [6, 4, 32, 12]);
    assert_close(&keys.clone().narrow(0, 3, 1), &keys.narrow(0, 2, 1), 0.0, "the keys of layer 2");
}

/// Decompositions of the residual stream, with scale factors along the way.
#[test]
fn parts_add_up_to_the_stream() {
    for case in CASES {
        let model = load(case, LoadOptions::new());
        let cache = model.record(row(7), Record::all()).unwrap();
        let analysis = model.analyze(&cache).unwrap();
        for stage in [Stage::Before(1), Stage::BeforeMlp(1), Stage::Before(-1), Stage::BeforeMlp(-1), Stage::Final] {
            let stream = analysis.stream(stage).unwrap();
            assert_close(&analysis.decompose_resid(stage).unwrap().sum(), &stream, 3e-5, case);
            for neurons in [Neurons::Summed, Neurons::Apart] {
                let parts = analysis.full_resid_decomposition(stage, neurons).unwrap();
                assert_close(&parts.sum(), &stream, 3e-5, case);
            }
        }
        let parts = analysis.decompose_resid(Stage::Final).unwrap();
        let own = parts.labels().iter().filter(|label| label.ends_with("_per_layer_out")).count();
        assert_eq!(own, if case == "v5-gemma4" { 6 } else { 0 });
    }
}

#[test]
fn saved_and_processed_models_are_the_same() {
    for case in CASES {
        let model = load(case, LoadOptions::new());
        // Centering the unembedding adds a constant to all logits, which only matters with a soft cap.
        let logits = log_probs(model.forward(row(9)).unwrap());
        let folded = model.clone().processed(&Processing::standard()).unwrap();
        assert_close(&log_probs(folded.forward(row(9)).unwrap()), &logits, 2e-5, case);
        assert!(folded.weights().get::<1>("blocks.0.ln1.w").is_err());
        for model in [&model, &folded] {
            let folder = tempfile::tempdir().unwrap();
            model.save_pretrained(folder.path()).unwrap();
            let again = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap();
            assert_eq!(again.config(), model.config());
            assert!(again.load_report().unused.is_empty(), "{}", again.load_report());
            assert_close(&again.forward(row(9)).unwrap(), &model.forward(row(9)).unwrap(), 0.0, case);
        }
        let message = model.processed(&Processing::none().fold_value_biases()).unwrap_err().to_string();
        assert!(message.contains("values are normalized"), "{message}");
    }
}

/// Operations that recompute the residual stream themselves reject the model, or run the whole model.
#[test]
fn what_is_not_defined_is_refused() {
    let model = load("v5-gemma4", LoadOptions::new());
    let other: Vec<u32> = row(6).into_iter().rev().collect();
    let metric = Metric::logit(&model, 3).unwrap();
    let patching = Patching::new(&model, vec![row(6)], vec![other], metric).unwrap();
    let message = patching.path_from_heads(&[Receiver::Logits], Freeze::default()).unwrap_err();
    assert!(matches!(message, Error::Input(InputError::NotDefined { what: "path patching", .. })), "{message}");
    let message = patching.edges(Gradient::AtBase).unwrap_err();
    assert!(matches!(message, Error::Input(InputError::NotDefined { what: "edge attribution", .. })), "{message}");
    // Sweeps run the whole model.
    let swept = patching.sweep(&Sites::new("*hook_per_layer_out").per([Axis::Pos])).unwrap();
    assert_eq!(swept.values.values().shape(), [6, 6, 1]);
    let graph = AttributionGraph::new(&model, row(4), &Replacement::neurons(0), &GraphOptions::new()).unwrap_err();
    assert!(matches!(graph, Error::Input(InputError::NotDefined { what: "an attribution graph", .. })), "{graph}");
    let stream = model.forward_with(row(6), ForwardOptions::new().stop_at_layer(1)).unwrap();
    let message = model.forward_with(stream.clone(), ForwardOptions::new().start_at_layer(1)).unwrap_err();
    assert!(message.to_string().contains("per-layer inputs needs the tokens"), "{message}");
    let tokens = Tokens::new(vec![row(6)]).unwrap();
    let again = model.forward_with(stream.clone(), ForwardOptions::new().start_at_layer(1).tokens(&tokens)).unwrap();
    assert_close(&again, &model.forward(row(6)).unwrap(), 1e-5, "from layer 1 on");
    let message = model.forward_with(stream, ForwardOptions::new().start_at_layer(3).tokens(&tokens)).unwrap_err();
    assert_eq!(
        message.to_string(),
        "layer 3 reuses the keys and values of layer 2, but the run starts after that layer"
    );
}

/// Experts that read the stream through their own norms are rejected in models whose blocks normalize the stream
/// itself.
#[test]
fn own_norms_need_a_plain_stream() {
    let shared = Some(SharedExpert { d_mlp: 12, gated: false });
    let experts = Some(Experts { shared, own_norms: true, ..Experts::new(4, 2) });
    let plain = TransformerConfig::new(1, 16, 2, 20, 8).with_gated_mlp(true).with_mixture(experts);
    let model = HookedTransformer::random(plain.clone(), 0, &device()).unwrap();
    assert!(model.record([1, 2], "*router_ln*").is_ok());
    for config in [
        plain.clone().with_residual(ResidualScheme::NormalizedSums),
        plain.with_residual(ResidualScheme::NormalizedInputs),
    ] {
        let message = HookedTransformer::random(config, 0, &device()).unwrap_err().to_string();
        assert!(message.contains("can't be combined with a normalized residual stream"), "{message}");
    }
}

/// Settings that would give a different model are rejected, and tensors that are not read are reported.
#[test]
fn files_say_what_they_hold() {
    let folder = tempfile::tempdir().unwrap();
    let config = |case: &str, changed: &[(&str, Value)]| {
        let text = fs::read(fixtures().join(case).join("config.json")).unwrap();
        let mut json: Value = serde_json::from_slice(&text).unwrap();
        changed.iter().for_each(|(field, value)| json[*field] = value.clone());
        fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
    };
    let open = || HookedTransformer::from_pretrained(folder.path().to_str().unwrap());
    fs::copy(fixtures().join("v5-gemma4/model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    for (field, value) in [
        ("use_bidirectional_attention", json!("all")),
        ("vocab_size_per_layer_input", json!(40)),
        ("num_kv_shared_layers", json!(5)),
        ("per_layer_config", json!({"2": {"sliding_window": 3}})),
        ("per_layer_config", json!({"9": {"head_dim": 3}})),
        ("rope_parameters", json!({"full_attention": {"rope_type": "default", "rope_theta": 3.0}})),
    ] {
        config("v5-gemma4", &[(field, value)]);
        let message = open().unwrap_err().to_string();
        assert!(message.contains(field), "{message}");
    }
    // Older files name the width of global layers' heads.
    config("v5-gemma4", &[("per_layer_config", Value::Null), ("global_head_dim", json!(12))]);
    assert_eq!(open().unwrap().config(), load("v5-gemma4", LoadOptions::new()).config());
    // Published files contain keys of layers that reuse others'.
    config("v5-gemma4", &[]);
    let files = hooklens::WeightFiles::open(&[fixtures().join("v5-gemma4")]).unwrap();
    let read = |name: &str| {
        let data = files.read(name, DType::F32).unwrap();
        match data.shape().len() {
            1 => Activation::from(burn::tensor::Tensor::<1>::from_data(data, &device())),
            _ => Activation::from(burn::tensor::Tensor::<2>::from_data(data, &device())),
        }
    };
    let mut tensors: Vec<(String, Activation)> =
        files.tensors().map(|(name, _)| (name.to_string(), read(name))).collect();
    let extra = "model.layers.4.self_attn.k_proj.weight";
    tensors.push((extra.into(), read("model.layers.1.self_attn.k_proj.weight")));
    let named = tensors.iter().map(|(name, tensor)| (name.clone(), tensor));
    write_safetensors(&folder.path().join("model.safetensors"), named, Default::default()).unwrap();
    let model = open().unwrap();
    assert_eq!(model.load_report().unused, [extra]);
}
