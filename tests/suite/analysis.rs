//! Properties of activation analysis for random configurations: components sum to the residual stream.

use hooklens::activations::{AnalysisError, Components, Stage};
use hooklens::prelude::*;
use hooklens_model::model::ModelParts;
use proptest::prelude::*;

use crate::support::{any_sum, assert_close, cases, failure, random_model, values};

const TOKENS: [[u32; 5]; 2] = [[3, 9, 1, 7, 9], [2, 2, 8, 0, 5]];

fn rows() -> Vec<Vec<u32>> {
    TOKENS.iter().map(|row| row.to_vec()).collect()
}

fn any_stage(config: &TransformerConfig, pick: usize) -> Stage {
    match pick % 5 {
        0 => Stage::Before(1),
        1 if !config.attn_only() => Stage::BeforeMlp(0),
        2 if !config.attn_only() => Stage::BeforeMlp(-1),
        3 => Stage::Before(-1),
        _ => Stage::Final,
    }
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn parts_add_up_to_the_stream(config in any_sum(), seed in any::<u64>(), pick in 0usize..5) {
        let model = random_model(config, seed);
        let cache = model.record(rows(), Record::all()).unwrap();
        let analysis = model.analyze(&cache).unwrap();
        let stage = any_stage(model.config(), pick);
        let stream = analysis.stream(stage).unwrap();
        let check = |parts: &Components, what: &str| {
            assert_close(&parts.sum(), &stream, 3e-5, what);
            let written = parts.vectors();
            assert_eq!(written.dims()[0], parts.labels().len());
            assert_close(&written.sum_dim(0).squeeze_dim::<3>(0), &stream, 3e-5, what);
        };
        check(&analysis.decompose_resid(stage).unwrap(), "layers");
        check(&analysis.full_resid_decomposition(stage, Neurons::Apart).unwrap(), "neurons");
        check(&analysis.full_resid_decomposition(stage, Neurons::Summed).unwrap(), "heads");
        if let Ok(heads) = analysis.stack_head_results(stage) {
            check(&analysis.with_remainder(heads).unwrap(), "remainder");
        }
        // The accumulated residual stream ends with the final stream.
        let accumulated = analysis.accumulated_resid(stage, Per::Sublayer).unwrap();
        let last = accumulated.labels().last().unwrap().clone();
        assert_close(&accumulated.vector(&last).unwrap(), &stream, 0.0, "accumulated");
    }

    #[test]
    fn attributions_add_up_to_the_logits(config in any_sum(), seed in any::<u64>()) {
        let config = config.with_output_logits_soft_cap(None);
        let model = random_model(config, seed);
        let (logits, cache) = model.run_with_cache(rows(), Record::all()).unwrap();
        let analysis = model.analyze(&cache).unwrap();
        let parts = analysis.full_resid_decomposition(Stage::Final, Neurons::Apart).unwrap();
        let attrs = analysis.logit_attrs(&parts, vec![4, 6]).unwrap();
        let sums = values(&attrs.sum_dim(0));
        let bias = analysis.logit_bias().map(|bias| values(&bias));
        let logits = values(&logits);
        for (row, token) in [4usize, 6].into_iter().enumerate() {
            for pos in 0..5 {
                let rest = bias.as_ref().map_or(0.0, |bias| bias[[token]]);
                let (given, wanted) = (sums[[0, row, pos]] + rest, logits[[row, pos, token]]);
                prop_assert!((given - wanted).abs() <= 2e-4 * wanted.abs().max(1.0), "{given} for {wanted}");
            }
        }
    }

    /// Results that are computed without materializing components equal the materialized ones.
    #[test]
    fn projections_are_those_of_the_vectors(config in any_sum(), seed in any::<u64>(), normed in any::<bool>()) {
        let model = random_model(config, seed);
        let cache = model.record(rows(), Record::all()).unwrap();
        let analysis = model.analyze(&cache).unwrap();
        let mut parts = analysis.full_resid_decomposition(Stage::Final, Neurons::Apart).unwrap();
        if normed {
            parts = analysis.apply_ln(parts).unwrap();
        }
        let direction = model.tokens_to_residual_directions(vec![3, 5]).unwrap();
        let slow = (parts.vectors() * direction.clone().unsqueeze_dim::<4>(0)).sum_dim(3).squeeze_dim::<3>(3);
        assert_close(&parts.project(&direction).unwrap(), &slow, 1e-4, "projection");
        let some = parts.filter(|label| label.ends_with('1')).unwrap();
        for label in some.labels() {
            assert_close(&some.vector(label).unwrap(), &parts.vector(label).unwrap(), 1e-6, label);
        }
    }

    /// Analyzing some rows and positions equals slicing the analysis of all rows and positions.
    #[test]
    fn slices_are_cuts(config in any_sum(), seed in any::<u64>()) {
        let model = random_model(config, seed);
        let cache = model.record(rows(), Record::all()).unwrap();
        let whole = model.analyze(&cache).unwrap();
        let cut = whole.clone().rows(1..2).unwrap().positions(2..4).unwrap();
        let of = |analysis: &hooklens::activations::Analysis<'_>| {
            let parts = analysis.full_resid_decomposition(Stage::Final, Neurons::Apart).unwrap();
            analysis.apply_ln(parts).unwrap().vectors()
        };
        assert_close(&of(&cut), &of(&whole).narrow(1, 1, 1).narrow(2, 2, 2), 1e-5, "cut");
    }
}

#[test]
fn each_norm_of_the_accumulated_stream_gives_the_final_logits() {
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32), 1);
    let (logits, cache) = model.run_with_cache(rows(), "*hook_resid_{pre,mid,post}").unwrap();
    let analysis = model.analyze(&cache).unwrap();
    let stack = analysis.normalize_each(&analysis.accumulated_resid(Stage::Final, Per::Sublayer).unwrap()).unwrap();
    let last = stack.vector("final_post").unwrap();
    assert_close(&model.parts().unembed.forward(last), &logits, 1e-5, "logit lens");
    assert!(matches!(failure(analysis.normalize_each(&stack)), Some(AnalysisError::Normed)));
}

#[test]
fn vectors_from_elsewhere_are_components_too() {
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32), 1);
    let cache = model.record(rows(), Record::all()).unwrap();
    let analysis = model.analyze(&cache).unwrap();
    let parts = analysis.decompose_resid(Stage::Final).unwrap();
    let again = analysis.components(Stage::Final, parts.labels(), parts.vectors()).unwrap();
    let attrs = |parts: &Components| analysis.logit_attrs(parts, Direction::token(3).minus(5)).unwrap();
    assert_close(&attrs(&again), &attrs(&parts), 1e-6, "attributions");
    assert!(analysis.components(Stage::Final, ["one"], parts.vectors()).is_err());
}

#[test]
fn what_is_missing_is_named_with_what_would_hold_it() {
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32), 1);
    let cache = model.record(rows(), "*hook_resid_post").unwrap();
    let analysis = model.analyze(&cache).unwrap();
    let message = analysis.stack_head_results(Stage::Final).unwrap_err().to_string();
    assert!(message.contains("`blocks.0.attn.hook_z`") && message.contains("record `*attn.hook_z`"), "{message}");
    let message = analysis.decompose_resid(Stage::Final).unwrap_err().to_string();
    assert!(message.contains("record `hook_embed`"), "{message}");
    assert!(analysis.stack_head_results(Stage::Before(0)).unwrap().labels().is_empty());
    assert!(analysis.stream(Stage::Before(7)).is_err());
    assert!(analysis.clone().rows(1..4).is_err());
    assert!(analysis.clone().positions(9).is_err());
    let parts = analysis.accumulated_resid(Stage::Final, Per::Layer).unwrap_err().to_string();
    assert!(parts.contains("hook_resid_pre"), "{parts}");
}

#[test]
fn a_recording_of_another_model_is_refused() {
    let plain = random_model(TransformerConfig::new(2, 16, 4, 20, 32), 1);
    let folded = plain.config().clone().with_norm(hooklens::NormKind::LayerNormPre);
    let deeper = random_model(TransformerConfig::new(3, 16, 4, 20, 32), 1);
    let cache = plain.record(rows(), Record::all()).unwrap();
    let message = random_model(folded, 1).analyze(&cache).unwrap_err().to_string();
    assert!(message.contains("norms keep their weights"), "{message}");
    assert!(deeper.analyze(&cache).unwrap_err().to_string().contains("hook points"));
}
