//! Properties that hold for every configuration.

use burn::tensor::Tensor;
use hooklens::PaddingSide;
use hooklens::prelude::*;
use hooklens::{
    Error, HookError, InputError, NormKind, Positional, Window, lm_accuracy, lm_cross_entropy_loss, lm_loss_per_token,
};
use hooklens_model::model::ModelParts;
use proptest::prelude::*;

use crate::support::{
    any_decoder, any_row, any_sum, assert_close, cases, distance, log_probs, random_model, rounding_of, values,
};
use hooklens_model::config::{Layers, Settings};

/// Whether a recording has the batch's own shape, so that rows can be compared.
fn comparable(name: &str) -> bool {
    !name.contains("experts") && !name.contains("expert_") && !name.contains("_norm.hook")
}

/// Row `row` of `x`, columns `from..to`.
fn part(x: &Tensor<3>, row: usize, from: usize, to: usize) -> Tensor<3> {
    x.clone().narrow(0, row, 1).narrow(1, from, to - from)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(200) })]

    /// Padding on either side, and other rows in the batch, do not change a row.
    #[test]
    fn left_right_and_unpadded_agree(
        config in any_decoder(), seed in 0..1000u64, short in any_row(1..6), long in any_row(6..9),
    ) {
        let bound = rounding_of(&config);
        let model = random_model(config, seed);
        let len = long.len();
        let alone = model.forward(vec![short.clone()]).unwrap();
        let right = Tokens::padded(&[long.clone(), short.clone()], 0, PaddingSide::Right).unwrap();
        let left = Tokens::padded(&[long.clone(), short.clone()], 0, PaddingSide::Left).unwrap();
        let right = model.forward(&right).unwrap();
        let left = model.forward(&left).unwrap();
        assert_close(&part(&right, 1, 0, short.len()), &alone, bound, "right padding");
        assert_close(&part(&left, 1, len - short.len(), len), &alone, bound, "left padding");
        let whole = model.forward(vec![long]).unwrap();
        assert_close(&part(&left, 0, 0, len), &whole, bound, "the full row of the batch");
    }

    /// A token masked in the middle of a row acts as if it were not there.
    #[test]
    fn a_masked_token_is_no_token(config in any_decoder(), seed in 0..1000u64, row in any_row(4..9), at in 0..100usize) {
        let bound = rounding_of(&config);
        let model = random_model(config, seed);
        let at = 1 + at % (row.len() - 2);
        let mut without = row.clone();
        without.remove(at);
        let mask = (0..row.len()).map(|i| i != at).collect();
        let masked = Tokens::new(vec![row.clone()]).unwrap().with_mask(vec![mask]).unwrap();
        let masked = model.forward(&masked).unwrap();
        let without = model.forward(vec![without]).unwrap();
        assert_close(&part(&masked, 0, 0, at), &part(&without, 0, 0, at), bound, "before the gap");
        let len = row.len();
        assert_close(&part(&masked, 0, at + 1, len), &part(&without, 0, at, len - 1), bound, "after the gap");
    }

    /// A batch computes the same as its rows individually, at every hook point.
    #[test]
    fn a_batch_is_its_rows(config in any_decoder(), seed in 0..1000u64, rows in prop::collection::vec(any_row(5), 2..4)) {
        let bound = rounding_of(&config);
        let model = random_model(config, seed);
        let together = model.record(rows.clone(), Record::all()).unwrap();
        for (number, row) in rows.into_iter().enumerate() {
            let alone = model.record(vec![row], Record::all()).unwrap();
            for (name, activation) in alone.iter().filter(|(name, _)| comparable(name)) {
                let whole = together.activation(name).unwrap();
                let same = whole.narrow(0, if whole.shape()[0] == 1 { 0 } else { number }, if whole.shape()[0] == 1 { 1 } else { number + 1 });
                let worst = distance(&same.to_ndarray().unwrap(), &activation.to_ndarray().unwrap());
                prop_assert!(worst <= bound, "{name} of row {number}: {worst:e}");
            }
        }
    }

    /// Hooks on some heads' scores and patterns see and change the same as hooks on all heads, also after a cached
    /// prefix. Hooks that only read change nothing.
    #[test]
    fn some_heads_are_those_of_all(
        config in any_decoder(), seed in 0..1000u64, row in any_row(3..9), head in 0..100usize, after in 0..2usize,
    ) {
        let bound = rounding_of(&config);
        let model = random_model(config, seed);
        let mut cache = KeyValueCache::new(model.config(), 1);
        let (prefix, row) = row.split_at(after);
        if after > 0 {
            model.forward_with(vec![prefix.to_vec()], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        }
        cache.freeze();
        let n_heads = model.config().n_heads();
        let mut heads = if n_heads > 3 { vec![head % n_heads, (head + 2) % n_heads] } else { vec![head % n_heads] };
        heads.sort_unstable();
        let rows = || vec![row.to_vec()];
        let no_hooks = Vec::<hooklens::hook::Hook<'_>>::new;
        macro_rules! run {
            ($hooks:expr, $record:expr) => {{
                let options = ForwardOptions::new().kv_cache(&mut cache).hooks($hooks).record($record);
                model.run(rows(), options).unwrap()
            }};
        }
        let logits = |output: hooklens::Output| values(&output.logits.unwrap());
        let plain = logits(run!(no_hooks(), Record::default()));
        let attends = |layer: &usize| model.catalog().find(&format!("blocks.{layer}.attn.hook_pattern")).is_ok();
        for layer in (0..model.config().n_layers()).filter(attends) {
            let whole = run!(no_hooks(), Record::new([hook::attn_scores(layer), hook::pattern(layer)])).cache;
            let mut seen = Vec::new();
            let read = hook::pattern(layer).heads(heads.clone()).read(|x, _| seen.push(x));
            let unchanged = logits(run!(vec![read], Record::default()));
            prop_assert!(distance(&unchanged, &plain) <= bound);
            let none = hook::pattern(layer).heads(Vec::<usize>::new()).zero();
            prop_assert!(distance(&logits(run!(vec![none], Record::default())), &plain) <= bound);
            let pattern = whole.get(hook::pattern(layer)).unwrap();
            let expected = heads.iter().map(|head| pattern.clone().narrow(1, *head, 1)).collect();
            let [seen, expected] = [seen, expected].map(|x: Vec<Tensor<4>>| values(&Tensor::cat(x, 1)));
            prop_assert!(distance(&seen, &expected) <= bound);
            let changed = |x: Tensor<4>, factor: f64| heads.iter().fold(x, |x, head| {
                let [batch, _, query, key] = x.dims();
                let own = x.clone().narrow(1, *head, 1) * factor;
                x.slice_assign([0..batch, *head..head + 1, 0..query, 0..key], own)
            });
            let by_hand = vec![
                hook::attn_scores(layer).edit(|x, _| changed(x, 0.5)),
                hook::pattern(layer).edit(|x, _| changed(x, 0.25)),
            ];
            let by_hand = logits(run!(by_hand, Record::default()));
            let sliced = vec![
                hook::attn_scores(layer).heads(heads.clone()).scale(0.5),
                hook::pattern(layer).heads(heads.clone()).scale(0.25),
            ];
            prop_assert!(distance(&logits(run!(sliced, Record::default())), &by_hand) <= bound);
        }
    }

    /// Identity hooks and recordings do not change anything.
    #[test]
    fn identity_hooks_and_recordings_change_nothing(config in any_decoder(), seed in 0..1000u64, row in any_row(1..8)) {
        let bound = rounding_of(&config);
        let model = random_model(config, seed);
        let plain = model.forward(vec![row.clone()]).unwrap();
        let (recorded, _) = model.run_with_cache(vec![row.clone()], Record::all()).unwrap();
        assert_close(&recorded, &plain, bound, "recording everything");
        let same = at(Selection::matching(|p| !p.name.contains("ln1."))).edit_any(|x, _| Ok(Some(x)));
        let hooked = model.run_with_hooks(vec![row], [same]).unwrap();
        assert_close(&hooked, &plain, bound, "identity hooks at every point");
    }

    /// Attention of long prompts, whose scores are computed for 64 queries at a time, gives the same result when hooks
    /// edit the scores, when patterns are recorded, and when nothing observes them, after a cached prefix or without one.
    #[test]
    fn observed_attention_of_long_prompts_is_unobserved_attention(
        row in any_row(60..150), before in 0..80usize, window in prop::option::of(20..120usize), alibi: bool,
        with_scores: bool,
    ) {
        let config = TransformerConfig::new(1, 16, 4, 20, 256)
            .with_kv_heads(2)
            .with_positional(if alibi { Positional::Alibi } else { Positional::Learned })
            .with_windows(window.map(|width| Some(Window::Sliding(width))))
            .unwrap();
        let model = random_model(config, 3);
        let mut cache = KeyValueCache::new(model.config(), 1);
        if before > 0 {
            model.forward_with(vec![vec![7; before]], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        }
        cache.freeze();
        let mask = (0..row.len()).map(|at| at != row.len() / 2).collect();
        let tokens = Tokens::new(vec![row]).unwrap().with_mask(vec![mask]).unwrap();
        let result = "blocks.0.attn.hook_z";
        let mut points = vec!["blocks.0.attn.hook_pattern", result];
        points.extend(with_scores.then_some("blocks.0.attn.hook_attn_scores"));
        let mut recorded = |points: &[&'static str], hooks: Vec<hooklens::hook::Hook<'_>>| {
            let options = ForwardOptions::new().kv_cache(&mut cache).hooks(hooks).record(points);
            model.run(&tokens, options).unwrap().cache
        };
        let unobserved = recorded(&[result], vec![]);
        let own = recorded(&points, vec![]);
        let hooked = recorded(&points, vec![at(hook::attn_scores(0)).edit_any(|x, _| Ok(Some(x)))]);
        let pairs = points.iter().map(|point| (*point, &own, &hooked)).chain([(result, &own, &unobserved)]);
        for (point, given, expected) in pairs {
            let [given, expected] = [given, expected].map(|cache| cache.activation(point).unwrap().to_ndarray().unwrap());
            prop_assert!(distance(&given, &expected) <= 1e-5, "{point}");
        }
    }

    /// Stopping before a layer and starting there again equals the whole run.
    #[test]
    fn stop_and_start_make_the_whole(config in any_decoder(), seed in 0..1000u64, row in any_row(2..8), layer in 0..=1isize, padded: bool) {
        let model = random_model(config, seed);
        let mask = (0..row.len()).map(|i| !padded || i > 0).collect();
        let tokens = Tokens::new(vec![row]).unwrap().with_mask(vec![mask]).unwrap();
        let whole = model.forward(&tokens).unwrap();
        let reads = model.config().reads_keys_of(1).is_some();
        for layer in [layer, layer - 2] {
            let resid = model.forward_with(&tokens, ForwardOptions::new().stop_at_layer(layer)).unwrap();
            let options = ForwardOptions::new().start_at_layer(layer).tokens(&tokens);
            if reads && layer.rem_euclid(2) == 1 {
                let message = model.forward_with(resid, options).unwrap_err();
                prop_assert!(matches!(message, Error::Input(InputError::KeysOfEarlierLayer { layer: 1, from: 0, .. })), "{message}");
                continue;
            }
            let again = model.forward_with(resid, options).unwrap();
            let first = usize::from(padded);
            let len = tokens.shape()[1];
            assert_close(&part(&again, 0, first, len), &part(&whole, 0, first, len), 1e-5, "stop and start");
        }
    }

    /// Contributions to the residual stream sum to it, head by head.
    #[test]
    fn contributions_add_up(config in any_sum(), seed in 0..1000u64, row in any_row(1..8)) {
        let shortformer = *config.positional() == Positional::Shortformer;
        let post_norms = config.post_norms();
        let model = random_model(config, seed);
        let cache = model.record(vec![row], Selection::all().and("*hook_result")).unwrap();
        let mut sum: Tensor<3> = cache.get("hook_embed").unwrap();
        if !shortformer && let Ok(positions) = cache.get::<3>("hook_pos_embed") {
            sum = sum + positions;
        }
        for layer in 0..2 {
            assert_close(&sum, &cache.get(hook::resid_pre(layer)).unwrap(), 1e-5, "before the block");
            let attn_out = cache.get(hook::attn_out(layer)).unwrap();
            if !post_norms {
                let heads = cache.get(hook::result(layer)).unwrap().sum_dim(2).squeeze_dim::<3>(2);
                let bias = model.weights().get::<1>(&format!("blocks.{layer}.attn.b_O")).unwrap();
                assert_close(&(heads + bias.unsqueeze()), &attn_out, 1e-5, "heads and bias");
            }
            sum = sum + attn_out;
            if let Ok(mlp_out) = cache.get(hook::mlp_out(layer)) {
                sum = sum + mlp_out;
            }
            if let Ok(own) = cache.get(hook::per_layer_out(layer)) {
                sum = sum + own;
            }
            if let Ok(scalar) = model.weights().get::<1>(&format!("blocks.{layer}.scalar")) {
                sum = sum * scalar.unsqueeze();
            }
            assert_close(&sum, &cache.get(hook::resid_post(layer)).unwrap(), 1e-5, "after the block");
        }
    }

    /// Weight processing preserves log probabilities, with any steps.
    #[test]
    fn processing_keeps_log_probs(config in any_decoder(), seed in 0..1000u64, row in any_row(2..8)) {
        let model = random_model(config.clone(), seed);
        let before = log_probs(model.forward(vec![row.clone()]).unwrap());
        let standard = model.clone().processed(&Processing::standard()).unwrap();
        let after = log_probs(standard.forward(vec![row.clone()]).unwrap());
        assert_close(&after, &before, 2e-5, "standard processing");
        let scaled = config.experts().as_ref().is_some_and(|experts| experts.scales_inputs);
        let kept = *config.positional() == Positional::Shortformer
            || config.stream_is_normalized()
            || (scaled && config.norm() == NormKind::LayerNorm);
        prop_assert!(kept || matches!(standard.config().norm(), NormKind::LayerNormPre | NormKind::RmsPre));
        for step in [
            Processing::none().fold_ln(),
            Processing::none().center_writing_weights(),
            Processing::none().center_unembed(),
            Processing::none().fold_value_biases(),
            Processing::none().refactor_factored_attn_matrices(),
        ] {
            // A step that the model does not allow must be reported, and an allowed one must preserve outputs.
            match model.clone().processed(&step) {
                Err(error) => prop_assert!(error.to_string().contains("can't be applied"), "{error}"),
                Ok(changed) => {
                    let after = log_probs(changed.forward(vec![row.clone()]).unwrap());
                    assert_close(&after, &before, 2e-5, &format!("{step:?}"));
                }
            }
        }
    }

    /// Recording some points gives the same values as recording all of them, and recording slices equals slicing the
    /// recording.
    #[test]
    fn selections_and_slices_agree_with_everything(config in any_decoder(), seed in 0..1000u64, row in any_row(3..8), at in 0..3isize) {
        let model = random_model(config, seed);
        let everything = model.record(vec![row.clone()], Record::all()).unwrap();
        let some = model.record(vec![row.clone()], ["*hook_z", "*hook_resid_post"]).unwrap();
        let outputs: usize = model.parts().blocks.iter().map(|block| block.mixer_outputs().count()).sum();
        prop_assert_eq!(some.len(), 2 + outputs);
        for (name, activation) in some.iter() {
            let worst = distance(&activation.to_ndarray().unwrap(), &everything.activation(name).unwrap().to_ndarray().unwrap());
            prop_assert!(worst <= 1e-5, "{name}: {worst:e}");
        }
        let sliced = model.record(vec![row.clone()], Record::all().positions(at)).unwrap();
        let at = at as usize;
        for (name, activation) in everything.iter() {
            let axes = everything.axes(name).unwrap();
            if name.contains(".experts.") {
                // The point's rows are not positions. A glob skips it, and requesting it by name is an error.
                prop_assert!(!sliced.contains(name));
                prop_assert!(model.record(vec![row.clone()], Record::new(name).positions(0)).is_err());
                continue;
            }
            let whole = match axes.iter().position(|a| matches!(a, hook::Axis::Pos | hook::Axis::Query)) {
                Some(axis) => activation.narrow(axis, at, at + 1),
                None if ["q_norm", "k_norm", "v_norm"].iter().any(|norm| name.contains(norm)) || name.contains("hook_expert_") => {
                    let each = activation.shape()[0] / row.len();
                    activation.narrow(0, at * each, (at + 1) * each)
                }
                None => activation.clone(),
            };
            let slice = sliced.activation(name).unwrap().to_ndarray().unwrap();
            prop_assert!(distance(&slice, &whole.to_ndarray().unwrap()) <= 1e-6, "{name}");
        }
    }

    /// Computing only the last row's logits equals the last row of all logits.
    #[test]
    fn last_logits_are_the_last_of_all(config in any_decoder(), seed in 0..1000u64, short in any_row(1..4), long in any_row(4..7), left: bool) {
        let model = random_model(config, seed);
        let side = if left { PaddingSide::Left } else { PaddingSide::Right };
        let tokens = Tokens::padded(&[long.clone(), short.clone()], 0, side).unwrap();
        let all = model.forward(&tokens).unwrap();
        let last = model.forward_with(&tokens, ForwardOptions::new().logits(Logits::Last)).unwrap();
        let end = if left { long.len() } else { short.len() };
        assert_close(&part(&last, 0, 0, 1), &part(&all, 0, long.len() - 1, long.len()), 1e-5, "full row");
        assert_close(&part(&last, 1, 0, 1), &part(&all, 1, end - 1, end), 1e-5, "padded row");
    }

    /// The loss only counts real tokens, and is the mean over tokens.
    #[test]
    fn padding_is_not_counted_in_the_loss(config in any_decoder(), seed in 0..1000u64, row in any_row(2..6), pads in 1..4usize, left: bool) {
        let model = random_model(config, seed);
        let (before, after) = if left { (pads, 0) } else { (0, pads) };
        let ids = [vec![0; before], row.clone(), vec![0; after]].concat();
        let mask = [vec![false; before], vec![true; row.len()], vec![false; after]].concat();
        let padded = Tokens::new(vec![ids]).unwrap().with_mask(vec![mask]).unwrap();
        let alone: f32 = model.loss(vec![row.clone()]).unwrap().into_scalar();
        let with: f32 = model.loss(&padded).unwrap().into_scalar();
        prop_assert!((alone - with).abs() <= 1e-5 * alone.abs().max(1.0), "{alone} {with}");
        let each = model.run(&padded, ForwardOptions::new().loss_per_token()).unwrap().loss_per_token.unwrap();
        let mean = values(&each).sum() / (row.len() - 1) as f32;
        prop_assert!((mean - alone).abs() <= 1e-5 * alone.abs().max(1.0));
        // The loss of logits that were already computed.
        let logits = model.forward(&padded).unwrap();
        prop_assert_eq!(lm_cross_entropy_loss(&logits, &padded).unwrap().into_scalar::<f32>(), with);
        prop_assert_eq!(values(&lm_loss_per_token(&logits, &padded).unwrap()), values(&each));
        let start = if left { pads } else { 0 };
        let best = values(&logits.narrow(1, start, row.len() - 1).argmax(2).float());
        let right = best.iter().zip(&row[1..]).filter(|(best, next)| **best == **next as f32).count();
        let logits = model.forward(&padded).unwrap();
        prop_assert_eq!(lm_accuracy(&logits, &padded).unwrap(), right as f64 / (row.len() - 1) as f64);
        let refused = lm_accuracy(&logits.narrow(1, 1, row.len() + pads - 1), &padded);
        let refused = matches!(refused, Err(Error::Input(InputError::LogitsShape { .. })));
        prop_assert!(refused);
    }

    /// Positions are relative to a row's own tokens, wherever the padding is.
    #[test]
    fn positions_count_real_tokens(config in any_decoder(), seed in 0..1000u64, short in any_row(2..4), long in any_row(4..7), left: bool, last: bool) {
        let model = random_model(config, seed);
        let side = if left { PaddingSide::Left } else { PaddingSide::Right };
        let tokens = Tokens::padded(&[long.clone(), short.clone()], 0, side).unwrap();
        let at = if last { -1 } else { 1 };
        let mut points = vec!["*hook_z", "*hook_resid_post"];
        points.extend((model.config().pre_norm() != NormKind::None).then_some("*ln1.hook_scale"));
        let record = || Record::new(points.clone()).positions(at);
        let both = model.record(&tokens, record()).unwrap();
        for (number, row) in [long, short].into_iter().enumerate() {
            let alone = model.record(vec![row], record()).unwrap();
            for (name, activation) in alone.iter() {
                let given = both.activation(name).unwrap().narrow(0, number, number + 1);
                let worst = distance(&given.to_ndarray().unwrap(), &activation.to_ndarray().unwrap());
                prop_assert!(worst <= 1e-4, "{name} of row {number}: {worst:e}");
            }
        }
        let uneven = model.record(&tokens, Record::new("*hook_z").positions(Positions::Range(Some(1), None)));
        let refused = matches!(uneven, Err(Error::Hook(HookError::UnevenPositions { .. })));
        prop_assert!(refused);
    }

    /// Saving and loading preserves the model, processed or not.
    #[test]
    fn a_saved_model_is_the_same(config in any_decoder(), seed in 0..1000u64, row in any_row(2..6), processed: bool) {
        let processing = if processed { Processing::standard() } else { Processing::none() };
        let model = random_model(config, seed).processed(&processing).unwrap();
        let folder = tempfile::tempdir().unwrap();
        model.save_pretrained(folder.path()).unwrap();
        let again = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap();
        prop_assert_eq!(model.config(), again.config());
        prop_assert!(again.load_report().unused.is_empty());
        let before = model.forward(vec![row.clone()]).unwrap();
        assert_close(&again.forward(vec![row]).unwrap(), &before, 1e-5, "saved and loaded");
    }
}
