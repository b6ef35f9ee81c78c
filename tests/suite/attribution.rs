//! Attribution compared with the patching effects that it estimates, and scores of edges compared with scores of nodes.

use hooklens::ResidualScheme;
use hooklens::attribution::{EdgeScores, Gradient, Sender};
use hooklens::experiments::ioi_prompts;
use hooklens::hook::Axis;
use hooklens::patching::{Ablation, Metric, Patching, Sites};
use hooklens::prelude::*;
use hooklens_model::config::Settings;
use proptest::prelude::*;

use crate::support::{any_plain, cases, random_model};

const CLEAN: [[u32; 6]; 2] = [[3, 9, 1, 7, 9, 4], [2, 2, 8, 0, 5, 1]];
const CORRUPTED: [[u32; 6]; 2] = [[3, 9, 6, 7, 9, 4], [2, 2, 8, 11, 5, 2]];

fn rows(tokens: &[[u32; 6]]) -> Vec<Vec<u32>> {
    tokens.iter().map(|row| row.to_vec()).collect()
}

fn patching(model: &HookedTransformer) -> Patching<'_> {
    let metric = Metric::logit_diff(model, vec![4, 6], vec![5, 1]).unwrap();
    Patching::new(model, rows(&CLEAN), rows(&CORRUPTED), metric).unwrap()
}

proptest! {
    #![proptest_config(cases(60))]

    /// The edges of a sender sum to the estimated effect of patching it.
    #[test]
    fn edges_of_a_writer_add_up_to_its_node(config in any_plain(), seed in any::<u64>()) {
        // A norm after the heads is not linear in them.
        let model = random_model(config.with_post_norms(false), seed);
        let patching = patching(&model);
        let edges = patching.edges(Gradient::AtBase).unwrap();
        let mut points = vec!["*hook_z", "hook_embed"];
        if !model.config().attn_only() {
            points.push("*hook_mlp_out");
        }
        let nodes = patching.attribution(points).unwrap();
        let heads = nodes.attn_head_out_all_pos().unwrap();
        let embed = nodes.sweep(&Sites::new("hook_embed")).unwrap();
        let mlps = (!model.config().attn_only()).then(|| nodes.sweep(&Sites::new("*hook_mlp_out")).unwrap());
        for (from, sender) in edges.senders.iter().enumerate() {
            for example in 0..2 {
                let sum: f64 = (0..edges.receivers.len()).map(|to| edges.scores.values()[[from, to, example]]).sum();
                let estimated = match sender {
                    Sender::Head(layer, head) => heads.values.values()[[*layer, *head, example]],
                    Sender::Embed => embed.values.values()[[0, example]],
                    Sender::Mlp(layer) => mlps.as_ref().unwrap().values.values()[[*layer, example]],
                    _ => unreachable!(),
                };
                let node = estimated - heads.baseline[example];
                prop_assert!((sum - node).abs() < 1e-4 * node.abs().max(1.0), "{sender}: {sum} for {node}");
            }
        }
    }

    /// If the metric is linear, the estimate equals the patching effect.
    #[test]
    fn estimates_of_the_linear_are_exact(seed in any::<u64>(), parallel in any::<bool>()) {
        let config = TransformerConfig::new(2, 16, 4, 20, 32).with_residual(if parallel { ResidualScheme::Parallel } else { ResidualScheme::Sequential }).with_norm(hooklens::NormKind::None);
        let model = random_model(config, seed);
        let patching = patching(&model);
        let sites = Sites::new("blocks.-1.hook_{resid_post,mlp_out}").per([Axis::Pos]);
        let estimated = patching.attribution("blocks.-1.hook_{resid_post,mlp_out}").unwrap().sweep(&sites).unwrap();
        let real = patching.sweep(&sites).unwrap();
        prop_assert_eq!(estimated.values.axes(), real.values.axes());
        for (given, wanted) in estimated.values.values().iter().zip(real.values.values()) {
            prop_assert!((given - wanted).abs() < 1e-4 * wanted.abs().max(1.0), "{given} for {wanted}");
        }
    }
}

proptest! {
    #![proptest_config(cases(30))]

    /// If everything after the softmax is linear, recomputing the softmax gives the effect of patching a query or a key,
    /// which the gradient alone does not.
    #[test]
    fn recomputed_patterns_are_exact(seed in any::<u64>(), kinds in any::<[bool; 3]>()) {
        let [rotary, groups, sinks] = kinds;
        let config = TransformerConfig::new(2, 16, 4, 20, 32).with_attn_only(true).with_norm(hooklens::NormKind::None);
        let config = if groups { config.with_kv_heads(2) } else { config };
        let config = if rotary { config.with_positional(hooklens::Positional::Rotary(hooklens::Rotary { dim: 4, base: 1000.0, adjacent_pairs: false, scaling: hooklens::RopeScaling::None })) } else { config };
        let model = random_model(config.with_attn_sinks(sinks), seed);
        let patching = patching(&model);
        let by_head = |point: &str, head| Sites::new(point).per([Axis::Pos, head]);
        let key_head = if groups { Axis::KvHead } else { Axis::Head };
        for (estimated, sites) in [
            (patching.query_attribution().unwrap(), by_head("*attn.hook_q", Axis::Head)),
            (patching.key_attribution().unwrap(), by_head("*attn.hook_k", key_head)),
        ] {
            let real = patching.sweep(&sites).unwrap();
            prop_assert_eq!(estimated.values.axes(), real.values.axes());
            // Earlier layers act through the softmax of the last.
            let last = |result: &hooklens::patching::PatchingResult| result.values.values().index_axis(ndarray::Axis(0), 1).to_owned();
            for (given, wanted) in last(&estimated).iter().zip(&last(&real)) {
                prop_assert!((given - wanted).abs() < 1e-5 * wanted.abs().max(1.0), "{given} for {wanted}");
            }
        }
    }
}

/// Gradients integrated along the path from one embedding to the other sum to the difference.
#[test]
fn integrated_edges_of_the_embedding_are_complete() {
    for seed in 0..2 {
        let config = TransformerConfig::new(2, 16, 4, 20, 32).with_kv_heads(2).with_post_norms(seed % 2 == 0);
        let model = random_model(config, seed);
        let patching = patching(&model);
        let edges = patching.edges(Gradient::Integrated(50)).unwrap();
        let swept = patching.resid_pre().unwrap();
        let from = edges.senders.iter().position(|sender| *sender == Sender::Embed).unwrap();
        for example in 0..2 {
            let sum: f64 = (0..edges.receivers.len()).map(|to| edges.scores.values()[[from, to, example]]).sum();
            let whole = swept.source.as_ref().unwrap()[example] - swept.baseline[example];
            assert!((sum - whole).abs() < 0.02 * whole.abs().max(0.1), "{sum} for {whole}");
        }
    }
}

/// Scores computed for separate examples, and restored from a file, merge into the scores of all examples, in order.
#[test]
fn joined_edges_are_those_of_all_examples() {
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32), 5);
    let whole = patching(&model).edges(Gradient::Integrated(2)).unwrap();
    let share = |example: usize| {
        let metric = Metric::logit_diff(&model, vec![[4, 6][example]], vec![[5, 1][example]]).unwrap();
        let [clean, corrupted] = [CLEAN, CORRUPTED].map(|all| rows(&all[example..=example]));
        let scores = Patching::new(&model, clean, corrupted, metric).unwrap().edges(Gradient::Integrated(2)).unwrap();
        serde_json::from_value::<EdgeScores>(serde_json::to_value(scores).unwrap()).unwrap()
    };
    let joined = EdgeScores::joined([share(0), share(1)]).unwrap();
    assert_eq!((&joined.senders, &joined.receivers), (&whole.senders, &whole.receivers));
    assert_eq!(joined.scores.axes(), whole.scores.axes());
    let scale = whole.scores.values().iter().fold(0f64, |most, x| most.max(x.abs()));
    for (given, wanted) in joined.scores.values().iter().zip(whole.scores.values()) {
        assert!((given - wanted).abs() < 1e-5 * scale, "{given} for {wanted}");
    }
    assert!(EdgeScores::joined([]).unwrap_err().to_string().contains("no results were given"));
    let other = random_model(TransformerConfig::new(2, 16, 4, 20, 32).with_kv_heads(2), 5);
    let other = patching(&other).edges(Gradient::AtBase).unwrap();
    assert!(EdgeScores::joined([whole, other]).unwrap_err().to_string().contains("their edges differ"));
}

#[test]
fn keys_and_values_are_read_once_a_group() {
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32).with_kv_heads(2), 3);
    let edges = patching(&model).edges(Gradient::AtBase).unwrap();
    let count = |is: fn(&Receiver) -> bool| edges.receivers.iter().filter(|receiver| is(receiver)).count();
    assert_eq!(count(|receiver| matches!(receiver, Receiver::Query(..))), 8);
    assert_eq!(count(|receiver| matches!(receiver, Receiver::Key(..))), 4);
    assert_eq!(count(|receiver| matches!(receiver, Receiver::Value(..))), 4);
    assert!(edges.score(Sender::Head(1, 0), Receiver::Query(1, 0)).is_none());
    assert!(edges.score(Sender::Head(1, 0), Receiver::Mlp(1)).is_some());
    assert_eq!(edges.largest(5).len(), 5);
}

fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let (ma, mb) = (mean(a), mean(b));
    let cross: f64 = a.iter().zip(b).map(|(a, b)| (a - ma) * (b - mb)).sum();
    let size = |x: &[f64], m: f64| x.iter().map(|x| (x - m).powi(2)).sum::<f64>().sqrt();
    cross / (size(a, ma) * size(b, mb))
}

#[test]
fn estimates_find_the_heads_that_patching_finds() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let prompts = ioi_prompts(20, 11);
    let (answers, wrong): (Vec<_>, Vec<_>) = prompts.iter().map(|p| (p.answer, p.wrong)).unzip();
    let clean: Vec<String> = prompts.iter().map(|p| p.text.clone()).collect();
    let corrupted: Vec<String> = prompts.iter().map(|p| p.corrupted.clone()).collect();
    let metric = Metric::logit_diff(&model, answers, wrong).unwrap();
    let patching = Patching::new(&model, &clean, &corrupted, metric).unwrap();
    let real = patching.attn_head_out_all_pos().unwrap().effect();
    let estimated = patching.attribution("*hook_z").unwrap().attn_head_out_all_pos().unwrap().effect();
    let flat = |array: &hooklens::LabeledArray| array.values().iter().copied().collect::<Vec<f64>>();
    let agreement = correlation(&flat(&real), &flat(&estimated));
    assert!(agreement > 0.7, "correlation {agreement}: {:?} against {:?}", flat(&real), flat(&estimated));
}

#[test]
fn what_cannot_be_attributed_is_said() {
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32), 3);
    let attribution = patching(&model).attribution("*hook_z").unwrap();
    let message = attribution.resid_pre().unwrap_err().to_string();
    assert!(message.contains("`blocks.0.hook_resid_pre` was not recorded"), "{message}");
    assert!(patching(&model).attribution("hook_tokens").is_err());
    assert!(patching(&model).edges(Gradient::Integrated(0)).is_err());
    let metric = Metric::logit(&model, 3).unwrap();
    let ablating = Patching::ablating(&model, rows(&CLEAN), Ablation::Zero, metric).unwrap();
    assert!(ablating.edges(Gradient::AtBase).unwrap_err().to_string().contains("pairs"));
    let zeroed = ablating.attribution("*hook_z").unwrap().attn_head_out_all_pos().unwrap();
    assert_eq!(zeroed.values.values().shape(), [2, 4, 2]);
}
