//! Laws of circuits of nodes: keeping everything is the whole model, and ablating one node is patching it.

use hooklens::attribution::graph::{AttributionGraph, GraphOptions, Replacement};
use hooklens::circuits::{NodeCircuit, Selection};
use hooklens::experiments::ioi_prompts;
use hooklens::features::{SpliceDictionary, Transcoders};
use hooklens::hook::Axis;
use hooklens::patching::{Ablation, Metric, PatchModel, Patching, Sites};
use hooklens::prelude::*;
use hooklens::statistics::Statistics;
use proptest::prelude::*;

use crate::seeded::fixture;
use crate::support::{any_plain, cases, random_model};

const CLEAN: [[u32; 6]; 3] = [[3, 9, 1, 7, 9, 4], [2, 2, 8, 0, 5, 1], [7, 1, 1, 6, 2, 3]];
const OTHER: [[u32; 6]; 3] = [[3, 9, 6, 7, 9, 4], [2, 2, 8, 11, 5, 2], [7, 4, 1, 6, 9, 3]];

fn rows(tokens: &[[u32; 6]]) -> Vec<Vec<u32>> {
    tokens.iter().map(|row| row.to_vec()).collect()
}

fn ablations() -> [Ablation; 4] {
    let others = || rows(&OTHER).into();
    [Ablation::Resample(others()), Ablation::Zero, Ablation::Mean(others()), Ablation::MeanByPosition(others())]
}

/// Sites that every model with attention has.
fn of_attention() -> [Sites; 3] {
    [
        Sites::new("*attn.hook_z").per([Axis::Head]),
        Sites::new("*attn.hook_z").per([Axis::Head, Axis::Pos]),
        Sites::new(["hook_embed", "attn_out0"]),
    ]
}

/// All circuits of a model agree with the sweep of the same sites.
fn check(model: &HookedTransformer, sites: &[Sites], what: &str) {
    let logits = model.forward(rows(&CLEAN)).unwrap().abs().max().into_scalar::<f32>();
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-5 * f64::from(logits).max(a.abs());
    for (number, ablation) in ablations().into_iter().enumerate() {
        let metric = Metric::logit_diff(model, vec![4, 6, 3], vec![5, 1, 2]).unwrap();
        let patching = Patching::ablating(model, rows(&CLEAN), ablation, metric).unwrap();
        for sites in sites {
            let all = patching.nodes(sites).unwrap();
            let swept = patching.sweep(sites).unwrap();
            let nodes: Vec<Vec<usize>> = all.nodes().step_by(3).collect();
            let without = |node: &Vec<usize>| all.only([node]).unwrap().complement();
            let mut circuits: Vec<NodeCircuit> = nodes.iter().map(without).collect();
            circuits.extend([all.clone(), all.complement()]);
            let runs = patching.run_nodes(&circuits).unwrap();
            for example in 0..3 {
                let value = |circuit: usize| runs.metric.values()[[circuit, example]];
                assert!(close(runs.clean[example], swept.baseline[example]), "{what} {number}");
                assert!(close(value(nodes.len()), swept.baseline[example]), "{what} {number}: all kept");
                assert_eq!(value(nodes.len() + 1), runs.ablated[example], "{what} {number}: none kept");
                for (circuit, node) in nodes.iter().enumerate() {
                    let place = [node.as_slice(), &[example]].concat();
                    let patched = swept.values.values()[place.as_slice()];
                    assert!(close(value(circuit), patched), "{what} {number}: {node:?}: {} {patched}", value(circuit));
                }
            }
            let alone = patching.run_nodes(&circuits[1..2]).unwrap();
            assert!(close(alone.metric.values()[[0, 1]], runs.metric.values()[[1, 1]]), "{what}: one by one");
        }
    }
}

#[test]
fn ablating_one_node_is_patching_it() {
    for family in ["gpt2", "llama", "gemma2", "granite", "gptj", "mixtral", "falcon-h1"] {
        let model = HookedTransformer::from_pretrained(fixture(family).to_str().unwrap()).unwrap();
        check(&model, &of_attention(), family);
        let mlps =
            [Sites::new(["attn_out0", "mlp_out0", "attn_out1", "mlp_out1"]), Sites::new("*mlp_out").per([Axis::Pos])];
        check(&model, &mlps, family);
    }
}

proptest! {
    #![proptest_config(cases(8))]

    #[test]
    fn ablating_one_node_is_patching_it_in_any_architecture(config in any_plain(), seed in any::<u64>()) {
        let model = random_model(config, seed);
        check(&model, &of_attention(), "drawn");
    }
}

#[test]
fn encoder_decoders_have_circuits_of_nodes() {
    let model = HookedEncoderDecoder::from_pretrained(fixture("t5").to_str().unwrap()).unwrap();
    let patching = model.patching([5, 6, 7, 1], [5, 9, 7, 1]).logit_diff(4, 8).unwrap().reversed();
    for sites in [
        Sites::new("encoder.*.attn.hook_z").per([Axis::Head]),
        Sites::new("decoder.*.cross_attn.hook_z").per([Axis::Head]),
    ] {
        let (all, swept) = (patching.nodes(&sites).unwrap(), patching.sweep(&sites).unwrap());
        let without = all.only([[1, 0]]).unwrap().complement();
        let runs = patching.run_nodes(&[without, all]).unwrap();
        assert!((runs.metric.values()[[0, 0]] - swept.values.values()[[1, 0, 0]]).abs() < 1e-4);
        assert!((runs.metric.values()[[1, 0]] - swept.baseline[0]).abs() < 1e-4);
    }
}

fn ioi(model: &HookedTransformer, count: usize) -> Patching<'_> {
    let prompts = ioi_prompts(count, 3);
    let texts = |of: fn(&hooklens::experiments::IoiPrompt) -> &str| prompts.iter().map(of).collect::<Vec<_>>();
    let metric = Metric::logit_diff(model, texts(|own| own.answer), texts(|own| own.wrong)).unwrap();
    let other = Ablation::Resample(texts(|own| &own.corrupted).into());
    Patching::ablating(model, texts(|own| &own.text), other, metric).unwrap()
}

#[test]
fn a_circuit_of_neurons_recovers_the_metric() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let patching = ioi(&model, 12);
    let sites = Sites::new("*mlp.hook_post").per([Axis::DMlp]);
    let all = patching.nodes(&sites).unwrap();
    let scores = patching.attribution("*mlp.hook_post").unwrap().sweep(&sites).unwrap();
    let half = all.best(&scores, Selection::Top, all.len() / 2).unwrap();
    let most = all.best(&scores, Selection::MostHelpful, 3).unwrap();
    let effect = scores.effect();
    let lowest = effect.values().iter().copied().fold(f64::INFINITY, f64::min);
    assert_eq!(effect.values()[most.nodes().next().unwrap().as_slice()].min(lowest), lowest);
    let curve = patching.node_faithfulness(&all, &scores, Selection::Top, &[0.0, 0.5, 1.0]).unwrap();
    let runs = patching.run_nodes(std::slice::from_ref(&half)).unwrap();
    let faithfulness = curve.runs.faithfulness().unwrap();
    assert_eq!(curve.circuits[1], half);
    assert!(faithfulness[0].abs() < 1e-4 && (faithfulness[2] - 1.0).abs() < 1e-4, "{faithfulness:?}");
    assert!((faithfulness[1] - runs.faithfulness().unwrap()[0]).abs() < 1e-6);
    assert!(faithfulness[1] > 0.8, "{faithfulness:?}");
    let stability = all.stability(&scores, &Statistics::new().resamples(50), 20).unwrap();
    assert!(stability.inclusion.len() >= 20 && stability.jaccard > 0.3, "{stability:?}");
    assert_eq!(all.above(&scores, 0.0).unwrap(), all);
}

/// With 99 % confidence, the bound is above the exact effect of every head outside, and not far above.
#[test]
fn missed_effects_are_bounded() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let patching = ioi(&model, 6);
    let sites = Sites::new("*attn.hook_z").per([Axis::Head]);
    let exact = patching.sweep(&sites).unwrap();
    let all = patching.nodes(&sites).unwrap();
    let settings = Statistics::new().confidence(0.99).seed(2);
    let largest = |circuit: &NodeCircuit| {
        let effect = exact.effect();
        circuit.complement().nodes().map(|node| effect.values()[node.as_slice()].abs()).fold(0.0, f64::max)
    };
    let verified = all.best(&exact, Selection::Top, 10).unwrap();
    let found = patching.missed_effect(&verified, 128, &settings).unwrap();
    assert!(found.bound >= largest(&verified), "{} {}", found.bound, largest(&verified));
    // The most important head is left out of the verified nodes: the bound says so.
    let important = all.best(&exact, Selection::Top, 1).unwrap();
    let others = verified.only(verified.nodes().filter(|node| !important.contains(node))).unwrap();
    let missed = patching.missed_effect(&others, 128, &settings).unwrap();
    assert!(important.contains(&missed.largest.0), "{missed:?} {:?}", important.names());
    assert!(missed.bound > 2.0 * found.bound, "{} {}", missed.bound, found.bound);
    assert_eq!(missed, patching.missed_effect(&others, 128, &settings).unwrap());
}

#[test]
fn a_graph_is_a_circuit_of_latents() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let transcoders = Transcoders::open("embedded:ioi-transcoders").unwrap();
    let prompt = "When Mary and John went to the store, John gave a drink to";
    let replacement = Replacement::transcoders(transcoders.clone());
    let graph = AttributionGraph::new(&model, prompt, &replacement, &GraphOptions::new()).unwrap();
    let spliced = model.splice_transcoders(&transcoders).unwrap();
    let patching = spliced.ablating(prompt, Ablation::Zero).logit_diff("Mary", "John").unwrap();
    let sites = Sites::new("*hook_sae_acts_post").per([Axis::Pos, Axis::Feature]);
    let all = patching.nodes(&sites).unwrap();
    let every: Vec<usize> = (0..graph.nodes().len()).collect();
    let active = graph.circuit(&every, &all).unwrap();
    let features = graph.nodes().iter().filter(|node| node.is_feature()).count();
    assert_eq!(active.len(), features);
    // Latents that are not in the graph are not active, so ablating them changes nothing.
    let faithfulness = patching.run_nodes(std::slice::from_ref(&active)).unwrap().faithfulness().unwrap()[0];
    assert!((faithfulness - 1.0).abs() < 1e-4, "{faithfulness}");
    assert_eq!(NodeCircuit::from_json(&all, &active.to_json()).unwrap(), active);

    // Another prompt, other sites, and a model with another dictionary.
    let other = "When Mary and Anna went to the store, John gave a drink to";
    let elsewhere = spliced.ablating(other, Ablation::Zero).logit_diff("Mary", "John").unwrap();
    let message = graph.circuit(&every, &elsewhere.nodes(&sites).unwrap()).unwrap_err().to_string();
    assert!(message.contains("4 Anna") && message.contains("position of the graph"), "{message}");
    let shorter = spliced.ablating("When Mary", Ablation::Zero).logit_diff("Mary", "John").unwrap();
    assert!(graph.circuit(&every, &shorter.nodes(&sites).unwrap()).is_err());
    let everywhere = patching.nodes(&Sites::new("*hook_sae_acts_post").per([Axis::Feature])).unwrap();
    assert!(graph.circuit(&every, &everywhere).is_err());
    let heads = patching.nodes(&Sites::new("*attn.hook_z").per([Axis::Pos, Axis::Head])).unwrap();
    let message = graph.circuit(&every, &heads).unwrap_err().to_string();
    assert!(message.contains("hook_sae_acts_post"), "{message}");
    let partly = model.splice_dictionary(&transcoders.layers()[0]).unwrap();
    let partly = partly.ablating(prompt, Ablation::Zero).logit_diff("Mary", "John").unwrap();
    assert!(partly.run_nodes(&[active]).is_err());
}

#[test]
fn circuits_of_nodes_are_not_combined_with_others() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let patching = ioi(&model, 2);
    let heads = Sites::new("*attn.hook_z").per([Axis::Head]);
    let by_position = Sites::new("*attn.hook_z").per([Axis::Pos, Axis::Head]);
    let (all, placed) = (patching.nodes(&heads).unwrap(), patching.nodes(&by_position).unwrap());
    let scores = patching.sweep(&heads).unwrap();
    let message = placed.best(&scores, Selection::Top, 3).unwrap_err().to_string();
    assert!(
        message.contains("the nodes of the scores differ from the circuit's: they are 4 layer x 4 head"),
        "{message}"
    );
    assert!(all.jaccard(&placed).is_err() && patching.run_nodes(&[all.clone(), placed.clone()]).is_err());
    assert!(patching.run_nodes(&[]).is_err());
    let message = all.only([[4, 0]]).unwrap_err().to_string();
    assert!(message.contains("no node `[4, 0]`"), "{message}");
    assert!(all.best(&scores, Selection::Greedy, 3).unwrap_err().to_string().contains("no edges"));
    let keys = patching.nodes(&Sites::new("*attn.hook_k").per([Axis::Head])).unwrap();
    assert!(all.jaccard(&keys).unwrap_err().to_string().contains("hook_k"));

    let mut broken = scores.clone();
    broken.baseline[0] = f64::NAN;
    assert!(all.best(&broken, Selection::Top, 3).unwrap_err().to_string().contains("layer 0 head 0 is NaN"));
    assert!(all.stability(&broken, &Statistics::new(), 3).is_err());

    let mut other = model.clone();
    let table: Tensor<2> = other.weights().get("embed.W_E").unwrap();
    other.weights_mut().set("embed.W_E", table * 1.5).unwrap();
    let elsewhere = ioi(&other, 2);
    let message = elsewhere.run_nodes(std::slice::from_ref(&all)).unwrap_err().to_string();
    assert!(message.contains("whose weights"), "{message}");
    let others = elsewhere.nodes(&heads).unwrap();
    assert!(NodeCircuit::from_json(&others, &all.to_json()).unwrap_err().to_string().contains("whose weights"));
    for text in ["", "null", "{}", "[1]", "{\"format\": \"hooklens circuit 1\", \"edges\": []}"] {
        assert!(NodeCircuit::from_json(&all, text).is_err(), "{text}");
    }
    let huge = all.to_json().replace("[0,0]", "[18446744073709551615,0]");
    assert!(NodeCircuit::from_json(&all, &huge).unwrap_err().to_string().contains("no node"));
    assert!(NodeCircuit::from_json(&placed, &all.to_json()).is_err());

    let settings = Statistics::new();
    assert!(patching.missed_effect(&all, 16, &settings).unwrap_err().to_string().contains("outside the circuit"));
    let some = all.only([[0, 0]]).unwrap();
    assert!(patching.missed_effect(&some, 4, &settings).unwrap_err().to_string().contains("at least 8"));
    assert!(patching.missed_effect(&some, 16, &settings.confidence(0.3)).unwrap_err().to_string().contains("0.3"));
}
