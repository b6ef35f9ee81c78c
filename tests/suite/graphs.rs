//! Attribution graphs: every row sums to its node's value, edges equal the effects of constrained interventions, and
//! results match those of circuit-tracer.

use std::cell::RefCell;
use std::path::PathBuf;

use burn::tensor::{Distribution, Tensor};
use hooklens::attribution::graph::{
    AttributionGraph, FeatureEdit, GraphCheck, GraphError, GraphFile, GraphOptions, GraphTarget, Hold, NodeKind,
    Replacement, generate_edited, intervene,
};
use hooklens::features::{
    Architecture, Dictionary, DictionaryWeights, Metadata, Normalization, SpliceDictionary, Transcoders,
};
use hooklens::hook::Hook;
use hooklens::prelude::*;
use hooklens::{DType, WeightFiles};
use hooklens_features::graph::{
    GraphDetails, GraphFileParts, batch_size, feature_tokens, groups, intervened, ranked_every, weighted_target,
};
use hooklens_hooks::{AutodiffLeaf, Detach};
use hooklens_model::config::{Experts, Layers, Settings, SharedExpert};
use proptest::prelude::*;
use serde_json::Value;

use crate::seeded::fixture;
use crate::support::{any_plain, assert_close, cases, cross_layer, device, fixtures, fixtures_with, random_model};

pub(crate) fn tokens() -> Vec<u32> {
    vec![3, 9, 1, 7, 9, 2]
}

/// A random dictionary between two points, with some of its 40 latents active.
fn random_dictionary(width: usize, reads: &str, writes: Option<&str>, skip: bool) -> Dictionary {
    let draw = |shape: [usize; 2], std: f64| Tensor::random(shape, Distribution::Normal(0.0, std), &device());
    let weights = DictionaryWeights {
        encoder: draw([width, 40], 0.5),
        encoder_bias: draw([40, 1], 0.5).reshape([40]) - 0.8,
        decoder: draw([40, width], 0.4),
        decoder_bias: draw([width, 1], 0.3).reshape([width]),
        skip: skip.then(|| draw([width, width], 0.2)),
    };
    let mut metadata = Metadata::at(reads);
    metadata.writes = writes.map(Into::into);
    Dictionary::new(reads, weights).unwrap().with_metadata(metadata)
}

/// Transcoders of a model's MLPs, and autoencoders of its residual stream.
pub(crate) fn random_dictionaries(model: &HookedTransformer, seed: u64) -> Vec<(&'static str, Vec<Dictionary>)> {
    let config = model.config();
    let (width, kind) = (config.d_model(), seed as usize);
    let mut all = Vec::new();
    if !config.attn_only() {
        let [reads, writes] = points_of_mlps(seed);
        let one = |layer: usize| {
            let at = |point: &str| format!("blocks.{layer}.{point}");
            let one = random_dictionary(width, &at(reads), Some(&at(writes)), kind.is_multiple_of(3));
            match kind % 5 {
                0 => one.with_architecture(Architecture::TopK { k: 6 }).unwrap(),
                1 => {
                    let thresholds = vec![0.1; 40];
                    one.with_architecture(Architecture::JumpRelu { thresholds, positive: false }).unwrap()
                }
                2 => one.with_normalization(Normalization::Scale(Some(1.7))),
                3 => one.with_centered_input(true).with_normalization(Normalization::LayerNorm),
                _ => one.with_decoder_norms(true),
            }
        };
        all.push(("transcoders", (0..config.n_layers()).map(one).collect()));
    }
    let points = ["blocks.0.hook_resid_post", "blocks.1.hook_resid_pre", "blocks.1.hook_resid_post"];
    let of = |point: &str| {
        let one = random_dictionary(width, point, None, false);
        if kind.is_multiple_of(2) {
            one.with_centered_input(true).with_normalization(Normalization::ConstantNorm)
        } else {
            one
        }
    };
    all.push(("autoencoders", vec![of(points[kind % 2]), of(points[2])]));
    all
}

/// A point before an MLP, and one after it.
fn points_of_mlps(seed: u64) -> [&'static str; 2] {
    let kind = seed as usize;
    [["hook_mlp_in", "mlp.hook_in"][kind % 2], ["hook_mlp_out", "mlp.hook_out"][kind / 2 % 2]]
}

/// A cross-layer transcoder of a model's MLPs.
pub(crate) fn random_cross_layer(model: &HookedTransformer, seed: u64) -> Transcoders {
    let ([reads, writes], folder) = (points_of_mlps(seed), tempfile::tempdir().unwrap());
    let all = cross_layer(model.config().n_layers(), model.config().d_model(), folder.path(), reads, writes);
    // From here on, weights are read from their files.
    all.layers().iter().for_each(|layer| drop(layer.weights().unwrap()));
    all
}

/// Graphs of a model: with transcoders of its MLPs, autoencoders of its stream, and its neurons.
fn replacements(model: &HookedTransformer, seed: u64) -> Vec<(&'static str, Replacement)> {
    let attn_only = model.config().attn_only();
    let mut all: Vec<_> = random_dictionaries(model, seed)
        .into_iter()
        .map(|(name, all)| (name, Replacement::dictionaries(all)))
        .collect();
    if !attn_only {
        all.push(("a cross-layer transcoder", Replacement::transcoders(random_cross_layer(model, seed))));
        all.push(("neurons", Replacement::neurons(if seed.is_multiple_of(2) { 9 } else { 1000 })));
    }
    all
}

/// The numbers of changed features, changed tokens and compared edges of a check.
fn counts(check: &GraphCheck) -> [usize; 3] {
    let json = serde_json::to_value(check).unwrap();
    ["edits", "tokens", "edges"].map(|name| json[name].as_u64().unwrap() as usize)
}

proptest! {
    #![proptest_config(cases(60))]

    /// Effects and constant of every node sum to its pre-activation, in every kind of model.
    #[test]
    fn rows_prove_themselves(config in any_plain(), seed in 0u64..1000) {
        let model = random_model(config, seed);
        for (name, replacement) in replacements(&model, seed) {
            let left_out = seed as usize % 3;
            let options = batch_size(GraphOptions::new().exclude_positions(left_out), 1 + seed as usize % 7);
            let graph = AttributionGraph::new(&model, tokens(), &replacement, &options).unwrap();
            let worst = graph.nodes().iter().enumerate().filter_map(|(node, held)| {
                Some((graph.deviation_of(node)?, format!("{held:?}: {:?} {:?}", graph.value(node), graph.constant(node))))
            });
            let worst = worst.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
            prop_assert!(worst.0 < 1e-4, "{name}: {worst:?}");
            prop_assert!(!graph.deviation().is_nan());
        }
    }
}

proptest! {
    #![proptest_config(cases(30))]

    /// Changing a feature while everything else is held has the effects that the graph's edges state.
    #[test]
    fn held_interventions_are_the_edges(config in any_plain(), seed in 0u64..1000) {
        let model = random_model(config, seed);
        for (name, replacement) in replacements(&model, seed) {
            let options = GraphOptions::new().exclude_positions(seed as usize % 2);
            let graph = AttributionGraph::new(&model, tokens(), &replacement, &options).unwrap();
            let check = graph.check(&model, &replacement, 3).unwrap();
            prop_assert!(check.deviation < 1e-4, "{name}: {check:?}");
            let [edits, tokens, edges] = counts(&check);
            prop_assert!(edges > 0 && edits + tokens == 3, "{name}: {check:?}");
        }
    }
}

/// Every kind of target is compared with an intervention's effect on it, and a wrong edge is detected.
#[test]
fn checks_are_of_every_target() {
    let capped = || TransformerConfig::new(2, 16, 2, 20, 16).with_output_logits_soft_cap(5.0);
    let alone = TransformerConfig::new(2, 16, 2, 20, 16).with_attn_only(true);
    for config in [TransformerConfig::new(2, 16, 2, 20, 16), capped(), alone] {
        let (model, replacement) = (random_model(config, 3), Replacement::neurons(0));
        let up = GraphTarget::direction("up", (0..16).map(|at| 0.1 * at as f32 - 0.7).collect());
        let options = GraphOptions::new().target(GraphTarget::id(&model, 3)).target(up);
        let graph = AttributionGraph::new(&model, tokens(), &replacement, &options).unwrap();
        // Without features, there are tokens, each with an edge to each target.
        let check = graph.check(&model, &replacement, 4).unwrap();
        assert_eq!(counts(&check), [0, 4, 8]);
        assert!(check.deviation < 1e-4, "{check:?}");
        let message = graph.minus(&graph).unwrap().check(&model, &replacement, 4).unwrap_err().to_string();
        assert!(message.contains("of one prompt"), "{message}");
    }
    // The same token's logit over the mean of all logits and minus another token's are different targets, each measured
    // separately.
    let (model, replacement, _) = ioi_graph();
    let prompt = "When Mary and John went to the store, John gave a drink to";
    let options = GraphOptions::new().target(GraphTarget::difference(&model, "Mary", "John").unwrap());
    let graph = AttributionGraph::new(&model, prompt, &replacement, &options).unwrap();
    let check = graph.check(&model, &replacement, 2).unwrap();
    let rows = graph.nodes().iter().filter(|node| node.is_feature()).count() + 1;
    assert_eq!(counts(&check)[2], 2 * rows);
    assert!(check.deviation < 1e-4, "{check:?}");
}

/// Features are combined, and edited, by number only if they are features of the same dictionary of the same model.
#[test]
fn features_of_other_models_and_dictionaries_are_refused() {
    let config = || TransformerConfig::new(2, 16, 2, 20, 16);
    let [model, other] = [3, 4].map(|seed| random_model(config(), seed));
    let at = |layer: usize| [format!("blocks.{layer}.hook_mlp_in"), format!("blocks.{layer}.hook_mlp_out")];
    let of = |layer: usize| random_dictionary(16, &at(layer)[0], Some(&at(layer)[1]), false);
    let graph = |model: &HookedTransformer, replacement: &Replacement| {
        let options = GraphOptions::new().target(GraphTarget::id(model, 3));
        AttributionGraph::new(model, tokens(), replacement, &options).unwrap()
    };
    let [first, second] = [of(0), of(1)];
    let replacement = Replacement::dictionaries(vec![first.clone(), second.clone()]);
    let own = graph(&model, &replacement);
    assert!(own.minus(&graph(&model, &Replacement::dictionaries(vec![first, second.clone()]))).is_ok());
    for (other, expected) in [
        (graph(&other, &replacement), "the model is"),
        (graph(&model, &Replacement::dictionaries(vec![of(0), second.clone()])), "a site of features is"),
        (graph(&model, &Replacement::neurons(1000)), "a site of features is"),
    ] {
        let message = own.minus(&other).unwrap_err().to_string();
        assert!(
            message.starts_with(expected)
                && message.contains("of the graph") | message.ends_with("the same as in the graph"),
            "{message}"
        );
    }
    // The same name does not make two dictionaries the same.
    let renamed =
        |made: Dictionary| Dictionary::new("random", made.weights().unwrap()).unwrap().at("blocks.0.hook_resid_post");
    let [first, other_weights] = [of(0), of(0)].map(renamed);
    let top = first.clone().with_architecture(Architecture::TopK { k: 40 }).unwrap();
    let alone = |dictionary: &Dictionary| graph(&model, &Replacement::dictionaries(vec![dictionary.clone()]));
    for changed in [&other_weights, &top] {
        let message = alone(&first).minus(&alone(changed)).unwrap_err().to_string();
        assert!(message.starts_with("a site of features is"), "{message}");
    }
    assert!(alone(&first).minus(&alone(&first)).is_ok());
    // More about a graph, from what it was not made with.
    let target = own.nodes().len() - 1;
    let of_others = [
        own.heads(&model, &Replacement::dictionaries(vec![of(0), second.clone()]), target).map(drop),
        own.heads(&model, &Replacement::dictionaries(vec![second.clone()]), target).map(drop),
        own.attention_pairs(&model, &Replacement::neurons(8), (0, 0), [1, 0], usize::MAX).map(drop),
        own.check(&model, &Replacement::dictionaries(vec![second.clone()]), 2).map(drop),
        own.heads(&other, &replacement, target).map(drop),
        own.check(&other, &replacement, 2).map(drop),
        feature_tokens(&own, &other, &[0], 3).map(drop),
    ];
    for message in of_others.map(|refused| refused.unwrap_err().to_string()) {
        assert!(message.contains("of the graph") || message.contains("as in the graph"), "{message}");
    }
    own.attention_pairs(&model, &replacement, (0, 0), [1, 0], usize::MAX).unwrap();
    // What was pruned from another graph, and a target that does not exist.
    let pruned = graph(&model, &Replacement::neurons(1000)).prune(1.0, 1.0).unwrap();
    let of_others = [
        own.paths(&pruned, target, 3).map(drop),
        groups(&own, &pruned, 0.5).map(drop),
        GraphFile::new(&own, &pruned).map(drop),
    ];
    for message in of_others.map(|refused| refused.unwrap_err().to_string()) {
        assert!(message.contains("of another graph"), "{message}");
    }
    let pruned = own.clone().prune(1.0, 1.0).unwrap();
    assert!(!own.paths(&pruned, target, 3).unwrap().is_empty());
    let message = own.paths(&pruned, 999_999, 3).unwrap_err().to_string();
    assert!(message.starts_with("node 999999 cannot be used here; expected a node from 0 to"), "{message}");
    // A feature of layer 1 is the second site of one replacement and the only site of the other.
    let node = own.nodes().iter().find(|node| node.is_feature() && node.layer == Some(1)).unwrap();
    let edits = [node.edit(0.0).unwrap()];
    let logits = |replacement| intervene(&model, tokens(), replacement, &edits, Hold::Everything).unwrap();
    let alone = Replacement::dictionaries(vec![second]);
    let by_layer = [FeatureEdit::times(1, node.position, node.unit().unwrap(), 0.0)];
    let expected = intervene(&model, tokens(), &alone, &by_layer, Hold::Everything).unwrap();
    assert_close(&logits(&alone), &expected, 1e-6, "an edit of another graph");
    let missing = Replacement::dictionaries(vec![of(0)]);
    let message = intervene(&model, tokens(), &missing, &edits, Hold::Everything).unwrap_err().to_string();
    assert!(message.contains("a transcoder's feature of one of the layers 0"), "{message}");
    // A feature of a transcoder is not a latent of an autoencoder, even of the same layer.
    let sae = random_dictionary(model.config().d_model(), "blocks.1.hook_resid_post", None, false);
    let saes = Replacement::dictionaries(vec![sae]);
    let message = intervene(&model, tokens(), &saes, &edits, Hold::Everything).unwrap_err().to_string();
    assert!(message.contains("a transcoder's feature of one of the layers 1"), "{message}");
}

/// Whether graphs reject this model by name: its streams are normalized after sums, its projections are clipped, or its
/// activation function is not proportional to its input.
fn refused(model: &HookedTransformer) -> bool {
    let replacement = Replacement::neurons(4);
    let message = AttributionGraph::new(model, vec![3, 9], &replacement, &GraphOptions::new().max_nodes(1));
    message.is_err_and(|error| {
        matches!(error, hooklens::Error::Input(_))
            || matches!(error.downcast_ref(), Some(GraphError::Replacement { .. }))
    })
}

/// Fixtures that are decoders and that graphs support.
fn decoders() -> Vec<(String, HookedTransformer)> {
    let mut all = Vec::new();
    for name in fixtures_with("golden.safetensors") {
        let Ok(model) = HookedTransformer::from_pretrained(fixture(&name).to_str().unwrap()) else { continue };
        if !model.config().bidirectional() && !refused(&model) {
            all.push((name, model));
        }
    }
    assert!(all.len() > 60, "{}", all.len());
    all
}

/// Graphs of the neurons of every published family sum to the model's values, and interventions match their edges.
#[test]
fn graphs_of_every_decoder_prove_themselves() {
    let mut missed = Vec::new();
    for (name, model) in decoders() {
        let replacement = Replacement::neurons(1000);
        let options = GraphOptions::new().exclude_positions(0);
        let graph = AttributionGraph::new(&model, tokens(), &replacement, &options).unwrap();
        let check = graph.check(&model, &replacement, 3).unwrap();
        if !(graph.deviation() < 1e-4 && check.deviation < 1e-4 && counts(&check)[2] > 0) {
            let worst = (0..graph.nodes().len()).filter_map(|node| Some((graph.deviation_of(node)?, node)));
            let worst = worst.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
            missed.push(format!("{name}: {worst:?} {:?} {check:?}", graph.nodes()[worst.1]));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// A graph's target, as a function of a run.
enum Aim {
    /// A token's logit before the soft cap, minus the mean of all logits.
    Logit(usize),
    /// A neuron at a layer and position.
    Neuron([usize; 3]),
}

/// Products of the activations at some points and the gradients of a target with respect to them, in a run with
/// patterns and norm scales held at those of another run. Uses Burn's autodiff on the model's own forward pass.
fn by_autodiff(model: &HookedTransformer, clean: &ActivationCache, aim: &Aim) -> Vec<(String, Vec<f32>)> {
    let tracked = device().autodiff();
    let sources: Vec<(String, Activation)> = clean
        .iter()
        .map(|(name, held)| (name.to_string(), held))
        .filter(|(name, _)| name == "hook_embed" || name == "hook_pos_embed" || name.ends_with("mlp.hook_post"))
        .map(|(name, held)| (name, held.to_device(&tracked).leaf()))
        .collect();
    let (pre, linear) = (RefCell::new(None::<Tensor<3>>), RefCell::new(None::<Tensor<3>>));
    let mut hooks: Vec<Hook<'_>> = Vec::new();
    for (name, leaf) in &sources {
        hooks.push(hook::at(name.clone()).edit_any(move |_, _| Ok(Some(leaf.clone()))));
    }
    for (name, held) in clean.iter().map(|(name, held)| (name.to_string(), held)) {
        if name.ends_with("hook_pattern") || name.ends_with("hook_scale") {
            let held = held.to_device(&tracked).detached();
            hooks.push(hook::at(name).edit_any(move |_, _| Ok(Some(held.clone()))));
        }
    }
    if let Aim::Neuron([layer, ..]) = aim {
        for (suffix, seen) in [("hook_pre", &pre), ("hook_pre_linear", &linear)] {
            let name = format!("blocks.{layer}.mlp.{suffix}");
            if model.catalog().find(&name).is_ok() {
                hooks.push(hook::at(name).read(move |x: Tensor<3>, _| {
                    seen.replace(Some(x));
                }));
            }
        }
    }
    let logits = model.run_with_hooks(tokens(), hooks).unwrap();
    let target: Tensor<1> = match aim {
        Aim::Logit(token) => {
            let last = logits.narrow(1, tokens().len() - 1, 1);
            let uncapped = match model.config().output_logits_soft_cap() {
                Some(cap) => {
                    let x = last / cap;
                    ((x.clone() + 1.0) / (x * -1.0 + 1.0)).log() * (0.5 * cap)
                }
                None => last,
            };
            uncapped.clone().narrow(2, *token, 1).reshape([1]) - uncapped.mean()
        }
        Aim::Neuron([layer, pos, neuron]) => {
            let at = |x: &Tensor<3>| x.clone().narrow(1, *pos, 1).narrow(2, *neuron, 1).reshape([1]);
            let held = |suffix: &str| {
                let held: Tensor<3> = clean.get(&*format!("blocks.{layer}.mlp.{suffix}")).unwrap();
                at(&held).into_scalar::<f32>()
            };
            let pre = at(pre.borrow().as_ref().unwrap());
            match linear.borrow().as_ref() {
                None => pre,
                // A product: half of it is attributed to each factor.
                Some(linear) => {
                    let [half, by_pre, by_linear] =
                        [0.5 * held("hook_post"), held("hook_pre"), held("hook_pre_linear")];
                    at(linear) * (half / by_linear) + pre * (half / by_pre)
                }
            }
        }
    };
    let gradients = target.backward();
    let times = |(name, leaf): (String, Activation)| {
        let values = |of: &Activation| of.to_data().unwrap().iter::<f32>().collect::<Vec<f32>>();
        let held = values(&leaf.clone().detached());
        let slopes = leaf.gradient(&gradients).map_or_else(|| vec![0.0; held.len()], |slopes| values(&slopes));
        (name, held.iter().zip(slopes).map(|(x, slope)| x * slope).collect())
    };
    sources.into_iter().map(times).collect()
}

/// A graph's effects follow the definition: activation times gradient, with patterns, scales and MLPs held.
#[test]
fn effects_are_activations_times_gradients() {
    let mut compared = 0;
    for (name, model) in decoders().into_iter().filter(|(_, model)| model.config().experts().is_none()) {
        let options = GraphOptions::new().exclude_positions(0).likely(1, 1.0);
        let graph = AttributionGraph::new(&model, tokens(), &Replacement::neurons(1000), &options).unwrap();
        let mut points: Vec<String> = ["hook_embed", "hook_pos_embed", "ln_final.hook_scale"].map(String::from).into();
        for layer in 0..model.config().n_layers() {
            let norms = ["ln1", "ln1_post", "ln2", "ln2_post"].map(|norm| format!("{norm}.hook_scale"));
            let others = [
                "attn.hook_pattern",
                "attn.kv_latent_norm.hook_scale",
                "mlp.hook_pre",
                "mlp.hook_pre_linear",
                "mlp.hook_post",
            ];
            let others = others.map(String::from);
            points.extend(norms.into_iter().chain(others).map(|point| format!("blocks.{layer}.{point}")));
        }
        points.retain(|point| model.catalog().find(point).is_ok());
        let clean = model.record(tokens(), points).unwrap();
        let tracked = model.clone().to_devices(&[device().autodiff()]);
        let last = graph.nodes().len() - 1;
        let neurons: Vec<usize> = (0..last).filter(|node| graph.nodes()[*node].is_feature()).collect();
        let strongest = neurons.iter().copied().filter(|node| graph.nodes()[*node].layer != Some(0));
        let strongest = strongest.min_by(|a, b| graph.nodes()[*a].influence.total_cmp(&graph.nodes()[*b].influence));
        for node in [last].into_iter().chain(strongest).chain(neurons.last().copied()) {
            let own = &graph.nodes()[node];
            let aim = match own.kind {
                NodeKind::Logit { token, .. } => Aim::Logit(token.unwrap() as usize),
                _ => Aim::Neuron([own.layer.unwrap(), own.position, own.unit().unwrap()]),
            };
            let expected = by_autodiff(&tracked, &clean, &aim);
            let effects = graph.effects_on(node).unwrap();
            let largest = effects.iter().fold(1e-6f32, |most, x| most.max(x.abs()));
            for (source, effect) in graph.nodes().iter().zip(effects) {
                let (point, sum) = match source.kind {
                    NodeKind::Neuron { .. } => (format!("blocks.{}.mlp.hook_post", source.layer.unwrap()), false),
                    NodeKind::Token { .. } => ("hook_embed".into(), true),
                    NodeKind::Position => ("hook_pos_embed".into(), true),
                    _ => continue,
                };
                let all = &expected.iter().find(|(name, _)| *name == point).unwrap().1;
                let row = &all[source.position * (all.len() / tokens().len())..][..all.len() / tokens().len()];
                let wanted = if sum { row.iter().sum() } else { row[source.unit().unwrap()] };
                let missed = (effect - wanted).abs();
                assert!(missed < 1e-4 * largest, "{name} {own:?} {source:?}: {effect} {wanted} of {largest}");
                compared += 1;
            }
        }
    }
    assert!(compared > 10_000, "{compared}");
}

proptest! {
    #![proptest_config(cases(30))]

    /// Effects carried by heads and direct effects sum to the total effect; pairs of nodes sum to the attention score
    /// of a query and a key.
    #[test]
    fn heads_sum_to_effects_and_pairs_to_scores(config in any_plain(), seed in 0u64..1000) {
        let model = random_model(config, seed);
        let config = model.config();
        for (name, replacement) in replacements(&model, seed) {
            let options = GraphOptions::new().exclude_positions(seed as usize % 2);
            let graph = AttributionGraph::new(&model, tokens(), &replacement, &options).unwrap();
            let features: Vec<usize> =
                (0..graph.nodes().len()).filter(|node| graph.nodes()[*node].is_feature()).collect();
            for node in features.last().copied().into_iter().chain([graph.nodes().len() - 1]) {
                let heads = graph.heads(&model, &replacement, node).unwrap();
                let effects = graph.effects_on(node).unwrap();
                let largest = effects.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
                for (source, effect) in effects.iter().enumerate() {
                    let carried: f32 = heads.strongest(source, usize::MAX).iter().map(|(_, _, carried)| carried).sum();
                    let missed = (carried + heads.direct(source).unwrap() - effect).abs();
                    prop_assert!(missed < 1e-4 * largest, "{name}: {missed} of {largest}");
                }
            }
            // A dictionary of the stream writes all of it, so later layers see nothing from before it. Pairs include
            // everything.
            let at = (config.n_layers() - 1, seed as usize % config.n_heads());
            let pairs = match graph.attention_pairs(&model, &replacement, at, [5, 2], 3) {
                Ok(pairs) => pairs,
                // A centering norm over all heads at once, or one with a bias.
                Err(error) => {
                    prop_assert!(error.to_string().contains("their norm"), "{error}");
                    continue;
                }
            };
            let scale = pairs.strongest.iter().fold(pairs.score.abs(), |most, pair| most.max(pair.score.abs()));
            prop_assert!((pairs.sum - pairs.score).abs() < 1e-3 * scale.max(1e-3), "{name}: {pairs:?}");
        }
    }
}

proptest! {
    #![proptest_config(cases(20))]

    /// In the mean of graphs and in the difference of two graphs, as in single graphs, effects and constants sum to the
    /// nodes' values.
    #[test]
    fn means_and_differences_prove_themselves(config in any_plain(), seed in 0u64..1000) {
        let model = random_model(config, seed);
        let target = GraphTarget::id(&model, 3);
        let options = GraphOptions::new().exclude_positions(0).target(target);
        for (name, replacement) in replacements(&model, seed) {
            let graph = |tokens: Vec<u32>| AttributionGraph::new(&model, tokens, &replacement, &options).unwrap();
            let (one, other) = (graph(tokens()), graph(vec![3, 1, 1, 8, 9, 2]));
            let mean = AttributionGraph::mean([one.clone(), other.clone()].map(Ok)).unwrap();
            let apart = one.minus(&other).unwrap();
            for combined in [&mean, &apart] {
                for node in 0..combined.nodes().len() {
                    let Some(effects) = combined.effects_on(node) else { continue };
                    let constant = combined.constant(node).unwrap();
                    let largest = effects.iter().fold(constant.abs().max(1.0), |most, x| most.max(x.abs()));
                    let sum: f32 = effects.iter().sum::<f32>() + constant;
                    let missed = (sum - combined.value(node).unwrap()).abs();
                    prop_assert!(missed < 1e-3 * largest, "{name} {node}: {missed} of {largest}");
                }
            }
            let last = |graph: &AttributionGraph| graph.value(graph.nodes().len() - 1).unwrap();
            prop_assert!((last(&mean) - 0.5 * (last(&one) + last(&other))).abs() < 1e-5);
            prop_assert!((last(&apart) - (last(&one) - last(&other))).abs() < 1e-5);
            let alone = AttributionGraph::mean([Ok(one.clone())]).unwrap();
            prop_assert_eq!(alone.effects_on(alone.nodes().len() - 1), one.effects_on(one.nodes().len() - 1));
            let none = one.minus(&one).unwrap();
            prop_assert!((0..none.nodes().len()).filter_map(|node| none.effects_on(node)).flatten().all(|x| *x == 0.0));
        }
        let longer = AttributionGraph::new(&model, vec![3u32, 1, 1], &Replacement::neurons(3), &options);
        let shorter = AttributionGraph::new(&model, vec![3u32, 1], &Replacement::neurons(3), &options);
        if let (Ok(longer), Ok(shorter)) = (longer, shorter) {
            let message = longer.minus(&shorter).unwrap_err().to_string();
            prop_assert_eq!(message, "the number of tokens is 3 and 2; expected the same number in all graphs");
        }
    }
}

/// circuit-tracer's results for a case.
struct Golden {
    folder: PathBuf,
    said: Value,
    tensors: WeightFiles,
}

impl Golden {
    fn of(folder: PathBuf) -> Self {
        let said = serde_json::from_str(&std::fs::read_to_string(folder.join("expected.json")).unwrap()).unwrap();
        let tensors = WeightFiles::open(&[folder.join("expected.safetensors")]).unwrap();
        Self { folder, said, tensors }
    }

    fn all() -> Vec<Self> {
        let entries = std::fs::read_dir(fixtures().join("graph")).unwrap().map(|entry| entry.unwrap().path());
        let mut folders: Vec<PathBuf> = entries.filter(|path| path.join("expected.json").is_file()).collect();
        folders.sort();
        assert!(folders.len() >= 8);
        folders.into_iter().map(Self::of).collect()
    }

    fn numbers(&self, name: &str) -> Vec<f32> {
        self.tensors.read(name, DType::F32).unwrap().iter().collect()
    }

    fn integers(&self, name: &str) -> Vec<usize> {
        let bytes = std::fs::read(self.folder.join("expected.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let number = |bytes: &[u8]| usize::try_from(i64::from_le_bytes(bytes.try_into().unwrap())).unwrap();
        file.tensor(name).unwrap().data().chunks_exact(8).map(number).collect()
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        let bytes = std::fs::read(self.folder.join("expected.safetensors")).unwrap();
        safetensors::SafeTensors::deserialize(&bytes).unwrap().tensor(name).unwrap().data().to_vec()
    }

    fn name(&self) -> &str {
        self.folder.file_name().unwrap().to_str().unwrap()
    }

    fn model(&self) -> HookedTransformer {
        HookedTransformer::from_pretrained(fixtures().join(self.said["model"].as_str().unwrap()).to_str().unwrap())
            .unwrap()
    }

    fn tokens(&self) -> Vec<u32> {
        self.said["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    }

    fn options(&self, model: &HookedTransformer) -> GraphOptions {
        let mut options = GraphOptions::new().exclude_positions(1);
        if let Some(most) = self.said["max_feature_nodes"].as_u64() {
            let number = |key: &str| self.said[key].as_u64().unwrap() as usize;
            options = ranked_every(options.max_nodes(most as usize), number("batch_size") * number("update_interval"));
        }
        // circuit-tracer ignores the soft cap when it computes probabilities, so they differ from the model's.
        if model.config().output_logits_soft_cap().is_some() {
            let weights = self.numbers("logit_probabilities");
            for (target, weight) in self.said["logit_targets"].as_array().unwrap().iter().zip(weights) {
                let id = target["token"].as_u64().unwrap() as u32;
                options = weighted_target(options, GraphTarget::id(model, id), weight);
            }
        }
        for (place, target) in self.said["targets"].as_array().into_iter().flatten().enumerate() {
            // A direction, as it was given.
            let width = model.config().d_model();
            let vector = self.numbers("logit_vectors")[place * width..][..width].to_vec();
            options = weighted_target(
                options,
                GraphTarget::direction(target["label"].as_str().unwrap(), vector),
                target["weight"].as_f64().unwrap() as f32,
            );
        }
        options
    }
}

/// Nodes, edges, scores and pruning match circuit-tracer's.
#[test]
fn graphs_are_circuit_tracers() {
    for golden in Golden::all() {
        let (name, model) = (golden.name().to_string(), golden.model());
        let replacement = Replacement::transcoders(Transcoders::open(&golden.folder).unwrap());
        let graph = AttributionGraph::new(&model, golden.tokens(), &replacement, &golden.options(&model)).unwrap();
        assert!(graph.deviation() < 1e-4, "{name}: {}", graph.deviation());
        let active = golden.integers("active_features");
        let selected = golden.integers("selected_features");
        let wanted: Vec<[usize; 3]> =
            selected.iter().map(|place| [active[3 * place], active[3 * place + 1], active[3 * place + 2]]).collect();
        let features = graph.nodes().iter().filter(|node| node.is_feature());
        let given: Vec<[usize; 3]> =
            features.map(|node| [node.layer.unwrap(), node.position, node.unit().unwrap()]).collect();
        assert_eq!(given, wanted, "{name}");
        assert_eq!(graph.active(), active.len() / 3, "{name}");

        let (count, expected) = (graph.nodes().len(), golden.numbers("adjacency"));
        assert_eq!(expected.len(), count * count, "{name}");
        let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
        for node in 0..count {
            let wanted = &expected[node * count..][..count];
            match graph.effects_on(node) {
                None => assert!(wanted.iter().all(|x| *x == 0.0), "{name}"),
                Some(effects) => {
                    let worst = effects.iter().zip(wanted).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
                    assert!(worst < 1e-4 * largest, "{name}: {:?} by {worst} of {largest}", graph.nodes()[node]);
                }
            }
        }
        let influence = golden.numbers("cumulative_scores");
        for (node, wanted) in graph.nodes().iter().zip(&influence) {
            assert!((node.influence - wanted).abs() < 1e-4, "{name}: {node:?} {wanted}");
        }
        let scores = graph.scores();
        for (given, key) in [(scores.replacement, "replacement_score"), (scores.completeness, "completeness_score")] {
            let wanted = golden.said[key].as_f64().unwrap();
            assert!((given - wanted).abs() < 1e-4, "{name}: {key} {given} {wanted}");
        }
        for (shares, suffix) in [((0.8, 0.98), ""), ((0.95, 0.99), "_wide")] {
            let pruned = graph.prune(shares.0, shares.1).unwrap();
            let mask = golden.bytes(&format!("node_mask{suffix}"));
            let wanted: Vec<usize> = (0..count).filter(|node| mask[*node] != 0).collect();
            assert_eq!(pruned.nodes, wanted, "{name}");
            let mask = golden.bytes(&format!("edge_mask{suffix}"));
            let mut given: Vec<usize> = pruned.edges.iter().map(|edge| edge.target * count + edge.source).collect();
            given.sort_unstable();
            let wanted: Vec<usize> = (0..count * count).filter(|edge| mask[*edge] != 0).collect();
            assert_eq!(given, wanted, "{name}");
        }
    }
}

/// Interventions give the same results as circuit-tracer's, constrained and unconstrained.
#[test]
fn interventions_are_circuit_tracers() {
    for golden in Golden::all() {
        let (name, model) = (golden.name().to_string(), golden.model());
        let replacement = Replacement::transcoders(Transcoders::open(&golden.folder).unwrap());
        let tokens = golden.tokens();
        for (place, edits) in golden.said["interventions"].as_array().unwrap().iter().enumerate() {
            let number = |edit: &Value, key: &str| edit[key].as_u64().unwrap() as usize;
            let edits: Vec<FeatureEdit> = edits
                .as_array()
                .unwrap()
                .iter()
                .map(|edit| {
                    let value = edit["value"].as_f64().unwrap() as f32;
                    FeatureEdit::set(number(edit, "layer"), number(edit, "pos"), number(edit, "latent"), value)
                })
                .collect();
            for (hold, key) in [(Hold::Everything, "constrained"), (Hold::Patterns, "frozen"), (Hold::Nothing, "free")]
            {
                let made = intervened(&model, tokens.clone(), &replacement, &edits, hold).unwrap();
                let close = |given: Vec<f32>, wanted: Vec<f32>, what: &str| {
                    let largest = wanted.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
                    assert_eq!(given.len(), wanted.len());
                    let worst = given.iter().zip(&wanted).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
                    assert!(worst < 1e-4 * largest, "{name} {key} {place} {what}: {worst} of {largest}");
                };
                let logits: Vec<f32> = made.logits.to_data().iter().collect();
                close(logits, golden.numbers(&format!("{key}.{place}.logits")), "logits");
                if hold == Hold::Everything {
                    let mut given = Vec::new();
                    for pre in made.pre_activations {
                        // circuit-tracer leaves out the first position.
                        let [_, latents] = pre.dims();
                        let own: Vec<f32> = pre.to_data().iter().collect();
                        given.extend(vec![0.0; latents]);
                        given.extend(&own[latents..]);
                    }
                    close(given, golden.numbers(&format!("{key}.{place}.pre_activations")), "pre-activations");
                }
            }
        }
    }
}

/// Interventions work at any position and on any neuron, whatever a graph leaves out. Several prompts are rejected.
#[test]
fn interventions_reach_what_graphs_leave_out() {
    let model = random_model(TransformerConfig::new(2, 16, 2, 20, 16), 3);
    let width = model.config().d_mlp();
    let logits = |replacement: &Replacement, edit: FeatureEdit| -> Vec<f32> {
        let made = intervene(&model, tokens(), replacement, &[edit], Hold::Nothing).unwrap();
        made.into_data().iter::<f32>().collect()
    };
    // Halving all neurons of a layer equals halving them by hand, including those that are not features of a small
    // graph.
    let post: Tensor<3> =
        model.record(tokens(), "blocks.0.mlp.hook_post").unwrap().get("blocks.0.mlp.hook_post").unwrap();
    for neuron in [0, width / 2, width - 1] {
        let edit = FeatureEdit::times(0, 1, neuron, 0.5);
        let value = 0.5 * post.clone().slice([0..1, 1..2, neuron..neuron + 1]).into_scalar::<f32>();
        let by_hand = hook::at("blocks.0.mlp.hook_post").edit(move |x: Tensor<3>, _| {
            let new = Tensor::full([1, 1, 1], value, &x.device());
            x.slice_assign([0..1, 1..2, neuron..neuron + 1], new)
        });
        let wanted: Vec<f32> = model.run_with_hooks(tokens(), [by_hand]).unwrap().into_data().iter::<f32>().collect();
        let given = logits(&Replacement::neurons(1), edit);
        assert!(given.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-5), "{neuron}");
        // When held, the change has a fixed amount, which is zero for a factor of one.
        let held = |factor| {
            let edit = FeatureEdit::times(0, 1, neuron, factor);
            let made = intervene(&model, tokens(), &Replacement::neurons(1), &[edit], Hold::Everything).unwrap();
            made.into_data().iter::<f32>().collect::<Vec<f32>>()
        };
        let plain: Vec<f32> = model.forward(tokens()).unwrap().into_data().iter::<f32>().collect();
        assert!(held(1.0).iter().zip(&plain).all(|(a, b)| (a - b).abs() < 1e-5), "{neuron}");
    }
    // The BOS token has features, too, whatever the graph leaves out, if its transcoders are used there.
    let (model, _, graph) = ioi_graph();
    assert_eq!(graph.left_out(), 1);
    let everywhere = Transcoders::open("embedded:ioi-transcoders").unwrap().exclude_tokens([]);
    let replacement = Replacement::transcoders(everywhere);
    let options = GraphOptions::new().exclude_positions(0);
    let prompt = "When Mary and John went to the store, John gave a drink to";
    let whole = AttributionGraph::new(&model, prompt, &replacement, &options).unwrap();
    let first = whole.nodes().iter().find(|node| node.is_feature() && node.position == 0).unwrap();
    let logits = |edits: &[FeatureEdit]| -> Vec<f32> {
        let made = intervene(&model, prompt, &replacement, edits, Hold::Nothing).unwrap();
        made.into_data().iter::<f32>().collect()
    };
    let same = logits(&[first.edit(1.0).unwrap()]);
    assert!(same.iter().zip(logits(&[])).all(|(a, b)| (a - b).abs() < 1e-4));
    let off = logits(&[first.edit(0.0).unwrap()]);
    assert!(off.iter().zip(logits(&[])).any(|(a, b)| (a - b).abs() > 1e-4));
    let message = intervene(&model, vec![vec![1u32, 2], vec![3, 4]], &replacement, &[], Hold::Nothing).unwrap_err();
    assert!(message.to_string().contains("2 prompts"), "{message}");
}

/// Halving an expert's neuron equals halving it by hand, with the routing of the same run. Inputs of later layers may
/// be routed differently.
#[test]
fn neurons_of_experts_are_changed() {
    let shared = Some(SharedExpert { d_mlp: 24, gated: true });
    let experts = Some(Experts { shared, ..Experts::new(4, 2) });
    let config = TransformerConfig::new(3, 16, 2, 20, 16).with_gated_mlp(true).with_mixture(experts);
    let model = random_model(config, 3);
    let (replacement, width) = (Replacement::neurons(1000), model.config().d_mlp());
    let graph = AttributionGraph::new(&model, tokens(), &replacement, &GraphOptions::new()).unwrap();
    let mut labels = 0;
    for node in graph.nodes().iter().filter(|node| node.is_feature() && node.layer != Some(2)).step_by(97) {
        let (layer, pos, neuron) = (node.layer.unwrap(), node.position, node.unit().unwrap());
        let (expert, own) = (neuron / width, neuron % width);
        assert_eq!(node.label, format!("expert {} neuron {}", expert.min(4), neuron - expert.min(4) * width));
        let edit = node.edit(0.5).unwrap();
        let made = intervene(&model, tokens(), &replacement, &[edit], Hold::Nothing).unwrap();
        let by_hand = if expert < 4 {
            let indices = model.record(tokens(), &*format!("blocks.{layer}.mlp.hook_expert_indices")).unwrap();
            let indices = indices
                .to_device(&Device::flex())
                .activation(&*format!("blocks.{layer}.mlp.hook_expert_indices"))
                .unwrap()
                .to_data();
            let indices: Vec<i64> = indices.unwrap().iter().collect();
            // Rows of an expert: tokens with it as their first choice, followed by those with it as their second.
            let order = (0..2).flat_map(|choice| (0..tokens().len()).map(move |row| (choice, row)));
            let row =
                order.filter(|(choice, row)| indices[row * 2 + choice] == expert as i64).position(|at| at.1 == pos);
            let row = row.unwrap();
            hook::at(format!("blocks.{layer}.mlp.experts.{expert}.hook_post")).edit(move |x: Tensor<2>, _| {
                let at = [row..row + 1, own..own + 1];
                x.clone().slice_assign(at.clone(), x.slice(at) * 0.5)
            })
        } else {
            let own = neuron - 4 * width;
            hook::at(format!("blocks.{layer}.mlp.shared.hook_post")).edit(move |x: Tensor<3>, _| {
                let at = [0..1, pos..pos + 1, own..own + 1];
                x.clone().slice_assign(at.clone(), x.slice(at) * 0.5)
            })
        };
        let wanted = model.run_with_hooks(tokens(), [by_hand]).unwrap();
        let largest = (made - wanted).abs().max().into_scalar::<f32>();
        assert!(largest < 1e-4, "{node:?}: {largest}");
        labels += 1;
    }
    assert!(labels > 3, "{labels}");
}

/// Text generated with features changed equals that of the model with its transcoders spliced in and the same latents
/// changed. Its first token is the one that an intervention makes most likely.
#[test]
fn text_with_features_changed() {
    let (model, replacement, _) = ioi_graph();
    let transcoders = Transcoders::open("embedded:ioi-transcoders").unwrap();
    let prompt = "When Mary and John went to the store, John gave a drink to";
    let spliced = model.splice_transcoders(&transcoders).unwrap();
    let len = model.to_tokens(prompt).unwrap().shape()[1];
    for (layer, latent, value) in [(0usize, 224usize, 0.0f32), (2, 119, 30.0), (3, 12, -40.0), (1, 5, 25.0)] {
        for onward in [false, true] {
            let edit = FeatureEdit::set(layer, len - 1, latent, value);
            let edit = if onward { edit.onward() } else { edit };
            let options = || GenerateOptions::new().max_new_tokens(6).logits();
            let made = generate_edited(&model, prompt, &replacement, &[edit], options()).unwrap();
            let acts = hook::mlp_out(layer).inner::<3>("hook_sae_acts_post").edit(move |acts, at| {
                let (offset, [_, count, _]) = (at.offset(), acts.dims());
                (0..count).fold(acts, |acts, row| {
                    let pos = offset + row;
                    if pos < len - 1 || (pos >= len && !onward) {
                        return acts;
                    }
                    let new = Tensor::full([1, 1, 1], value, &acts.device());
                    acts.slice_assign([0..1, row..row + 1, latent..latent + 1], new)
                })
            });
            let wanted = spliced.hooks([acts]).generate_with(prompt, options()).unwrap();
            assert_eq!(made.rows[0].new, wanted.rows[0].new, "{edit:?}");
            let values = |logits: Option<Tensor<3>>| logits.unwrap().into_data().iter::<f32>().collect::<Vec<f32>>();
            let (given, wanted) = (values(made.logits), values(wanted.logits));
            assert!(given.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 2e-3), "{edit:?}");
            let free = intervene(&model, prompt, &replacement, &[edit], Hold::Nothing).unwrap();
            let free: Vec<f32> = free.narrow(1, len - 1, 1).into_data().iter::<f32>().collect();
            assert!(given.iter().zip(&free).all(|(a, b)| (a - b).abs() < 2e-3), "{edit:?}");
        }
    }
    // Edit at the position of a token that will be generated, and at one that will not.
    let later = FeatureEdit::set(3, len + 1, 12, -40.0);
    assert!(intervene(&model, prompt, &replacement, &[later], Hold::Nothing).is_err());
    let text = |edits: &[FeatureEdit]| {
        let options = GenerateOptions::new().max_new_tokens(4).logits();
        let made = generate_edited(&model, prompt, &replacement, edits, options).unwrap();
        made.logits.unwrap().into_data().iter::<f32>().collect::<Vec<f32>>()
    };
    let (plain, changed) = (text(&[]), text(&[later]));
    let vocabulary = plain.len() / 4;
    assert_eq!(plain[..2 * vocabulary], changed[..2 * vocabulary]);
    assert_ne!(plain[2 * vocabulary..3 * vocabulary], changed[2 * vocabulary..3 * vocabulary]);
}

fn ioi_graph() -> (HookedTransformer, Replacement, AttributionGraph) {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let replacement = Replacement::transcoders(Transcoders::open("embedded:ioi-transcoders").unwrap());
    let prompt = "When Mary and John went to the store, John gave a drink to";
    let graph = AttributionGraph::new(&model, prompt, &replacement, &GraphOptions::new()).unwrap();
    (model, replacement, graph)
}

/// Graphs that are limited, computed in other batch sizes, or stored in a file are parts of the full graph or equal to
/// it.
#[test]
fn limits_batches_and_files_change_no_effect() {
    let (model, replacement, whole) = ioi_graph();
    let prompt = "When Mary and John went to the store, John gave a drink to";
    let made = |options: GraphOptions| AttributionGraph::new(&model, prompt, &replacement, &options).unwrap();
    let close = |graph: &AttributionGraph| {
        let key = |node: usize, of: &AttributionGraph| {
            (of.nodes()[node].layer, of.nodes()[node].position, of.nodes()[node].unit())
        };
        let features = |of: &AttributionGraph| {
            (0..of.nodes().len()).filter(|node| of.nodes()[*node].is_feature()).collect::<Vec<_>>()
        };
        let places: Vec<usize> = features(graph)
            .into_iter()
            .map(|node| features(&whole).into_iter().find(|other| key(*other, &whole) == key(node, graph)).unwrap())
            .collect();
        for (node, place) in places.iter().enumerate() {
            let (own, all) = (graph.effects_on(node).unwrap(), whole.effects_on(*place).unwrap());
            for (source, from) in places.iter().enumerate() {
                assert!((own[source] - all[*from]).abs() < 1e-5);
            }
            assert!((graph.value(node).unwrap() - whole.value(*place).unwrap()).abs() < 1e-5);
        }
        assert!(graph.deviation() < 1e-5);
        places.len()
    };
    let all = close(&made(batch_size(GraphOptions::new(), 1)));
    assert_eq!(close(&made(GraphOptions::new().memory(1000))), all);
    assert_eq!(close(&made(ranked_every(GraphOptions::new().max_nodes(100), 7).memory(1000))), 100);
    assert_eq!(close(&made(GraphOptions::new().max_nodes(0))), 0);
    assert_eq!(close(&made(ranked_every(GraphOptions::new().max_nodes(100), 7))), 100);
}

/// A graph's values, bit for bit.
fn bits(graph: &AttributionGraph) -> Vec<Vec<u32>> {
    let row = |node| graph.effects_on(node).unwrap_or_default().iter().map(|x| x.to_bits()).collect();
    let numbers = |node: usize| {
        let own = &graph.nodes()[node];
        let all = [graph.value(node), graph.constant(node), Some(own.influence), own.activation];
        all.iter().map(|x| x.unwrap_or_default().to_bits()).collect()
    };
    (0..graph.nodes().len()).flat_map(|node| [row(node), numbers(node)]).collect()
}

/// A graph that was interrupted anywhere resumes to the same graph, bit for bit. Damaged rows are reported and
/// recomputed.
#[test]
fn interrupted_graphs_go_on() {
    let (model, replacement, _) = ioi_graph();
    let prompt = "When Mary and John went to the store, John gave a drink to";
    let limited = ranked_every(GraphOptions::new().max_nodes(150), 20);
    for (options, flips) in [(batch_size(limited.clone(), 8), 0), (limited, 24), (GraphOptions::new(), 0)] {
        let folder = tempfile::tempdir().unwrap();
        let rows = folder.path().join("graph_rows.bin");
        let whole = AttributionGraph::new(&model, prompt, &replacement, &options).unwrap();
        let kept = options.clone().resumable(folder.path());
        let resumed = |expected: bool| {
            let mut message = Vec::new();
            let graph = AttributionGraph::with_progress(&model, prompt, &replacement, &kept, |one| message.push(one));
            assert!(bits(&graph.unwrap()) == bits(&whole));
            assert!(
                message.windows(2).all(|two| two[0].done < two[1].done)
                    && message[message.len() - 1].done == message[0].of
            );
            assert_eq!(message[0].damaged > 0, expected);
        };
        resumed(false);
        let all = std::fs::read(&rows).unwrap();
        // A killed process leaves a truncated file. A power loss may leave zeros that were never overwritten.
        for cut in [all.len(), all.len() - 1, all.len() * 2 / 3 + 5, all.len() / 3, 1000, 40] {
            std::fs::write(&rows, &all[..cut]).unwrap();
            resumed(false);
            assert!(std::fs::read(&rows).unwrap() == all);
            if cut + 100 < all.len() {
                let mut zeros = all[..cut].to_vec();
                zeros.resize(all.len(), 0);
                std::fs::write(&rows, &zeros).unwrap();
                resumed(true);
                assert!(std::fs::read(&rows).unwrap() == all);
            }
        }
        for flip in 0..flips {
            let at = 40 + (all.len() - 41) * flip / (flips - 1);
            let mut damaged = all.clone();
            damaged[at] ^= 1 << (flip % 8);
            std::fs::write(&rows, &damaged).unwrap();
            resumed(true);
            assert!(std::fs::read(&rows).unwrap() == all, "{at}");
        }
    }
}

/// Rows of a graph with other options are reused where they are equal, and never change the result.
#[test]
fn rows_of_other_batches_change_no_bit() {
    let (model, replacement, whole) = ioi_graph();
    let prompt = "When Mary and John went to the store, John gave a drink to";
    let folder = tempfile::tempdir().unwrap();
    let made = |options: GraphOptions| {
        AttributionGraph::new(&model, prompt, &replacement, &options.resumable(folder.path())).unwrap()
    };
    for options in
        [batch_size(GraphOptions::new(), 1), GraphOptions::new().max_nodes(100), batch_size(GraphOptions::new(), 7)]
    {
        made(options);
        assert!(bits(&made(GraphOptions::new())) == bits(&whole));
    }
}

/// A folder with files from elsewhere is rejected and left unchanged, and so are rows of another graph.
#[test]
fn foreign_files_in_the_folder_of_rows_are_refused() {
    let (model, replacement, _) = ioi_graph();
    let prompt = "When Mary and John went to the store, John gave a drink to";
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("rows");
    std::fs::create_dir(&folder).unwrap();
    let options = GraphOptions::new().max_nodes(20).resumable(&folder);
    let refused = |prompt: &str, expected: &str| {
        let error = AttributionGraph::new(&model, prompt, &replacement, &options).unwrap_err();
        let message = hooklens::error_chain(&error);
        assert!(message.contains("cannot resume from this folder") && message.contains(expected), "{message}");
    };
    let own = folder.join("graph_rows.bin");
    for content in ["", "what", "what is this, longer than the head of a file of rows"] {
        std::fs::write(&own, content).unwrap();
        refused(prompt, "was not written by hooklens");
        assert_eq!(std::fs::read_to_string(&own).unwrap(), content);
    }
    std::fs::remove_file(&own).unwrap();
    std::fs::create_dir(&own).unwrap();
    refused(prompt, "not a file");
    std::fs::remove_dir(&own).unwrap();
    for name in ["graph_rows.f32", "graph_rows.index"] {
        std::fs::write(folder.join(name), "of before").unwrap();
        refused(prompt, name);
        assert_eq!(std::fs::read_to_string(folder.join(name)).unwrap(), "of before");
        std::fs::remove_file(folder.join(name)).unwrap();
    }
    #[cfg(unix)]
    {
        let precious = place.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        for name in ["graph_rows.bin", "graph_rows.f32", "graph_rows.index"] {
            std::os::unix::fs::symlink("../precious", folder.join(name)).unwrap();
            refused(prompt, name);
            std::fs::remove_file(folder.join(name)).unwrap();
            assert!(std::process::Command::new("mkfifo").arg(folder.join(name)).status().unwrap().success());
            refused(prompt, name);
            std::fs::remove_file(folder.join(name)).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
    }
    AttributionGraph::new(&model, prompt, &replacement, &options).unwrap();
    refused("When Mary and John went to the store, Mary gave a drink to", "belong to another graph");
    let mut bytes = std::fs::read(&own).unwrap();
    bytes[20] ^= 4;
    std::fs::write(&own, &bytes).unwrap();
    refused(prompt, "is damaged");
    assert!(std::fs::read(&own).unwrap() == bytes);
}

/// A written graph can be read again, circuit-tracer's files can be read, and files that are not graphs are rejected by
/// name.
#[test]
fn graph_files() {
    let (model, _, graph) = ioi_graph();
    let pruned = graph.prune(0.8, 0.98).unwrap();
    let words = feature_tokens(&graph, &model, &pruned.nodes, 3).unwrap();
    let groups = groups(&graph, &pruned, 0.7).unwrap();
    assert!(groups.iter().all(|group| group.len() > 1) && !groups.is_empty());
    let named = groups.into_iter().map(|group| ("<b>\"".to_string(), group));
    let file =
        GraphFile::new(&graph, &pruned).unwrap().named("a", "b").with_tokens(&graph, &words).with_groups(&graph, named);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("graph.json");
    file.save(&path).unwrap();
    let again = GraphFile::open(&path).unwrap();
    let json = again.json();
    assert_eq!(json["qParams"], file.json()["qParams"]);
    let ids: Vec<&str> =
        json["nodes"].as_array().unwrap().iter().map(|node| node["node_id"].as_str().unwrap()).collect();
    let mut apart = ids.clone();
    apart.sort_unstable();
    apart.dedup();
    assert_eq!(apart.len(), ids.len());
    let linked = json["links"].as_array().unwrap();
    assert_eq!(linked.len(), pruned.edges.len());
    for link in linked {
        assert!(ids.contains(&link["source"].as_str().unwrap()) && ids.contains(&link["target"].as_str().unwrap()));
    }
    // The values that the page adds up: links, bias and what pruning left out.
    let own = &json["metadata"]["hooklens"];
    let number = |of: &str, id: &str| own[of][id].as_f64();
    let linked = |node: usize| pruned.edges.iter().any(|edge| edge.source == node || edge.target == node);
    let inner = |node: usize| graph.nodes()[node].is_feature() || graph.nodes()[node].kind == NodeKind::Error;
    let written: Vec<usize> = pruned.nodes.iter().copied().filter(|node| linked(*node) || !inner(*node)).collect();
    assert_eq!(written.len(), ids.len());
    for (node, id) in written.iter().zip(&ids) {
        let Some(effects) = graph.effects_on(*node) else { continue };
        let all: f64 = effects.iter().map(|x| f64::from(*x)).sum();
        let scale = effects.iter().fold(1.0f64, |most, x| most.max(f64::from(x.abs())));
        let left = number("value", id).unwrap() - all - number("bias", id).unwrap();
        assert!(left.abs() < 1e-4 * scale, "{id}: {left}");
    }
    // Own influences of all nodes that have as much as the last one add up to its cumulative influence.
    let influences =
        |node: &Value| Some((number("own_influence", node["node_id"].as_str()?)?, node["influence"].as_f64()?));
    let mut influences: Vec<(f64, f64)> = json["nodes"].as_array().unwrap().iter().filter_map(influences).collect();
    influences.sort_by(|a, b| b.0.total_cmp(&a.0));
    assert!(influences.is_sorted_by(|a, b| a.1 <= b.1), "the more influence, the smaller the cumulative one");
    let sum: f64 = influences.iter().map(|(own, _)| own).sum();
    assert!(sum > 0.5 && sum <= influences.last().unwrap().1 + 1e-4);

    let page = file.page();
    assert!(!page.contains("__HOOKLENS_GRAPH__") && !page.contains("<b>"));

    let of_circuit_tracer = GraphFile::open(fixtures().join("graph/llama3-limited/circuit_tracer.json")).unwrap();
    assert!(of_circuit_tracer.page().contains("\"links\""));
    for (text, reason) in [
        ("", "EOF while parsing"),
        ("[1]", "it has no list `nodes`"),
        (r#"{"nodes": [{}], "links": []}"#, "node 0 has no `node_id`"),
        (r#"{"nodes": [{"node_id": "a"}]}"#, "it has no list `links`"),
        (
            r#"{"nodes": [{"node_id": "a"}], "links": [{"source": "a", "target": "b", "weight": 1}]}"#,
            "link 0 refers to the node `b`",
        ),
        (
            r#"{"nodes": [{"node_id": "a"}], "links": [{"source": "a", "target": "a", "weight": null}]}"#,
            "no finite `weight`",
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        let message = GraphFile::open(&path).unwrap_err().to_string();
        assert!(message.contains(reason) && message.contains("graph.json"), "{message}");
    }
}

/// Nodes and edges of a graph written by circuit-tracer equal those written here, except for its ids of error nodes.
#[test]
fn files_are_circuit_tracers() {
    let golden = Golden::of(fixtures().join("graph/llama3-limited"));
    let model = golden.model();
    let replacement = Replacement::transcoders(Transcoders::open(&golden.folder).unwrap());
    let graph = AttributionGraph::new(&model, golden.tokens(), &replacement, &golden.options(&model)).unwrap();
    let own = GraphFile::new(&graph, &graph.prune(0.8, 0.98).unwrap()).unwrap();
    let theirs = GraphFile::open(golden.folder.join("circuit_tracer.json")).unwrap();
    let weights = |file: &GraphFile| {
        let mut weights: Vec<f64> =
            file.json()["links"].as_array().unwrap().iter().map(|link| link["weight"].as_f64().unwrap()).collect();
        weights.sort_by(f64::total_cmp);
        weights
    };
    let (own_weights, their_weights) = (weights(&own), weights(&theirs));
    assert_eq!(own_weights.len(), their_weights.len());
    assert!(own_weights.iter().zip(&their_weights).all(|(a, b)| (a - b).abs() < 1e-4));
    for kind in ["cross layer transcoder", "mlp reconstruction error", "embedding", "logit"] {
        let of = |file: &GraphFile| {
            let nodes = file.json()["nodes"].as_array().unwrap().clone();
            let mut own: Vec<(String, u64, Option<i64>)> = nodes
                .iter()
                .filter(|node| node["feature_type"] == kind)
                .map(|node| {
                    let feature = node["feature"].as_i64().filter(|_| kind.starts_with("cross"));
                    (node["layer"].as_str().unwrap().to_string(), node["ctx_idx"].as_u64().unwrap(), feature)
                })
                .collect();
            own.sort();
            own
        };
        assert_eq!(of(&own), of(&theirs), "{kind}");
    }
}

/// Invalid options are rejected with an explanation.
#[test]
fn bad_input_of_graphs() {
    let (model, replacement, graph) = ioi_graph();
    let message = |options: GraphOptions, replacement: &Replacement| {
        AttributionGraph::new(&model, "When Mary and John", replacement, &options).unwrap_err().to_string()
    };
    let new = GraphOptions::new;
    for (options, reason) in [
        (new().likely(0, 0.9), "the number of likely tokens is 0"),
        (new().likely(3, f64::NAN), "the probability of likely tokens is NaN"),
        (new().exclude_positions(99), "the number of excluded positions is 99"),
        (batch_size(new(), 0), "the batch size is 0"),
        (new().target(GraphTarget::id(&model, 1 << 30)), "the model has no logit for token"),
        (new().target(GraphTarget::direction("up", vec![1.0])), "up has 1 elements, but the model's width is 64"),
    ] {
        let message = message(options, &replacement);
        assert!(message.contains(reason), "{message}");
    }
    let narrow = random_dictionary(8, "blocks.0.hook_resid_post", None, false);
    assert!(message(new(), &Replacement::dictionaries([narrow])).contains("64"));
    let elsewhere = random_dictionary(64, "blocks.0.hook_attn_out", None, false);
    assert!(message(new(), &Replacement::dictionaries([elsewhere])).contains("it reads"));
    let unknown = random_dictionary(64, "blocks.9.hook_resid_post", None, false);
    assert!(message(new(), &Replacement::dictionaries([unknown])).contains("blocks.9.hook_resid_post"));
    assert!(message(new(), &Replacement::dictionaries([])).contains("no dictionary was given"));
    assert!(graph.prune(1.5, 0.9).unwrap_err().to_string().contains("the share of nodes is 1.5"));
    assert!(graph.prune(0.5, f64::NAN).unwrap_err().to_string().contains("the share of edges is NaN"));
    for edit in [FeatureEdit::set(9, 0, 0, 1.0), FeatureEdit::set(0, 99, 0, 1.0), FeatureEdit::set(0, 1, 1 << 20, 1.0)]
    {
        let message = intervene(&model, "When Mary", &replacement, &[edit], Hold::Nothing).unwrap_err().to_string();
        assert!(message.contains("cannot be used here; expected "), "{message}");
    }
    assert!(graph.heads(&model, &replacement, 1 << 20).unwrap_err().to_string().contains("1048576"));
    let pairs =
        |head, positions| graph.attention_pairs(&model, &replacement, head, positions, 3).unwrap_err().to_string();
    assert!(pairs((9, 0), [3, 1]).contains("the head is L9H0"));
    assert!(pairs((0, 0), [1, 3]).contains("1 to 3"));
}
