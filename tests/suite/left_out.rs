//! Tokens that a dictionary was trained without: spliced models, graphs, evaluations, dashboards, searches and dumps
//! agree on where it has latents.

use std::collections::BTreeSet;

use hooklens::attribution::graph::{AttributionGraph, GraphOptions, Replacement};
use hooklens::dump::Dump;
use hooklens::features::{
    DashboardOptions, Dictionary, EvaluateOptions, ExcludedTokens, SpliceDictionary, Units, dashboards, evaluate,
    latents_by_activation, latents_by_difference,
};
use hooklens::prelude::*;
use hooklens_features::DashboardCounts;
use hooklens_features::graph::GraphDetails;
use proptest::prelude::*;
use serde_json::Value;

use crate::dump::read;
use crate::graphs::random_dictionaries;
use crate::support::{any_plain, cases, program, random_model};

/// An active latent: position and latent index.
type Places = BTreeSet<(usize, usize)>;

fn places_of(acts: &[f32], latents: usize) -> Places {
    let active = acts.iter().enumerate().filter(|(_, act)| **act != 0.0);
    active.map(|(place, _)| (place / latents, place % latents)).collect()
}

/// Compares every use of a dictionary on a prompt.
fn check(model: &HookedTransformer, one: &Dictionary, row: &[u32], left_out: &[u32]) {
    let latents = one.latents();
    let metadata = one.metadata();
    let host = metadata.writes.clone().or_else(|| metadata.reads.clone()).unwrap();
    let point = format!("{host}.hook_sae_acts_post");
    let spliced = model.splice_dictionary(one).unwrap();
    let acts: Tensor<3> = spliced.record(vec![row.to_vec()], &*point).unwrap().get(&*point).unwrap();
    let acts: Vec<f32> = acts.to_data().iter().collect();
    let places = places_of(&acts, latents);
    assert!(places.iter().all(|(pos, _)| !left_out.contains(&row[*pos])), "splice");

    let replacement = Replacement::dictionaries([one.clone()]);
    let options = GraphOptions::new().exclude_positions(0).max_nodes(usize::MAX);
    let graph = AttributionGraph::new(model, vec![row.to_vec()], &replacement, &options).unwrap();
    let features = graph.nodes().iter().filter(|node| node.is_feature());
    assert_eq!(features.map(|node| (node.position, node.unit().unwrap())).collect::<Places>(), places, "graph");
    assert!(graph.deviation() < 1e-4, "{}", graph.deviation());
    let check = graph.check(model, &replacement, 2).unwrap();
    assert!(check.deviation < 1e-4, "{check:?}");

    let kept = row.iter().filter(|id| !left_out.contains(id)).count();
    let prompts = [row.to_vec()];
    let measured = evaluate(model, one, &prompts, &EvaluateOptions::new(), |_| {}).unwrap();
    assert_eq!(measured.tokens, kept, "eval");
    assert!(kept == 0 || (measured.l0 * kept as f64 - places.len() as f64).abs() < 1e-6, "eval");

    if kept > 0 {
        let shown = dashboards(model, Units::latents(one).unwrap(), &prompts, DashboardOptions::new(), |_| {}).unwrap();
        let count = shown.density().iter().sum::<f64>() * kept as f64;
        assert!(shown.tokens() == kept && (count - places.len() as f64).abs() < 1e-6, "show");
        let sets = [row.to_vec(), row.iter().rev().copied().collect()].map(|row| vec![row]);
        let scores = |one: &Dictionary, left_out: &[u32]| -> Vec<(usize, f32)> {
            let found = latents_by_difference(model, one, &sets[0], &sets[1], left_out).unwrap();
            found.iter().map(|one| (one.latent, one.score)).collect()
        };
        assert_eq!(scores(one, &[]), scores(&one.clone().exclude_tokens([]), left_out), "difference");
    }
    for pos in 0..row.len() {
        let found = latents_by_activation(model, one, row, Some(pos)).unwrap();
        let found: Places = found.iter().map(|one| (pos, one.latent)).collect();
        assert_eq!(found, places.iter().copied().filter(|place| place.0 == pos).collect(), "find at {pos}");
    }

    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("latents.safetensors");
    Dump::new(&*point).run(&spliced, &prompts, &out).unwrap();
    let dumped = read(&out);
    let dumped = match dumped.get(&format!("{point}.indices")) {
        Some(indices) => indices.len(),
        None => dumped[&point].iter().filter(|act| **act != 0.0).count(),
    };
    assert_eq!(dumped, places.len(), "dump");
}

proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn uses_of_a_dictionary_agree_on_its_tokens(
        config in any_plain(), seed in 0u64..1000, excluded in prop::collection::vec(0u32..10, 0..4),
        row in prop::collection::vec(0u32..10, 2..7),
    ) {
        let model = random_model(config, seed);
        for (_, all) in random_dictionaries(&model, seed) {
            let one = all[seed as usize % all.len()].clone().exclude_tokens(excluded.iter().copied());
            check(&model, &one, &row, &excluded);
            check(&model, &one.exclude_tokens([]), &row, &[]);
        }
    }
}

/// For a model with a tokenizer, the excluded tokens are its special tokens.
#[test]
fn special_tokens_are_left_out_everywhere() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let row = [0, 21, 1, 57, 0, 21, 1, 57];
    for name in ["embedded:ioi-sae", "embedded:ioi-transcoders/layer_2"] {
        let one = Dictionary::open(name).unwrap();
        check(&model, &one, &row, &[0]);
        let mut metadata = one.metadata().clone();
        metadata.exclude_special_tokens = ExcludedTokens::Special;
        check(&model, &one.clone().with_metadata(metadata), &row, &[0]);
        check(&model, &one.clone().exclude_tokens([0, 57]), &row, &[0, 57]);
        check(&model, &one.exclude_tokens([]), &row, &[]);
    }
}

/// A model without a tokenizer starts prompts with `bos_token_id`: graphs exclude its features, and the command says
/// so.
#[test]
fn beginnings_without_a_tokenizer_are_left_out_of_graphs() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let folder = tempfile::tempdir().unwrap();
    model.save_pretrained(folder.path()).unwrap();
    for name in std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()) {
        if name.file_name().unwrap().to_str().unwrap().starts_with("tokenizer") {
            std::fs::remove_file(name).unwrap();
        }
    }
    let path = folder.path().to_str().unwrap();
    let bare = HookedTransformer::from_pretrained(path).unwrap();
    assert!(bare.tokenizer().is_err() && bare.bos_token() == Some(0));
    let set = hooklens::features::Transcoders::open("embedded:ioi-transcoders").unwrap().exclude_tokens([]);
    let replacement = Replacement::transcoders(set);
    let left_out = |row: Vec<u32>| {
        let graph = AttributionGraph::new(&bare, vec![row], &replacement, &GraphOptions::new()).unwrap();
        (graph.left_out(), graph.nodes().iter().filter(|node| node.is_feature() && node.position == 0).count())
    };
    assert_eq!(left_out(vec![0, 21, 1, 57]), (1, 0));
    assert!(left_out(vec![21, 1, 57]).1 > 0);
    let graph = |more: &[&str]| {
        let given = ["graph", "--model", path, "--neurons", "20", "--tokens", "0,21,1,57"];
        let output = program().args(given).args(more).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(graph(&[]).contains("position 0 has no features"), "{}", graph(&[]));
    assert!(!graph(&["--leave-out", "0"]).contains("has no features"));
    // The setting in the files is kept.
    let again = tempfile::tempdir().unwrap();
    bare.save_pretrained(again.path()).unwrap();
    assert_eq!(HookedTransformer::from_pretrained(again.path().to_str().unwrap()).unwrap().bos_token(), Some(0));
}

/// Dashboards show zeros at excluded tokens, on the page and in JSON lines, for latents, neurons and heads.
#[test]
fn dashboards_show_nothing_at_tokens_that_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = folder.path().join("prompts.txt");
    std::fs::write(&prompts, "When Mary and John went to the store, John gave a drink to\n".repeat(3)).unwrap();
    let show = |more: &[&str], out: &str| -> String {
        let path = folder.path().join(out);
        let given = ["features", "show", "--model", "embedded:ioi", "--prompts", prompts.to_str().unwrap(), "--out"];
        let output = program().args(given).arg(&path).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read_to_string(path).unwrap()
    };
    let dictionary = ["--dictionary", "embedded:ioi-sae"];
    for (more, with) in [
        (&dictionary[..], &["--all-tokens"][..]),
        (&["--neurons", "2"], &["--with-bos"]),
        (&["--heads", "3"], &["--with-bos"]),
    ] {
        let values = |more: &[&str]| -> Vec<(f64, f64)> {
            let lines = show(more, "units.jsonl");
            let mut all = Vec::new();
            for line in lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
                for example in line["activations"].as_array().unwrap() {
                    let tokens =
                        example["tokens"].as_array().unwrap().iter().zip(example["values"].as_array().unwrap());
                    let beginnings = tokens.filter(|(token, _)| *token == "<bos>");
                    let largest = example["bin_max"].as_f64().unwrap();
                    all.extend(beginnings.map(|(_, value)| (value.as_f64().unwrap(), largest)));
                }
            }
            all
        };
        let left_out = values(more);
        assert!(!left_out.is_empty() && left_out.iter().all(|(value, _)| *value == 0.0), "{more:?}: {left_out:?}");
        assert!(values(&[more, with].concat()).iter().any(|(value, _)| *value != 0.0), "{more:?}");
    }
    let page = show(&dictionary, "page.html");
    let data: Value = crate::once::dashboards::data(&page);
    let strings = data["strings"].as_array().unwrap();
    let bos = strings.iter().position(|text| text == "<bos>").unwrap();
    let mut beginnings = 0;
    for example in data["latents"].as_array().unwrap().iter().flat_map(|one| one["groups"].as_array().unwrap()) {
        for example in example["examples"].as_array().unwrap() {
            let (tokens, acts) = (example["tokens"].as_array().unwrap(), example["acts"].as_array().unwrap());
            for (_, act) in tokens.iter().zip(acts).filter(|(token, _)| **token == bos) {
                assert_eq!(act.as_f64(), Some(0.0));
                beginnings += 1;
            }
        }
    }
    assert!(beginnings > 0, "{}", data["latents"][0]["groups"][0]["examples"][0]);
}
