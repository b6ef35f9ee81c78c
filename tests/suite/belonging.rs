//! Recordings, components and caches are only combined if they belong together: they are matched by model, text, row
//! and position, or rejected.

use hooklens::activations::{AnalysisError, Stage};
use hooklens::dump::Dump;
use hooklens::experiments::{PrefixStore, SharedPrefix};
use hooklens::hook::Hook;
use hooklens::kv_cache::compat::{EasyDelCache, HuggingFaceCache};
use hooklens::prelude::*;
use hooklens::{CacheError, CacheKind, Error, HookError, PaddingSide};
use proptest::prelude::*;

use crate::support::{
    any_config, any_decoder, any_row, assert_close, cases, distance, failure, random_model, rounding_of, values,
};
use hooklens_model::config::{Layers, Settings};

const CLEAN: &str = "When Mary and John went to the store, John gave a drink to";
const CORRUPTED: &str = "When Mary and John went to the store, Mary gave a drink to";

fn io() -> HookedTransformer {
    HookedTransformer::from_pretrained("embedded:ioi").unwrap()
}

/// Points that a hook acts on.
#[derive(Debug, Clone, Copy)]
enum Place {
    ResidPre,
    Z,
    MlpOut,
    RotK,
    Pattern,
}

/// Action of a hook.
#[derive(Debug, Clone, Copy)]
enum Verb {
    Zero,
    Scale,
    Add,
    Edit,
    Replace,
    Mean,
}

/// Positions that a hook acts on.
#[derive(Debug, Clone)]
enum Where {
    Everywhere,
    At(usize),
    Between(usize, usize),
    These(Vec<usize>),
    Last,
}

fn any_hook() -> impl Strategy<Value = (Place, Verb, Where)> {
    let place = prop_oneof![
        3 => Just(Place::ResidPre), 2 => Just(Place::Z), 1 => Just(Place::MlpOut), 1 => Just(Place::RotK),
        1 => Just(Place::Pattern)
    ];
    let verb = prop_oneof![
        1 => Just(Verb::Zero), 1 => Just(Verb::Scale), 1 => Just(Verb::Add), 1 => Just(Verb::Edit),
        4 => Just(Verb::Replace), 2 => Just(Verb::Mean)
    ];
    let wheres = prop_oneof![
        Just(Where::Everywhere),
        (0..4usize).prop_map(Where::At),
        (0..3usize, 1..3usize).prop_map(|(first, count)| Where::Between(first, first + count)),
        prop::collection::vec(0..4usize, 1..3).prop_map(Where::These),
        Just(Where::Last),
    ];
    (place, verb, wheres)
}

/// Builds the hook, at the second layer.
fn hook_of<'r>(hook: &(Place, Verb, Where), recording: &'r ActivationCache, width: usize) -> Option<Hook<'r>> {
    let (place, verb, wheres) = hook;
    match place {
        Place::ResidPre => acting(hook::resid_pre(1), *verb, wheres, recording, width),
        Place::Z => acting(hook::z(1), *verb, wheres, recording, 0),
        Place::MlpOut => acting(hook::mlp_out(1), *verb, wheres, recording, width),
        Place::RotK => acting(hook::rot_k(1), *verb, wheres, recording, 0),
        Place::Pattern => acting(hook::pattern(1), *verb, wheres, recording, 0),
    }
}

fn acting<'r, const D: usize>(
    point: hook::Point<D>,
    verb: Verb,
    wheres: &Where,
    recording: &'r ActivationCache,
    width: usize,
) -> Option<Hook<'r>> {
    let slice = match wheres {
        Where::Everywhere => None,
        Where::At(n) => Some(point.positions(*n)),
        Where::Between(a, b) => Some(point.positions(*a..*b)),
        Where::These(list) => Some(point.positions(list.as_slice())),
        Where::Last => Some(point.positions(-1)),
    };
    let vector = || Tensor::<1>::ones([width.max(1)], &crate::support::device()) * 0.7;
    macro_rules! verbs {
        ($on:expr) => {
            match verb {
                Verb::Zero => $on.zero(),
                Verb::Scale => $on.scale(0.5),
                Verb::Add if width == 0 => return None,
                Verb::Add => $on.add(vector()),
                Verb::Edit => $on.edit(|x: Tensor<D>, _: &hook::At<'_>| x * 1.5),
                Verb::Replace => $on.replace(recording),
                Verb::Mean => $on.mean(recording),
            }
        };
    }
    Some(match slice {
        Some(slice) => verbs!(slice),
        None => verbs!(point),
    })
}

/// A batch with masked columns at these positions, padded at the end to a common width, and the token columns of each
/// row.
fn scattered(rows: &[Vec<u32>], holes: &[usize]) -> (Tokens, Vec<Vec<usize>>) {
    let wide = rows.iter().map(Vec::len).max().unwrap() + holes.len();
    let (mut ids, mut masks, mut columns) = (vec![], vec![], vec![]);
    for (number, row) in rows.iter().enumerate() {
        let mut own: Vec<Option<u32>> = row.iter().copied().map(Some).collect();
        for hole in holes {
            own.insert((hole + number).min(own.len()), None);
        }
        own.resize(wide, None);
        ids.push(own.iter().map(|id| id.unwrap_or(1)).collect());
        masks.push(own.iter().map(Option::is_some).collect());
        columns.push((0..wide).filter(|column| own[*column].is_some()).collect());
    }
    (Tokens::new(ids).unwrap().with_mask(masks).unwrap(), columns)
}

/// Recordings that the hooks need, as far as the model supports them.
fn recorded(model: &HookedTransformer, tokens: &Tokens) -> ActivationCache {
    let names = ["hook_resid_pre", "hook_mlp_out", "attn.hook_z", "attn.hook_rot_k", "attn.hook_pattern"];
    let there = names.map(|name| format!("blocks.1.{name}"));
    let there: Vec<String> = there.into_iter().filter(|name| model.catalog().find(name).is_ok()).collect();
    model.record(tokens, there).unwrap()
}

/// Whether an error is unrelated to the matching of texts and positions.
fn is_undefined(error: &Error) -> bool {
    let hook = |error: &HookError| {
        matches!(
            error,
            HookError::CannotFire { .. }
                | HookError::UnknownPoint { .. }
                | HookError::Undefined { .. }
                | HookError::NotRecorded { .. }
        )
    };
    match error {
        Error::Hook(error) => hook(error),
        Error::Cache(CacheError::Outgrown { .. }) => true,
        _ => false,
    }
}

macro_rules! or_skip {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) if is_undefined(&error) => return Ok(()),
            Err(error) => panic!("{error:?}"),
        }
    };
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(120) })]

    /// In a batch with any padding, and with a recording with any padding, a hook acts on each row as it does on the
    /// row alone.
    #[test]
    fn hooks_in_a_padded_batch_are_those_of_each_row_alone(
        config in any_decoder(), seed in 0..1000u64, rows in prop::collection::vec(any_row(4..7), 1..4),
        others in prop::collection::vec(any_row(6..7), 3..4), holes in prop::collection::vec(0..8usize, 0..4),
        other_holes in prop::collection::vec(0..8usize, 0..4), hook in any_hook(),
    ) {
        let model = random_model(config, seed);
        let others: Vec<Vec<u32>> = rows.iter().zip(&others).map(|(row, other)| other[..row.len()].to_vec()).collect();
        let (batch, columns) = scattered(&rows, &holes);
        let clean = recorded(&model, &scattered(&others, &other_holes).0);
        let width = model.config().d_model();
        let Some(own) = hook_of(&hook, &clean, width) else { return Ok(()) };
        let together = or_skip!(model.run_with_hooks(&batch, [own]));
        for (row, ids) in rows.iter().enumerate() {
            let alone = match hook.1 {
                // The mean is over all rows.
                Verb::Mean => clean.clone(),
                _ => recorded(&model, &Tokens::new(vec![others[row].clone()]).unwrap()),
            };
            let alone = model.run_with_hooks(vec![ids.clone()], [hook_of(&hook, &alone, width).unwrap()]).unwrap();
            let places: Vec<i32> = columns[row].iter().map(|column| *column as i32).collect();
            let places = Tensor::<1, burn::tensor::Int>::from_ints(places.as_slice(), &together.device());
            let own = together.clone().narrow(0, row, 1).select(1, places);
            assert_close(&own, &alone, 10.0 * rounding_of(model.config()), "a row of a batch");
        }
    }

    /// Running a text in two parts, with the first one cached, gives the same hook effects as running the whole text.
    #[test]
    fn hooks_after_a_cache_are_those_of_the_whole(
        config in any_decoder(), seed in 0..1000u64, rows in prop::collection::vec(any_row(6..7), 1..3),
        others in prop::collection::vec(any_row(6..7), 2..3), cut in 1..6usize, shorter in 0..3usize, hook in any_hook(),
    ) {
        let model = random_model(config, seed);
        // The last position of the first part is not the last position of the whole text.
        prop_assume!(!matches!(hook.2, Where::Last));
        let others: Vec<Vec<u32>> = others[..rows.len()].iter().map(|row| row[..6 - shorter].to_vec()).collect();
        let clean = recorded(&model, &Tokens::new(others).unwrap());
        let width = model.config().d_model();
        let hook_of = || hook_of(&hook, &clean, width);
        if hook_of().is_none() {
            return Ok(());
        }
        let part = |range: std::ops::Range<usize>| -> Vec<Vec<u32>> { rows.iter().map(|row| row[range.clone()].to_vec()).collect() };
        let mut cache = KeyValueCache::new(model.config(), rows.len());
        let options = ForwardOptions::new().hooks(hook_of()).kv_cache(&mut cache);
        or_skip!(model.forward_with(part(0..cut), options));
        let second = or_skip!(model.forward_with(part(cut..6), ForwardOptions::new().hooks(hook_of()).kv_cache(&mut cache)));
        // When the whole text is run, positions beyond the recording are errors, so the hook is limited to the recorded
        // positions.
        let mut empty = KeyValueCache::new(model.config(), rows.len());
        let whole = or_skip!(model.forward_with(part(0..6), ForwardOptions::new().hooks(hook_of()).kv_cache(&mut empty)));
        assert_close(&second, &whole.narrow(1, cut, 6 - cut), 10.0 * rounding_of(model.config()), "the second part");
    }

    /// Step by step, generation applies the same hooks as a single run over the generated text, in every row.
    #[test]
    fn hooks_in_generation_are_those_of_the_whole(
        config in any_config(), seed in 0..1000u64, rows in prop::collection::vec(any_row(3..6), 1..4),
        others in prop::collection::vec(any_row(7..8), 3..4), longer in 0..2usize, left: bool, stop in 0..20u32,
        hook in any_hook(),
    ) {
        prop_assume!(config.d_vocab_out() == config.d_vocab() && !matches!(hook.2, Where::Last));
        let model = random_model(config, seed);
        let side = if left { PaddingSide::Left } else { PaddingSide::Right };
        let others: Vec<Vec<u32>> =
            rows.iter().zip(&others).map(|(row, other)| other[..row.len() + longer].to_vec()).collect();
        let clean = recorded(&model, &Tokens::padded(&others, 0, PaddingSide::Right).unwrap());
        let width = model.config().d_model();
        if hook_of(&hook, &clean, width).is_none() {
            return Ok(());
        }
        // Rows end at different steps.
        let options = GenerateOptions::new().max_new_tokens(4).stop_at_eos(false).stop_tokens([stop]).logits();
        let prompts = Tokens::padded(&rows, 0, side).unwrap();
        let generated = or_skip!(model.generate_with(prompts, options.hooks(hook_of(&hook, &clean, width))));
        let logits = generated.logits.unwrap();
        for (row, prompt) in rows.iter().enumerate() {
            let new = &generated.rows[row].new;
            let text = [&prompt[..], &new[..new.len() - 1]].concat();
            let alone = match hook.1 {
                Verb::Mean => clean.clone(),
                _ => clean.rows(row..row + 1).unwrap(),
            };
            let mut empty = KeyValueCache::new(model.config(), 1);
            let own = ForwardOptions::new().hooks(hook_of(&hook, &alone, width)).kv_cache(&mut empty);
            let whole = or_skip!(model.forward_with(vec![text], own)).narrow(1, prompt.len() - 1, new.len());
            let given = logits.clone().narrow(0, row, 1).narrow(1, 0, new.len());
            assert_close(&given, &whole, 10.0 * rounding_of(model.config()), "the steps of a row");
        }
    }

    /// The baseline of a sweep under hooks equals the output of the model under hooks.
    #[test]
    fn sweeps_under_hooks_begin_with_each_examples_own(
        config in any_config(), seed in 0..1000u64, rows in prop::collection::vec(any_row(4..7), 1..4),
        others in prop::collection::vec(any_row(6..7), 3..4), hook in any_hook(),
    ) {
        prop_assume!(config.d_vocab_out() > 0);
        let model = random_model(config, seed);
        let others: Vec<Vec<u32>> = rows.iter().zip(&others).map(|(row, other)| other[..row.len()].to_vec()).collect();
        let padded = |rows: &[Vec<u32>]| Tokens::padded(rows, 0, PaddingSide::Right).unwrap();
        let clean = recorded(&model, &padded(&others));
        let Some(own) = hook_of(&hook, &clean, model.config().d_model()) else { return Ok(()) };
        let hooked = model.hooks([own]);
        let logits = or_skip!(hooked.run(padded(&rows), ForwardOptions::new().logits(Logits::Last))).logits.unwrap();
        let expected = values(&logits);
        let metric = Metric::last(|logits: Tensor<2>, _| logits.narrow(1, 1, 1).squeeze_dim::<1>(1));
        let patching = hooked.patching(padded(&others), padded(&rows)).metric(metric).unwrap();
        let swept = or_skip!(patching.sweep(&Sites::new("blocks.0.hook_resid_post")));
        for (row, baseline) in swept.baseline.iter().enumerate() {
            let expected = f64::from(expected[[row, 0, 1]]);
            prop_assert!((baseline - expected).abs() <= 1e-4 * (1.0 + expected.abs()), "{baseline} {expected}");
        }
    }

    /// `SharedPrefix` counts positions in whole rows.
    #[test]
    fn positions_after_a_shared_prefix_are_those_of_the_rows(
        config in any_config(), seed in 0..1000u64, start in any_row(1..6),
        ends in prop::collection::vec(any_row(2..3), 1..4), picks in prop::collection::vec(-3..6isize, 1..3), again: bool,
    ) {
        let model = random_model(config, seed);
        let rows: Vec<Vec<u32>> = ends.iter().map(|end| [&start[..], end].concat()).collect();
        let points = Selection::matching(|p| p.axes[0] != hook::Axis::Routed && !p.on_request);
        let record = Record::new(points).positions(picks);
        let mut shared = SharedPrefix::new(&model, record.clone(), Logits::None);
        let whole = match model.record(rows.clone(), record) {
            Ok(whole) => whole,
            Err(error) => {
                let message = shared.run(&rows).unwrap_err().to_string();
                prop_assert!(matches!(error, Error::Hook(HookError::Positions { .. })), "{error}");
                prop_assert!(message.contains(" not within"), "{message}");
                return Ok(());
            }
        };
        if again {
            shared.run(&[rows[0].clone(), [&start[..], &[7, 7]].concat()]).unwrap();
        }
        let given = shared.run(&rows).unwrap().cache;
        prop_assert_eq!(given.len(), whole.len());
        for (name, expected) in whole.iter() {
            let worst = distance(&given.activation(name).unwrap().to_ndarray().unwrap(), &expected.to_ndarray().unwrap());
            prop_assert!(worst <= 10.0 * rounding_of(model.config()), "{name}: {worst:e}");
        }
    }

    /// Penalties count the tokens of a prefix, so sampling after it equals sampling after the whole prompt.
    #[test]
    fn sampling_after_a_prefix_is_that_of_the_whole(
        config in any_config(), seed in 0..1000u64, row in any_row(4..8), cut in 1..4usize, kind in 0..4usize,
    ) {
        prop_assume!(config.d_vocab_out() == config.d_vocab());
        let model = random_model(config, seed);
        let sampling = [
            Sampling { frequency_penalty: 20.0, ..Sampling::default() },
            Sampling { repetition_penalty: 3.0, temperature: 0.8, ..Sampling::default() },
            Sampling { temperature: 1.0, top_k: Some(5), frequency_penalty: 1.0, ..Sampling::default() },
            Sampling { temperature: 0.7, top_p: Some(0.9), ..Sampling::default() },
        ][kind];
        let options = || GenerateOptions::new().max_new_tokens(5).stop_at_eos(false).sampling(sampling).seed(seed);
        let whole = model.generate_with(vec![row.clone()], options()).unwrap();
        let mut prefix = model.prefill(vec![row[..cut].to_vec()]).unwrap();
        prefix.freeze();
        let after = or_skip!(model.generate_with(vec![row[cut..].to_vec()], options().kv_cache(&mut prefix)));
        prop_assert_eq!(&after.rows[0].new, &whole.rows[0].new);
    }

    /// Decompositions of runs with hooks at any points sum to the residual stream.
    #[test]
    fn decompositions_add_up_with_any_edits(
        config in any_decoder(), seed in 0..1000u64, row in any_row(3..5), edits in prop::collection::vec(any::<u16>(), 1..4),
    ) {
        prop_assume!(!config.stream_is_normalized());
        let model = random_model(config, seed);
        let points: Vec<String> = model
            .catalog()
            .points()
            .iter()
            .filter(|point| !point.integer && point.axes[0] != hook::Axis::Routed && !point.name.ends_with("attn_scores"))
            .map(|point| point.name.to_string())
            .collect();
        let names: Vec<&str> = edits.iter().map(|edit| points[usize::from(*edit) % points.len()].as_str()).collect();
        let hooks = names.iter().map(|name| at(*name).edit_any(|x, _| Ok(Some(&x + &x))));
        let record = Record::new(Selection::all().and("*hook_result"));
        // Some edits contradict each other.
        let Ok(output) = model.run(vec![row], ForwardOptions::new().hooks(hooks).record(record)) else { return Ok(()) };
        let cache = output.cache;
        let analysis = model.analyze(&cache).unwrap();
        for stage in [Stage::Before(0), Stage::Before(1), Stage::Final] {
            let stream = analysis.stream(stage).unwrap();
            let close = |sum: Tensor<3>, what: &str| assert_close(&sum, &stream, 1e-4, &format!("{what}, {names:?}"));
            close(analysis.decompose_resid(stage).unwrap().sum(), "layers");
            close(analysis.full_resid_decomposition(stage, Neurons::Summed).unwrap().sum(), "heads");
            close(analysis.full_resid_decomposition(stage, Neurons::Apart).unwrap().sum(), "neurons");
            let heads = analysis.stack_head_results(stage).unwrap();
            close(analysis.with_remainder(heads).unwrap().sum(), "heads with the rest");
        }
    }

    /// A mask with holes does not change a row's loss.
    #[test]
    fn a_loss_does_not_see_holes(
        config in any_decoder(), seed in 0..1000u64, rows in prop::collection::vec(any_row(3..6), 1..3),
        holes in prop::collection::vec(0..6usize, 1..4),
    ) {
        prop_assume!(config.d_vocab_out() == config.d_vocab());
        let model = random_model(config, seed);
        let len = rows.iter().map(Vec::len).max().unwrap() + holes.len();
        let (mut ids, mut masks) = (vec![], vec![]);
        for row in &rows {
            let (mut id, mut mask): (Vec<u32>, Vec<bool>) = (row.clone(), vec![true; row.len()]);
            for hole in &holes {
                let at = (*hole).min(id.len());
                id.insert(at, 1);
                mask.insert(at, false);
            }
            id.resize(len, 1);
            mask.resize(len, false);
            ids.push(id);
            masks.push(mask);
        }
        let tokens = Tokens::new(ids).unwrap().with_mask(masks).unwrap();
        let each = model.run(&tokens, ForwardOptions::new().loss_per_token()).unwrap().loss_per_token.unwrap();
        let (mut sum, mut count) = (0.0, 0);
        for row in &rows {
            let alone = model.run(vec![row.clone()], ForwardOptions::new().loss_per_token()).unwrap().loss_per_token.unwrap();
            sum += alone.sum().into_scalar::<f32>();
            count += row.len() - 1;
        }
        let together = each.sum().into_scalar::<f32>();
        prop_assert!((together - sum).abs() <= 1e-4 * (1.0 + sum.abs()), "{together} {sum}");
        let mean = model.loss(&tokens).unwrap().into_scalar::<f32>();
        prop_assert!((mean - sum / count as f32).abs() <= 1e-4 * (1.0 + mean.abs()), "{mean}");
    }
}

fn replaced<'r>(point: &str, positions: Option<isize>, recording: &'r ActivationCache) -> Hook<'r> {
    let point = hook::Point::<3>::new(point);
    match positions {
        Some(at) => point.positions(at).replace(recording),
        None => point.replace(recording),
    }
}

/// In every family, hooks in a padded batch and after a cache act as in single runs of each row.
#[test]
fn hooks_of_every_family_are_those_of_each_row() {
    let (mut families, mut wrong) = (0, vec![]);
    for name in crate::support::fixtures_with("golden.safetensors") {
        let model = crate::parity::load(&name, LoadOptions::new());
        let width = model.config().d_vocab().min(19) as u32;
        let row = |seed: u32, len: u32| (0..len).map(|at| (at * 7 + seed * 5 + 1) % width).collect::<Vec<u32>>();
        let (rows, others) = ([row(1, 4), row(2, 3)], [row(3, 4), row(4, 3)]);
        let points = ["blocks.1.hook_resid_pre", "blocks.0.hook_resid_pre", "blocks.0.hook_mlp_out", "hook_embed"];
        let Some(point) = points.into_iter().find(|point| model.catalog().find(point).is_ok()) else { continue };
        let recorded = |tokens: &Tokens| model.record(tokens, point).unwrap();
        let clean = recorded(&Tokens::padded(&others, 0, PaddingSide::Left).unwrap());
        for positions in [None, Some(1isize), Some(-1)] {
            let Ok(together) = model.run_with_hooks(
                Tokens::padded(&rows, 0, PaddingSide::Right).unwrap(),
                [replaced(point, positions, &clean)],
            ) else {
                wrong.push(format!("{name}: refused"));
                continue;
            };
            for (number, ids) in rows.iter().enumerate() {
                let alone = recorded(&Tokens::new(vec![others[number].clone()]).unwrap());
                let whole = model.run_with_hooks(vec![ids.clone()], [replaced(point, positions, &alone)]).unwrap();
                let given = together.clone().narrow(0, number, 1).narrow(1, 0, ids.len());
                let apart = distance(&values(&given), &values(&whole));
                if apart > 1e-4 {
                    wrong.push(format!("{name}, row {number} at {positions:?}: {apart:e}"));
                }
                // The last position of the first part is not the last position of the whole text.
                if positions == Some(-1) {
                    continue;
                }
                let mut cache = KeyValueCache::new(model.config(), 1);
                let part = |range: std::ops::Range<usize>| vec![ids[range].to_vec()];
                let options = ForwardOptions::new().hooks([replaced(point, positions, &alone)]).kv_cache(&mut cache);
                if let Err(error) = model.forward_with(part(0..2), options) {
                    assert!(matches!(error, Error::Cache(CacheError::Bidirectional)), "{name}: {error}");
                    continue;
                }
                let options = ForwardOptions::new().hooks([replaced(point, positions, &alone)]).kv_cache(&mut cache);
                let rest = match model.forward_with(part(2..ids.len()), options) {
                    Ok(rest) => rest,
                    Err(Error::Cache(CacheError::Outgrown { .. })) => continue,
                    Err(error) => panic!("{name}: {error}"),
                };
                let apart = distance(&values(&rest), &values(&whole.narrow(1, 2, ids.len() - 2)));
                if apart > 1e-4 {
                    wrong.push(format!("{name}, row {number} at {positions:?} after a cache: {apart:e}"));
                }
            }
        }
        families += 1;
    }
    assert!(families > 120, "{families}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The hook from docs/hooks.md that replaces the last position also works in generation.
#[test]
fn a_replaced_last_position_is_the_recordings_own() {
    let model = io();
    let clean = model.record(CLEAN, Record::all()).unwrap();
    let generated = |positions: bool| {
        let hook = if positions {
            hook::resid_pre(3).positions(-1).replace(&clean)
        } else {
            hook::resid_pre(3).replace(&clean)
        };
        let options = GenerateOptions::new().max_new_tokens(4).stop_at_eos(false).hooks([hook]);
        model.generate_with(CORRUPTED, options).unwrap().rows[0].new.clone()
    };
    assert_eq!(generated(true), [1, 60, 21, 2]);
    assert_eq!(generated(false), [1, 60, 21, 2]);
    // After five cached tokens, the suffix has its own columns of the recording.
    let tokens = model.to_tokens(CORRUPTED).unwrap();
    let whole = model.run_with_hooks(&tokens, [hook::z(1).replace(&clean)]).unwrap();
    let mut cache = model.hooks([hook::z(1).replace(&clean)]).prefill(vec![tokens.row(0)[..5].to_vec()]).unwrap();
    let options = ForwardOptions::new().kv_cache(&mut cache).hooks([hook::z(1).replace(&clean)]);
    let rest = model.forward_with(vec![tokens.row(0)[5..].to_vec()], options).unwrap();
    assert_close(&rest, &whole.narrow(1, 5, 10), 1e-5, "the suffix");
}

/// Prompt positions can be edited and recorded during generation.
#[test]
fn positions_of_the_prompt_are_there_while_generating() {
    let model = io();
    let vector = Tensor::<1>::ones([64], &crate::support::device());
    let options = || GenerateOptions::new().max_new_tokens(4).stop_at_eos(false);
    let hook = || hook::resid_pre(2).positions(2).add(vector.clone());
    let steered = model.generate_with(CLEAN, options().hooks([hook()]).logits()).unwrap();
    let text = [model.to_tokens(CLEAN).unwrap().row(0), &steered.rows[0].new[..3]].concat();
    let whole = model.run_with_hooks(vec![text.clone()], [hook()]).unwrap().narrow(1, 14, 4);
    assert_close(&steered.logits.unwrap(), &whole, 1e-5, "steered");
    for (positions, rows) in [(vec![2usize, 16], 2), (vec![15], 1)] {
        let record = Record::new("resid_post1").positions(positions.clone());
        let recorded = model.generate_with(CLEAN, options().record(record.clone())).unwrap().recording().unwrap();
        let plain = model.generate_with(CLEAN, options()).unwrap();
        let text = [model.to_tokens(CLEAN).unwrap().row(0), &plain.rows[0].new[..3]].concat();
        let whole = model.record(vec![text], record).unwrap();
        let (given, expected) = (recorded.get(hook::resid_post(1)).unwrap(), whole.get(hook::resid_post(1)).unwrap());
        assert_eq!(given.dims()[1], rows);
        assert_close(&given, &expected, 1e-5, "recorded");
    }
    // A position that the text never reaches is an error before the first step.
    for message in [
        model.generate_with(CLEAN, options().hooks([hook::resid_pre(2).positions(18).zero()])).unwrap_err(),
        model.generate_with(CLEAN, options().record(Record::new("z0").positions(18))).unwrap_err(),
    ] {
        assert!(message.to_string().contains("position 18 is not within the 18 positions"), "{message}");
    }
    // Hooks and recordings that count positions within each step use other methods.
    let mut shapes = vec![];
    let look = hook::resid_pre(0).new_positions(0).read(|x, at| shapes.push((at.offset(), x.dims()[1])));
    model.generate_with(CLEAN, options().hooks([look])).unwrap();
    assert_eq!(shapes, [(0, 1), (15, 1), (16, 1), (17, 1)]);
}

/// Passing a recording of another run gives the right value, or an error that names the difference.
#[test]
fn recordings_of_other_texts_rows_and_models_are_refused() {
    let model = io();
    let clean = model.record(CLEAN, Record::all()).unwrap();
    let short = vec![model.to_tokens(CLEAN).unwrap().row(0)[..5].to_vec()];
    let message = |result: Result<Tensor<3>, Error>| match result {
        Err(Error::Hook(error)) => error,
        other => panic!("{other:?}"),
    };
    // A text of a different length.
    for hook in [
        hook::resid_pre(1).positions(-1).replace(&clean),
        hook::resid_pre(1).positions(1..).replace(&clean),
        hook::resid_pre(1).replace(&clean),
        hook::pattern(1).positions(0..2).replace(&clean),
    ] {
        let message = message(model.run_with_hooks(short.clone(), [hook]));
        assert!(matches!(message, HookError::OtherLength { run: 5, recorded: 15, row: 0, .. }), "{message}");
    }
    // Counted from the start, positions are the same in both texts.
    let by_hand = clean.get(hook::resid_pre(1)).unwrap().narrow(1, 2, 1);
    let given = model.run_with_hooks(short.clone(), [hook::resid_pre(1).positions(2).replace(&clean)]).unwrap();
    let put = at("resid_pre1").edit(|x: Tensor<3>, _| x.slice_assign([0..1, 2..3, 0..64], by_hand.clone()));
    let expected = model.run_with_hooks(short.clone(), [put]).unwrap();
    assert_close(&given, &expected, 1e-6, "position 2");
    // A recording with a different number of rows.
    let two = model.record(vec![vec![1u32; 5]; 2], Record::all()).unwrap();
    let error = message(model.run_with_hooks(vec![vec![2u32; 5]; 3], [hook::z(0).replace(&two)]));
    assert!(matches!(error, HookError::OtherRows { recorded: 2, run: 3, .. }), "{error}");
    let error = message(model.run_with_hooks(vec![vec![2u32; 5]], [hook::z(0).replace(&two)]));
    assert!(matches!(error, HookError::OtherRows { recorded: 2, run: 1, .. }), "{error}");
    // Rows are also checked in a sweep, where all rows are copies of one example.
    let hooked = model.hooks([hook::z(0).replace(&two)]);
    let metric = Metric::last(|logits: Tensor<2>, _| logits.narrow(1, 1, 1).squeeze_dim::<1>(1));
    let patching = hooked.patching(vec![vec![2u32; 5]], vec![vec![3u32; 5]]).metric(metric).unwrap();
    let error = patching.sweep(&Sites::new("resid_pre1").per([hook::Axis::Pos])).unwrap_err();
    assert!(matches!(error, Error::Hook(HookError::OtherRows { recorded: 2, run: 1, .. })), "{error}");
    // A recording of a different model, however similar, is rejected unless it is explicitly allowed.
    let folded = model.clone().processed(&Processing::standard()).unwrap();
    let foreign = folded.record(CLEAN, Record::all()).unwrap();
    for hook in [hook::z(1).replace(&foreign), hook::z(1).mean(&foreign)] {
        let error = message(model.run_with_hooks(CORRUPTED, [hook]));
        assert!(matches!(error, HookError::OtherModel { .. }), "{error}");
    }
    let meant = foreign.for_any_model();
    assert!(model.run_with_hooks(CORRUPTED, [hook::z(1).replace(&meant)]).is_ok());
    // Positions that were not recorded.
    let last = model.record(CLEAN, Record::all().positions(-1)).unwrap();
    assert!(model.run_with_hooks(CORRUPTED, [hook::z(1).positions(-1).replace(&last)]).is_ok());
    let error = message(model.run_with_hooks(CORRUPTED, [hook::z(1).positions(3).replace(&last)]));
    assert!(matches!(error, HookError::Unmatched { position: 3, row: 0, .. }), "{error}");
    // A recording without a batch axis is used in the same way.
    let bare = model.record(CLEAN, Record::all().remove_batch()).unwrap();
    let [with, without] = [&clean, &bare].map(|cache| {
        model.run_with_hooks(CORRUPTED, [hook::z(1).replace(cache), hook::mlp_out(0).mean(cache)]).unwrap()
    });
    assert_close(&without, &with, 1e-6, "without a batch axis");
    assert_eq!(bare.rows(0..1).unwrap().activation("z1").unwrap().shape(), [15, 4, 16]);
    // A recording in another dtype is converted.
    let half = model.record(CLEAN, Record::all().dtype(DType::F16)).unwrap();
    let rounded = model.run_with_hooks(CORRUPTED, [hook::z(1).replace(&half)]).unwrap();
    let exact = model.run_with_hooks(CORRUPTED, [hook::z(1).replace(&clean)]).unwrap();
    assert_close(&rounded, &exact, 1e-2, "in f16");
    // A mean over positions is rejected if an axis has a different meaning at each position.
    let error = message(model.run_with_hooks(CORRUPTED, [hook::pattern(1).mean(&clean)]));
    assert!(error.to_string().contains("scores and patterns mean something different at each position"), "{error}");
}

/// Means of padded recordings ignore padding, also at MoE points.
#[test]
fn means_are_over_tokens() {
    let experts = Some(hooklens_model::config::Experts::new(4, 2));
    let config = TransformerConfig::new(2, 16, 4, 20, 32)
        .with_gated_mlp(true)
        .with_mixture(experts)
        .with_qk_norm(hooklens_model::config::QkNorm::HEADS);
    let model = random_model(config, 3);
    let rows = [vec![1u32, 2, 3, 4, 5, 6, 7], vec![8, 9, 10]];
    for side in [PaddingSide::Left, PaddingSide::Right] {
        let padded = model.record(Tokens::padded(&rows, 0, side).unwrap(), Record::all()).unwrap();
        let mut seen = 0;
        for name in
            ["blocks.0.hook_resid_pre", "blocks.1.mlp.hook_expert_weights", "blocks.0.attn.q_norm.hook_normalized"]
        {
            let alone: Vec<_> = rows
                .iter()
                .map(|row| {
                    model.record(vec![row.clone()], name).unwrap().activation(name).unwrap().to_ndarray().unwrap()
                })
                .collect();
            // One row per token, and per head if the point has both on one axis.
            let width = *alone[0].shape().last().unwrap();
            let per_token = alone[0].len() / width / rows[0].len();
            let mut mean = vec![0.0; width * per_token];
            for values in &alone {
                for (at, value) in values.iter().enumerate() {
                    mean[at % (width * per_token)] += value / 10.0;
                }
            }
            let mut replaced = vec![];
            let hook: Hook<'_> = match name {
                "blocks.0.hook_resid_pre" => hook::resid_pre(0).mean(&padded),
                "blocks.1.mlp.hook_expert_weights" => hook::expert_weights(1).mean(&padded),
                _ => hook::q_norm_normalized(0).mean(&padded),
            };
            let look = at(name).read_any(|x, _| {
                replaced = x.to_ndarray()?.into_iter().collect::<Vec<f32>>();
                Ok::<(), HookError>(())
            });
            model.run_with_hooks(vec![vec![3u32, 1, 4]], [hook, look]).unwrap();
            assert_eq!(replaced.len(), 3 * mean.len(), "{name}");
            for (at, value) in replaced.iter().enumerate() {
                assert!((value - mean[at % mean.len()]).abs() < 1e-5, "{name} at {at}: {value}");
            }
            seen += 1;
        }
        assert_eq!(seen, 3);
    }
}

/// Components belong to the rows and positions of one recording.
#[test]
fn components_of_other_places_are_refused() {
    let model = io();
    let cache = model.record(CLEAN, Record::all()).unwrap();
    let whole = model.analyze(&cache).unwrap();
    let last = whole.clone().positions(-1).unwrap();
    let all = whole.decompose_resid(Stage::Final).unwrap();
    let heads = whole.stack_head_results(Stage::Final).unwrap();
    let message = |result: Result<(), Error>| match result {
        Err(error) if matches!(error.downcast_ref(), Some(AnalysisError::OtherPlaces { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    };
    for message in [
        message(last.logit_attrs(&all, Direction::token("Mary")).map(drop)),
        message(last.apply_ln(all.clone()).map(drop)),
        message(last.normalize_each(&all).map(drop)),
        message(last.with_remainder(heads.clone()).map(drop)),
        message(whole.clone().positions(3..5).unwrap().with_remainder(heads.clone()).map(drop)),
    ] {
        assert!(
            message.contains("rows [0] at positions [0..15]") && message.contains("the analysis covers rows [0]"),
            "{message}"
        );
    }
    // Another text of the same shape.
    let other = model.record(CORRUPTED, Record::all()).unwrap();
    let other = model.analyze(&other).unwrap();
    let message = message(other.with_remainder(heads.clone()).map(drop));
    assert!(message.contains("of a different recording"), "{message}");
    // Another recording of the same text counts as the same.
    let again = model.record(CLEAN, Record::all()).unwrap();
    let again = model.analyze(&again).unwrap();
    assert_close(&again.with_remainder(heads).unwrap().sum(), &whole.stream(Stage::Final).unwrap(), 1e-5, "again");
    // So does the same position, whether it is selected when recording or when analyzing.
    let at_last = model.record(CLEAN, Record::all().positions(-1)).unwrap();
    let at_last = model.analyze(&at_last).unwrap();
    let own = at_last.decompose_resid(Stage::Final).unwrap();
    assert!(last.logit_attrs(&own, Direction::token("Mary")).is_ok());
    // Rows of a batch.
    let tokens =
        vec![model.to_tokens(CLEAN).unwrap().row(0).to_vec(), model.to_tokens(CORRUPTED).unwrap().row(0).to_vec()];
    let batch = model.record(tokens, Record::all()).unwrap();
    let batch = model.analyze(&batch).unwrap();
    let second = batch.clone().rows(1..2).unwrap();
    assert!(
        second.with_remainder(batch.clone().rows(0..1).unwrap().stack_head_results(Stage::Final).unwrap()).is_err()
    );
    assert!(second.with_remainder(second.stack_head_results(Stage::Final).unwrap()).is_ok());
}

/// Analyses count positions in each row's own text.
#[test]
fn analyses_of_padded_rows_look_at_tokens() {
    let model = io();
    let rows = [
        model.to_tokens(CLEAN).unwrap().row(0).to_vec(),
        model.to_tokens("When Mary and John").unwrap().row(0).to_vec(),
    ];
    for side in [PaddingSide::Left, PaddingSide::Right] {
        let batch = model.record(Tokens::padded(&rows, 0, side).unwrap(), Record::all()).unwrap();
        let last = model.analyze(&batch).unwrap().positions(-1).unwrap().stream(Stage::Final).unwrap();
        for (row, ids) in rows.iter().enumerate() {
            let alone = model.record(vec![ids.clone()], Record::all()).unwrap();
            let alone = model.analyze(&alone).unwrap().positions(-1).unwrap().stream(Stage::Final).unwrap();
            assert_close(&last.clone().narrow(0, row, 1), &alone, 1e-5, "the last token's stream");
        }
    }
}

/// Additions to the residual stream by hooks are a separate component.
#[test]
fn what_hooks_added_is_named() {
    let model = io();
    let hooked = model.hooks([hook::resid_pre(2).edit(|x, _| x + 1.0)]);
    let cache = hooked.record(CLEAN, Record::all()).unwrap();
    let analysis = model.analyze(&cache).unwrap();
    let parts = analysis.decompose_resid(Stage::Final).unwrap();
    assert_close(&parts.sum(), &analysis.stream(Stage::Final).unwrap(), 1e-5, "the sum");
    let added = parts.vector("added by hooks").unwrap();
    assert_close(&added, &added.ones_like(), 1e-4, "what was added");
    // Nothing was added before the hook.
    let before = analysis.decompose_resid(Stage::Before(1)).unwrap();
    assert!(!before.labels().iter().any(|label| label == "added by hooks"));
    // After the hook, the stream is not the previous layer's output.
    let posts = hooked.record(CLEAN, "*hook_resid_post").unwrap();
    let message = model.analyze(&posts).unwrap().stream(Stage::Before(2)).unwrap_err().to_string();
    assert!(message.contains("blocks.2.hook_resid_pre"), "{message}");
    // If the output of a norm was edited, the layer after it did not read the norm of the stream.
    let edited = model.hooks([hook::final_normalized().edit(|x, _| x * 2.0)]).record(CLEAN, Record::all()).unwrap();
    let analysis = model.analyze(&edited).unwrap();
    let message = analysis.logit_attrs(&analysis.decompose_resid(Stage::Final).unwrap(), Direction::token("Mary"));
    assert!(matches!(failure(message), Some(AnalysisError::EditedNorm { .. })));
    // A head whose result was removed wrote nothing.
    let ablated = model.hooks([hook::result(1).head(2).zero()]);
    let ablated = ablated.record(CLEAN, Record::new(Selection::all().and("*hook_result"))).unwrap();
    let heads = model.analyze(&ablated).unwrap().stack_head_results(Stage::Final).unwrap();
    assert_eq!(heads.vector("L1H2").unwrap().abs().max().into_scalar::<f32>(), 0.0);
}

/// Before the first layer there are no heads, so the whole stream is the remainder.
#[test]
fn a_remainder_before_the_first_layer_is_the_stream() {
    let model = io();
    let cache = model.record(CLEAN, Record::all()).unwrap();
    let analysis = model.analyze(&cache).unwrap();
    let none = analysis.stack_head_results(Stage::Before(0)).unwrap();
    assert_eq!((none.labels().len(), none.vectors().dims()), (0, [0, 1, 15, 64]));
    assert_eq!(analysis.logit_attrs(&none, Direction::token("Mary")).unwrap().dims(), [0, 1, 15]);
    assert_eq!(none.sum().abs().max().into_scalar::<f32>(), 0.0);
    let rest = analysis.with_remainder(none).unwrap();
    assert_eq!(rest.labels(), ["remainder"]);
    assert_close(&rest.sum(), &analysis.stream(Stage::Before(0)).unwrap(), 0.0, "the rest");
}

/// A cache belongs to the model that computed it.
#[test]
fn caches_of_other_models_are_refused() {
    let config = TransformerConfig::new(2, 16, 4, 20, 32);
    let [model, other] = [1, 2].map(|seed| random_model(config.clone(), seed));
    let is_other = |error: Error| assert!(matches!(error, Error::Cache(CacheError::OtherWeights { .. })), "{error}");
    let ids = vec![1u32, 2, 3];
    let foreign = || other.prefill(vec![ids.clone()]).unwrap();
    is_other(PrefixStore::new(&model).insert(vec![ids.clone()], foreign()).unwrap_err());
    is_other(model.forward_with([4], ForwardOptions::new().kv_cache(&mut foreign())).unwrap_err());
    is_other(model.generate_with([4], GenerateOptions::new().kv_cache(&mut foreign())).unwrap_err());
    let mut frozen = foreign();
    frozen.freeze();
    is_other(model.generate_with([4], GenerateOptions::new().kv_cache(&mut frozen)).unwrap_err());
    let mut own = model.prefill(vec![ids.clone()]).unwrap();
    assert!(matches!(own.insert(&foreign(), 0), Err(CacheError::OtherWeights { .. })));
    let folder = tempfile::tempdir().unwrap();
    is_other(foreign().save(folder.path().join("x.safetensors"), &model).unwrap_err());
    // This includes caches from before the model was edited, trained or processed, and caches derived from them. Edits
    // of weights on a GPU are not detected.
    let device = std::env::var(hooklens_model::device::DEVICE_VARIABLE).unwrap_or_default();
    let in_memory = ["", "flex", "libtorch"].contains(&device.as_str());
    if !in_memory {
        crate::support::skipped("edits of weights are seen in main memory alone");
    }
    let mut edited = model.clone();
    let scaled = edited.weights().get::<1>("blocks.1.ln1.w").unwrap() * 1.01;
    edited.weights_mut().set("blocks.1.ln1.w", scaled).unwrap();
    let mut before = model.prefill(vec![ids.clone()]).unwrap();
    if in_memory {
        is_other(edited.forward_with([4], ForwardOptions::new().kv_cache(&mut before.fork(1).unwrap())).unwrap_err());
    }
    let folded = model.clone().processed(&Processing::standard()).unwrap();
    is_other(folded.forward_with([4], ForwardOptions::new().kv_cache(&mut before)).unwrap_err());
    let data = before.to_data().unwrap();
    let mut again = KeyValueCache::from_data(&data, &model.device()).unwrap();
    is_other(folded.forward_with([4], ForwardOptions::new().kv_cache(&mut again)).unwrap_err());
    let mut kind = before.to_kind(CacheKind::GROWING.limited(8)).unwrap();
    is_other(folded.forward_with([4], ForwardOptions::new().kv_cache(&mut kind)).unwrap_err());
    // Repeated in-place edits of the weights are detected, too.
    let mut trained = model.clone();
    let mut seen = vec![trained.prefill(vec![ids.clone()]).unwrap()];
    for head in 0..if in_memory { 4 } else { 0 } {
        let zeroed = |w: Tensor<2>| w.slice_fill([head * 4..head * 4 + 4, 0..16], 0.0);
        let weight = zeroed(trained.weights().get("blocks.1.attn.W_O").unwrap());
        trained.weights_mut().set("blocks.1.attn.W_O", weight).unwrap();
        for cache in &mut seen {
            is_other(trained.forward_with([4], ForwardOptions::new().kv_cache(cache)).unwrap_err());
        }
        seen.push(trained.prefill(vec![ids.clone()]).unwrap());
    }
    // A clone, and a model with the same weights, count as the same model. An emptied cache fits any model.
    assert!(model.clone().forward_with([4], ForwardOptions::new().kv_cache(&mut before)).is_ok());
    model.save_pretrained(folder.path()).unwrap();
    let loaded = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap();
    let twice = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap();
    let mut cache = loaded.prefill(vec![ids.clone()]).unwrap();
    assert!(twice.forward_with([4], ForwardOptions::new().kv_cache(&mut cache)).is_ok());
    before.truncate(0).unwrap();
    assert!(other.forward_with(vec![ids.clone()], ForwardOptions::new().kv_cache(&mut before)).is_ok());
    // A recording also belongs to the model that made it.
    let recorded = other.record(vec![ids.clone()], Record::all()).unwrap();
    assert!(matches!(failure(model.analyze(&recorded)), Some(AnalysisError::OtherModel { .. })));
    // A cache with masked positions is not a cache of the whole text.
    let mut hiding = model.prefill(vec![ids.clone()]).unwrap();
    hiding.insert_starts(&[1], 0).unwrap();
    let message = PrefixStore::new(&model).insert(vec![ids.clone()], hiding).unwrap_err();
    assert!(matches!(message, Error::Cache(CacheError::Hides)), "{message}");
    // A store's text is the text of its cache.
    let message =
        PrefixStore::new(&model).insert(vec![vec![1u32, 2, 4]], model.prefill(vec![ids]).unwrap()).unwrap_err();
    assert!(matches!(message, Error::Cache(CacheError::OtherText { position: 2, .. })), "{message}");
}

/// A cache keeps track of its tokens through all operations.
#[test]
fn caches_know_their_tokens() {
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32), 1);
    let mut cache = model.prefill(vec![vec![1u32, 2, 3], vec![4, 5, 6]]).unwrap();
    cache.select_rows(&[1, 0, 1]).unwrap();
    assert_eq!(cache.tokens().unwrap(), [[4, 5, 6], [1, 2, 3], [4, 5, 6]]);
    cache.truncate(2).unwrap();
    cache.insert_index(&[1], 0).unwrap();
    assert_eq!(cache.tokens().unwrap(), [vec![4], vec![1, 2], vec![4, 5]]);
    let one = model.prefill([7, 8, 9, 10]).unwrap();
    cache.insert(&one, 1).unwrap();
    assert_eq!(cache.tokens().unwrap(), [vec![4], vec![7, 8, 9, 10], vec![4, 5]]);
    let again = KeyValueCache::from_data(&cache.to_data().unwrap(), &model.device()).unwrap();
    assert_eq!(again.tokens(), cache.tokens());
    let folder = tempfile::tempdir().unwrap();
    cache.save(folder.path().join("x.safetensors"), &model).unwrap();
    let mut loaded = KeyValueCache::load(folder.path().join("x.safetensors"), &model).unwrap();
    assert_eq!(loaded.tokens(), cache.tokens());
    // Legacy tuples do not contain the tokens, which penalties need.
    let tuples = model.prefill([1, 2]).unwrap().to_legacy_cache().unwrap();
    let mut bare = KeyValueCache::from_legacy_cache(model.config(), tuples, None).unwrap();
    assert_eq!(bare.tokens(), None);
    let sampling = Sampling { frequency_penalty: 1.0, ..Sampling::default() };
    let message = model.generate_with([3], GenerateOptions::new().sampling(sampling).kv_cache(&mut bare)).unwrap_err();
    assert!(matches!(message, Error::Cache(CacheError::NoTokens { .. })), "{message}");
    assert!(
        model.generate_with(vec![vec![3]; 3], GenerateOptions::new().max_new_tokens(2).kv_cache(&mut loaded)).is_ok()
    );
}

/// An expert that no token was routed to has no rows, also with gradients.
#[test]
fn an_expert_without_tokens_can_be_recorded_with_gradients() {
    let experts = Some(hooklens_model::config::Experts::new(6, 1));
    let config = TransformerConfig::new(2, 16, 4, 20, 32).with_gated_mlp(true).with_mixture(experts);
    let model = random_model(config, 3);
    let mut rows = 0;
    for expert in 0..6 {
        let options = ForwardOptions::new().record(hook::expert_post(1, expert));
        let output = model.run_with_gradients([3, 5], options, |logits| logits.sum()).unwrap();
        assert_eq!(output.cache.grad(hook::expert_post(1, expert)).is_ok(), !output.cache.is_empty());
        rows += output.cache.iter().map(|(_, post)| post.shape()[0]).sum::<usize>();
    }
    assert_eq!(rows, 2); // at least one expert has no rows
}

/// A row of only padding has no text to continue from.
#[test]
fn a_row_without_tokens_is_refused() {
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32), 1);
    let tokens = Tokens::new(vec![vec![1, 2], vec![3, 4]]).unwrap();
    let tokens = tokens.with_mask(vec![vec![true, true], vec![false, false]]).unwrap();
    let message = model.generate(&tokens).unwrap_err().to_string();
    assert!(message.contains("row 1"), "{message}");
}

/// Texts that branch off a sliding-window cache are recomputed.
#[test]
fn prefixes_in_sliding_caches_branch() {
    let windows = vec![Some(hooklens::Window::Sliding(3)), None];
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32).with_windows(windows).unwrap(), 1);
    let text: Vec<u32> = (1..15).collect();
    let mut sliding = KeyValueCache::of_kind(model.config(), 1, CacheKind::GROWING.sliding()).unwrap();
    model.forward_with(vec![text.clone()], ForwardOptions::new().kv_cache(&mut sliding)).unwrap();
    let mut store = PrefixStore::new(&model);
    store.insert(vec![text.clone()], sliding).unwrap();
    let branch = [&text[..6], &[19, 18]].concat();
    let mut cache = store.get(vec![branch.clone()]).unwrap();
    let given = model.forward_with([5], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    let expected = model.forward(vec![[&branch[..], &[5]].concat()]).unwrap();
    assert_close(&given, &expected.narrow(1, 8, 1), 1e-5, "after a branch");
}

/// For texts longer than the length at which the rotary embedding changes, sweeps run the whole text, and a truncated
/// cache is not used for a shorter text.
#[test]
fn rotations_by_length_are_kept_apart() {
    for name in ["llama-dynamic", "phi3-longer", "phi4mm-long"] {
        let model =
            HookedTransformer::from_pretrained(crate::support::fixtures().join(name).to_str().unwrap()).unwrap();
        let long: Vec<u32> = (0..40).map(|at| at % 19 + 3).collect();
        let mut other = long.clone();
        other[3] = 2;
        let metric = Metric::last(|logits: Tensor<2>, _| logits.narrow(1, 1, 1).squeeze_dim::<1>(1));
        let patching = model.patching(vec![long.clone()], vec![other.clone()]).metric(metric).unwrap();
        let swept = patching.sweep(&Sites::new("*hook_resid_pre").per([hook::Axis::Pos])).unwrap();
        let clean = model.record(vec![long.clone()], "*hook_resid_pre").unwrap();
        let baseline = swept.baseline[0];
        for (layer, pos) in [(0, 3), (1, 3), (1, 20), (1, 39)] {
            let hook = hook::resid_pre(layer).positions(pos).replace(&clean);
            let whole = model.run_with_hooks(vec![other.clone()], [hook]).unwrap();
            let expected = f64::from(values(&whole)[[0, 39, 1]]);
            let given = swept.values.values()[[layer as usize, pos, 0]];
            assert!(
                (given - expected).abs() < 1e-4 * (1.0 + expected.abs()),
                "{name} {layer} {pos}: {given} {expected} {baseline}"
            );
        }
        // After truncation, keys are still rotated for the long text.
        let mut cache = model.prefill(vec![long.clone()]).unwrap();
        cache.truncate(2).unwrap();
        let after = model.forward_with([5], ForwardOptions::new().kv_cache(&mut cache));
        assert!(matches!(after, Err(Error::Cache(CacheError::RotatedForLonger { keys: 40, .. }))), "{name}: {after:?}");
        // Stores and shared prefixes recompute what they can't reuse.
        let mut store = PrefixStore::new(&model);
        store.get(vec![long.clone()]).unwrap();
        let mut short = store.get(vec![long[..2].to_vec()]).unwrap();
        let given = model.forward_with([5], ForwardOptions::new().kv_cache(&mut short)).unwrap();
        let expected = model.forward(vec![vec![long[0], long[1], 5]]).unwrap().narrow(1, 2, 1);
        assert_close(&given, &expected, 1e-5, name);
        let rows = vec![long.clone(), [&long[..38], &[2, 2]].concat(), long[..3].to_vec()];
        let mut shared = SharedPrefix::new(&model, Record::new("*hook_resid_post"), Logits::All);
        let given = shared.run(&rows).unwrap().logits.unwrap();
        for (row, ids) in rows.iter().enumerate() {
            let alone = model.forward(vec![ids.clone()]).unwrap();
            assert_close(&given.clone().narrow(0, row, 1).narrow(1, 0, ids.len()), &alone, 1e-4, name);
        }
    }
}

/// In an encoder-decoder, each stack has its own rows and positions.
#[test]
fn recordings_of_two_stacks_know_both_texts() {
    let fixture = crate::support::fixtures().join("t5");
    let model = HookedEncoderDecoder::from_pretrained(fixture.to_str().unwrap()).unwrap();
    let clean = model.record(([5, 6, 7, 1], [0, 4, 9]), Record::all()).unwrap();
    let run = |read: Vec<u32>, written: Vec<u32>, hook: Hook<'_>| model.run_with_hooks((read, written), [hook]);
    let encoder = || hook::resid_pre(1).of_encoder();
    let decoder = || hook::resid_pre(1).of_decoder();
    assert!(run(vec![5, 8, 7, 1], vec![0, 4, 9], encoder().replace(&clean)).is_ok());
    assert!(run(vec![5, 8, 7, 1], vec![0, 4, 9], decoder().replace(&clean)).is_ok());
    assert!(run(vec![5, 8, 1], vec![0, 4, 9], encoder().positions(1).replace(&clean)).is_ok());
    for (read, written, hook) in [
        (vec![5, 8, 1], vec![0, 4, 9], encoder().replace(&clean)),
        (vec![5, 8, 1], vec![0, 4, 9], encoder().positions(-1).replace(&clean)),
        (vec![5, 8, 7, 1], vec![0, 4], decoder().replace(&clean)),
    ] {
        let message = run(read, written, hook).unwrap_err();
        assert!(matches!(message, Error::Hook(HookError::OtherLength { .. })), "{message}");
    }
    assert!(run(vec![5, 8, 7, 1], vec![0, 4, 9], hook::cross_pattern(0).replace(&clean)).is_ok());
    assert!(run(vec![5, 8, 1], vec![0, 4, 9], hook::cross_pattern(0).replace(&clean)).is_err());
    assert!(run(vec![5, 8, 1], vec![0, 4, 9], hook::cross_k(0).replace(&clean)).is_err());
    // The encoder's text happens to have the same length as the decoder's.
    let alike = model.record(([5, 6, 1], [0, 4, 9]), Record::all()).unwrap();
    let message = run(vec![5, 8, 7, 1], vec![0, 4, 9], hook::cross_pattern(0).replace(&alike)).unwrap_err();
    assert!(matches!(message, Error::Hook(HookError::OtherLength { run: 4, recorded: 3, .. })), "{message}");
    // Encoder texts of different lengths are padded.
    let read = |rows: [&[u32]; 2]| Tokens::padded(&rows.map(<[u32]>::to_vec), 0, PaddingSide::Right).unwrap();
    let written = || Tokens::new(vec![vec![0, 4, 9], vec![0, 7, 2]]).unwrap();
    let padded = model.record((read([&[5, 6, 7, 8, 1], &[9, 2, 1]]), written()), Record::all()).unwrap();
    let hooks = || [hook::cross_pattern(0).replace(&padded), hook::cross_v(1).replace(&padded)];
    let given = model.run_with_hooks((read([&[4, 6, 3, 8, 1], &[3, 5, 1]]), written()), hooks()).unwrap();
    let second = model.record(([9, 2, 1], [0, 7, 2]), Record::all()).unwrap();
    let own = [hook::cross_pattern(0).replace(&second), hook::cross_v(1).replace(&second)];
    let alone = model.run_with_hooks(([3, 5, 1], [0, 7, 2]), own).unwrap();
    assert_close(&given.narrow(0, 1, 1), &alone, 1e-5, "a row with a padded encoder");
    assert!(model.run_with_hooks((read([&[4, 6, 3, 8, 1], &[3, 5, 8, 1]]), written()), hooks()).is_err());
    // Sweeps run several copies of an example, without its padding.
    let hooked = model.hooks(hooks());
    let metric = || Metric::last(|logits: Tensor<2>, _| logits.narrow(1, 1, 1).squeeze_dim::<1>(1));
    let rows = || (read([&[4, 6, 3, 8, 1], &[3, 5, 1]]), written());
    let swept = hooked.patching(rows(), rows()).metric(metric()).unwrap();
    let swept = swept.identity_control(&Sites::new("decoder.*.hook_resid_pre").per([hook::Axis::Pos])).unwrap();
    let expected = f64::from(values(&alone)[[0, 2, 1]]);
    assert!((swept.baseline[1] - expected).abs() < 1e-4 * (1.0 + expected.abs()));
    for value in swept.values.values().index_axis(ndarray::Axis(2), 1) {
        assert!((value - expected).abs() < 1e-4 * (1.0 + expected.abs()), "{value} {expected}");
    }
    // Each stack has its own positions.
    let long = model.record(([5, 6, 7, 8, 9, 3, 1], [0, 4, 9]), Record::all()).unwrap();
    for (position, encoder, decoder) in [(0isize, 0, 0), (-1, 6, 2), (2, 2, 2)] {
        let cut = long.positions(position).unwrap();
        for (point, at) in [(encoder_point(), encoder), (decoder_point(), decoder)] {
            let expected = long.get(&point).unwrap().narrow(1, at, 1);
            assert_close(&cut.get(&point).unwrap(), &expected, 0.0, "a position of its stack");
        }
    }
    let reading = model.logit_lens(([5, 6, 1], [0, 4, 9])).unwrap();
    assert!(hooklens::plot::LensTable::of(&model, &reading, &[0, 4, 9], 0, hooklens::plot::LensShade::Entropy).is_ok());
    assert!(
        hooklens::plot::LensTable::of(&model, &reading, &[0, 4, 8], 0, hooklens::plot::LensShade::Entropy).is_err()
    );
    // The encoder output of another model is rejected.
    let other = HookedEncoderDecoder::from_pretrained(fixture.to_str().unwrap()).unwrap();
    assert!(other.decode(&model.encode([5, 6, 7, 1]).unwrap(), [0, 4]).is_ok());
    let mut edited = other.clone();
    let table = edited.weights().get::<2>("embed.W_E").unwrap();
    edited.weights_mut().set("embed.W_E", table * 1.5).unwrap();
    if crate::support::device() == Device::flex() {
        let message = edited.decode(&model.encode([5, 6, 7, 1]).unwrap(), [0, 4]).unwrap_err();
        assert!(matches!(message, Error::Cache(CacheError::OtherWeights { .. })), "{message}");
    }
}

fn encoder_point() -> hook::Point<3> {
    hook::resid_pre(1).of_encoder()
}

fn decoder_point() -> hook::Point<3> {
    hook::resid_pre(1).of_decoder()
}

/// A hook on several points uses each point's own mean, and slices of one axis do not affect the others.
#[test]
fn hooks_at_several_points_and_of_several_cuts() {
    let model = io();
    let clean = model.record(CLEAN, Record::all()).unwrap();
    let all = hook::Point::<3>::new("blocks.*.hook_mlp_out").mean(&clean);
    let each: Vec<_> = (0..4).map(|layer| hook::mlp_out(layer).mean(&clean)).collect();
    let given = model.run_with_hooks(CORRUPTED, [all]).unwrap();
    assert_close(&given, &model.run_with_hooks(CORRUPTED, each).unwrap(), 0.0, "a mean of each layer");
    let rows = [model.to_tokens(CLEAN).unwrap().row(0).to_vec(), vec![0, 3, 4]];
    let tokens = Tokens::padded(&rows, 0, PaddingSide::Right).unwrap();
    let one = model.run_with_hooks(&tokens, [hook::resid_pre(1).positions(-1).rows(0..2).zero()]).unwrap();
    let other = model.run_with_hooks(&tokens, [hook::resid_pre(1).rows(0..2).positions(-1).zero()]).unwrap();
    assert_close(&one, &other, 0.0, "in either order");
    let apart = [hook::resid_pre(1).positions(0..4).positions(2..9).zero()];
    let given = model.run_with_hooks(CLEAN, apart).unwrap();
    let expected = model.run_with_hooks(CLEAN, [hook::resid_pre(1).positions(2..4).zero()]).unwrap();
    assert_close(&given, &expected, 0.0, "both cuts");
}

/// Plots and scores need the tokens of what they show.
#[test]
fn tokens_are_those_of_what_is_shown() {
    use hooklens::plot::{AttentionPatterns, LensShade, LensTable};
    let model = io();
    let rows = [
        model.to_tokens(CLEAN).unwrap().row(0).to_vec(),
        model.to_tokens("When Mary and John").unwrap().row(0).to_vec(),
    ];
    let [left, right] = [PaddingSide::Left, PaddingSide::Right].map(|side| Tokens::padded(&rows, 0, side).unwrap());
    let recorded = model.record(&left, "*hook_pattern").unwrap();
    let [one, other] = [&left, &right].map(|tokens| AttentionPatterns::of(&model, &recorded, tokens, 1).unwrap());
    assert_eq!(one, other);
    let other = Tokens::padded(&[rows[1].clone(), rows[0].clone()], 0, PaddingSide::Left).unwrap();
    assert!(AttentionPatterns::of(&model, &recorded, &other, 1).is_err());
    let last = model.record(CLEAN, Record::new("pattern1").positions(-1)).unwrap();
    let tokens = model.to_tokens(CLEAN).unwrap();
    assert!(hooklens::experiments::head_scores(last.activation("pattern1").unwrap(), &tokens).is_err());
    let cache = model.record(CLEAN, "*hook_resid_{pre,post}").unwrap();
    let reading = model.analyze(&cache).unwrap().positions(0..3).unwrap().logit_lens(Per::Layer).unwrap();
    assert!(LensTable::of(&model, &reading, &tokens.row(0)[..3], 0, LensShade::Probability).is_ok());
    let reading = model.analyze(&cache).unwrap().logit_lens(Per::Layer).unwrap();
    assert!(LensTable::of(&model, &reading, tokens.row(0), 0, LensShade::Probability).is_ok());
    let mut wrong = tokens.row(0).to_vec();
    wrong.swap(2, 4);
    assert!(LensTable::of(&model, &reading, &wrong, 0, LensShade::Probability).is_err());
    // Readings of padded rows count each row's tokens.
    let padded = model.record(&left, "*hook_resid_{pre,post}").unwrap();
    let reading = model.analyze(&padded).unwrap().logit_lens(Per::Layer).unwrap().positions(2).unwrap();
    let alone = model.record(vec![rows[1].clone()], "*hook_resid_{pre,post}").unwrap();
    let alone = model.analyze(&alone).unwrap().logit_lens(Per::Layer).unwrap().positions(2).unwrap();
    assert_close(&reading.logits.clone().narrow(1, 1, 1), &alone.logits, 1e-5, "the third token");
}

/// A dump chooses its own batches, so rows of a recording cannot be matched with their rows.
#[test]
fn dumps_refuse_hooks_by_row() {
    let model = io();
    let folder = tempfile::tempdir().unwrap();
    let clean = model.record(vec![model.to_tokens(CLEAN).unwrap().row(0).to_vec(); 3], Record::all()).unwrap();
    let dump = Dump::new("z0");
    for hook in [hook::z(0).replace(&clean), hook::z(0).rows(0..1).zero()] {
        let message = dump.run(&model.hooks([hook]), [CLEAN, CLEAN, CORRUPTED], folder.path().join("x")).unwrap_err();
        assert!(message.to_string().contains("splits its prompts into batches"), "{message}");
    }
    // A prefix is run alone, so its last position is not that of a prompt.
    let last = model.hooks([hook::resid_pre(1).positions(-1).zero()]);
    let prefixed = Dump::new("z0").prefix(vec![0, 1]);
    let message = prefixed.run(&last, [CLEAN], folder.path().join("z")).unwrap_err();
    assert!(message.to_string().contains("the prefix runs separately"), "{message}");
    let by_mean = model.hooks([hook::z(0).mean(&clean)]);
    assert!(dump.run(&by_mean, [CLEAN, CLEAN, CORRUPTED], folder.path().join("y.safetensors")).is_ok());
}
