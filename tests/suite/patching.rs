//! A sweep gives the same result as patching one site after the other in whole runs.

use hooklens::experiments::ioi_prompts;
use hooklens::features::SpliceDictionary;
use hooklens::hook::Axis;
use hooklens::patching::{Ablation, Freeze, Metric, PatchError, Patching, PatchingResult, Receiver, Sites};
use hooklens::prelude::*;
use hooklens_hooks::BlockAccess;
use ndarray::Dimension;
use proptest::prelude::*;

use crate::support::{any_config, any_plain, cases, cross_layer, random_model, with_dictionary};
use hooklens_model::config::Layers;

const CLEAN: [[u32; 6]; 2] = [[3, 9, 1, 7, 9, 4], [2, 2, 8, 0, 5, 1]];
const CORRUPTED: [[u32; 6]; 2] = [[3, 9, 6, 7, 9, 4], [2, 2, 8, 11, 5, 2]];

fn rows(tokens: &[[u32; 6]]) -> Vec<Vec<u32>> {
    tokens.iter().map(|row| row.to_vec()).collect()
}

fn metric(model: &HookedTransformer) -> Metric {
    Metric::logit_diff(model, vec![4, 6], vec![5, 1]).unwrap()
}

fn logit_diff(logits: Tensor<3>, example: usize) -> f64 {
    let [_, len, _] = logits.dims();
    let at = |id: usize| f64::from(logits.clone().narrow(1, len - 1, 1).narrow(2, id, 1).into_scalar::<f32>());
    at([4, 6][example]) - at([5, 1][example])
}

/// Whole runs, one per site: the definition of a sweep.
fn one_by_one(model: &HookedTransformer, name: &str, per: &[usize], values: Option<&[[u32; 6]]>) -> Vec<f64> {
    let mut found = Vec::new();
    let whole = model.record(rows(&CORRUPTED[..1]), name).unwrap();
    let shape = whole.activation(name).unwrap().shape().to_vec();
    let sources = [0, 1].map(|example| {
        let source = values.unwrap_or(&CORRUPTED);
        model.record(rows(&source[example..example + 1]), name).unwrap()
    });
    let sites: usize = per.iter().map(|axis| shape[*axis]).product();
    for site in 0..sites {
        let mut rest = site;
        let mut block: Vec<_> = shape.iter().map(|len| 0..*len).collect();
        for axis in per.iter().rev() {
            block[*axis] = rest % shape[*axis]..rest % shape[*axis] + 1;
            rest /= shape[*axis];
        }
        for (example, source) in sources.iter().enumerate() {
            let mut source = source.activation(name).unwrap().block(&block);
            if values.is_none() {
                let len = source.shape().iter().product();
                let zero: Tensor<1> = source.reshape(&[len]).to_tensor().unwrap();
                source = Activation::from(zero.zeros_like()).reshape(source.shape());
            }
            let block = block.clone();
            let hook =
                at(name).edit_any(move |tensor, _| Ok(Some(tensor.with_blocks([(block.clone(), source.clone())]))));
            let logits = model.run_with_hooks(rows(&CORRUPTED[example..example + 1]), [hook]).unwrap();
            found.push(logit_diff(logits, example));
        }
    }
    found
}

fn assert_same(swept: &PatchingResult, layer: usize, expected: &[f64], what: &str) {
    let all: Vec<f64> = swept.values.values().iter().copied().collect();
    let own = &all[layer * expected.len()..(layer + 1) * expected.len()];
    for (given, wanted) in own.iter().zip(expected) {
        assert!((given - wanted).abs() < 2e-5 * wanted.abs().max(1.0), "{what}: {given} for {wanted}");
    }
}

/// Parts read more than the residual stream that a run restarts from: a dictionary with excluded tokens reads the
/// tokens, and a cross-layer transcoder the latents of earlier layers.
#[test]
fn sweeps_of_models_with_parts() {
    let (model, sae) = with_dictionary();
    // Tokens of both prompts, at the beginning and later.
    let left_out = [3, 7, 2];
    let without = sae.clone().exclude_tokens(left_out);
    let folder = tempfile::tempdir().unwrap();
    let clt = cross_layer(3, 16, folder.path(), "hook_resid_mid", "hook_mlp_out");
    for (what, spliced) in [
        ("with error term", model.splice_dictionary(&without).unwrap()),
        ("reconstruction", model.splice_dictionary(&without.clone().with_error_term(false)).unwrap()),
        ("cross-layer", model.splice_transcoders(&clt.clone().with_error_term(false)).unwrap()),
        ("cross-layer, without tokens", model.splice_transcoders(&clt.clone().exclude_tokens(left_out)).unwrap()),
    ] {
        let patching = Patching::new(&spliced, rows(&CLEAN), rows(&CORRUPTED), metric(&spliced)).unwrap();
        let names =
            ["blocks.0.hook_resid_pre", "blocks.1.attn.hook_z", "blocks.2.hook_mlp_out", "blocks.2.hook_resid_pre"];
        for name in names {
            let swept = patching.sweep(&Sites::new(name).per([Axis::Pos])).unwrap();
            assert_same(&swept, 0, &one_by_one(&spliced, name, &[1], Some(&CLEAN)), &format!("{what}, {name}"));
        }
    }
    // Latents of a dictionary with excluded tokens.
    let spliced = model.splice_dictionary(&without).unwrap();
    let patching = Patching::new(&spliced, rows(&CLEAN), rows(&CORRUPTED), metric(&spliced)).unwrap();
    let name = "blocks.1.hook_resid_post.hook_sae_acts_post";
    let swept = patching.sweep(&Sites::new(name).per([Axis::Pos])).unwrap();
    assert_same(&swept, 0, &one_by_one(&spliced, name, &[1], Some(&CLEAN)), name);
    assert!(swept.effect().values().iter().any(|effect| effect.abs() > 1e-3), "no latent does anything");
    // Restarted runs see the given tokens.
    let (tokens, stream) = (Tokens::new(rows(&CLEAN)).unwrap(), hook::resid_pre(1));
    let stream = spliced.record(&tokens, stream.clone()).unwrap().get(stream).unwrap();
    let options = ForwardOptions::new().start_at_layer(1).tokens(&tokens).record("hook_tokens");
    let seen = spliced.run(stream, options).unwrap();
    assert_eq!(seen.cache.activation("hook_tokens").unwrap().shape(), [2, 6]);
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn sweeps_equal_whole_runs(config in any_config(), seed in any::<u64>(), zero in any::<bool>()) {
        let model = random_model(config, seed);
        let patching = if zero {
            Patching::ablating(&model, rows(&CORRUPTED), Ablation::Zero, metric(&model)).unwrap()
        } else {
            Patching::new(&model, rows(&CLEAN), rows(&CORRUPTED), metric(&model)).unwrap()
        };
        let source = (!zero).then_some(&CLEAN[..]);
        let points: [(&str, &[Axis], &[usize]); 10] = [
            ("hook_resid_pre", &[Axis::Pos], &[1]),
            ("hook_attn_out", &[Axis::Pos], &[1]),
            ("hook_mlp_out", &[Axis::Pos], &[1]),
            ("attn.hook_z", &[Axis::Pos, Axis::Head], &[1, 2]),
            ("attn.hook_q", &[Axis::Head], &[2]),
            ("attn.hook_k", &[Axis::Pos, Axis::Head], &[1, 2]),
            ("attn.hook_v", &[Axis::Head], &[2]),
            ("attn.hook_pattern", &[Axis::Head, Axis::Query], &[1, 2]),
            ("attn.hook_rot_k", &[Axis::Pos], &[1]),
            ("mlp.hook_post", &[Axis::DMlp], &[2]),
        ];
        for (suffix, axes, places) in points {
            let has = |layer: &usize| model.catalog().find(&format!("blocks.{layer}.{suffix}")).is_ok();
            let layers: Vec<usize> = (0..2).filter(has).collect();
            if layers.is_empty() {
                continue;
            }
            // Results of layers with different numbers of heads or neurons do not fit into one table.
            let sizes = |layer: usize| {
                let config = model.config();
                (config.n_kv_heads_of(layer), config.d_head_of(layer), config.d_mlp_of(layer), config.experts_of(layer))
            };
            let alike = sizes(0) == sizes(1) && !model.config().has_states();
            let together = if alike { vec![layers] } else { layers.into_iter().map(|layer| vec![layer]).collect() };
            for layers in together {
                let names: Vec<String> = layers.iter().map(|layer| format!("blocks.{layer}.{suffix}")).collect();
                let swept = patching.sweep(&Sites::new(names).per(axes.iter().copied())).unwrap();
                for (place, layer) in layers.into_iter().enumerate() {
                    let expected = one_by_one(&model, &format!("blocks.{layer}.{suffix}"), places, source);
                    assert_same(&swept, place, &expected, suffix);
                }
            }
        }
        let swept = patching.sweep(&Sites::new("hook_embed").per([Axis::Pos])).unwrap();
        assert_same(&swept, 0, &one_by_one(&model, "hook_embed", &[1], source), "hook_embed");
    }

    #[test]
    fn patching_what_is_there_changes_nothing(config in any_config(), seed in any::<u64>()) {
        let model = random_model(config, seed);
        let patching = Patching::new(&model, rows(&CLEAN), rows(&CORRUPTED), metric(&model)).unwrap();
        for sites in [Sites::new("*hook_resid_pre").per([Axis::Pos]), Sites::new("*hook_z").per([Axis::Head])] {
            let control = patching.identity_control(&sites).unwrap();
            for (place, value) in control.values.values().indexed_iter() {
                let baseline = control.baseline[place[place.ndim() - 1]];
                prop_assert!((value - baseline).abs() < 2e-5 * baseline.abs().max(1.0), "{value} for {baseline}");
            }
        }
    }

    /// The direct path from a head to the logits is what its change adds to the final residual stream.
    #[test]
    fn direct_paths_to_the_logits_are_sums(config in any_plain(), seed in any::<u64>()) {
        let model = random_model(config, seed);
        let patching = Patching::new(&model, rows(&CLEAN), rows(&CORRUPTED), metric(&model)).unwrap();
        let found = patching.path_from_heads(&[Receiver::Logits], Freeze::AttentionAndMlps).unwrap();
        for example in 0..2 {
            let of = |tokens: &[[u32; 6]]| model.record(rows(&tokens[example..example + 1]), Record::all()).unwrap();
            let (clean, corrupted) = (of(&CLEAN), of(&CORRUPTED));
            for layer in 0..2isize {
                for head in 0..model.config().n_heads() {
                    let z = clean.get(hook::z(layer)).unwrap().narrow(2, head, 1);
                    let patch = hook::z(layer).edit(move |own, _| {
                        let [batch, len, _, d_head] = own.dims();
                        own.slice_assign([0..batch, 0..len, head..head + 1, 0..d_head], z.clone())
                    });
                    let options = ForwardOptions::new().hooks([patch]).logits(Logits::None).record(hook::attn_out(layer));
                    let patched = model.run(rows(&CORRUPTED[example..example + 1]), options).unwrap().cache;
                    let change = patched.get(hook::attn_out(layer)).unwrap() - corrupted.get(hook::attn_out(layer)).unwrap();
                    let stream = corrupted.get(hook::resid_post(-1)).unwrap() + change;
                    let wanted = logit_diff(model.unembed(stream).unwrap(), example);
                    let given = found.values.values()[[layer as usize, head, example]];
                    prop_assert!((given - wanted).abs() < 3e-5 * wanted.abs().max(1.0), "{given} for {wanted}");
                }
            }
        }
    }
}

/// With nothing frozen in between, a path to all readers of the next layer equals the patch itself.
#[test]
fn paths_to_all_readers_of_the_next_layer_are_the_patch_itself() {
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32).with_attn_only(true), 5);
    let patching = Patching::new(&model, rows(&CLEAN), rows(&CORRUPTED), metric(&model)).unwrap();
    let readers: Vec<Receiver> = (0..4)
        .flat_map(|head| [Receiver::Query(1, head), Receiver::Key(1, head), Receiver::Value(1, head)])
        .chain([Receiver::Logits])
        .collect();
    let paths = patching.path_from_heads(&readers, Freeze::AttentionAndMlps).unwrap();
    let patched = patching.attn_head_out_all_pos().unwrap();
    for head in 0..4 {
        for example in 0..2 {
            let (given, wanted) =
                (paths.values.values()[[0, head, example]], patched.values.values()[[0, head, example]]);
            assert!((given - wanted).abs() < 2e-5 * wanted.abs().max(1.0), "head {head}: {given} for {wanted}");
        }
    }
}

#[test]
fn metrics_of_all_positions_see_those_before_the_patch() {
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32), 5);
    let sum = Metric::all(|logits: Tensor<3>, _| {
        let [rows, ..] = logits.dims();
        logits.sum_dim(2).sum_dim(1).reshape([rows])
    });
    let patching = Patching::new(&model, rows(&CLEAN), rows(&CORRUPTED), sum).unwrap();
    let found = patching.resid_pre().unwrap();
    for pos in 0..6 {
        let clean = model.record(rows(&CLEAN[..1]), hook::resid_pre(1)).unwrap().get(hook::resid_pre(1)).unwrap();
        let patch = hook::resid_pre(1)
            .edit(move |own, _| own.slice_assign([0..1, pos..pos + 1, 0..16], clean.clone().narrow(1, pos, 1)));
        let wanted = model.run_with_hooks(rows(&CORRUPTED[..1]), [patch]).unwrap().sum().into_scalar::<f32>();
        let given = found.values.values()[[1, pos, 0]];
        assert!((given - f64::from(wanted)).abs() < 1e-3, "{given} for {wanted}");
    }
}

#[test]
fn the_sweep_finds_the_heads_that_do_the_task() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let prompts = ioi_prompts(40, 7);
    let (answers, wrong): (Vec<_>, Vec<_>) = prompts.iter().map(|p| (p.answer, p.wrong)).unzip();
    let clean: Vec<String> = prompts.iter().map(|p| p.text.clone()).collect();
    let accuracy = |hooks: Vec<hooklens::hook::Hook<'_>>| {
        let options = ForwardOptions::new().logits(Logits::Last).hooks(hooks);
        let best = model.forward_with(&clean, options).unwrap().argmax(2).into_data().convert::<i64>();
        let best: Vec<i64> = best.try_into_vec().unwrap();
        let right =
            best.iter().zip(&answers).filter(|(id, answer)| **id == i64::from(model.to_single_token(answer).unwrap()));
        right.count() as f64 / answers.len() as f64
    };
    assert!(accuracy(vec![]) > 0.95);
    let metric = Metric::logit_diff(&model, answers.clone(), wrong).unwrap();
    let ablating = Patching::ablating(&model, &clean, Ablation::Mean(clean.clone().into()), metric).unwrap();
    let effects = ablating.attn_head_out_all_pos().unwrap().effect().map(|change| -change);
    let worst: Vec<(usize, usize)> =
        effects.largest(3).iter().map(|(labels, _)| (labels[0].parse().unwrap(), labels[1].parse().unwrap())).collect();
    let without = |heads: &[(usize, usize)]| {
        let of_head = |&(layer, head): &(usize, usize)| {
            hook::z(layer as isize).edit(move |z, _| {
                let [batch, len, _, d_head] = z.dims();
                let mean = z.clone().mean_dim(0).mean_dim(1).narrow(2, head, 1).expand([batch, len, 1, d_head]);
                z.slice_assign([0..batch, 0..len, head..head + 1, 0..d_head], mean)
            })
        };
        accuracy(heads.iter().map(of_head).collect())
    };
    assert!(without(&worst) < 0.6, "without {worst:?}: {}", without(&worst));
    let least: Vec<(usize, usize)> = effects
        .map(|change| -change.abs())
        .largest(3)
        .iter()
        .map(|(labels, _)| (labels[0].parse().unwrap(), labels[1].parse().unwrap()))
        .collect();
    assert!(without(&least) > 0.95, "without {least:?}: {}", without(&least));
}

#[test]
fn what_cannot_be_patched_is_said() {
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32).with_kv_heads(2), 5);
    let short = vec![vec![1, 2, 3], vec![4, 5, 6]];
    let message = Patching::new(&model, rows(&CLEAN), short, metric(&model)).unwrap_err().to_string();
    assert!(message.contains("example 0 has 6 clean and 3 corrupted tokens"), "{message}");
    assert!(Patching::new(&model, rows(&CLEAN), rows(&CORRUPTED[..1]), metric(&model)).is_err());
    let three = Metric::logit(&model, vec![1, 2, 3]).unwrap();
    assert!(Patching::new(&model, rows(&CLEAN), rows(&CORRUPTED), three).is_err());
    let count = CLEAN.len() as u32;
    for (answers, wrong) in [(0..count, 0..count + 1), (0..count + 1, 0..count), (0..1, 0..count + 1)] {
        let lists = Metric::logit_diff(&model, answers.collect::<Vec<u32>>(), wrong.collect::<Vec<u32>>()).unwrap();
        let message = Patching::new(&model, rows(&CLEAN), rows(&CORRUPTED), lists).unwrap_err().to_string();
        assert_eq!(message, format!("the metric names tokens for {} examples, but there are {count}", count + 1));
    }
    assert!(Metric::logit(&model, 99).is_err());
    let patching = Patching::new(&model, rows(&CLEAN), rows(&CORRUPTED), metric(&model)).unwrap();
    let message = patching.sweep(&Sites::new("resid_pre0").per([Axis::Head])).unwrap_err().to_string();
    assert!(message.contains("has no axis `head`"), "{message}");
    assert!(patching.sweep(&Sites::new("hook_tokens")).unwrap_err().to_string().contains("integers"));
    let message = patching.attn_head_all_pos_every().unwrap_err().to_string();
    assert!(message.contains("sweep over them separately"), "{message}");
    assert!(patching.attn_head_k_all_pos().is_ok());
    assert!(patching.path_from_heads(&[Receiver::Key(1, 3)], Freeze::AttentionAndMlps).is_err());
    assert!(patching.path_from_heads(&[], Freeze::AttentionAndMlps).is_err());
    let nan = Metric::last(|logits: Tensor<2>, _| logits.sum_dim(1).squeeze_dim::<1>(1) * f32::NAN);
    let message =
        Patching::new(&model, rows(&CLEAN), rows(&CORRUPTED), nan).unwrap().resid_pre().unwrap_err().to_string();
    assert!(message.contains("the metric of example 0 is NaN without a patch"), "{message}");
    let wide = Metric::last(|logits: Tensor<2>, _| logits.reshape([20]));
    let message = Patching::new(&model, rows(&CLEAN), rows(&CORRUPTED), wide).unwrap().resid_pre().unwrap_err();
    assert!(matches!(message.downcast_ref(), Some(PatchError::MetricShape { rows: 1, given: 20 })));
    let patterns = Ablation::Mean(rows(&CLEAN).into());
    let ablating = Patching::ablating(&model, rows(&CORRUPTED), patterns, metric(&model)).unwrap();
    assert!(ablating.attn_head_pattern_all_pos().unwrap_err().to_string().contains("not comparable across positions"));
}

/// If a metric is NaN for one site only, the error names that site.
#[test]
fn a_metric_that_fails_names_the_site() {
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32), 5);
    let broken = Metric::last(|logits: Tensor<2>, _| {
        let [rows, _] = logits.dims();
        let values: Vec<f32> = (0..rows).map(|row| if row == 2 { f32::NAN } else { 0.0 }).collect();
        Tensor::from_floats(values.as_slice(), &logits.device())
    });
    let patching = Patching::new(&model, rows(&CLEAN), rows(&CORRUPTED), broken).unwrap();
    let message = patching.attn_head_out_all_pos().unwrap_err().to_string();
    assert!(message.contains("the metric of example 0 is NaN with blocks.0.attn.hook_z head 2 patched"), "{message}");
}

/// If both runs agree, effects can't be normalized: the error has both metrics, and the other results remain available.
#[test]
fn no_difference_has_no_shares() {
    let model = random_model(TransformerConfig::new(1, 16, 4, 20, 32), 1);
    let found = Patching::new(&model, rows(&CLEAN), rows(&CLEAN), metric(&model)).unwrap().resid_pre().unwrap();
    let message = found.normalized().unwrap_err();
    assert!(
        matches!(message, PatchError::NoDifference { unpatched, clean: Some(clean) } if unpatched == clean),
        "{message}"
    );
    let number = found.baseline.iter().sum::<f64>() / 2.0;
    assert!(message.to_string().matches(&number.to_string()).count() == 2, "{message}");
    assert!(found.effect().values().iter().all(|change| change.abs() < 1e-6));
    assert!(found.to_csv().lines().skip(1).all(|line| line.ends_with(",0,,0,0,1,1")), "{}", found.to_csv());
    let message = Patching::new(&model, vec![vec![1, 2]], vec![vec![1, 2, 3]], metric(&model)).map(drop).unwrap_err();
    assert_eq!(
        message.to_string(),
        "example 0 has 2 clean and 3 corrupted tokens; the prompts of a pair must have the same length"
    );
}

/// Shuffled pairs keep the patched prompts and their metrics, and no example keeps its own clean prompt.
#[test]
fn shuffled_pairs_take_patches_from_other_examples() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let clean: Vec<String> =
        ["Mary", "Tom", "Anna", "Lucy", "Paul"].map(|name| format!("When {name} and John")).to_vec();
    let clean: Vec<&str> = clean.iter().map(String::as_str).collect();
    let corrupted = ["When Kate and John"; 5];
    let metric = Metric::logit(&model, "John").unwrap();
    let patching = |clean: &[&str]| Patching::new(&model, clean, &corrupted[..clean.len()], metric.clone()).unwrap();
    let sites = || Sites::new("blocks.0.hook_resid_pre");
    let own = patching(&clean).sweep(&sites()).unwrap();
    for seed in 0..10 {
        let found = patching(&clean).shuffled(seed).unwrap().sweep(&sites()).unwrap();
        assert_eq!(found.baseline, own.baseline);
        let (mut all, mut shuffled) = (own.source.clone().unwrap(), found.source.clone().unwrap());
        assert!(all.iter().zip(&shuffled).all(|(own, other)| own != other), "{all:?}, {shuffled:?}");
        all.sort_by(f64::total_cmp);
        shuffled.sort_by(f64::total_cmp);
        assert_eq!(all, shuffled);
        let again = patching(&clean).shuffled(seed).unwrap().sweep(&sites()).unwrap();
        assert_eq!(found, again);
    }
    let error = |patching: Patching<'_>| patching.shuffled(0).unwrap_err().to_string();
    let message = error(patching(&clean[..1]));
    assert!(message.contains("example 0 is the only one with 5 tokens; add others of that length"), "{message}");
    let zeros = Patching::ablating(&model, "When Mary", Ablation::Zero, metric.clone()).unwrap();
    assert!(error(zeros).contains("zero and mean patches"));
}
