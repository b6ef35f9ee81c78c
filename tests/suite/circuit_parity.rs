//! Edge scores, circuits and faithfulness equal those of MIB's code (`tests/fixtures/circuits.py`).

use std::collections::HashMap;
use std::fs;

use hooklens::attribution::{EdgeGraph, EdgeScores, Gradient};
use hooklens::circuits::{Circuit, Discovery, MIB_SHARES, Selection};
use hooklens::patching::{Ablation, Metric, Patching};
use hooklens::prelude::*;
use serde::Deserialize;

use crate::support::{fixtures, random_model};

#[derive(Deserialize)]
struct Golden {
    pairs: Vec<Pair>,
    baseline: Vec<f64>,
    corrupted: Vec<f64>,
    selections: Vec<GoldenSelection>,
    curves: Vec<Curve>,
    scores: HashMap<String, HashMap<String, f64>>,
}

#[derive(Deserialize)]
struct Pair {
    clean: Vec<u32>,
    corrupted: Vec<u32>,
    answer: u32,
    wrong: u32,
}

#[derive(Deserialize)]
struct GoldenSelection {
    absolute: bool,
    greedy: bool,
    circuits: Vec<GoldenCircuit>,
}

#[derive(Deserialize)]
struct GoldenCircuit {
    edges: Vec<String>,
}

#[derive(Deserialize)]
struct Curve {
    intervention: String,
    absolute: bool,
    greedy: bool,
    empty: Vec<f64>,
    metrics: Vec<Vec<f64>>,
    area_under: f64,
    area_from_1: f64,
    faithfulnesses: Vec<f64>,
}

fn read(file: &str) -> String {
    fs::read_to_string(fixtures().join("circuits").join(file)).unwrap()
}

fn model() -> HookedTransformer {
    HookedTransformer::from_pretrained(fixtures().join("gpt2").to_str().unwrap()).unwrap()
}

impl Golden {
    fn read() -> Self {
        serde_json::from_str(&read("circuits.json")).unwrap()
    }

    fn patching<'m>(&self, model: &'m HookedTransformer, intervention: &str) -> Patching<'m> {
        let rows =
            |of: fn(&Pair) -> &Vec<u32>| -> Vec<Vec<u32>> { self.pairs.iter().map(|pair| of(pair).clone()).collect() };
        let (clean, corrupted) = (rows(|pair| &pair.clean), rows(|pair| &pair.corrupted));
        let ids = |of: fn(&Pair) -> u32| -> Vec<u32> { self.pairs.iter().map(of).collect() };
        let metric = Metric::logit_diff(model, ids(|pair| pair.answer), ids(|pair| pair.wrong)).unwrap();
        let ablation = match intervention {
            "patching" => Ablation::Resample(corrupted.into()),
            "zero" => Ablation::Zero,
            "mean-positional" => Ablation::MeanByPosition(clean.clone().into()),
            "mean-corrected" => Ablation::Mean(clean.clone().into()),
            other => panic!("{other}"),
        };
        Patching::ablating(model, clean, ablation, metric).unwrap()
    }
}

fn close(given: f64, expected: f64) -> bool {
    (given - expected).abs() < 1e-4 * expected.abs().max(1.0)
}

#[test]
fn curves_are_those_of_mib() {
    let (golden, model) = (Golden::read(), model());
    let scores = EdgeScores::from_mib(&EdgeGraph::of(&model).unwrap(), &read("circuit_mib.json")).unwrap();
    let mut compared = 0;
    for curve in &golden.curves {
        let selection = match (curve.absolute, curve.greedy) {
            (true, false) => Selection::Top,
            (false, false) => Selection::MostHelpful,
            (true, true) => Selection::Greedy,
            (false, true) => Selection::GreedyHelpful,
        };
        // MIB's own `mean` is one vector for all nodes.
        if curve.intervention == "mean" {
            continue;
        }
        compared += 1;
        let what = format!("{} {selection:?}", curve.intervention);
        let found = golden.patching(&model, &curve.intervention).faithfulness(&scores, selection, &MIB_SHARES).unwrap();
        let expected =
            golden.selections.iter().find(|own| (own.absolute, own.greedy) == (curve.absolute, curve.greedy));
        for (circuit, expected) in found.circuits.iter().zip(&expected.unwrap().circuits) {
            assert_eq!(circuit.len(), expected.edges.len(), "{what}");
            let marked: serde_json::Value = serde_json::from_str(&scores.to_mib(&model, circuit).unwrap()).unwrap();
            assert!(expected.edges.iter().all(|edge| marked["edges"][edge]["in_graph"] == true), "{what}");
        }
        for (example, empty) in curve.empty.iter().enumerate() {
            assert!(close(found.runs.clean[example], golden.baseline[example]), "{what}");
            assert!(close(found.runs.ablated[example], *empty), "{what}");
            for (circuit, metrics) in curve.metrics.iter().enumerate() {
                assert!(close(found.runs.metric.values()[[circuit, example]], metrics[example]), "{what}");
            }
        }
        for (found, expected) in found.runs.faithfulness().unwrap().iter().zip(&curve.faithfulnesses) {
            assert!(close(*found, *expected), "{what}: {found}, {expected}");
        }
        assert!(close(found.cpr().unwrap(), curve.area_under), "{what}");
        assert!(close(found.cmd().unwrap(), curve.area_from_1), "{what}");
        if curve.intervention == "patching" {
            assert!(golden.corrupted.iter().zip(&found.runs.ablated).all(|(own, found)| close(*found, *own)));
        }
    }
    assert_eq!(compared, 16);
}

#[test]
fn edge_attribution_is_that_of_eap() {
    let (golden, model) = (Golden::read(), model());
    let json = read("circuit_mib_eap.json");
    let graph = EdgeGraph::of(&model).unwrap();
    let expected = EdgeScores::from_mib(&graph, &json).unwrap();
    let found = golden.patching(&model, "patching").edges(Gradient::AtBase).unwrap();
    for (sender, receiver) in graph.edges() {
        let [found, expected] = [&found, &expected].map(|scores| scores.score(sender, receiver).unwrap());
        assert!((found - expected).abs() < 1e-4, "{sender} -> {receiver}: {found}, {expected}");
    }
    let circuit = Circuit::from_json(&graph, &json).unwrap();
    assert_eq!(circuit.len(), 13);
    assert_eq!(circuit, Circuit::top(&found, 15).unwrap().pruned());
}

#[test]
fn relp_is_that_of_its_authors() {
    let (golden, model) = (Golden::read(), model());
    let mut json: serde_json::Value = serde_json::from_str(&read("circuit_mib.json")).unwrap();
    for (edge, score) in &golden.scores["relp"] {
        json["edges"][edge]["score"] = (*score).into();
    }
    let graph = EdgeGraph::of(&model).unwrap();
    let expected = EdgeScores::from_mib(&graph, &json.to_string()).unwrap();
    let found = golden.patching(&model, "patching").discover(&Discovery::Relp).unwrap();
    for (sender, receiver) in graph.edges() {
        let [found, expected] = [&found, &expected].map(|scores| scores.score(sender, receiver).unwrap());
        assert!((found - expected).abs() < 1e-4, "{sender} -> {receiver}: {found}, {expected}");
    }
}

#[test]
fn damaged_circuit_files_are_refused() {
    let graph = EdgeGraph::of(&model()).unwrap();
    let good = read("circuit_mib.json");
    let whole = Circuit::full(&graph).to_json();
    for (text, expected) in [
        ("", "cannot read the circuit"),
        ("null", "cannot read the circuit"),
        ("[]", "cannot read the circuit"),
        ("{\"cfg\": null}", "cannot read the circuit"),
        (&good.replace("\"n_layers\": 2", "\"n_layers\": 3"), "2 sequential layers"),
        (&good.replace("input->a0.h0<q>", "input->a0.h9<q>"), "no receiver `a0.h9<q>`; did you mean"),
        (&good.replace("input->a0.h0<q>", "m1->a0.h0<q>"), "1_mlp writes after L0H0.q has read"),
        (&good.replace("input->a0.h0<q>", "input"), "`input` is not an edge"),
        (&whole.replace("circuit 1", "circuit 2"), "this version reads `hooklens circuit 1`"),
        (&whole.replace("\"L0H0\"", "\"L0H00\""), "no sender `L0H00`; did you mean"),
        (&whole.replace("\"model\": \"", "\"model\": \"0"), "its hash is"),
    ] {
        let error = Circuit::from_json(&graph, text).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    // A circuit needs no scores, but scores need all.
    let mut unscored: serde_json::Value = serde_json::from_str(&good).unwrap();
    unscored["edges"]["input->m0"]["score"] = serde_json::Value::Null;
    assert!(Circuit::from_json(&graph, &unscored.to_string()).is_ok());
    let error = EdgeScores::from_mib(&graph, &unscored.to_string()).unwrap_err().to_string();
    assert!(error.contains("the edge embed -> 0_mlp has no score"), "{error}");
}

/// MIB's files have an edge for each query head, also if heads share keys and values.
#[test]
fn scores_of_shared_keys_and_values_are_read_as_written() {
    for (heads, shared) in [(4, 4), (4, 2), (4, 1), (6, 2)] {
        let model = random_model(TransformerConfig::new(2, 24, heads, 20, 8).with_kv_heads(shared), 5);
        let metric = Metric::logit_diff(&model, 3u32, 4u32).unwrap();
        let ablation = Ablation::Resample(vec![9u32, 2, 1].into());
        let patching = Patching::ablating(&model, vec![1u32, 2, 3], ablation, metric).unwrap();
        let scores = patching.edges(Gradient::AtBase).unwrap();
        let circuit = Circuit::top(&scores, 30).unwrap();
        let again = EdgeScores::from_mib(&scores.graph(), &scores.to_mib(&model, &circuit).unwrap()).unwrap();
        let largest = scores.scores.values().iter().fold(0f64, |most, x| most.max(x.abs()));
        for (read, written) in again.scores.values().iter().zip(scores.scores.values()) {
            assert!((read - written).abs() <= 1e-12 * largest, "{heads}, {shared}: {read}, {written}");
        }
    }
}
