//! Backward passes of attribution patching other than the gradient.

use hooklens::attribution::{Backward, EdgeGraph, Gradient, Sender};
use hooklens::circuits::Discovery;
use hooklens::patching::{Ablation, Metric, Patching, Sites};
use hooklens::prelude::*;

use crate::seeded::fixture;

const CLEAN: [u32; 6] = [3, 9, 1, 7, 9, 4];
const CORRUPTED: [u32; 6] = [3, 9, 6, 7, 9, 4];
const RELP: Backward = Backward::Relp { frozen_patterns: false };
const FROZEN: Backward = Backward::Relp { frozen_patterns: true };

fn open(family: &str) -> HookedTransformer {
    HookedTransformer::from_pretrained(fixture(family).to_str().unwrap()).unwrap()
}

fn metric(model: &HookedTransformer) -> Metric {
    Metric::logit_diff(model, 4u32, 5u32).unwrap()
}

fn pair(model: &HookedTransformer) -> Patching<'_> {
    Patching::new(model, vec![CLEAN.to_vec()], vec![CORRUPTED.to_vec()], metric(model)).unwrap()
}

/// Without biases, RMS norms with constant scales, frozen patterns, secants and halved products make the logits a
/// homogeneous function of the residual stream at every layer, so that zeroing it removes the whole metric.
#[test]
fn relp_conserves_the_metric() {
    for family in ["llama", "mixtral", "gemma3", "granite", "granite-moe", "olmo2", "cohere", "qwen3-moe", "olmoe"] {
        let model = open(family);
        let effects = |backward| {
            let zeroed = Patching::ablating(&model, vec![CLEAN.to_vec()], Ablation::Zero, metric(&model)).unwrap();
            let attribution = zeroed.backward(backward).unwrap().attribution("*hook_resid_pre").unwrap();
            let found = attribution.sweep(&Sites::new("*hook_resid_pre")).unwrap();
            (found.baseline[0], found.effect())
        };
        let (baseline, conserved) = effects(FROZEN);
        assert!(baseline.abs() > 1e-3, "{family}: {baseline}");
        for effect in conserved.values() {
            assert!((effect + baseline).abs() < 1e-4 * baseline.abs().max(1.0), "{family}: {effect}, {baseline}");
        }
        let (same, lost) = effects(Backward::Gradient);
        assert!((same - baseline).abs() < 1e-5 * baseline.abs().max(1.0), "{family}: the forward pass changed");
        assert!(lost.values().iter().any(|effect| (effect + baseline).abs() > 1e-2 * baseline.abs()), "{family}");
    }
}

/// The gradients at the readers' inputs, which are computed outside of autodiff, sum to the gradient at the embedding.
#[test]
fn relp_edges_sum_to_the_node() {
    for family in ["gpt2", "llama", "gemma2", "granite", "gptj", "mixtral", "granite-moe", "neox-parallel", "qwen2-moe"]
    {
        let model = open(family);
        for backward in [RELP, FROZEN] {
            let patching = pair(&model).backward(backward).unwrap();
            let node = patching.attribution("hook_embed").unwrap().sweep(&Sites::new("hook_embed")).unwrap();
            let node = *node.effect().values().first().unwrap();
            let edges = patching.edges(Gradient::AtBase).unwrap();
            let into = |(sender, receiver)| edges.score(sender, receiver).filter(|_| sender == Sender::Embed);
            let sum: f64 = EdgeGraph::of(&model).unwrap().edges().filter_map(into).sum();
            assert!((sum - node).abs() < 1e-4 * node.abs().max(1.0), "{family} {backward:?}: {sum}, {node}");
            if backward == RELP {
                let discovered = pair(&model).discover(&Discovery::Relp).unwrap();
                assert_eq!(discovered, edges, "{family}");
            }
        }
    }
}

/// The estimates of MLP outputs are closer to real patches than gradients are.
#[test]
fn relp_agrees_with_patching_on_mlp_outputs() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let prompts = hooklens::experiments::ioi_prompts(30, 0);
    let texts = |of: fn(&hooklens::experiments::IoiPrompt) -> &str| prompts.iter().map(of).collect::<Vec<_>>();
    let patching = || {
        let clean = texts(|prompt| &prompt.text);
        let pairs = model.patching(clean, texts(|prompt| &prompt.corrupted));
        pairs.logit_diff(texts(|prompt| prompt.answer), texts(|prompt| prompt.wrong)).unwrap()
    };
    let real = patching().sweep(&Sites::new("*hook_mlp_out")).unwrap();
    let correlation = |backward| {
        let attribution = patching().backward(backward).unwrap().attribution("*hook_mlp_out").unwrap();
        let found = attribution.sweep(&Sites::new("*hook_mlp_out")).unwrap();
        pearson(
            &found.values.values().iter().copied().collect::<Vec<_>>(),
            &real.values.values().iter().copied().collect::<Vec<_>>(),
        )
    };
    let [by_gradient, by_relp] = [Backward::Gradient, RELP].map(correlation);
    println!("correlation with real patches: {by_gradient:.4} by gradients, {by_relp:.4} by RelP");
    assert!(by_relp > by_gradient, "{by_relp}, {by_gradient}");
}

fn pearson(a: &[f64], b: &[f64]) -> f64 {
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let sum = |f: &dyn Fn(f64, f64) -> f64| a.iter().zip(b).map(|(a, b)| f(a - mean_a, b - mean_b)).sum::<f64>();
    sum(&|a, b| a * b) / (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt()
}

#[test]
fn relp_refuses_what_it_cannot_propagate_through() {
    let model = open("llama");
    for point in ["*mlp.hook_pre", "*mlp.hook_pre_linear"] {
        let error = pair(&model).backward(RELP).unwrap().attribution(point).unwrap_err().to_string();
        assert!(error.contains("choose `hook_post` or `hook_mlp_in` instead"), "{error}");
    }
    let model = open("gpt-oss");
    let error = pair(&model).backward(RELP).unwrap_err().to_string();
    assert!(error.contains("experts with clipped gates"), "{error}");
}
