//! Evaluations of dictionaries on prompts that leave some measures undefined.

use hooklens::experiments::ioi_prompts;
use hooklens::features::{Dictionary, EvaluateOptions, Evaluation, Transcoders, evaluate, evaluate_transcoders};
use hooklens::prelude::*;
use hooklens_features::EvaluationShard;

use crate::support::program;

fn measured(rows: &[Vec<u32>], batch_size: usize) -> Evaluation {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let sae = Dictionary::open("embedded:ioi-sae").unwrap();
    evaluate(&model, &sae, rows, &EvaluateOptions::new().batch_size(batch_size), |_| {}).unwrap()
}

/// One of an evaluation's metrics, by SAELens's name.
pub(crate) fn metric(of: &Evaluation, name: &str) -> f64 {
    of.metrics().into_iter().find(|(own, _)| *own == name).unwrap().1
}

const LOSSES: [&str; 3] = ["ce_loss_without_sae", "ce_loss_with_sae", "ce_loss_with_ablation"];

/// All values of an evaluation, for comparison.
fn numbers(of: &Evaluation) -> Vec<f64> {
    let names =
        ["l0", "l1", "mse", "explained_variance", "cossim", "l2_ratio", "kl_div_with_sae", "kl_div_with_ablation"];
    names.into_iter().chain(LOSSES).map(|name| metric(of, name)).collect()
}

/// Prompts of one token have no next token to predict, so they do not contribute to losses, in any batch.
#[test]
fn single_tokens_add_nothing_to_losses() {
    let long = vec![vec![0, 21, 1, 57, 3, 9], vec![0, 9, 4, 21]];
    let with = [long.clone(), vec![vec![0], vec![57], vec![0]]].concat();
    let whole = measured(&with, 16);
    assert_eq!(whole.tokens, 9);
    assert!(numbers(&whole).iter().all(|number| number.is_finite()), "{whole}");
    for batch_size in [1, 2, 3] {
        let again = measured(&with, batch_size);
        for (one, other) in numbers(&whole).iter().zip(numbers(&again)) {
            assert!((one - other).abs() < 1e-5 * one.abs().max(1.0), "{batch_size}: {one} {other}");
        }
    }
    let losses = |of: &Evaluation| LOSSES.map(|name| metric(of, name));
    for (one, other) in losses(&whole).iter().zip(losses(&measured(&long, 16))) {
        assert!((one - other).abs() < 1e-5, "{one} {other}");
    }
}

/// Undefined measures are reported as such, and null in JSON: losses without a next token, the variance of a single
/// vector, and everything if no token is left.
#[test]
fn undefined_measures_are_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("beginning.jsonl"), "[0]\n").unwrap();
    let eval = |dictionary: &str, more: &[&str]| {
        let given = ["features", "eval", "--model", "embedded:ioi", "--dictionary", dictionary];
        let output = program().current_dir(folder.path()).args(given).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let line = |message: &str, name: &str| message.lines().find(|line| line.starts_with(name)).unwrap().to_string();
    for dictionary in ["embedded:ioi-sae", "embedded:ioi-transcoders"] {
        let message = eval(dictionary, &["--prompt", "Mary"]);
        assert!(!message.contains("NaN") && !message.contains("inf"), "{message}");
        for name in ["loss ", "loss recovered"] {
            assert!(line(&message, name).contains("not defined   (no next token)"), "{message}");
        }
        let message = eval(dictionary, &["--prompts", "beginning.jsonl"]);
        assert!(
            !message.contains("NaN") && line(&message, "tokens").contains(" 0 ") && message.contains("not defined"),
            "{message}"
        );
    }
    let message = eval("embedded:ioi-sae", &["--prompt", "Mary", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&message).unwrap();
    assert!(json["metrics"]["model_performance_preservation"]["ce_loss_without_sae"].is_null(), "{message}");
    assert_eq!(json["metrics"]["sparsity"]["l0"], 16.0);
    let message = eval("embedded:ioi-sae", &["--prompts", "beginning.jsonl", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&message).unwrap();
    assert!(json["metrics"]["sparsity"]["l0"].is_null() && json["metrics"]["latents"]["dead"].is_null(), "{message}");
    assert_eq!(json["metrics"]["token_stats"]["total_tokens"], 0);
    let everywhere = eval("embedded:ioi-sae", &["--prompts", "beginning.jsonl", "--all-tokens"]);
    assert!(line(&everywhere, "explained variance").contains("all activations are equal"), "{everywhere}");
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let set = Transcoders::open("embedded:ioi-transcoders").unwrap();
    assert!(evaluate_transcoders(&model, &set, &[], &EvaluateOptions::new(), |_| {}).is_err());
    // Layers that exclude different tokens have no common number of tokens.
    let layers: Vec<Dictionary> =
        set.layers().iter().enumerate().map(|(at, one)| one.clone().exclude_tokens([at as u32])).collect();
    let mixed = Transcoders::new("mixed", layers);
    let rows = [vec![0, 21, 1, 57]];
    let message = evaluate_transcoders(&model, &mixed, &rows, &EvaluateOptions::new(), |_| {}).unwrap_err();
    assert!(message.to_string().contains("different tokens"), "{message}");
    let all_tokens = mixed.exclude_tokens([]);
    assert!(evaluate_transcoders(&model, &all_tokens, &rows, &EvaluateOptions::new(), |_| {}).is_ok());
}

/// Intervals contain the metrics, are the same in shards, and are absent for a single prompt.
#[test]
fn intervals_do_not_depend_on_shards() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let sae = Dictionary::open("embedded:ioi-sae").unwrap();
    let rows: Vec<Vec<u32>> =
        ioi_prompts(60, 5).iter().map(|prompt| model.to_tokens(&*prompt.text).unwrap().row(0).to_vec()).collect();
    let options = EvaluateOptions::new().cosines(false);
    let whole = evaluate(&model, &sae, &rows, &options, |_| {}).unwrap();
    let names: Vec<&str> = whole.intervals.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["ce_loss_score", "kl_div_score", "explained_variance", "mse", "cossim", "l0"]);
    for (name, value) in whole.metrics() {
        if let Some((_, interval)) = whole.intervals.iter().find(|(own, _)| *own == name) {
            assert!(interval.low < value && value < interval.high, "{name}: {value} {interval:?}");
        }
    }
    let shard = |rows: &[Vec<u32>]| EvaluationShard::of(&model, &sae, rows, &options, |_| {}).unwrap();
    let stored = serde_json::to_string(&shard(&rows[..7])).unwrap();
    let first: EvaluationShard = serde_json::from_str(&stored).unwrap();
    let joined = EvaluationShard::joined([first, shard(&[]), shard(&rows[7..40]), shard(&rows[40..])]).unwrap();
    for ((name, own), (_, other)) in whole.intervals.iter().zip(&joined.evaluation().unwrap().intervals) {
        let close = |a: f64, b: f64| (a - b).abs() < 1e-6 * a.abs().max(1e-3);
        assert!(close(own.low, other.low) && close(own.high, other.high), "{name}: {own:?} {other:?}");
    }
    // Twice the prompts, which are not more independent of each other, give the same intervals.
    let twice = evaluate(&model, &sae, &[&rows[..], &rows[..]].concat(), &options, |_| {}).unwrap();
    assert!((twice.intervals[5].1.low - whole.intervals[5].1.low).abs() < 1e-9);
    let one = evaluate(&model, &sae, &rows[..5], &options, |_| {}).unwrap();
    assert!(one.intervals.is_empty() && !one.to_string().contains('['), "{one}");
    let set = Transcoders::open("embedded:ioi-transcoders").unwrap();
    let json = evaluate_transcoders(&model, &set, &rows, &options, |_| {}).unwrap().to_json();
    assert_eq!(json["intervals"].as_object().unwrap().len(), 2);
    assert_eq!(json["layers"][3]["intervals"].as_object().unwrap().len(), 4);
}
