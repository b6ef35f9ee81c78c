//! Gradients at hook points compared with finite differences, in f64.

use burn::tensor::TensorData;
use hooklens::PaddingSide;
use hooklens::encoder::{EncoderOutput, HookedEncoder};
use hooklens::encoder_decoder::HookedEncoderDecoder;
use hooklens::hook::Hook;
use hooklens::prelude::*;
use hooklens_hooks::AutodiffLeaf;
use proptest::prelude::*;

use crate::support::{
    any_config, cases, distance, fixtures, has, jumps, precise, random_model, smooth, values, widened,
};
use hooklens_model::config::{Layers, Settings};

const TOKENS: [[u32; 5]; 2] = [[3, 9, 1, 7, 9], [2, 2, 8, 0, 5]];

fn rows() -> Vec<Vec<u32>> {
    TOKENS.iter().map(|row| row.to_vec()).collect()
}

/// A smooth function that depends on every element.
fn number<const D: usize>(logits: Tensor<D>) -> Tensor<1> {
    let shape = logits.dims();
    let weights = (0..shape.iter().product()).map(|i: usize| ((i * 37 % 101) as f64 / 50.0 - 1.0).sin());
    let weights = TensorData::new(weights.collect::<Vec<f64>>(), shape);
    let weights = Tensor::<D>::from_data(weights, (&logits.device(), logits.dtype()));
    (logits.clone().square() * 0.1 + logits * weights).sum()
}

/// A fixed direction that does not change minus infinity.
fn direction(like: &Activation, seed: usize) -> Activation {
    let len: usize = like.shape().iter().product();
    let values: Vec<f64> = (0..len).map(|i| (((i + seed) * 7919 % 1009) as f64 / 504.0 - 1.0).cos() - 0.4).collect();
    let device = like.device();
    let flat = Tensor::<1>::from_data(TensorData::new(values, [len]), (&device, burn::tensor::DType::F64));
    Activation::from(flat).reshape(like.shape())
}

fn scaled(direction: &Activation, by: f64) -> Activation {
    let len = direction.shape().iter().product();
    let flat: Tensor<1> = direction.reshape(&[len]).to_tensor().unwrap();
    Activation::from(flat * by).reshape(direction.shape())
}

/// [`check_slopes`] for a decoder.
fn check(model: &HookedTransformer, selection: impl Into<Record>, seed: usize) {
    let options = ForwardOptions::new().record(selection);
    let output = model.run_with_gradients(rows(), options, number).unwrap();
    let logits = |hooks: Vec<Hook<'_>>| model.forward_with(rows(), ForwardOptions::new().hooks(hooks)).unwrap();
    check_slopes(&output.cache, |hooks| number(logits(hooks)), seed);
}

/// Compares the gradient along one direction with a finite difference of the scalar, at every point.
fn check_slopes(cache: &ActivationCache, number: impl Fn(Vec<Hook<'_>>) -> Tensor<1>, seed: usize) {
    let value = |hooks| number(hooks).into_scalar::<f64>();
    for (name, gradient) in cache.gradients() {
        // A norm's scale may be arbitrarily small; the other activations have order one.
        let toward = direction(gradient, seed);
        let along = gradient.dot(&toward).into_scalar::<f64>();
        let at_step = |step: f64| {
            let change = scaled(&toward, step);
            value(vec![at(name).edit_any(move |x, _| Ok(Some(&x + &change)))])
        };
        // Richardson extrapolation, with an error of fourth order.
        let quotient = |step: f64| (at_step(step) - at_step(-step)) / (2.0 * step);
        let step = 2e-5;
        let (wide, near) = (quotient(step), quotient(step / 2.0));
        let slope = (4.0 * near - wide) / 3.0;
        let scale = slope.abs().max(gradient_size(gradient) * 0.1).max(1e-3);
        let close = (along - slope).abs() <= 1e-5 * scale;
        assert!(close || jumps(wide, near, 1e-5 * scale), "{name}: {along} for {slope}");
    }
}

fn gradient_size(gradient: &Activation) -> f64 {
    gradient.dot(gradient).into_scalar::<f64>().sqrt()
}

proptest! {
    #![proptest_config(cases(25))]

    #[test]
    fn gradients_are_slopes_at_every_point(config in any_config(), seed in 0usize..1000) {
        if !has(DType::F64) {
            return Ok(());
        }
        let model = precise(smooth(config), seed as u64);
        check(&model, Record::all(), seed);
        check(&model, Record::new("*hook_result"), seed);
        if model.config().latent().is_none() {
            check(&model, Record::new("*hook_{q,k,v}_input"), seed);
        }
        if model.catalog().find("blocks.0.hook_attn_in").is_ok() {
            check(&model, Record::new("*hook_attn_in"), seed);
        }
        if !model.config().attn_only() {
            check(&model, Record::new("*hook_mlp_in"), seed);
        }
    }

    /// In `f32`, our kernels compute both passes; in `f64`, Burn does.
    #[test]
    fn gradients_by_kernels_are_those_of_burns_operations(config in any_config(), seed in 0usize..1000) {
        if !has(DType::F64) {
            return Ok(());
        }
        let model = random_model(config, seed as u64);
        let exact = model.clone().map_weights(widened);
        let padded = Tokens::padded(&[TOKENS[0].to_vec(), TOKENS[1][..3].to_vec()], 0, PaddingSide::Left).unwrap();
        // Recording patterns and scales changes which operations run.
        let inner = ["attn_scores", "pattern", "scale", "normalized", "result", "_input", "_in", "expert"];
        let unwatched = || Selection::matching(move |point| !inner.iter().any(|part| point.name.contains(part)));
        let late_point = if model.config().reads_keys_of(1).is_some() { "hook_q" } else { "hook_v" };
        let late = || Selection::matching(move |point| point.layer == Some(1) && point.name.contains(late_point));
        for (tokens, selection) in [
            (Tokens::new(rows()).unwrap(), unwatched()),
            (padded.clone(), unwatched()),
            (padded, late()),
            (Tokens::new(rows()).unwrap(), Selection::from("*hook_pattern")),
        ] {
            let options = || ForwardOptions::new().record(selection.clone());
            let given = model.run_with_gradients(&tokens, options(), number).unwrap();
            let expected = exact.run_with_gradients(&tokens, options(), number).unwrap();
            let [own, of_exact] = [&given, &expected].map(|output| values(output.logits.as_ref().unwrap()));
            if distance(&own, &of_exact) > 1e-4 {
                continue; // a near tie routed to another expert
            }
            // A factor before a norm only matters through the norm's epsilon. Its gradient is a sum that cancels, which
            // is exact relative to the terms, not to the result.
            let largest = |gradient: &ndarray::ArrayD<f32>| gradient.iter().fold(0f32, |most, x| most.max(x.abs()));
            let wanted = expected.cache.gradients().map(|(name, gradient)| (name, gradient.to_ndarray().unwrap()));
            let wanted: Vec<_> = wanted.collect();
            let floor = wanted.iter().map(|(_, gradient)| 1e-2 * largest(gradient)).fold(0f32, f32::max);
            for (name, gradient) in &wanted {
                let own = given.cache.activation(format!("{name}_grad")).unwrap().to_ndarray().unwrap();
                let size = largest(gradient);
                let worst = distance(&own, gradient) * size / size.max(floor);
                prop_assert!(worst <= 1e-3, "{name}: {worst:e}");
            }
        }
    }

    /// A gradient hook acts like a forward hook that leaves the value unchanged.
    #[test]
    fn edited_gradients_go_on(config in any_config(), seed in 0usize..1000, factor in prop_oneof![Just(0.0), Just(-1.5)]) {
        if !has(DType::F64) {
            return Ok(());
        }
        let model = precise(smooth(config).with_shared_keys([]).unwrap(), seed as u64);
        let at_z = |layer| hook::z(layer).edit(move |z, _| z.clone().detach() + (z.clone() - z.detach()) * factor);
        let at_q = hook::q(1).edit(move |q, _| q.clone().detach() + (q.clone() - q.detach()) * factor);
        let watched = ["hook_embed", "resid_pre1", "v0", "v1", "k1", "resid_post1"];
        let forward = ForwardOptions::new().hooks([at_z(0), at_z(1), at_q]).record(watched);
        let expected = model.run_with_gradients(rows(), forward, number).unwrap();
        let mut order = vec![];
        let backward = ForwardOptions::new().record(watched).hooks([
            hook::z(0).edit_grad(move |gradient, _| gradient * factor),
            hook::q(1).edit_grad(move |gradient, _| gradient * factor),
            hook::z(1).edit_grad(move |gradient, _| gradient * factor),
        ]);
        let given = model.run_with_gradients(rows(), backward, number).unwrap();
        for name in watched {
            let of = |output: &hooklens::Output| output.cache.activation(format!("{}_grad", full(&model, name))).unwrap().to_ndarray().unwrap();
            let (given, expected) = (of(&given), of(&expected));
            let worst = given.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            let largest = expected.iter().map(|x| x.abs()).fold(0f32, f32::max);
            prop_assert!(worst <= 1e-6 * largest.max(1.0), "{name}: {worst} of {largest}");
        }
        let reading = at(["z0", "z1", "q1"]).read_grad(|_: Tensor<4>, at| order.push(at.name().to_string()));
        model.run_with_gradients(rows(), ForwardOptions::new().hooks([reading]), number).unwrap();
        prop_assert_eq!(order, ["blocks.1.attn.hook_z", "blocks.1.attn.hook_q", "blocks.0.attn.hook_z"]);
    }
}

/// After a frozen cache, gradients equal those of a whole run at the positions after it. A scope's hooks act in both.
#[test]
fn gradients_behind_a_cache_are_those_of_a_whole_run() {
    if !has(DType::F64) {
        return;
    }
    let model = precise(TransformerConfig::new(2, 16, 4, 20, 32), 4);
    let last = |logits: Tensor<3>| {
        let [_, len, _] = logits.dims();
        number(logits.narrow(1, len - 1, 1))
    };
    let hooked = model.hooks([hook::mlp_out(0).edit(|x, _| x * 0.5)]);
    let record = ["z0", "q1", "k1", "mlp_out0"];
    let mut prefix = hooked.prefill([3, 9, 1]).unwrap();
    prefix.freeze();
    let whole = hooked.run_with_gradients([3, 9, 1, 7, 9], ForwardOptions::new().record(record), last).unwrap().cache;
    let options = ForwardOptions::new().record(record).kv_cache(&mut prefix);
    let behind = hooked.run_with_gradients([7, 9], options, last).unwrap().cache;
    for name in record {
        let of = |cache: &ActivationCache| cache.activation(format!("{}_grad", full(&model, name))).unwrap().clone();
        let (whole, behind) = (of(&whole).narrow(1, 3, 5).to_ndarray().unwrap(), of(&behind).to_ndarray().unwrap());
        let worst = whole.iter().zip(&behind).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(worst < 1e-6, "{name}: {worst}");
    }
}

fn full(model: &HookedTransformer, name: &str) -> String {
    let ids = Selection::from(name).resolve(model.catalog()).unwrap();
    model.catalog().info(ids[0]).name.to_string()
}

/// Gradients of all outputs of an encoder.
fn number_of_all(output: EncoderOutput) -> Tensor<1> {
    let mut sum = number(output.hidden.clone().unwrap());
    sum = output.logits.clone().map_or(sum.clone(), |logits| sum + number(logits));
    sum = output.pooled.clone().map_or(sum.clone(), |pooled| sum + number(pooled));
    output.next_sentence.clone().map_or(sum.clone(), |logits| sum + number(logits))
}

#[test]
fn gradients_of_encoders_are_slopes() {
    if !has(DType::F64) {
        return;
    }
    let newer = ["albert-groups", "deberta-v3", "mpnet", "esm1b", "modernbert", "umt5-encoder"];
    for name in ["bert-pretraining", "distilbert", "roberta"].into_iter().chain(newer) {
        let model =
            HookedEncoder::from_pretrained(fixtures().join(name).to_str().unwrap()).unwrap().map_weights(widened);
        let input = Tokens::padded(&[vec![3, 9, 1, 7], vec![2, 8]], 0, PaddingSide::Left).unwrap();
        let run = |hooks: Vec<Hook<'_>>| model.run(&input, ForwardOptions::new().hooks(hooks)).unwrap();
        for selection in [Record::all(), Record::new("*hook_result"), Record::new("*hook_{q,k,v}_input")] {
            let output = model.run_with_gradients(&input, selection, number_of_all).unwrap();
            assert!(output.cache.gradients().count() > 1 && !output.hidden.as_ref().unwrap().is_tracked());
            check_slopes(&output.cache, |hooks| number_of_all(run(hooks)), 7);
        }
    }
}

#[test]
fn gradients_of_an_encoder_with_a_decoder_are_slopes() {
    if !has(DType::F64) {
        return;
    }
    for case in ["t5-gated", "t5gemma"] {
        let model = HookedEncoderDecoder::from_pretrained(fixtures().join(case).to_str().unwrap())
            .unwrap()
            .map_weights(widened);
        let input = Tokens::padded(&[vec![5, 6, 7, 1], vec![9, 1]], 0, PaddingSide::Right).unwrap();
        let written = vec![vec![0, 4, 8], vec![0, 9, 9]];
        let logits = |hooks: Vec<Hook<'_>>| {
            model.forward_with((&input, written.clone()), ForwardOptions::new().hooks(hooks)).unwrap()
        };
        for selection in [Record::all(), Record::new("*hook_result")] {
            let output = model.run_with_gradients((&input, written.clone()), selection, number).unwrap();
            let names: Vec<&str> = output.cache.gradients().map(|(name, _)| name).collect();
            assert!(["encoder.0.", "decoder.0."].iter().all(|stack| names.iter().any(|name| name.starts_with(stack))));
            check_slopes(&output.cache, |hooks| number(logits(hooks)), 3);
        }
    }
}

/// A gradient hook acts like a forward hook that leaves the value unchanged. The encoder of an encoder-decoder fires
/// before the decoder.
#[test]
fn edited_gradients_go_on_in_encoders_too() {
    if !has(DType::F64) {
        return;
    }
    let of =
        |cache: &ActivationCache, name: &str| cache.activation(format!("{name}_grad")).unwrap().to_ndarray().unwrap();
    let dim = |x: Tensor<4>| x.clone().detach() + (x.clone() - x.detach()) * -1.5;
    let near = |given: &ActivationCache, expected: &ActivationCache, name: &str| {
        let worst = (of(given, name) - of(expected, name)).iter().fold(0f32, |worst, gap| worst.max(gap.abs()));
        assert!(worst < 1e-6, "{name}: {worst}");
    };
    let points = ["*0.attn.hook_z", "*1.attn.hook_q"];

    let model = HookedEncoder::from_pretrained(fixtures().join("bert-pretraining").to_str().unwrap())
        .unwrap()
        .map_weights(widened);
    let run = |hook| {
        let options = ForwardOptions::new().hooks([hook]).record(["hook_full_embed", "*0.attn.hook_v"]);
        model.run_with_gradients(vec![vec![3, 9, 1, 7]], options, number_of_all).unwrap().cache
    };
    let (given, expected) =
        (run(at(points).edit_grad(|g: Tensor<4>, _| g * -1.5)), run(at(points).edit(move |x, _| dim(x))));
    near(&given, &expected, "hook_full_embed");
    near(&given, &expected, "blocks.0.attn.hook_v");

    let model = HookedEncoderDecoder::from_pretrained(fixtures().join("t5-gated").to_str().unwrap())
        .unwrap()
        .map_weights(widened);
    let run = |hook| {
        let options = ForwardOptions::new().hooks([hook]).record(["hook_embed", "*0.attn.hook_v"]);
        model.run_with_gradients((vec![vec![5, 6, 7, 1]], vec![vec![0, 4]]), options, number).unwrap().cache
    };
    let (given, expected) =
        (run(at(points).edit_grad(|g: Tensor<4>, _| g * -1.5)), run(at(points).edit(move |x, _| dim(x))));
    near(&given, &expected, "encoder.0.attn.hook_v");
    near(&given, &expected, "decoder.0.attn.hook_v");
}

#[test]
fn gradient_runs_say_what_they_cannot_do() {
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32), 1);
    let message =
        |options: ForwardOptions<'_>| model.run_with_gradients(rows(), options, number).unwrap_err().to_string();
    assert!(message(ForwardOptions::new().record(Record::new("z0").positions(1))).contains("whole activations"));
    assert!(message(ForwardOptions::new().logits(Logits::None).record("z0")).contains("computed from the logits"));
    let mut cache = model.prefill([1, 2]).unwrap();
    assert!(message(ForwardOptions::new().record("z0").kv_cache(&mut cache)).contains("freeze it"));
    let constant = |logits: Tensor<3>| logits.detach().sum();
    let error = model.run_with_gradients(rows(), ForwardOptions::new().record("z0"), constant).unwrap_err();
    assert!(error.to_string().contains("does not depend"), "{error}");
    let backward = hook::z(0).edit_grad(|gradient, _| gradient);
    let error = model.run_with_hooks(rows(), [backward]).unwrap_err();
    assert!(error.to_string().contains("run_with_gradients"), "{error}");
    let wrong = hook::z(0).edit_grad(|gradient, _| gradient.narrow(1, 0, 1));
    assert!(message(ForwardOptions::new().hooks([wrong])).contains("returned shape"));
    let cache = model.record(rows(), "z0").unwrap();
    assert!(cache.grad(hook::z(0)).unwrap_err().to_string().contains("hook_z_grad` was not recorded"));
}
