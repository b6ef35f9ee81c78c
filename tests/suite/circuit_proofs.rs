//! Proofs of circuits on models whose circuits are known.

use std::fs;

use hooklens::attribution::{EdgeGraph, Sender};
use hooklens::circuits::{Adversary, Circuit, Discovery};
use hooklens::patching::{Ablation, Metric, Patching, Receiver};
use hooklens::prelude::*;
use hooklens::statistics::Statistics;
use safetensors::tensor::TensorView;

use crate::circuit_laws::{induction_pairs, is_induction};

/// A model of one layer with three heads that average over positions. All copy the tokens they see to the logits: the
/// first once, the second three times, and the third takes away three times as much. The last two cancel each other.
fn cancelling() -> HookedTransformer {
    const D: usize = 8;
    let diagonal =
        |scale: f32| -> Vec<f32> { (0..D * D).map(|at| if at % (D + 1) == 0 { scale } else { 0.0 }).collect() };
    let heads = |scales: [f32; 3]| -> Vec<f32> { scales.into_iter().flat_map(diagonal).collect() };
    let (zeros, own) = (vec![0.0; 3 * D * D], tempfile::tempdir().unwrap());
    let tensors: Vec<(&str, Vec<usize>, Vec<f32>)> = vec![
        ("embed.W_E", vec![D, D], diagonal(1.0)),
        ("pos_embed.W_pos", vec![4, D], vec![0.0; 4 * D]),
        ("blocks.0.attn.W_Q", vec![3, D, D], zeros.clone()),
        ("blocks.0.attn.W_K", vec![3, D, D], zeros),
        ("blocks.0.attn.W_V", vec![3, D, D], heads([1.0; 3])),
        ("blocks.0.attn.W_O", vec![3, D, D], heads([1.0, 3.0, -3.0])),
        ("blocks.0.attn.b_Q", vec![3, D], vec![0.0; 3 * D]),
        ("blocks.0.attn.b_K", vec![3, D], vec![0.0; 3 * D]),
        ("blocks.0.attn.b_V", vec![3, D], vec![0.0; 3 * D]),
        ("blocks.0.attn.b_O", vec![D], vec![0.0; D]),
        ("unembed.W_U", vec![D, D], diagonal(1.0)),
        ("unembed.b_U", vec![D], vec![0.0; D]),
    ];
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(_, _, values)| values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        (*name, TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    fs::write(own.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let config = serde_json::json!({"architectures": ["HookedTransformer"], "n_layers": 1, "n_heads": 3, "d_model": D,
        "d_head": D, "d_vocab": D, "n_ctx": 4, "attn_only": true, "normalization_type": null});
    fs::write(own.path().join("config.json"), config.to_string()).unwrap();
    HookedTransformer::from_pretrained(own.path().to_str().unwrap()).unwrap()
}

/// The edges of the values and outputs of these heads, and the direct path.
fn through(graph: &EdgeGraph, heads: &[usize]) -> Circuit {
    let own = heads
        .iter()
        .flat_map(|head| [(Sender::Embed, Receiver::Value(0, *head)), (Sender::Head(0, *head), Receiver::Logits)]);
    Circuit::of_edges(graph, own.chain([(Sender::Embed, Receiver::Logits)])).unwrap()
}

#[test]
fn parts_that_cancel_each_other_are_found() {
    let model = cancelling();
    let graph = EdgeGraph::of(&model).unwrap();
    let (clean, other) = (vec![vec![3, 4, 1], vec![5, 1, 1]], vec![vec![3, 4, 2], vec![5, 2, 2]]);
    let (cheating, whole) = (through(&graph, &[0]), through(&graph, &[0, 1, 2]));
    for ablation in [Ablation::Mean(other.clone().into()), Ablation::Resample(other.into())] {
        let metric = Metric::logit_diff(&model, 1, 2).unwrap();
        let patching = Patching::ablating(&model, clean.clone(), ablation, metric).unwrap();
        for (circuit, is_true) in [(&cheating, false), (&whole, true)] {
            let found = patching.adversarial_ablation(circuit, &Adversary::new()).unwrap();
            assert!(found.all > 0.95, "everything outside is ablated: {}", found.all);
            assert_eq!(found.worst > 0.95, is_true, "{found:?}");
            assert!(is_true || found.worst < 0.5, "{found:?}");
            // What is reported can be measured again.
            let again = patching.run_circuits(&[found.ablated.complement()]).unwrap().faithfulness().unwrap()[0];
            assert!((again - found.worst).abs() < 1e-4, "{again} for {}", found.worst);
        }
        assert!(patching.completeness(&whole, 8, 0).unwrap().incompleteness() < 1e-4);
        // Completeness removes edges of the circuit only, so it does not see what cancels outside.
        assert!(patching.completeness(&cheating, 8, 0).unwrap().incompleteness() < 1e-4);
    }
}

/// Gradient descent finds the worst parts without help from random subsets.
#[test]
fn gradients_find_what_cancels() {
    let model = cancelling();
    let graph = EdgeGraph::of(&model).unwrap();
    let metric = Metric::logit_diff(&model, 1, 2).unwrap();
    let ablation = Ablation::Resample(vec![vec![3, 4, 2]].into());
    let patching = Patching::ablating(&model, vec![vec![3, 4, 1]], ablation, metric).unwrap();
    let settings = Adversary::new().random_subsets(0);
    let found = patching.adversarial_ablation(&through(&graph, &[0]), &settings).unwrap();
    assert!(found.random.is_empty() && found.worst < 0.5, "{found:?}");
    assert!(found.ablated.contains(Sender::Head(0, 1), Receiver::Logits).unwrap());
}

#[test]
fn planted_edges_survive_resampling() {
    let Some(model) = crate::trained::induction_circuit() else { return };
    let patching = induction_pairs(&model, 200);
    let scores = patching.discover(&Discovery::EapIg(5)).unwrap();
    let stability = scores.stability(&Statistics::new().resamples(500), 5).unwrap();
    for (sender, receiver) in scores.graph().edges() {
        let found = stability.inclusion.iter().find(|(edge, _)| *edge == (sender, receiver));
        let share = found.map_or(0.0, |(_, share)| *share);
        let right = if is_induction(sender, receiver) { share >= 0.95 } else { share <= 0.05 };
        assert!(right, "{sender} -> {receiver}: {share}");
    }
    assert!(stability.jaccard > 0.95 && stability.rank_correlation > 0.8, "{stability:?}");
    let core = stability.core(&scores, 0.95).unwrap();
    let runs = patching.run_circuits(std::slice::from_ref(&core)).unwrap();
    assert!(runs.faithfulness().unwrap()[0] > 0.8, "{core}: {:?}", runs.faithfulness());
    let interval = runs.intervals(&Statistics::new()).unwrap()[0];
    assert!(interval.low < interval.high && interval.contains(runs.faithfulness().unwrap()[0]));
    // Every edge of the circuit is needed.
    let losses = patching.minimality(&core).unwrap();
    assert!(losses.iter().all(|(_, _, loss)| *loss > 0.3), "{losses:?}");
}

#[test]
fn impossible_proofs_are_refused() {
    let model = cancelling();
    let graph = EdgeGraph::of(&model).unwrap();
    let of = |other: Vec<Vec<u32>>| {
        let metric = Metric::logit_diff(&model, 1, 2).unwrap();
        Patching::ablating(&model, vec![vec![3, 4, 1]], Ablation::Resample(other.into()), metric).unwrap()
    };
    let same = of(vec![vec![3, 4, 1]]);
    let error = same.run_circuits(&[Circuit::full(&graph)]).unwrap().faithfulness().unwrap_err().to_string();
    assert!(error.contains("faithfulness is undefined: the mean metric is"), "{error}");
    let error = same.adversarial_ablation(&Circuit::full(&graph), &Adversary::new()).unwrap_err().to_string();
    assert!(error.contains("faithfulness is undefined"), "{error}");
    let one = of(vec![vec![3, 4, 2]]);
    let scores = one.discover(&Discovery::EapIg(5)).unwrap();
    let error = scores.stability(&Statistics::new(), 3).unwrap_err().to_string();
    assert!(error.contains("at least 2 examples, but there are 1"), "{error}");
    let error = one.discover(&Discovery::MaskGradients(0)).unwrap_err().to_string();
    assert!(error.contains("the number of steps is 0, but must be 1 or more"), "{error}");
    let error = one.acdc(f64::NAN).unwrap_err().to_string();
    assert!(error.contains("the threshold is NaN"), "{error}");
    let error = one.faithfulness(&scores, Default::default(), &[1.5]).unwrap_err().to_string();
    assert!(error.contains("the fraction to keep is 1.5"), "{error}");
    let metric = Metric::logit_diff(&model, 1, 2).unwrap();
    let zero = Patching::ablating(&model, vec![vec![3, 4, 1]], Ablation::Zero, metric).unwrap();
    assert!(zero.discover(&Discovery::Eap).is_err());
    assert!(zero.discover(&Discovery::MaskGradients(5)).is_ok());
}
