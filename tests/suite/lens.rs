//! Lenses end with the model's own output.

use std::collections::HashMap;

use hooklens::lens::TunedLens;
use hooklens::prelude::*;
use hooklens::write_safetensors;
use proptest::prelude::*;

use crate::support::{any_sum, assert_close, cases, device, random_model};

const TOKENS: [u32; 5] = [3, 9, 1, 7, 9];

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn the_last_stage_is_the_models_own_answer(config in any_sum(), seed in any::<u64>(), mid in any::<bool>()) {
        let model = random_model(config, seed);
        let (logits, cache) = model.run_with_cache(TOKENS, Record::all()).unwrap();
        let lens = model.analyze(&cache).unwrap().logit_lens(if mid { Per::Sublayer } else { Per::Layer }).unwrap();
        let last = lens.labels.len() - 1;
        assert_close(&lens.logits.clone().narrow(0, last, 1).squeeze_dim::<3>(0), &logits, 1e-5, "last");
        prop_assert_eq!(lens.labels[last].as_str(), "final_post");
        let kl = crate::support::values(&lens.kl_to_final());
        prop_assert!(kl.iter().all(|value| *value > -1e-4));
        let top = lens.top(3).unwrap();
        let best = top[last][0][4][0];
        prop_assert_eq!(lens.rank(best.0).unwrap()[[last, 0, 4]], 0);
        prop_assert!((lens.prob(best.0).unwrap()[[last, 0, 4]] - best.1).abs() < 1e-6);
    }
}

#[test]
fn a_tuned_lens_is_read_and_applied() {
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32), 1);
    let cache = model.record(TOKENS, Record::all()).unwrap();
    let analysis = model.analyze(&cache).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let save = |prefix: &str, scale: f32, layers: usize| {
        let weight = Activation::from(Tensor::<2>::eye(16, &device()) * scale);
        let bias = Activation::from(Tensor::<1>::zeros([16], &device()));
        let named = (0..layers)
            .flat_map(|layer| [(format!("{prefix}{layer}.weight"), &weight), (format!("{prefix}{layer}.bias"), &bias)]);
        let path = folder.path().join("params.safetensors");
        write_safetensors(&path, named.collect::<Vec<_>>(), HashMap::new()).unwrap();
        TunedLens::load(path, &device())
    };
    let plain = analysis.logit_lens(Per::Layer).unwrap();
    let zero = analysis.tuned_lens(&save("", 0.0, 2).unwrap()).unwrap();
    assert_close(&zero.logits, &plain.logits, 1e-6, "a lens that changes nothing");
    // A layer norm ignores scale: doubling the stream does not change anything either.
    let double = analysis.tuned_lens(&save("layer_translators.", 1.0, 2).unwrap()).unwrap();
    assert_close(&double.logits, &plain.logits, 1e-3, "a lens that doubles");
    let message = analysis.tuned_lens(&save("", 0.0, 3).unwrap()).unwrap_err().to_string();
    assert!(message.contains("tuned lens"), "{message}");
    assert!(save("other.", 0.0, 1).unwrap_err().to_string().contains("0.weight"));
    assert!(TunedLens::load(folder.path().join("none"), &device()).is_err());
}

#[test]
fn the_answer_rises_through_the_layers() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let prompt = "When Mary and John went to the store, John gave a drink to";
    let report = model.test_prompt(prompt, "Mary .", 4).unwrap();
    assert_eq!((report.answer[0].rank, report.answer[1].rank), (0, 0));
    assert!(report.answer[0].probability > 0.9 && report.answer[0].top.len() == 4);
    assert!(report.to_string().contains("rank 0"));
    assert!(model.test_prompt(prompt, "", 4).is_err());
    assert!(model.test_prompt(prompt, "nobody", 4).is_err());
    let cache = model.record(prompt, Record::all()).unwrap();
    let lens = model.analyze(&cache).unwrap().positions(-1).unwrap().logit_lens(Per::Layer).unwrap();
    let mary = model.to_single_token("Mary").unwrap();
    let prob = lens.prob(mary).unwrap();
    assert!(prob[[0, 0, 0]] < 0.2 && prob[[4, 0, 0]] > 0.9);
    assert!(lens.rank(10_000).is_err());
}

#[test]
fn steering_moves_the_answer() {
    use hooklens::experiments::SteeringVector;
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let john_gives = "When Mary and John went to the store, John gave a drink to";
    let mary_gives = "When Mary and John went to the store, Mary gave a drink to";
    let vector = SteeringVector::between(&model, john_gives, mary_gives, "resid_post3").unwrap();
    let last = |hooks: Vec<hook::Hook<'_>>| {
        let options = ForwardOptions::new().logits(Logits::Last).hooks(hooks);
        let id = model.forward_with(mary_gives, options).unwrap().argmax(2).into_scalar::<i64>();
        model.to_string(&[id as u32]).unwrap()
    };
    assert_eq!(last(vec![]), "John");
    assert_eq!(last(vec![vector.hook(1.0)]), "Mary");
    assert_eq!(last(vec![vector.hook(0.0)]), "John");
    let kept = model.run_with_hooks(mary_gives, [vector.ablation().unwrap()]).unwrap();
    assert_eq!(kept.dims()[1], 15);
    let zero = SteeringVector::new("resid_post3", Tensor::zeros([64], &device()));
    assert!(zero.ablation().is_err());
    let narrow = SteeringVector::new("resid_post3", Tensor::ones([3], &device()));
    let message = hooklens::error_chain(&model.run_with_hooks(mary_gives, [narrow.hook(1.0)]).unwrap_err());
    assert!(message.contains("[64]"), "{message}");
}

/// Directions are used in the element type of the stream, and their length is measured in f32.
#[test]
fn directions_fit_any_element_type() {
    use hooklens::experiments::SteeringVector;
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        let model = HookedTransformer::from_pretrained_with("embedded:ioi", LoadOptions::new().dtype(dtype)).unwrap();
        let long = Tensor::<1>::full([64], 100.0, &model.device());
        for vector in [long.clone(), long.cast(dtype.burn())] {
            let vector = SteeringVector::new("resid_post0", vector);
            for hook in [vector.hook(0.01), vector.ablation().unwrap()] {
                let changed = model.hooks([hook]).record("When", hook::resid_post(0)).unwrap();
                let stream = changed.get(hook::resid_post(0)).unwrap();
                assert_eq!(stream.dtype(), dtype.burn());
                assert!(stream.cast(burn::tensor::DType::F32).sum().into_scalar::<f32>().is_finite());
            }
        }
    }
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let several = SteeringVector::of_heads(&model, "When Mary", &[(0, 0)], "*hook_resid_post");
    assert!(several.unwrap_err().to_string().contains("hook_resid_post"));
}
