//! Backward passes of attribution patching other than the gradient.

use burn::tensor::{Device, Tensor};
use hooklens::attribution::{Backward, EdgeGraph, Gradient, Sender};
use hooklens::circuits::Discovery;
use hooklens::patching::{Ablation, Metric, Patching, Sites};
use hooklens::prelude::*;
use hooklens_model::config::{ActivationFn, NormKind};

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

/// The effect of each site by each pass, computed with hooks that detach what one layer writes.
#[test]
fn grad_drop_is_the_mean_over_detached_layers() {
    for family in ["gpt2", "llama", "gemma2", "gptj", "mixtral"] {
        let model = open(family);
        let layers = model.config().n_layers();
        for point in ["blocks.*.attn.hook_z", "blocks.*.hook_mlp_out"] {
            let patching = pair(&model).backward(Backward::GradDrop).unwrap();
            let sites = Sites::new(point).per([Axis::Pos]);
            let found = patching.attribution(point).unwrap().sweep(&sites).unwrap().effect();
            let source = model.record(vec![CLEAN.to_vec()], point).unwrap();
            let mut sums = vec![vec![0.0; CLEAN.len()]; layers];
            for dropped in 0..layers {
                let cuts = [hook::attn_out(dropped), hook::mlp_out(dropped)].map(|point| point.edit(|x, _| x.detach()));
                let options = ForwardOptions::new().record([point, "hook_embed"]).hooks(cuts);
                let difference = |logits: Tensor<3>| {
                    let last = logits.narrow(1, CLEAN.len() - 1, 1);
                    last.clone().narrow(2, 4, 1).sum() - last.narrow(2, 5, 1).sum()
                };
                let base = model.run_with_gradients(vec![CORRUPTED.to_vec()], options, difference).unwrap().cache;
                for (layer, sums) in sums.iter_mut().enumerate() {
                    if layer == dropped {
                        continue; // without its own layer, a node has no effect
                    }
                    let name = point.replace('*', &layer.to_string());
                    let read =
                        |cache: &ActivationCache, name: &str| cache.activation(name).unwrap().to_ndarray().unwrap();
                    let products = (read(&source, &name) - read(&base, &name)) * read(&base, &format!("{name}_grad"));
                    for (pos, sum) in sums.iter_mut().enumerate() {
                        *sum += f64::from(products.index_axis(ndarray::Axis(1), pos).sum()).abs();
                    }
                }
            }
            for (layer, sums) in sums.iter().enumerate() {
                for (pos, sum) in sums.iter().enumerate() {
                    let (own, expected) = (found.values()[[layer, pos]], sum / (layers - 1) as f64);
                    assert!((own - expected).abs() < 1e-5 * expected.max(1.0), "{family} {point}: {own}, {expected}");
                }
            }
        }
    }
}

/// Layer 0 writes `x` to a direction, and layer 1 subtracts `relu(x)` from it. At `x = 1` the two cancel, in the gradient
/// too, but a patch to `x = -2` has an effect.
#[test]
fn grad_drop_finds_effects_that_cancel_in_the_gradient() {
    let config = TransformerConfig::new(3, 4, 1, 3, 8).with_norm(NormKind::None).with_activation(ActivationFn::Relu);
    let mut model = HookedTransformer::random(config, 0, &Device::flex()).unwrap();
    for name in model.weights().names() {
        let weights = model.weights_mut();
        if let Ok(vector) = weights.get::<1>(&name) {
            weights.set(&name, vector.zeros_like()).unwrap();
        } else if let Ok(matrix) = weights.get::<2>(&name) {
            weights.set(&name, matrix.zeros_like()).unwrap();
        } else {
            let stack = weights.get::<3>(&name).unwrap();
            weights.set(&name, stack.zeros_like()).unwrap();
        }
    }
    let mut set = |name: &str, row: usize, column: usize, value: f32| {
        let matrix = model.weights().get::<2>(name).unwrap();
        let [rows, columns] = matrix.dims();
        let mut values = vec![0.0; rows * columns];
        values[row * columns + column] = value;
        let one = Tensor::<1>::from_floats(values.as_slice(), &matrix.device()).reshape([rows, columns]);
        model.weights_mut().set(name, matrix + one).unwrap();
    };
    set("embed.W_E", 0, 0, -2.0);
    set("embed.W_E", 1, 0, 1.0);
    set("embed.W_E", 0, 2, 10.0);
    set("embed.W_E", 1, 2, 10.0);
    // The third direction is 10 in both runs, so that the neuron is active.
    set("blocks.0.mlp.W_in", 0, 0, 1.0);
    set("blocks.0.mlp.W_in", 2, 0, 1.0);
    set("blocks.0.mlp.W_out", 0, 1, 1.0);
    set("embed.W_E", 0, 1, -10.0);
    set("embed.W_E", 1, 1, -10.0);
    set("blocks.1.mlp.W_in", 1, 0, 1.0);
    set("blocks.1.mlp.W_out", 0, 1, -1.0);
    set("unembed.W_U", 1, 0, 1.0);
    let patching = |backward| {
        let metric = Metric::logit_diff(&model, 0u32, 1u32).unwrap();
        Patching::new(&model, vec![vec![0u32]], vec![vec![1u32]], metric).unwrap().backward(backward).unwrap()
    };
    let effect = |backward| {
        patching(backward).attribution("*hook_mlp_out").unwrap().sweep(&Sites::new("*hook_mlp_out")).unwrap().effect()
    };
    let real = patching(Backward::Gradient).sweep(&Sites::new("*hook_mlp_out")).unwrap().effect();
    assert!((real.values()[[0]] + 2.0).abs() < 1e-5, "{real:?}");
    assert!(effect(Backward::Gradient).values()[[0]].abs() < 1e-5);
    // 3 without layer 1, 0 without layer 0 or 2.
    assert!((effect(Backward::GradDrop).values()[[0]] - 1.5).abs() < 1e-5);
}

/// In the last layer, only dropping that layer matters. In the first of two, the effect through the second is lost.
#[test]
fn grad_drop_applies_to_queries_and_keys() {
    let model = open("llama");
    let last = model.config().n_layers() - 1;
    let patching = |backward| pair(&model).backward(backward).unwrap();
    let of = |backward| {
        let patching = patching(backward);
        [patching.query_attribution(), patching.key_attribution()].map(|found| found.unwrap().effect())
    };
    for (plain, dropped) in of(Backward::Gradient).iter().zip(&of(Backward::GradDrop)) {
        let layer = |array: &LabeledArray, at: usize| array.values().index_axis(ndarray::Axis(0), at).to_owned();
        let (plain_last, dropped_last) = (layer(plain, last).mapv(f64::abs), layer(dropped, last));
        assert!((&plain_last - &dropped_last).iter().all(|gap| gap.abs() < 1e-6), "{plain_last}, {dropped_last}");
        assert!(plain_last.iter().any(|effect| *effect > 1e-4));
        assert!((layer(plain, 0).mapv(f64::abs) - layer(dropped, 0)).iter().any(|gap| gap.abs() > 1e-4));
    }
}

#[test]
fn grad_drop_is_for_nodes_of_several_layers() {
    let model = open("llama");
    let patching = pair(&model).backward(Backward::GradDrop).unwrap();
    let error = patching.edges(Gradient::AtBase).unwrap_err().to_string();
    assert!(error.contains("estimates the effects of nodes"), "{error}");
    let one = HookedTransformer::random(TransformerConfig::new(1, 8, 2, 20, 32), 0, &Device::flex()).unwrap();
    let error = pair(&one).backward(Backward::GradDrop).unwrap_err().to_string();
    assert!(error.contains("not defined for a model with a single layer"), "{error}");
    let encoder = HookedEncoder::from_pretrained(fixture("bert").to_str().unwrap()).unwrap();
    let metric = Metric::logit_diff(&encoder, 4u32, 5u32).unwrap();
    let patching = Patching::new(&encoder, vec![CLEAN.to_vec()], vec![CORRUPTED.to_vec()], metric).unwrap();
    let error = patching.backward(Backward::GradDrop).unwrap_err().to_string();
    assert!(error.contains("a model other than a decoder does not support"), "{error}");
}
