//! Laws of circuits: keeping everything is the whole model, keeping nothing is the ablated run, one edge is path patching.

use hooklens::PaddingSide;
use hooklens::attribution::{EdgeGraph, EdgeScores, Gradient, Sender};
use hooklens::circuits::{Circuit, Discovery, LearnedMasks, MIB_SHARES, Selection};
use hooklens::features::{Metadata, SpliceDictionary};
use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver, Sites};
use hooklens::prelude::*;
use hooklens_model::config::{Layers, Settings};
use proptest::prelude::*;
use rand::seq::SliceRandom;
use rand::{Rng as _, SeedableRng};

use crate::seeded::fixture;
use crate::support::{any_plain, cases, random_model, smooth, with_dictionary};

const CLEAN: [[u32; 6]; 3] = [[3, 9, 1, 7, 9, 4], [2, 2, 8, 0, 5, 1], [7, 1, 1, 6, 2, 3]];
const CORRUPTED: [[u32; 6]; 3] = [[3, 9, 6, 7, 9, 4], [2, 2, 8, 11, 5, 2], [7, 4, 1, 6, 9, 3]];

/// One model per residual scheme, kind of attention and kind of MLP.
const FAMILIES: [&str; 8] = ["gpt2", "llama", "gemma2", "granite", "gptj", "mixtral", "granite-moe", "neox-parallel"];

fn rows(tokens: &[[u32; 6]]) -> Vec<Vec<u32>> {
    tokens.iter().map(|row| row.to_vec()).collect()
}

fn metric(model: &HookedTransformer) -> Metric {
    Metric::logit_diff(model, vec![4, 6, 3], vec![5, 1, 2]).unwrap()
}

fn ablating(model: &HookedTransformer, ablation: Ablation) -> Patching<'_> {
    Patching::ablating(model, rows(&CLEAN), ablation, metric(model)).unwrap()
}

fn resampled(model: &HookedTransformer) -> Patching<'_> {
    ablating(model, Ablation::Resample(rows(&CORRUPTED).into()))
}

fn close(a: f64, b: f64, scale: f64) -> bool {
    (a - b).abs() <= 1e-5 * scale.max(a.abs()).max(b.abs())
}

/// The largest absolute logit of the clean prompts, to which errors are relative.
fn largest_logit(model: &HookedTransformer) -> f64 {
    let logits = model.forward(rows(&CLEAN)).unwrap();
    f64::from(logits.abs().max().into_scalar::<f32>())
}

fn keeps_and_ablates(model: &HookedTransformer, what: &str) {
    let graph = EdgeGraph::of(model).unwrap();
    let scale = largest_logit(model);
    let base = Patching::new(model, rows(&CORRUPTED), rows(&CLEAN), metric(model)).unwrap();
    let plain = base.sweep(&Sites::new("hook_embed")).unwrap();
    let (clean, corrupted) = (plain.baseline.clone(), plain.source.clone().unwrap());
    let mean_prompts = rows(&CORRUPTED);
    let ablations = [
        Ablation::Resample(rows(&CORRUPTED).into()),
        Ablation::Zero,
        Ablation::Mean(mean_prompts.clone().into()),
        Ablation::MeanByPosition(mean_prompts.into()),
    ];
    for (number, ablation) in ablations.into_iter().enumerate() {
        let patching = ablating(model, ablation);
        let runs = patching.run_circuits(&[Circuit::full(&graph), Circuit::empty(&graph)]).unwrap();
        for example in 0..3 {
            let [full, empty] = [0, 1].map(|circuit| runs.metric.values()[[circuit, example]]);
            assert!(close(full, clean[example], scale), "{what}: all kept is {full}, clean {}", clean[example]);
            assert!(close(runs.clean[example], clean[example], scale), "{what}");
            assert!(close(empty, runs.ablated[example], scale), "{what}");
            if number == 0 {
                assert!(close(empty, corrupted[example], scale), "{what}: nothing kept is {empty}, {corrupted:?}");
            }
        }
    }
}

/// A training that is stopped and resumed gives the same scores, and resumes only for the same task.
#[test]
fn learned_masks_resume_as_if_never_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("masks.json");
    let steps = std::cell::Cell::new(0);
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let settings = LearnedMasks::new().steps(12).keep(0.1);
    let prompts = |answer: &str| {
        let clean = "When Mary and John went to the store, John gave a drink to";
        let corrupted = "When Mary and John went to the store, Mary gave a drink to";
        let metric = Metric::logit_diff(&model, answer, "John").unwrap();
        Patching::ablating(&model, [clean, clean], Ablation::Resample([corrupted, corrupted].into()), metric).unwrap()
    };
    let patching = prompts("Mary");
    let whole = patching.discover(&Discovery::LearnedMasks(settings.clone())).unwrap();
    let stopped = prompts("Mary").on_progress(|done, all| assert!((done, all) != (9, 12), "stopped"));
    let saved = Discovery::LearnedMasks(settings.clone().checkpoint(&path, 4));
    let stop = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stopped.discover(&saved)));
    assert!(stop.is_err());
    let after_8 = std::fs::read(&path).unwrap();
    let resumed = prompts("Mary").on_progress(|_, all| steps.set(steps.get() + usize::from(all == 12)));
    assert_eq!(resumed.discover(&saved).unwrap(), whole);
    assert_eq!(steps.get(), 4);
    assert_eq!(patching.discover(&saved).unwrap(), whole);

    std::fs::write(&path, &after_8).unwrap();
    let refused = |patching: &Patching<'_>, settings: LearnedMasks, expected: &str| {
        let method = Discovery::LearnedMasks(settings.checkpoint(&path, 4));
        let message = patching.discover(&method).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains("masks.json"), "{message}");
        assert_eq!(std::fs::read(&path).unwrap(), after_8);
    };
    refused(&patching, settings.clone().steps(13), "different number of steps");
    refused(&prompts("Tom"), settings.clone(), "different metric");
    let metric = Metric::logit_diff(&model, "Mary", "John").unwrap();
    let zeros = Patching::ablating(&model, "When Mary and John", Ablation::Zero, metric.clone()).unwrap();
    refused(&zeros, settings.clone(), "different prompts");
    let mut other = model.clone();
    let table: Tensor<2> = other.weights().get("embed.W_E").unwrap();
    other.weights_mut().set("embed.W_E", table * 1.5).unwrap();
    let elsewhere = Patching::ablating(&other, "When Mary and John", Ablation::Zero, metric).unwrap();
    refused(&elsewhere, settings.clone(), "different model");
    for place in (0..after_8.len()).step_by(after_8.len() / 50) {
        let mut damaged = after_8.clone();
        damaged[place] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert!(patching.discover(&saved).is_err(), "byte {place}");
    }
}

#[test]
fn keeping_all_is_clean_and_keeping_none_is_ablated() {
    for family in FAMILIES {
        keeps_and_ablates(&HookedTransformer::from_pretrained(fixture(family).to_str().unwrap()).unwrap(), family);
    }
}

/// Path patching with everything else frozen changes what one receiver reads of one head.
#[test]
fn ablating_one_edge_is_path_patching() {
    for family in FAMILIES {
        let model = HookedTransformer::from_pretrained(fixture(family).to_str().unwrap()).unwrap();
        let graph = EdgeGraph::of(&model).unwrap();
        let scale = largest_logit(&model);
        let patching = resampled(&model);
        for receiver in graph.receivers() {
            // Path patching takes the receivers' inputs from a run in which only the sender is patched.
            let paths = patching.path_from_heads(&[*receiver], Freeze::AttentionAndMlps).unwrap();
            let edges: Vec<_> = graph.edges().filter(|(_, to)| to == receiver).collect();
            let heads = edges.iter().filter(|(from, _)| matches!(from, Sender::Head(..)));
            for (sender, _) in heads {
                let Sender::Head(layer, head) = *sender else { unreachable!() };
                let without = Circuit::of_edges(&graph, [(*sender, *receiver)]).unwrap().complement();
                let runs = patching.run_circuits(&[without]).unwrap();
                for example in 0..3 {
                    let [ablated, path] =
                        [runs.metric.values()[[0, example]], paths.values.values()[[layer, head, example]]];
                    // With an output norm, patching a head also changes the scale of the others of its layer.
                    if !model.config().post_norms() {
                        assert!(close(ablated, path, scale), "{family}: {sender} -> {receiver}: {ablated}, {path}");
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(30))]

    #[test]
    fn keeping_all_is_clean_in_any_architecture(config in any_plain(), seed in any::<u64>()) {
        let model = random_model(config, seed);
        keeps_and_ablates(&model, &format!("{:?}", model.config()));
    }

    /// A circuit of nodes is the model in which the outputs of the other nodes are patched.
    #[test]
    fn circuits_of_nodes_are_patched_nodes(config in any_plain(), seed in any::<u64>()) {
        let model = random_model(config.with_post_norms(false), seed);
        let graph = EdgeGraph::of(&model).unwrap();
        let patching = resampled(&model);
        let others = graph.senders().iter().copied().filter(|own| *own != Sender::Head(0, 1));
        let runs = patching.run_circuits(&[Circuit::of_nodes(&graph, others).unwrap()]).unwrap();
        let patched = patching.attn_head_out_all_pos().unwrap();
        for example in 0..3 {
            let [circuit, node] = [runs.metric.values()[[0, example]], patched.values.values()[[0, 1, example]]];
            prop_assert!(close(circuit, node, largest_logit(&model)), "{circuit} for {node}");
        }
    }

    /// A batch of prompts gives the same values as one prompt at a time, also for prompts of different lengths.
    #[test]
    fn circuits_run_in_batches_as_one_by_one(config in any_plain(), seed in any::<u64>(), share in 0.0..1.0) {
        let model = random_model(config, seed);
        let [mut clean, mut corrupted] = [rows(&CLEAN), rows(&CORRUPTED)];
        clean[1].pop();
        corrupted[1].pop();
        let of = |clean: Vec<Vec<u32>>, corrupted: Vec<Vec<u32>>| {
            let [clean, corrupted] =
                [clean, corrupted].map(|rows| Tokens::padded(&rows, 0, PaddingSide::Right).unwrap());
            let metric = Metric::logit_diff(&model, 4, 5).unwrap();
            Patching::ablating(&model, clean, Ablation::Resample(corrupted.into()), metric).unwrap()
        };
        let patching = of(clean.clone(), corrupted.clone());
        let scores = patching.edges(Gradient::AtBase).unwrap();
        let circuit = Circuit::top(&scores, (scores.graph().len() as f64 * share) as usize).unwrap();
        let together = patching.run_circuits(std::slice::from_ref(&circuit)).unwrap();
        for example in 0..3 {
            let alone = of(vec![clean[example].clone()], vec![corrupted[example].clone()]);
            let alone = alone.run_circuits(std::slice::from_ref(&circuit)).unwrap().metric.values()[[0, 0]];
            let together = together.metric.values()[[0, example]];
            prop_assert!(close(together, alone, largest_logit(&model)), "{together} for {alone}");
        }
    }
}

#[test]
fn curves_end_at_the_whole_model() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let prompts = ["When Mary and John went to the store, John gave a drink to"];
    let corrupted = ["When Mary and John went to the store, Mary gave a drink to"];
    let metric = Metric::logit_diff(&model, "Mary", "John").unwrap();
    let ablation = Ablation::Resample(corrupted.into());
    let patching = Patching::ablating(&model, prompts, ablation, metric).unwrap();
    let scores = patching.edges(Gradient::Integrated(5)).unwrap();
    for selection in [Selection::Top, Selection::Greedy] {
        let curve = patching.faithfulness(&scores, selection, &MIB_SHARES).unwrap();
        let faithfulness = curve.runs.faithfulness().unwrap();
        assert!((faithfulness[9] - 1.0).abs() < 1e-4, "{faithfulness:?}");
        assert_eq!(curve.circuits[9].len(), scores.graph().len());
        assert!(curve.cmd().unwrap() >= 0.0);
    }
}

#[test]
fn circuits_of_other_models_are_refused() {
    let [ioi, induction] =
        ["embedded:ioi", "embedded:induction"].map(|name| HookedTransformer::from_pretrained(name).unwrap());
    let circuit = Circuit::full(&EdgeGraph::of(&induction).unwrap());
    let metric = Metric::logit_diff(&ioi, "Mary", "John").unwrap();
    let patching = Patching::ablating(&ioi, "When Mary and", Ablation::Zero, metric).unwrap();
    let error = patching.run_circuits(&[circuit]).unwrap_err().to_string();
    assert!(error.contains("another architecture"), "{error}");
    let graph = EdgeGraph::of(&ioi).unwrap();
    let error = Circuit::of_edges(&graph, [(Sender::Head(0, 17), Receiver::Logits)]).unwrap_err().to_string();
    assert!(error.contains("no sender `L0H17`; did you mean"), "{error}");
}

proptest! {
    #![proptest_config(cases(12))]

    /// Integrating gradients along the ablation of all edges gives the whole change.
    #[test]
    fn mask_gradients_sum_to_the_change(config in any_plain(), seed in any::<u64>()) {
        // The choice of experts jumps.
        prop_assume!(config.experts().is_none());
        let model = random_model(smooth(config), seed);
        let patching = resampled(&model);
        let scores = patching.discover(&Discovery::MaskGradients(40)).unwrap();
        let runs = patching.run_circuits(&[]).unwrap();
        for example in 0..3 {
            let sum: f64 = scores.scores.values().index_axis(ndarray::Axis(2), example).sum();
            let change = runs.ablated[example] - runs.clean[example];
            prop_assert!((sum - change).abs() < 0.05 * change.abs().max(0.1 * largest_logit(&model)), "{sum}, {change}");
        }
    }

    /// Ablating each edge alone in a batch of masks is running its complement.
    #[test]
    fn exact_scores_are_circuits_without_one_edge(config in any_plain(), seed in any::<u64>(), edge in any::<prop::sample::Index>()) {
        let model = random_model(config, seed);
        let patching = resampled(&model);
        let scores = patching.discover(&Discovery::Exact).unwrap();
        let graph = scores.graph();
        let edges: Vec<_> = graph.edges().collect();
        let (sender, receiver) = edges[edge.index(edges.len())];
        let without = Circuit::of_edges(&graph, [(sender, receiver)]).unwrap().complement();
        let runs = patching.run_circuits(&[without]).unwrap();
        let change: f64 = (0..3).map(|example| runs.metric.values()[[0, example]] - runs.clean[example]).sum();
        let score = scores.score(sender, receiver).unwrap() * 3.0;
        prop_assert!(close(score, change, largest_logit(&model)), "{sender} -> {receiver}: {score}, {change}");
    }
}

/// The edges of the induction circuit: the second layer's head looks, from its own token, for tokens about which the first
/// layer's head wrote that they follow the same token, and copies them to the logits. The first head finds predecessors
/// by their position alone.
pub(crate) fn is_induction(sender: Sender, receiver: Receiver) -> bool {
    match receiver {
        Receiver::Value(..) | Receiver::Query(1, _) => sender == Sender::Embed,
        Receiver::Key(1, _) => sender == Sender::Head(0, 0),
        Receiver::Logits => sender == Sender::Head(1, 0),
        _ => false,
    }
}

/// Area under the ROC curve of the magnitudes of scores.
fn area_under_roc(scores: &EdgeScores) -> f64 {
    let of = |(from, to): (Sender, Receiver)| (scores.score(from, to).unwrap().abs(), is_induction(from, to));
    let all: Vec<(f64, bool)> = scores.graph().edges().map(of).collect();
    let (mut wins, mut pairs) = (0.0, 0.0);
    for (high, _) in all.iter().filter(|(_, is)| *is) {
        for (low, _) in all.iter().filter(|(_, is)| !*is) {
            wins += f64::from(u8::from(high > low)) + 0.5 * f64::from(u8::from(high == low));
            pairs += 1.0;
        }
    }
    wins / pairs
}

/// Prompts that end with a token that occurred before, ablated by random prompts. The answer is the token that followed.
pub(crate) fn induction_pairs(model: &HookedTransformer, count: usize) -> Patching<'_> {
    let mut random = rand::rngs::StdRng::seed_from_u64(3);
    let (mut clean, mut corrupted, mut answers, mut wrong) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..count {
        let mut letters: Vec<u32> = (0..26).collect();
        letters.shuffle(&mut random);
        let mut row = letters[..7].to_vec();
        let at = random.random_range(1..5);
        row.push(row[at]);
        answers.push(row[at + 1]);
        wrong.push(letters[8]);
        clean.push(row);
        corrupted.push(letters[9..17].to_vec());
    }
    let metric = Metric::logit_diff(model, answers, wrong).unwrap();
    Patching::ablating(model, clean, Ablation::Resample(corrupted.into()), metric).unwrap()
}

#[test]
fn the_known_induction_circuit_is_found() {
    let Some(model) = crate::trained::induction_circuit() else { return };
    let patching = induction_pairs(&model, 60);
    for (method, least) in [
        (Discovery::EapIg(5), 0.95),
        (Discovery::MaskGradients(5), 0.95),
        (Discovery::Exact, 0.95),
        (Discovery::LearnedMasks(LearnedMasks::new().keep(0.4)), 0.98),
    ] {
        let scores = patching.discover(&method).unwrap();
        let area = area_under_roc(&scores);
        assert!(area >= least, "{method:?}: {area}, {:?}", scores.largest(12));
    }
}

/// A dictionary that replaces an MLP's output is a part of that MLP; one that replaces the residual stream would make
/// inputs that are not sums of outputs.
#[test]
fn dictionaries_replace_outputs_but_not_the_stream() {
    let (model, sae) = with_dictionary();
    let of_mlp = sae.clone().with_metadata(Metadata::at("blocks.1.hook_mlp_out")).with_error_term(false);
    keeps_and_ablates(&model.splice_dictionary(&of_mlp).unwrap(), "a dictionary of the MLP's output");
    let stream = model.splice_dictionary(&sae).unwrap();
    let circuit = Circuit::full(&EdgeGraph::of(&stream).unwrap());
    let error = resampled(&stream).run_circuits(&[circuit]).unwrap_err().to_string();
    assert!(error.contains("a dictionary spliced into the residual stream"), "{error}");
}
