//! The hook contract, point by point.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{Int, Tensor};
use hooklens::prelude::*;
use hooklens::{Error, HookError, InputError, ResidualScheme};
use hooklens_model::config::{Experts, Layers, Settings};
use hooklens_model::model::ModelParts;

use crate::support::{assert_close, device, random_model, values};

const ROW: [u32; 5] = [3, 1, 4, 1, 5];

fn model() -> HookedTransformer {
    random_model(TransformerConfig::new(2, 16, 4, 20, 32), 7)
}

fn hook_error(result: Result<impl std::fmt::Debug, Error>) -> HookError {
    match result.unwrap_err() {
        Error::Hook(error) => error,
        other => panic!("not a hook's error: {other}"),
    }
}

/// Models can be shared between threads, and recordings sent between them.
#[test]
fn models_and_recordings_cross_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<HookedTransformer>();
    shared::<ActivationCache>();
    let model = model();
    let row = model.record(ROW, "z1").unwrap();
    let there = std::thread::scope(|scope| scope.spawn(|| model.record(ROW, "z1").unwrap()).join().unwrap());
    assert_eq!(values::<4>(&row.get("z1").unwrap()), values::<4>(&there.get("z1").unwrap()));
}

/// 1. Names, shapes and order equal TransformerLens's for a plain model.
#[test]
fn points_fire_in_the_documented_order() {
    let (mut names, mut shapes) = (vec![], vec![]);
    let watch = at(Selection::all().and("blocks.0.*_in*").and("*hook_result").and("hook_tokens")).read_any(|x, at| {
        names.push(at.name().to_string());
        shapes.push(x.shape().to_vec());
    });
    model().run_with_hooks(ROW, [watch]).unwrap();
    let block = |layer: usize| {
        let mut of = vec!["hook_resid_pre"];
        if layer == 0 {
            of.extend(["hook_attn_in", "hook_q_input", "hook_k_input", "hook_v_input"]);
        }
        of.extend(["ln1.hook_scale", "ln1.hook_normalized", "attn.hook_q", "attn.hook_k", "attn.hook_v"]);
        of.extend(["attn.hook_attn_scores", "attn.hook_pattern", "attn.hook_z", "attn.hook_result", "hook_attn_out"]);
        of.push("hook_resid_mid");
        if layer == 0 {
            of.push("hook_mlp_in");
        }
        of.extend(["ln2.hook_scale", "ln2.hook_normalized"]);
        if layer == 0 {
            of.push("mlp.hook_in");
        }
        of.extend(["mlp.hook_pre", "mlp.hook_post", "hook_mlp_out"]);
        of.push("hook_resid_post");
        of.into_iter().map(|suffix| format!("blocks.{layer}.{suffix}")).collect::<Vec<_>>()
    };
    let mut expected = vec!["hook_tokens".to_string(), "hook_embed".into(), "hook_pos_embed".into()];
    expected.extend(block(0).into_iter().chain(block(1)));
    expected.extend(["ln_final.hook_scale".to_string(), "ln_final.hook_normalized".into()]);
    assert_eq!(names, expected);
    let shape_of = |name: &str| &shapes[names.iter().position(|n| n == name).unwrap()];
    assert_eq!(shape_of("blocks.0.attn.hook_q"), &[1, 5, 4, 4]);
    assert_eq!(shape_of("blocks.1.attn.hook_pattern"), &[1, 4, 5, 5]);
    assert_eq!(shape_of("blocks.1.attn.hook_result"), &[1, 5, 4, 16]);
    assert_eq!(shape_of("blocks.0.mlp.hook_post"), &[1, 5, 64]);
    assert_eq!(shape_of("ln_final.hook_scale"), &[1, 5, 1]);
}

/// 2. Requesting a point is enough: points that TransformerLens hides behind flags fire, and edits of them take effect.
#[test]
fn costly_points_work_by_being_asked_for() {
    let model = model();
    let plain = model.forward(ROW).unwrap();
    for point in
        ["result0", "blocks.0.hook_q_input", "blocks.0.hook_k_input", "blocks.0.hook_v_input", "blocks.0.hook_attn_in"]
    {
        let same = model.run_with_hooks(ROW, [at(point).edit(|x: Tensor<4>, _| x)]).unwrap();
        assert_close(&same, &plain, 1e-5, point);
        let zeroed = model.run_with_hooks(ROW, [at(point).edit(|x: Tensor<4>, _| x.zeros_like())]).unwrap();
        assert!((zeroed - plain.clone()).abs().max().into_scalar::<f32>() > 1e-3, "zeroing {point} changed nothing");
    }
    let zeroed = model.run_with_hooks(ROW, [hook::mlp_in(0).edit(|x, _| x.zeros_like())]).unwrap();
    assert!((zeroed - plain).abs().max().into_scalar::<f32>() > 1e-3);
}

/// 2. Editing one head's query input equals editing that head's queries.
#[test]
fn a_head_reads_its_own_input() {
    let model = model();
    let cache = |hooks: Vec<hook::Hook<'_>>| model.hooks(hooks).record(ROW, "blocks.0.attn.hook_q").unwrap();
    let plain: Tensor<4> = cache(vec![]).get(hook::q(0)).unwrap();
    let edit = hook::q_input(0).edit(|x, _| {
        let [batch, pos, _, width] = x.dims();
        x.slice_assign([0..batch, 0..pos, 2..3, 0..width], Tensor::ones([batch, pos, 1, width], &device()))
    });
    let edited: Tensor<4> = cache(vec![edit]).get(hook::q(0)).unwrap();
    for head in [0, 1, 3] {
        assert_close(&edited.clone().narrow(2, head, 1), &plain.clone().narrow(2, head, 1), 1e-5, "an untouched head");
    }
    assert!((edited - plain).narrow(2, 2, 1).abs().max().into_scalar::<f32>() > 1e-3);
}

/// 2. A run stops after the last requested point if no logits are needed.
#[test]
fn nothing_runs_after_the_last_point() {
    let model = model();
    let later = Cell::new(0);
    let cache = model
        .hooks([hook::z(0).read(|_, _| later.set(later.get() + 1))])
        .record(ROW, "blocks.0.attn.hook_pattern")
        .unwrap();
    assert_eq!((cache.len(), later.get()), (1, 1));
    // If the second block ran, its NaN weights would go unnoticed; if the first block's MLP ran on a wrong shape, it
    // would panic.
    let mut broken = model.clone();
    broken.parts_mut().blocks.truncate(1);
    broken.parts_mut().blocks[0].mlp = None;
    assert!(broken.record(ROW, "blocks.0.attn.hook_pattern").is_ok());
}

/// 3. Nothing fails silently: a request that can't be fulfilled is an error before the run.
#[test]
fn wrong_requests_are_errors_before_the_run() {
    let model = model();
    let ran = Cell::new(false);
    let watch = || hook::embed().read(|_, _| ran.set(true));
    let unknown = hook_error(model.hooks([watch()]).run_with_cache(ROW, "blocks.0.attn.hook_patern"));
    assert!(matches!(&unknown, HookError::UnknownPoint { nearest, .. } if nearest[0] == "blocks.0.attn.hook_pattern"));
    let unmatched = hook_error(model.hooks([watch()]).run_with_cache(ROW, "blocks.*.hook_risid_post"));
    assert!(matches!(unmatched, HookError::NoMatch { .. }));
    let absent = hook_error(model.run_with_hooks(ROW, [watch(), at("rot_q0").read_any(|_, _| ())]));
    assert!(matches!(absent, HookError::CannotFire { .. }));
    let rank = hook_error(model.run_with_hooks(ROW, [watch(), at("z0").edit(|x: Tensor<3>, _| x)]));
    assert!(matches!(rank, HookError::Rank { rank: 4, asked: 3, .. }));
    let layer = hook_error(model.run_with_cache(ROW, hook::z(2)));
    assert!(matches!(layer, HookError::Layer { layer: 2, n_layers: 2, .. }));
    let stopped = hook_error(model.run(ROW, ForwardOptions::new().hooks([watch()]).stop_at_layer(1).record("z1")));
    assert!(matches!(stopped, HookError::CannotFire { reason: "the run stops before its layer", .. }));
    // Position embeddings are already part of the stream, and an expert's rows are not positions.
    let resid = model.forward_with(ROW, ForwardOptions::new().stop_at_layer(1)).unwrap();
    let placed = hook_error(model.run(resid, ForwardOptions::new().start_at_layer(1).record("hook_pos_embed")));
    assert!(matches!(placed, HookError::CannotFire { .. }));
    let norm = hook_error(
        model.run_with_hooks(ROW, [watch(), hook::q_input(0).edit(|x, _| x), hook::ln1_normalized(0).edit(|x, _| x)]),
    );
    assert!(matches!(norm, HookError::Conflict { .. }));
    assert!(!ran.get(), "something ran before the error");
}

/// 3. If a hook returns another shape or dtype, the error names the point and both values.
#[test]
fn hooks_must_return_what_they_were_given() {
    let model = model();
    let shape = hook_error(model.run_with_hooks(ROW, [hook::resid_post(0).edit(|x, _| x.narrow(1, 0, 2))]));
    let HookError::Shape { point, expected, given, .. } = shape else { panic!("{shape}") };
    assert_eq!((point.as_str(), expected, given), ("blocks.0.hook_resid_post", vec![1, 5, 16], vec![1, 2, 16]));
    let dtype = hook_error(model.run_with_hooks(ROW, [hook::z(1).edit(|x, _| x.cast(burn::tensor::FloatDType::F16))]));
    assert!(matches!(dtype, HookError::DType { .. }));
    let failed = hook_error(model.run_with_hooks(ROW, [hook::z(1).edit(|_, _| Err::<Tensor<4>, _>("no"))]));
    assert_eq!(hooklens::error_chain(&failed), "the hook at `blocks.1.attn.hook_z` failed: no");
}

/// 4. Typed points, names, globs and shorthands find the same activation.
#[test]
fn every_spelling_names_the_same_point() {
    let cache = model().record(ROW, Record::all()).unwrap();
    let typed = values(&cache.get(hook::pattern(1)).unwrap());
    for name in ["blocks.1.attn.hook_pattern", "pattern1", "attn1", "blocks.-1.attn.hook_pattern"] {
        assert_eq!(values::<4>(&cache.get(name).unwrap()), typed, "{name}");
    }
    assert_eq!(values::<4>(&cache.get(("pattern", -1)).unwrap()), typed);
    assert_eq!(values(&cache.get(hook::pattern(-1)).unwrap()), typed);
    let scale: Tensor<3> = cache.get(("scale", 1, "ln1")).unwrap();
    assert_eq!(values(&scale), values(&cache.get(hook::ln1_scale(1)).unwrap()));
}

/// 5. Hooks run in the given order, and recordings see their result and never change afterwards.
#[test]
fn order_and_permanence() {
    let model = model();
    let mut seen = vec![];
    let output = model
        .run(
            ROW,
            ForwardOptions::new().record("blocks.*.hook_resid_p*").hooks([
                hook::resid_post(0).edit(|x, _| x.zeros_like()),
                hook::resid_post(0).edit(|x, _| x + 1.0),
                hook::resid_post(0).read(|x, at| seen.push((at.layer(), at.offset(), values(&x).sum()))),
                // Modifies the tensor in place where possible; the recording above must not see it.
                hook::resid_pre(1).edit(|x, _| x.slice_fill([0..1, 0..5, 0..16], 9.0)),
            ]),
        )
        .unwrap();
    assert_eq!(seen, [(Some(0), 0, 80.0)]);
    let recorded = |point| values(&output.cache.get(point).unwrap());
    assert!(recorded(hook::resid_post(0)).iter().all(|x| *x == 1.0));
    assert!(recorded(hook::resid_pre(1)).iter().all(|x| *x == 9.0));
}

/// 6. A scope is a value. Its hooks are removed when it is dropped, even on panic.
#[test]
fn scopes_end_with_their_value() {
    let model = model();
    let plain = model.forward(ROW).unwrap();
    let calls = Cell::new(0);
    {
        let outer = model.hooks([hook::embed().read(|_, _| calls.set(calls.get() + 1))]);
        outer.forward(ROW).unwrap();
        let inner = outer.hooks([hook::attn_out(0).edit(|x, _| x.zeros_like())]);
        let ablated = inner.forward(ROW).unwrap();
        assert!((ablated - plain.clone()).abs().max().into_scalar::<f32>() > 1e-3);
        assert_close(&model.forward(ROW).unwrap(), &plain, 0.0, "the model itself");
    }
    assert_eq!(calls.get(), 2);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let scope = model.hooks([hook::z(0).edit(|_, _| -> Tensor<4> { panic!("in a hook") })]);
        let _ = scope.forward(ROW);
    }));
    assert!(panicked.is_err());
    assert_close(&model.forward(ROW).unwrap(), &plain, 0.0, "after a panic");
}

/// A hook on tokens edits the prompt, which is validated like any other.
#[test]
fn tokens_can_be_edited() {
    let model = model();
    let swap = |id: i32| {
        at("hook_tokens").edit_any(move |_, _| {
            let ids = Tensor::<2, Int>::from_ints([[3, 1, id, 1, 5]], &device());
            Ok(Some(ids.into()))
        })
    };
    let edited = model.run_with_hooks(ROW, [swap(9)]).unwrap();
    assert_close(&edited, &model.forward([3, 1, 9, 1, 5]).unwrap(), 1e-6, "an edited token");
    let outside = model.run_with_hooks(ROW, [swap(20)]).unwrap_err();
    assert!(matches!(outside, Error::Input(InputError::Token { token: 20, position: 2, .. })), "{outside}");
}

/// Every point of every kind of model can be edited, and zeroing it changes the output.
#[test]
fn no_point_is_a_dead_end() {
    use hooklens::{NormKind, Positional, RopeScaling, Rotary};
    use hooklens_model::config::Experts;
    let base = TransformerConfig::new(2, 16, 4, 20, 32);
    let rotary = Positional::Rotary(Rotary { dim: 4, base: 100.0, adjacent_pairs: false, scaling: RopeScaling::None });
    let plain = base.clone().with_post_embedding_norm(true).with_post_norms(true);
    let modern = base
        .clone()
        .with_kv_heads(2)
        .with_gated_mlp(true)
        .with_positional(rotary)
        .with_norm(NormKind::Rms)
        .with_qk_norm(hooklens_model::config::QkNorm::HEADS);
    let solu = base.clone().with_activation(hooklens::ActivationFn::SoluLn).with_residual(ResidualScheme::Parallel);
    let mixture = base.with_gated_mlp(true).with_mixture(Experts { renormalize: false, ..Experts::new(2, 2) });
    for config in [plain, modern, solu, mixture] {
        let model = random_model(config, 3);
        let before = model.forward(ROW).unwrap();
        for point in model.catalog().points().iter().filter(|p| !p.integer) {
            let double = at(&*point.name).edit_any(|x, _| Ok(Some(doubled(&x))));
            let after = model.run_with_hooks(ROW, [double]).unwrap();
            let change = (after - before.clone()).abs().max().into_scalar::<f32>();
            // The edit must change the logits, even for attention scores and patterns.
            assert!(change > 1e-6, "editing {} changed nothing", point.name);
        }
    }
}

/// The activation plus a different value at each position.
fn doubled(x: &Activation) -> Activation {
    let len: usize = x.shape().iter().product();
    let flat = x.reshape(&[len]).to_tensor::<1>().unwrap();
    let ramp = Tensor::<1, Int>::arange(0..len as i64, &device()).float() * 0.1;
    Activation::from(flat * (ramp.sin() + 1.5)).reshape(x.shape())
}

/// Routing to an expert that does not exist is an error, not ignored.
#[test]
fn tokens_go_to_experts_there_are() {
    let config = TransformerConfig::new(1, 16, 2, 20, 16).with_gated_mlp(true).with_mixture(Experts::new(3, 2));
    let model = random_model(config, 2);
    for wrong in [3, -1] {
        let edit = at("blocks.0.mlp.hook_expert_indices").edit_any(move |chosen, _| {
            let chosen = chosen.to_int_tensor::<2>()?;
            Ok(Some(chosen.zeros_like().add_scalar(wrong).into()))
        });
        let error = hooklens::error_chain(&hook_error(model.run_with_hooks(ROW, [edit])));
        assert!(error.contains(&format!("expert {wrong} is out of range: there are 3 experts")), "{error}");
    }
}

/// A typed point finds its activation with and without the batch axis.
#[test]
fn typed_points_survive_the_batch_axis() {
    let model = model();
    let cache = model.record(ROW, Record::new("z1").remove_batch()).unwrap();
    assert_eq!(cache.get(hook::z(1)).unwrap().dims(), [1, 5, 4, 4]);
    assert_eq!(cache.get::<3>("z1").unwrap().dims(), [5, 4, 4]);
    assert_eq!(cache.activation("z1").unwrap().shape(), [5, 4, 4]);
}

/// 8. Gradients flow through hooks: the gradient of a tensor that a hook adds matches a finite difference.
#[test]
fn gradients_reach_what_a_hook_adds() {
    let autodiff = device().autodiff();
    let config = TransformerConfig::new(2, 16, 4, 20, 32);
    let model = HookedTransformer::random(config, 5, &autodiff).unwrap();
    let steer = Tensor::<3>::zeros([1, 5, 16], &autodiff).require_grad();
    let add = |amount: Tensor<3>| hook::resid_post(0).edit(move |x, _| x + amount.clone());
    let loss = |amount: Tensor<3>| model.loss_with(ROW, ForwardOptions::new().hooks([add(amount)])).unwrap();
    let gradients = loss(steer.clone()).backward();
    let by_steer = steer.grad(&gradients).expect("a gradient");
    let direction = Tensor::<3>::random([1, 5, 16], burn::tensor::Distribution::Normal(0.0, 1.0), &device());
    let expected: f32 = (by_steer * direction.clone()).sum().into_scalar();
    let step = 1e-2;
    let nudge = |by: f32| Tensor::<3>::from_data((direction.clone() * by).into_data(), &autodiff);
    let (up, down): (f32, f32) = (loss(nudge(step)).into_scalar(), loss(nudge(-step)).into_scalar());
    let slope = (up - down) / (2.0 * step);
    assert!((slope - expected).abs() < 0.02 * expected.abs().max(0.1), "{slope} {expected}");
}

/// For a point in a layer that does not exist, the error lists the existing layers, however the point is given.
#[test]
fn layers_the_model_lacks_are_told_apart_from_typos() {
    use hooklens::patching::{Freeze, Metric, Patching, Receiver};
    let model = model();
    let says = |asked: &str| format!("`{asked}` names a layer that this model does not have: its layers are 0 to 1");
    for (request, asked) in [
        (Record::from("blocks.9.hook_resid_pre"), "blocks.9.hook_resid_pre"),
        (Record::from(hook::z(9usize)), "blocks.9.attn.hook_z"),
        (Record::from(hook::z(-3)), "blocks.-3.attn.hook_z"),
        (Record::from(("z", 9)), "blocks.9.attn.hook_z"),
        (Record::from("blocks.2.*"), "blocks.2.*"),
    ] {
        let message = hook_error(model.run_with_cache(ROW, request));
        assert!(matches!(message, HookError::Layer { n_layers: 2, .. }), "{message}");
        assert_eq!(message.to_string(), says(asked));
    }
    let metric = Metric::logit_diff(&model, 1, 2).unwrap();
    let patching = Patching::new(&model, ROW, ROW, metric).unwrap();
    let message = patching.path_from_heads(&[Receiver::Query(9, 0)], Freeze::AttentionAndMlps).map(drop).unwrap_err();
    assert_eq!(message.to_string(), says("blocks.9.hook_q_input"));
    let cache = model.record(ROW, "*hook_resid_post").unwrap();
    let message = cache.get::<3>("*hook_resid_post").unwrap_err();
    assert_eq!(message.to_string(), "`*hook_resid_post` names 2 points; expected exactly one");
    assert_eq!(
        cache.activation(Selection::default()).unwrap_err().to_string(),
        "the selection names no point; expected exactly one"
    );
}

/// Layer indices of any common integer type select the same points.
#[test]
fn layers_are_numbers_of_any_type() {
    let model = model();
    for layer in 0..model.config().n_layers() {
        let cache = model.record(ROW, [hook::z(layer), hook::pattern(layer)]).unwrap();
        let typed = cache.get(hook::z(layer)).unwrap();
        let by_tuple: Tensor<4> = cache.get(("z", layer as i32)).unwrap();
        assert_eq!(values(&typed), values(&by_tuple));
        assert_eq!(hook::z(layer as isize), hook::z(layer));
        assert_eq!(hook::z(layer as i32 - 2).name(), format!("blocks.{}.attn.hook_z", layer as i32 - 2));
    }
}

/// Invalid sizes are rejected by name when a configuration is validated.
#[test]
fn sizes_that_can_not_be_are_named() {
    use hooklens::{CacheShape, Window};
    let plain = TransformerConfig::new(2, 16, 4, 20, 32);
    for (config, says) in [
        (TransformerConfig::new(1, 15, 2, 20, 8), "invalid `n_heads`: d_model (15) is not divisible by n_heads (2)"),
        (
            plain.clone().with_windows([None, Some(Window::Sliding(0))]).unwrap(),
            "invalid `windows`: layer 1 has a window of 0",
        ),
        (
            plain.clone().with_windows(vec![Some(Window::Chunked(0)); 2]).unwrap(),
            "invalid `windows`: layer 0 has a window of 0",
        ),
    ] {
        let message = HookedTransformer::random(config, 0, &device()).map(drop).unwrap_err().to_string();
        assert!(message.starts_with(says), "{message}");
    }
    // Heads whose total width may differ from the model's.
    let own = TransformerConfig::new(1, 15, 2, 20, 8).with_d_head(8).with_attn_scale(8f64.sqrt());
    assert!(HookedTransformer::random(own, 0, &device()).is_ok());
    let shape = CacheShape::new(1, 1, 2, 4).unwrap();
    let message = shape.windows([Some(Window::Sliding(0))]).unwrap_err().to_string();
    assert!(message.starts_with("`windows` is 0"), "{message}");
}

/// A point of all layers can be retrieved as a single tensor, in either stack.
#[test]
fn a_point_of_every_layer_is_one_tensor() {
    let model = random_model(hooklens::TransformerConfig::new(3, 16, 2, 20, 8), 1);
    let cache = model.record([1, 2, 3, 4], Record::all()).unwrap();
    let patterns = cache.stack(hook::pattern).unwrap();
    assert_eq!(patterns.dims(), [3, 1, 2, 4, 4]);
    let gap = patterns.narrow(0, 2, 1).squeeze_dim::<4>(0) - cache.get(hook::pattern(2)).unwrap();
    assert_eq!(gap.abs().max().into_scalar::<f32>(), 0.0);
    let some = model.record([1, 2, 3, 4], ["pattern0", "pattern2"]).unwrap();
    assert!(matches!(some.stack(hook::pattern), Err(HookError::NotRecorded { name, .. }) if name.contains("blocks.1")));
    assert!(cache.stack(|layer| hook::Point::<3>::in_layer(layer, "hook_resid_pst")).is_err());
    let t5 = hooklens::encoder_decoder::HookedEncoderDecoder::from_pretrained(
        crate::support::fixtures().join("t5").to_str().unwrap(),
    );
    let cache = t5.unwrap().run(([5, 6, 1], [0, 4]), Record::all()).unwrap().cache;
    assert_eq!(cache.stack(hook::cross_pattern).unwrap().dims()[3..], [2, 3]);
}
