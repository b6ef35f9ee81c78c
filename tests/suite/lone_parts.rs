//! Models whose layers lack one of a block's two parts, as Nemotron-H's do.

use hooklens::activations::Stage;
use hooklens::patching::{Metric, Patching};
use hooklens::prelude::*;
use hooklens::{CacheKind, Error, InputError};

use crate::parity::load;
use crate::support::assert_close;

fn model() -> HookedTransformer {
    load("v5-nemotron-h", LoadOptions::new())
}

const TOKENS: [u32; 5] = [5, 6, 7, 8, 9];

/// Layers fire the points of what they have, and why others are absent is said.
#[test]
fn points_are_those_of_the_parts() {
    let model = model();
    let cache = model.record(TOKENS, "*hook_{attn_out,mlp_out,resid_mid}").unwrap();
    let names: Vec<&str> = cache.names().collect();
    let wanted = [(0, "attn"), (1, "mlp"), (2, "attn"), (3, "attn"), (4, "mlp")];
    let wanted: Vec<String> = wanted.iter().map(|(layer, part)| format!("blocks.{layer}.hook_{part}_out")).collect();
    assert_eq!(names, wanted);
    let told = |point: &str| model.record(TOKENS, point).unwrap_err().to_string();
    assert!(
        told("blocks.1.hook_attn_out").contains("this layer has an MLP alone"),
        "{}",
        told("blocks.1.hook_attn_out")
    );
    assert!(told("blocks.1.attn.hook_pattern").contains("this layer has an MLP alone"));
    assert!(told("blocks.0.hook_mlp_out").contains("it has no MLP"));
    let stream = model.analyze(&cache).unwrap().stream(Stage::BeforeMlp(0)).map(drop);
    assert!(matches!(stream, Err(Error::Input(InputError::NoMlp { layer: 0, .. }))));
}

/// What the parts write adds up to the stream, and heads and neurons to what the parts write.
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

/// Behind a cache of each kind, token by token, and from files.
#[test]
fn layers_without_keys_count_positions_in_caches() {
    let model = model();
    let whole = model.forward(TOKENS).unwrap();
    for kind in [CacheKind::GROWING, CacheKind::preallocated(8)] {
        let mut cache = KeyValueCache::of_kind(model.config(), 1, kind).unwrap();
        for (at, token) in TOKENS.iter().enumerate() {
            let one = model.forward_with([*token], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
            assert_close(&one, &whole.clone().narrow(1, at, 1), 1e-5, "a token");
        }
        assert!(cache.iter().all(|entry| entry.len() == 5));
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
    // The last of them is the fourth layer's.
    let source = model.record(clean, hook::attn_out(3)).unwrap().get(hook::attn_out(3)).unwrap();
    let patch = hook::attn_out(3).edit(move |x, _| x.slice_assign([0..1, 4..5], source.clone().narrow(1, 4, 1)));
    let logits = model.run_with_hooks(corrupted, [patch]).unwrap().narrow(1, 4, 1);
    let of = |token: usize| logits.clone().narrow(2, token, 1).into_scalar::<f32>();
    let given = patching.attn_out().unwrap().mean().values()[[2, 4]];
    assert!((given - f64::from(of(3) - of(4))).abs() < 1e-4, "{given}");
}
