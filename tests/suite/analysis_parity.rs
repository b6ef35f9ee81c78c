//! Analysis compared with that of TransformerLens (`analysis.safetensors`), except where TransformerLens is wrong.

use std::fs;

use hooklens::activations::{Analysis, Components, Direction, Neurons, Per, Stage};
use hooklens::circuits::Composition;
use hooklens::experiments::{HeadDetection, HeadError, HeadPattern};
use hooklens::patching::{Metric, Patching, PatchingResult};
use hooklens::prelude::*;
use hooklens::{LabeledArray, Output};
use ndarray::{ArrayD, IxDyn};
use safetensors::SafeTensors;

use crate::parity::{Golden, Tally, load_processed};
use crate::support::{fixtures, values};
use hooklens_model::config::Layers;

/// The analysis of one fixture.
struct Case {
    name: String,
    golden: Golden,
    labels: serde_json::Value,
    model: HookedTransformer,
    clean: Tokens,
    corrupted: Tokens,
    answer: Vec<u32>,
    wrong: Vec<u32>,
    tally: Tally,
}

impl Case {
    fn read(name: &str) -> Self {
        let golden = Golden::of_file(name, "analysis.safetensors");
        let bytes = fs::read(fixtures().join(name).join("analysis.safetensors")).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let labels = serde_json::from_str(&metadata.metadata().as_ref().unwrap()["labels"]).unwrap();
        let ids = |key: &str| golden.get(key).unwrap().iter().map(|id| *id as u32).collect();
        let (answer, wrong) = (ids("answer"), ids("wrong"));
        let (clean, corrupted) = (golden.tokens("clean."), golden.tokens("corrupt."));
        let model = load_processed(name);
        Self { name: name.into(), golden, labels, model, clean, corrupted, answer, wrong, tally: Tally::default() }
    }

    fn compare(&mut self, key: &str, given: &ArrayD<f32>) {
        if let Some(expected) = self.golden.get(key) {
            let expected = expected.clone();
            self.tally.compare(key, given, &expected);
        }
    }

    /// A stack of components and its labels, if the fixture has it.
    fn components(&mut self, key: &str, made: impl FnOnce() -> hooklens::Result<Components>) {
        if self.golden.get(key).is_none() {
            return;
        }
        let made = made().unwrap();
        let theirs: Vec<String> = serde_json::from_value(self.labels[key].clone()).unwrap();
        if made.labels() != theirs {
            self.tally.problems.push(format!("{key}: labels {:?} for {theirs:?}", made.labels()));
        }
        self.compare(key, &values(&made.vectors()));
    }

    fn array(&mut self, key: &str, made: &LabeledArray) {
        let given = made.values().mapv(|value| value as f32);
        if let Some(shape) = self.golden.get(key).map(|expected| expected.shape().to_vec()) {
            self.compare(key, &given.into_shape_with_order(IxDyn(&shape)).unwrap());
        }
    }

    fn sweep(&mut self, key: &str, made: impl FnOnce() -> hooklens::Result<PatchingResult>) {
        if self.golden.get(key).is_some() {
            let made = made().unwrap_or_else(|error| panic!("{key}: {error}")).mean();
            self.array(key, &made);
        }
    }
}

fn streams(case: &mut Case) {
    let model = case.model.clone();
    let cache = model.record(&case.clean, Record::all()).unwrap();
    let analysis: Analysis<'_> = model.analyze(&cache).unwrap();
    let last = Stage::Final;
    let ln = |parts: hooklens::Result<Components>| analysis.apply_ln(parts?);
    // If norms keep their weights, TransformerLens ignores them, and its attributions don't sum to the logits.
    let folded = model.weights().get::<1>("ln_final.w").is_err();
    // For a gated MLP with `b_in`, its neurons include the bias: see `compare_points`.
    let own_bias = model.config().is_gated(0) && Golden::read(&case.name).get("weight blocks.0.mlp.b_in").is_some();
    case.components("accumulated.plain", || analysis.accumulated_resid(last, Per::Sublayer));
    if folded {
        case.components("accumulated.ln", || ln(analysis.accumulated_resid(last, Per::Sublayer)));
    }
    case.components("decompose.all", || analysis.decompose_resid(last));
    case.components("decompose.ln", || ln(analysis.decompose_resid(last)));
    case.components("accumulated.mlp_input_1", || analysis.accumulated_resid(Stage::BeforeMlp(1), Per::Sublayer));
    case.components("decompose.mlp_input_1", || analysis.decompose_resid(Stage::BeforeMlp(1)));
    case.components("heads.layer1", || analysis.stack_head_results(Stage::Before(1)));
    case.components("decompose.mid", || analysis.decompose_resid(Stage::BeforeMlp(-1)));
    let heads = || analysis.with_remainder(analysis.stack_head_results(last)?);
    case.components("heads", heads);
    if !own_bias {
        case.components("neurons", || analysis.stack_neuron_results(Stage::Before(1)));
    }
    case.components("full", || analysis.full_resid_decomposition(last, Neurons::Summed));
    if !folded {
        return;
    }
    case.components("heads.ln", || ln(heads()));
    let (answer, wrong) = (case.answer.clone(), case.wrong.clone());
    let attrs = analysis.logit_attrs(&heads().unwrap(), Direction::token(answer.clone()).minus(wrong)).unwrap();
    case.compare("attrs.heads", &values(&attrs));
    let layers = analysis.decompose_resid(last).unwrap();
    case.compare("attrs.answer", &values(&analysis.logit_attrs(&layers, answer).unwrap()));
}

fn sweeps(case: &mut Case) {
    let model = case.model.clone();
    let metric = Metric::logit_diff(&model, case.answer.clone(), case.wrong.clone()).unwrap();
    let patching = Patching::new(&model, &case.clean, &case.corrupted, metric).unwrap();
    case.sweep("patch.resid_pre", || patching.resid_pre());
    case.sweep("patch.resid_mid", || patching.resid_mid());
    case.sweep("patch.attn_out", || patching.attn_out());
    case.sweep("patch.mlp_out", || patching.mlp_out());
    case.sweep("patch.head_out_by_pos", || patching.attn_head_out_by_pos());
    case.sweep("patch.head_q_by_pos", || patching.attn_head_q_by_pos());
    case.sweep("patch.head_k_by_pos", || patching.attn_head_k_by_pos());
    case.sweep("patch.head_v_by_pos", || patching.attn_head_v_by_pos());
    case.sweep("patch.head_pattern_by_pos", || patching.attn_head_pattern_by_pos());
    case.sweep("patch.head_pattern_dest_src", || patching.attn_head_pattern_dest_src_pos());
    case.sweep("patch.head_out_all_pos", || patching.attn_head_out_all_pos());
    case.sweep("patch.head_q_all_pos", || patching.attn_head_q_all_pos());
    case.sweep("patch.head_k_all_pos", || patching.attn_head_k_all_pos());
    case.sweep("patch.head_v_all_pos", || patching.attn_head_v_all_pos());
    case.sweep("patch.head_pattern_all_pos", || patching.attn_head_pattern_all_pos());
    let mut points = vec!["*hook_resid_pre", "*hook_z"];
    if !model.config().attn_only() {
        points.push("*hook_mlp_out");
    }
    let attribution = patching.attribution(points).unwrap();
    case.array("attr.resid_pre", &attribution.resid_pre().unwrap().effect());
    case.array("attr.z", &attribution.attn_head_out_all_pos().unwrap().effect());
    if !model.config().attn_only() {
        case.array("attr.mlp_out", &attribution.mlp_out().unwrap().effect());
    }
}

fn weights(case: &mut Case) {
    let model = case.model.clone();
    for (mode, name) in [(Composition::Q, "Q"), (Composition::K, "K"), (Composition::V, "V")] {
        case.array(&format!("composition.{name}"), &model.composition_scores(mode).unwrap());
    }
    for (matrix, name) in [(model.ov(), "OV"), (model.qk(), "QK")] {
        case.compare(&format!("svd.{name}"), &values(&matrix.svd().unwrap().1.squeeze_dim::<3>(2)));
    }
    // Conjugate eigenvalues may come in either order, so each of TransformerLens's eigenvalues must be among ours.
    let (re, im) = model.ov().eigenvalues().unwrap();
    let (re, im) = (values(&re), values(&im));
    let theirs = case.golden.get("eigenvalues.OV").unwrap().clone();
    for (at, _) in theirs.indexed_iter().filter(|(at, _)| at[3] == 0) {
        let (layer, head, place) = (at[0], at[1], at[2]);
        let value = (theirs[[layer, head, place, 0]], theirs[[layer, head, place, 1]]);
        let count = re.shape()[3];
        let apart = |own: usize| (re[[layer, head, 0, own]] - value.0).hypot(im[[layer, head, 0, own]] - value.1);
        let nearest = (0..count).map(apart).fold(f32::INFINITY, f32::min);
        if nearest > 2e-4 * value.0.hypot(value.1).max(0.5) {
            case.tally.problems.push(format!("eigenvalue {value:?} of L{layer}H{head}: nearest is {nearest} away"));
        }
    }
    case.tally.compared += 1;
}

fn heads(case: &mut Case) {
    let tokens = case.golden.tokens("detect.");
    for (pattern, name) in [
        (HeadPattern::PreviousToken, "previous_token"),
        (HeadPattern::DuplicateToken, "duplicate_token"),
        (HeadPattern::Induction, "induction"),
    ] {
        for (error, measure) in [(HeadError::Mul, "mul"), (HeadError::Abs, "abs")] {
            for excluded in [false, true] {
                let mut detection = HeadDetection::new(pattern.clone()).error(error);
                if excluded {
                    detection = detection.exclude_bos().exclude_current_token();
                }
                let found = case.model.detect_heads(&tokens, &detection).unwrap();
                let key = format!("detect.{name}.{measure}{}", if excluded { ".excluded" } else { "" });
                // TransformerLens rounds the second measure to three digits.
                let rounded = |value: f64| if error == HeadError::Abs { (value * 1e3).round() / 1e3 } else { value };
                let expected = case.golden.get(&key).unwrap().clone();
                case.tally.compared += 1;
                for (given, wanted) in found.values().iter().zip(&expected) {
                    let allowed = if error == HeadError::Abs { 1.1e-3 } else { 1e-5 };
                    if (rounded(*given) as f32 - wanted).abs() > allowed {
                        case.tally.problems.push(format!("{key}: {given} for {wanted}"));
                    }
                }
            }
        }
    }
}

fn gradients(case: &mut Case) {
    let points: Vec<String> = case.golden.points("grad.");
    let (answer, wrong) = (case.answer.clone(), case.wrong.clone());
    let number = |logits: Tensor<3>| {
        let [_, len, _] = logits.dims();
        let one = |row: usize, id: u32| {
            logits.clone().narrow(0, row, 1).narrow(1, len - 1, 1).narrow(2, id as usize, 1).reshape([1])
        };
        let differences = (0..2).map(|row| one(row, answer[row]) - one(row, wrong[row]));
        differences.reduce(|a, b| a + b).unwrap() * 0.5
    };
    let options = ForwardOptions::new().record(points.clone());
    let output: Output = case.model.run_with_gradients(&case.corrupted, options, number).unwrap();
    for name in points {
        let given = output.cache.activation(format!("{name}_grad")).unwrap().to_ndarray().unwrap();
        case.compare(&format!("grad.{name}"), &given);
    }
}

#[test]
fn what_transformer_lens_computes_is_computed_here() {
    let mut names: Vec<String> = fs::read_dir(fixtures())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("analysis.safetensors").is_file())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() >= 10, "only {} fixtures found", names.len());
    let (mut total, mut problems) = (0, vec![]);
    for name in names {
        let mut case = Case::read(&name);
        streams(&mut case);
        sweeps(&mut case);
        weights(&mut case);
        heads(&mut case);
        gradients(&mut case);
        println!("{}: {} compared, {} differ", case.name, case.tally.compared, case.tally.problems.len());
        total += case.tally.compared;
        problems.extend(case.tally.problems.into_iter().map(|problem| format!("{name}: {problem}")));
    }
    assert!(problems.is_empty(), "{} of {total} differ:\n{}", problems.len(), problems.join("\n"));
}
