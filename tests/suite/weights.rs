//! Access to weights by name.

use burn::module::{Module, ModuleMapper, Param};
use hooklens::WeightError;
use hooklens::prelude::*;
use hooklens_model::model::{Parts, Weight, Weights, each_weight};
use proptest::prelude::*;

use crate::seeded::fixture;
use crate::support::{any_hybrid, cases, device, random_model, values};

fn path(case: &str) -> String {
    fixture(case).to_str().unwrap().to_string()
}

/// A weight of any rank, in one list.
fn read<P: Parts>(weights: &Weights<P>, name: &str) -> Vec<f64> {
    match weights.get::<1>(name) {
        Ok(vector) => vector.into_data().iter::<f64>().collect(),
        Err(_) => weights.get::<2>(name).unwrap().into_data().iter::<f64>().collect(),
    }
}

/// Every weight has a name of its own, is read and replaced under it, and nothing else is.
fn check<P: Parts>(weights: &Weights<P>) {
    let names = weights.names();
    assert!(names.len() > 5);
    for (number, name) in names.iter().enumerate() {
        assert!(!names[..number].contains(name), "{name} twice");
        let mut changed = weights.clone();
        match weights.get::<1>(name) {
            Ok(value) => {
                changed.set(name, value.clone() + 1.0).unwrap();
                let gap = changed.get::<1>(name).unwrap() - value.clone() - 1.0;
                assert!(gap.abs().max().into_scalar::<f64>() < 1e-5, "{name}");
                let longer = Tensor::cat(vec![value.clone(), value.clone()], 0);
                assert!(is_shape(changed.set(name, longer)), "{name}");
                changed.set(name, value).unwrap();
            }
            Err(error) => {
                assert!(matches!(error.downcast_ref(), Some(WeightError::Rank { rank: 2, asked: 1, .. })), "{error}");
                let value = weights.get::<2>(name).unwrap();
                changed.set(name, value.clone() + 1.0).unwrap();
                let gap = changed.get::<2>(name).unwrap() - value.clone() - 1.0;
                assert!(gap.abs().max().into_scalar::<f64>() < 1e-5, "{name}");
                let longer = Tensor::cat(vec![value.clone(), value.clone()], 0);
                assert!(is_shape(changed.set(name, longer)), "{name}");
                assert!(is_shape(changed.set(name, value.clone().flatten::<1>(0, 1))), "{name}");
                changed.set(name, value).unwrap();
            }
        }
        assert!(weights.get::<3>(name).is_err());
        // Afterwards, every weight is as before.
        let near = number.saturating_sub(1)..names.len().min(number + 2);
        for name in &names[near] {
            assert_eq!(read(&changed, name), read(weights, name), "{name}");
        }
        let typo = format!("{name}x");
        let error = weights.get::<1>(&typo).unwrap_err();
        let Some(WeightError::Unknown { nearest, .. }) = error.downcast_ref() else { panic!("{error}") };
        assert_eq!(&nearest[0], name);
    }
}

fn is_shape(result: hooklens::Result<()>) -> bool {
    matches!(result.unwrap_err().downcast_ref(), Some(WeightError::Shape { .. }))
}

#[test]
fn every_weight_is_read_and_replaced_by_name() {
    for case in ["embedded:induction".to_string(), "embedded:ioi".to_string(), path("mixtral"), path("gemma3")] {
        check(HookedTransformer::from_pretrained(&case).unwrap().weights());
    }
    for case in ["bert-pretraining", "deberta", "mpnet"] {
        check(HookedEncoder::from_pretrained(path(case)).unwrap().weights());
    }
    for case in ["t5", "bart"] {
        check(HookedEncoderDecoder::from_pretrained(path(case)).unwrap().weights());
    }
}

#[test]
fn names_of_encoders_are_transformer_lenss() {
    let bert = HookedEncoder::from_pretrained(path("bert-pretraining")).unwrap();
    let names = bert.weights().names();
    for name in [
        "embed.embed.W_E",
        "embed.pos_embed.W_pos",
        "embed.token_type_embed.W_token_type",
        "embed.ln.w",
        "blocks.1.attn.W_Q",
        "blocks.1.attn.b_O",
        "blocks.1.ln1.b",
        "blocks.1.mlp.W_in",
        "mlm_head.W",
        "mlm_head.ln.w",
        "unembed.W_U",
        "unembed.b_U",
        "pooler.W",
        "nsp_head.b",
    ] {
        assert!(names.iter().any(|own| own == name), "{name}: {names:?}");
    }
    let t5 = HookedEncoderDecoder::from_pretrained(path("t5")).unwrap();
    let names = t5.weights().names();
    for name in [
        "embed.W_E",
        "encoder.0.attn.rel_pos_bias.weight",
        "decoder.1.cross_attn.W_V",
        "decoder.1.ln3.w",
        "encoder_final_ln.w",
        "decoder_final_ln.w",
        "unembed.W_U",
    ] {
        assert!(names.iter().any(|own| own == name), "{name}: {names:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(12) })]

    /// The names are those that models are saved under, and the values are the same.
    #[test]
    fn names_are_those_of_saved_models(config in any_hybrid(), seed in 0..1000u64) {
        let model = random_model(config, seed);
        let mut saved = Vec::new();
        each_weight(&model, &mut |name, weight| {
            let values: Vec<f64> = match weight {
                Weight::Matrix(matrix) => matrix.into_data().iter::<f64>().collect(),
                Weight::Map(map) => map.matrix().into_data().iter::<f64>().collect(),
                Weight::Tokens(embed) => embed.matrix().into_data().iter::<f64>().collect(),
                Weight::Vector(vector) => vector.into_data().iter::<f64>().collect(),
            };
            saved.push((name, values));
        });
        for name in model.weights().names() {
            let own = saved.iter().find(|(saved, _)| *saved == name);
            prop_assert!(own.is_some_and(|(_, values)| *values == read(model.weights(), &name)), "{}", name);
        }
    }
}

/// Layers count from the end, and a layer that there isn't is an error.
#[test]
fn layers_may_be_negative() {
    let mut model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let last = model.weights().get::<2>("blocks.3.attn.W_Q").unwrap();
    assert_eq!(values(&model.weights().get::<2>("blocks.-1.attn.W_Q").unwrap()), values(&last));
    let message = model.weights().get::<2>("blocks.4.attn.W_Q").unwrap_err().to_string();
    assert!(message.contains("its layers are 0 to 3"), "{message}");
    let error = model.weights_mut().no_grad("embd*").unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(WeightError::NoMatch { .. })), "{error}");
    let error = model.weights_mut().no_grad(["embed.W_E", "blocks.0.ln1.W"]).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(WeightError::Unknown { .. })), "{error}");
}

/// A replaced weight is trained if it was before, and one without gradients stays without.
#[test]
fn a_replaced_weight_is_trained_as_before() {
    let device = device();
    let mut model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let names = ["blocks.0.attn.W_Q", "blocks.1.attn.W_Q"];
    for tracked in [true, false] {
        let own = if tracked { device.clone().autodiff() } else { device.clone() };
        model = model.to_devices(std::slice::from_ref(&own));
        model.weights_mut().no_grad(names[0]).unwrap();
        for name in names {
            // On the device without autodiff, whatever the model's.
            let value = model.weights().get::<2>(name).unwrap().without_autodiff();
            model.weights_mut().set(name, value * 0.5).unwrap();
        }
        model = model.to_devices(&[device.clone().autodiff()]);
        let gradients = model.loss([1, 2, 3]).unwrap().backward();
        let has = |name: &str| model.weights().get::<2>(name).unwrap().grad(&gradients).is_some();
        assert_eq!(names.map(has), [false, true], "{tracked}");
    }
}

/// A mapper that counts weights sees all of them, in the same order as their names.
#[test]
fn a_burn_mapper_sees_the_weights_in_the_order_of_their_names() {
    struct Shapes(Vec<usize>);
    impl ModuleMapper for Shapes {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            self.0.push(param.lazy_shape().num_elements());
            param
        }
    }
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let expected: Vec<usize> = model.weights().names().iter().map(|name| read(model.weights(), name).len()).collect();
    assert_eq!(expected.iter().sum::<usize>(), model.weights().count());
    let mut shapes = Shapes(vec![]);
    let _ = model.clone().map_weights(|weights| weights.map(&mut shapes));
    assert_eq!(shapes.0, expected);
}

/// A stacked weight consists of the weights of each layer. The error for an unknown name lists the names that exist.
#[test]
fn stacked_weights_are_those_of_each_layer() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    for layer in 0..4 {
        let own = model.weights().get::<2>(&format!("blocks.{layer}.mlp.W_in")).unwrap();
        let all = model.stacked::<3>("W_in").unwrap().narrow(0, layer, 1).squeeze_dim::<2>(0);
        assert_eq!(values(&all), values(&own));
        let own = model.weights().get::<2>(&format!("blocks.{layer}.attn.W_K")).unwrap().reshape([64, 4, 16]);
        let all = model.stacked::<4>("W_K").unwrap().narrow(0, layer, 1).squeeze_dim::<3>(0);
        assert_eq!(values(&all.swap_dims(0, 1)), values(&own));
    }
    assert!(matches!(model.stacked::<3>("W_Q"), Err(WeightError::Rank { rank: 4, asked: 3, .. })));
    assert!(matches!(model.stacked::<3>("W_gate"), Err(WeightError::NotInAll { .. })));
    let message = model.stacked::<4>("w_q").unwrap_err().to_string();
    assert!(message.contains("the stacked weights are W_Q, W_K, "), "{message}");
}
