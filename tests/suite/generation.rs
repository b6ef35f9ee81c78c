//! Generation: results of greedy, sampled, batched and recorded runs.

use std::collections::BTreeMap;
use std::fs;

use hooklens::generation::{GenerateOptions, Sampling, Stop};
use hooklens::prelude::*;
use hooklens::{CacheError, Error, InputError};
use hooklens::{CacheKind, PaddingSide};
use proptest::prelude::*;

use crate::seeded::fixture;
use crate::support::{any_config, any_row, cases, distance, fixtures, random_model, values};

/// The most likely next token, found by rerunning the whole text.
fn next(model: &HookedTransformer, row: &[u32]) -> u32 {
    let logits = model.forward_with(vec![row.to_vec()], ForwardOptions::new().logits(Logits::Last)).unwrap();
    let logits = values(&logits);
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.unwrap().0 as u32
}

fn any_kind() -> impl Strategy<Value = CacheKind> {
    prop_oneof![Just(CacheKind::GROWING), Just(CacheKind::GROWING.sliding()), Just(CacheKind::GROWING.limited(30))]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(150) })]

    /// Greedy rows of any lengths, in a batch with any kind of cache, equal those from rerunning the whole text.
    #[test]
    fn greedy_is_the_most_likely_each_time(
        config in any_config(), seed in 0..1000u64, rows in prop::collection::vec(any_row(1..6), 1..4),
        kind in any_kind(), left: bool, count in 1..6usize, prefix in prop::option::of(any_row(1..5)),
    ) {
        let model = random_model(config, seed);
        let side = if left { PaddingSide::Left } else { PaddingSide::Right };
        let tokens = Tokens::padded(&rows, 0, side).unwrap();
        let mut trunk = prefix.as_ref().map(|prefix| model.prefill(vec![prefix.clone()]).unwrap());
        trunk.iter_mut().for_each(KeyValueCache::freeze);
        let mut options = GenerateOptions::new().max_new_tokens(count).cache_kind(kind);
        if let Some(trunk) = &mut trunk {
            options = options.kv_cache(trunk);
        }
        let made = model.generate_with(&tokens, options).unwrap();
        for (row, made) in rows.iter().zip(&made.rows) {
            let mut all = [&prefix.clone().unwrap_or_default()[..], row].concat();
            for token in &made.new {
                prop_assert_eq!(*token, next(&model, &all), "after {:?}", all);
                all.push(*token);
            }
            prop_assert_eq!((made.new.len(), &made.stop, &made.prompt), (count, &Stop::Length, row));
        }
        if let (Some(trunk), Some(prefix)) = (trunk, prefix) {
            prop_assert_eq!(trunk.len(), prefix.len());
        }
    }

    /// Recordings of all steps equal the recording of a single run over all columns.
    #[test]
    fn recordings_of_steps_make_the_whole(
        config in any_config(), seed in 0..1000u64, rows in prop::collection::vec(any_row(1..5), 1..3), count in 1..5usize,
    ) {
        let model = random_model(config, seed);
        let tokens = Tokens::padded(&rows, 0, PaddingSide::Right).unwrap();
        let points = Selection::matching(|p| p.axes[0] != hook::Axis::Routed && !p.on_request);
        let made = model.generate_with(&tokens, GenerateOptions::new().max_new_tokens(count).record(points.clone()).logits()).unwrap();
        let given = made.recording().unwrap();
        let whole = model.record(&made.columns, points).unwrap();
        prop_assert_eq!(given.len(), whole.len());
        for (name, expected) in whole.iter() {
            let worst = distance(&given.activation(name).unwrap().to_ndarray().unwrap(), &expected.to_ndarray().unwrap());
            prop_assert!(worst <= 1e-4, "{name}: {worst:e}");
        }
        prop_assert_eq!(made.logits.unwrap().dims()[..2].to_vec(), vec![rows.len(), count]);
    }

    /// Sampling depends on the seed: it is repeatable, and the first row is the same alone.
    #[test]
    fn a_seed_draws_the_same(config in any_config(), seed in 0..1000u64, rows in prop::collection::vec(any_row(1..5), 2..4)) {
        let model = random_model(config, seed);
        let sampling = Sampling { temperature: 1.0, top_k: Some(10), ..Sampling::default() };
        let options = || GenerateOptions::new().max_new_tokens(4).sampling(sampling).seed(seed);
        let tokens = Tokens::padded(&rows, 0, PaddingSide::Left).unwrap();
        let both = model.generate_with(&tokens, options()).unwrap();
        let again = model.generate_with(&tokens, options()).unwrap();
        prop_assert_eq!(&both.rows, &again.rows);
        let alone = model.generate_with(vec![rows[0].clone()], options()).unwrap();
        prop_assert_eq!(&alone.rows[0].new, &both.rows[0].new);
    }
}

fn induction() -> HookedTransformer {
    HookedTransformer::from_pretrained("embedded:induction").unwrap()
}

#[test]
fn rows_end_where_they_are_told() {
    let model = induction();
    let prompt = ["king drum sun star king", "red fox tea moon red"];
    let free = model.generate_with(prompt, GenerateOptions::new().max_new_tokens(6)).unwrap();
    assert_eq!(free.rows[0].text.as_deref().map(|text| text.starts_with("drum sun star")), Some(true));
    let sun = model.to_single_token("sun").unwrap();
    let stopped = model.generate_with(prompt, GenerateOptions::new().max_new_tokens(6).stop_tokens([sun])).unwrap();
    assert_eq!((stopped.rows[0].new.len(), &stopped.rows[0].stop), (2, &Stop::Token(sun)));
    assert_eq!(stopped.rows[1], free.rows[1], "a row went on differently because another ended");
    let text = model
        .generate_with(prompt, GenerateOptions::new().max_new_tokens(6).stop_strings(["sun star", "zebra"]))
        .unwrap();
    assert_eq!((text.rows[0].new.len(), &text.rows[0].stop), (3, &Stop::Text("sun star".into())));
    assert_eq!(text.rows[1], free.rows[1]);
    assert!(text.rows[0].log_probs.iter().all(|p| *p <= 0.0));
    // Steps one by one, as an iterator.
    let steps: Vec<_> =
        model.generate_steps(prompt, GenerateOptions::new().max_new_tokens(6).stop_tokens([sun])).unwrap().collect();
    let first: Vec<Option<u32>> = steps.iter().map(|step| step.as_ref().unwrap().tokens[0]).collect();
    assert_eq!((first[1], first[2], steps.len()), (Some(sun), None, 6));
}

/// Hooks run at every step: generating with an ablated head equals generating with the ablated model.
#[test]
fn hooks_act_at_every_step() {
    let model = induction();
    let mut seen = vec![];
    let ablate = || hook::attn_out(1).edit(|x, _| x.zeros_like());
    let watch = hook::resid_post(1).read(|x, at| seen.push((at.offset(), x.dims()[1])));
    let prompt = "king drum sun star king";
    let hooks = [ablate(), watch];
    let made = model.generate_with(prompt, GenerateOptions::new().max_new_tokens(3).hooks(hooks)).unwrap();
    assert_eq!(seen, [(0, 6), (6, 1), (7, 1)]);
    let hooked = model.hooks([ablate()]);
    assert_eq!(hooked.generate_with(prompt, GenerateOptions::new().max_new_tokens(3)).unwrap().rows, made.rows);
    let mut row = made.rows[0].prompt.clone();
    for token in &made.rows[0].new {
        let options = ForwardOptions::new().hooks([ablate()]);
        let logits = values(&model.forward_with(vec![row.clone()], options).unwrap().narrow(1, row.len() - 1, 1));
        let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
        assert_eq!(*token as usize, best);
        row.push(*token);
    }
}

#[test]
fn bad_settings_are_refused_before_work_starts() {
    let model = random_model(TransformerConfig::new(1, 16, 4, 20, 8), 7);
    let ran = std::cell::Cell::new(false);
    let refused = |options: GenerateOptions<'_>| {
        let watch = hook::embed().read(|_, _| ran.set(true));
        let error = model.generate_with([1, 2, 3], options.hooks([watch])).unwrap_err();
        assert!(!ran.get(), "something ran before the error");
        error
    };
    let sampling = |sampling| GenerateOptions::new().max_new_tokens(1).sampling(sampling);
    for (options, says) in [
        (sampling(Sampling { temperature: -1.0, ..Sampling::default() }), "`temperature` is -1"),
        (sampling(Sampling { top_p: Some(0.0), ..Sampling::default() }), "`top_p` is 0"),
        (sampling(Sampling { top_k: Some(21), ..Sampling::default() }), "1 to 20"),
        (GenerateOptions::new().max_new_tokens(0), "`max_new_tokens` is 0"),
        (GenerateOptions::new().max_new_tokens(1).stop_strings([""]), "empty string"),
        (GenerateOptions::new().max_new_tokens(1).stop_tokens([20]), "`stop_tokens` is 20"),
        (GenerateOptions::new().max_new_tokens(7), "9 positions"),
        (GenerateOptions::new().max_new_tokens(1).stop_strings(["x"]), "no tokenizer"),
    ] {
        let error = refused(options).to_string();
        assert!(error.contains(says), "{error}");
    }
    let small = GenerateOptions::new().max_new_tokens(4).cache_kind(CacheKind::GROWING.limited(5));
    assert!(matches!(refused(small), Error::Cache(CacheError::Full { max_len: 5, needed: 6 })));
    let mut wide = model.prefill(vec![vec![1], vec![2]]).unwrap();
    wide.freeze();
    let error = model
        .generate_with(vec![vec![1]; 3], GenerateOptions::new().max_new_tokens(1).kv_cache(&mut wide))
        .unwrap_err();
    assert!(matches!(error, Error::Cache(CacheError::Batch { cache: 2, run: 3 })));
    let error = model.generate_with([1, 25], GenerateOptions::new().max_new_tokens(1)).unwrap_err();
    assert!(matches!(error, Error::Input(InputError::Token { token: 25, .. })));
    // The last token is sampled, but not run, so all positions can be used.
    assert_eq!(model.generate_with([1, 2, 3], GenerateOptions::new().max_new_tokens(6)).unwrap().rows[0].new.len(), 6);
}

/// Greedy output equals Hugging Face's, for prompts of unequal lengths together.
#[test]
fn greedy_output_is_hugging_faces() {
    let golden = fs::read_to_string(fixtures().join("greedy.json")).unwrap();
    let golden: BTreeMap<String, Vec<[Vec<u32>; 2]>> = serde_json::from_str(&golden).unwrap();
    let mut compared = 0;
    for (name, rows) in golden {
        let folder = match name.strip_prefix("models/") {
            None => fixture(&name),
            Some(name) => match crate::trained::folder(name) {
                Some(folder) => folder,
                None => continue,
            },
        };
        let model = HookedTransformer::from_pretrained(folder.to_str().unwrap()).unwrap();
        let prompts: Vec<Vec<u32>> = rows.iter().map(|[prompt, _]| prompt.clone()).collect();
        for side in [PaddingSide::Left, PaddingSide::Right] {
            let tokens = Tokens::padded(&prompts, 0, side).unwrap();
            let options = GenerateOptions::new().max_new_tokens(rows[0][1].len()).stop_at_eos(false);
            let made = model.generate_with(&tokens, options).unwrap();
            for (made, [prompt, expected]) in made.rows.iter().zip(&rows) {
                assert_eq!(&made.new, expected, "{name} after {prompt:?}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 40, "{compared}");
}

/// The length limit applies to each row. The longest cached row and the longest prompt may be different rows.
#[test]
fn rows_reach_as_far_as_they_are_long() {
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 24), 3);
    let mut cache = model.prefill(Tokens::padded(&[vec![3; 20], vec![4, 5]], 0, PaddingSide::Left).unwrap()).unwrap();
    let prompts = Tokens::padded(&[vec![1], vec![2; 18]], 0, PaddingSide::Left).unwrap();
    let options = || GenerateOptions::new().max_new_tokens(3);
    let made = model.generate_with(&prompts, options().kv_cache(&mut cache.fork(1).unwrap())).unwrap();
    assert_eq!(made.rows.iter().map(|row| row.new.len()).collect::<Vec<_>>(), [3, 3]);
    let alone = model.generate_with(vec![[vec![4, 5], vec![2; 18]].concat()], options()).unwrap();
    assert_eq!(made.rows[1].new, alone.rows[0].new);
    let message = model.generate_with(&prompts, options().max_new_tokens(6).kv_cache(&mut cache)).unwrap_err();
    assert!(message.to_string().contains("26"), "{message}");
}
