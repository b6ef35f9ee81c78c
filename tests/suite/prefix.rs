//! Shared prefixes, also stored and under interventions; positions found by text; conversations.

use hooklens::PaddingSide;
use hooklens::experiments::{PrefixStore, SharedPrefix};
use hooklens::prelude::*;
use hooklens::{CacheError, Error, HookError, InputError, Message, Occurrence};
use hooklens_analysis::experiments::common_prefix;
use proptest::prelude::*;

use crate::support::{any_config, any_row, assert_close, cases, distance, random_model};
use hooklens_hooks::HookDetails;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(150) })]

    /// Recordings of a prefix and of what follows it, concatenated, equal the recording of the whole, and the shared
    /// prefix advances batch by batch.
    #[test]
    fn stitched_recordings_are_the_whole(
        config in any_config(), seed in 0..1000u64, start in any_row(1..8),
        batches in prop::collection::vec((0..8usize, prop::collection::vec(any_row(1..5), 1..4)), 1..4),
    ) {
        let model = random_model(config, seed);
        let points = Selection::matching(|p| p.axes[0] != hook::Axis::Routed && !p.on_request);
        let mut shared_prefix = SharedPrefix::new(&model, Record::new(points.clone()), Logits::All);
        for (kept, ends) in batches {
            let rows: Vec<Vec<u32>> = ends.iter().map(|end| [&start[..kept.min(start.len())], end].concat()).collect();
            let (before, prefix) = (shared_prefix.saved(), common_prefix(&rows));
            let given = shared_prefix.run(&rows).unwrap();
            // The first row computes what the previous batch has not computed of the prefix.
            let saved = shared_prefix.saved() - before;
            prop_assert!(((rows.len() - 1) * prefix..=rows.len() * prefix).contains(&saved), "{saved} of {prefix}");
            let tokens = Tokens::padded(&rows, 0, PaddingSide::Right).unwrap();
            let (logits, whole) = model.run_with_cache(&tokens, points.clone()).unwrap();
            for (row, ids) in rows.iter().enumerate() {
                let real = |x: &Tensor<3>| x.clone().narrow(0, row, 1).narrow(1, 0, ids.len());
                assert_close(&real(given.logits.as_ref().unwrap()), &real(&logits), 1e-5, "logits");
            }
            for (name, expected) in whole.iter().filter(|_| tokens.mask().is_none()) {
                let worst = distance(&given.cache.activation(name).unwrap().to_ndarray().unwrap(), &expected.to_ndarray().unwrap());
                prop_assert!(worst <= 1e-4, "{name}: {worst:e}");
            }
        }
    }
}

fn induction() -> HookedTransformer {
    HookedTransformer::from_pretrained("embedded:induction").unwrap()
}

/// Whichever two of three consecutive recordings are joined first, all can be.
#[test]
fn stitching_is_associative() {
    let model = induction();
    let mut cache = KeyValueCache::new(model.config(), 1);
    let mut run = |ids: &[u32]| {
        let options = ForwardOptions::new().kv_cache(&mut cache).record("resid_post0");
        model.run(ids.to_vec(), options).unwrap().cache
    };
    let [a, b, c] = [&[0, 51, 59][..], &[21, 23], &[51]].map(&mut run);
    let left = a.stitched(&b).unwrap().stitched(&c).unwrap();
    let right = a.stitched(&b.stitched(&c).unwrap()).unwrap();
    let whole = model.record([0, 51, 59, 21, 23, 51], "resid_post0").unwrap();
    for joined in [left, right] {
        let [joined, whole] = [&joined, &whole].map(|cache| cache.get(hook::resid_post(0)).unwrap());
        assert_close(&joined, &whole, 1e-5, "three parts");
    }
    assert!(b.stitched(&a).is_err());
}

#[test]
fn what_can_not_be_stitched_says_so() {
    let model = induction();
    let mut cache = model.prefill("king drum").unwrap();
    let first = model.record("king drum", "z0").unwrap();
    let behind = model.run([5, 6], ForwardOptions::new().kv_cache(&mut cache).record("z1")).unwrap().cache;
    assert!(matches!(first.stitched(&behind), Err(HookError::NotRecorded { .. })));
    let bare = model.record("king drum", Record::new("z0").remove_batch()).unwrap();
    assert!(matches!(bare.stitched(&first), Err(HookError::Stitch { .. })));
    let three = model.record(vec![vec![1, 2]; 3], "z0").unwrap();
    let two = model.record(vec![vec![1, 2]; 2], "z0").unwrap();
    assert!(matches!(three.stitched(&two), Err(HookError::Stitch { .. })));
    // Cached positions are not recomputed, so nothing is recorded for them, and the error says why.
    let asked = model.run([5], ForwardOptions::new().kv_cache(&mut cache).record(Record::new("z0").positions(-2)));
    let message = asked.unwrap().cache.get(hook::z(0)).unwrap_err().to_string();
    assert!(message.contains("the run did not compute positions -2, only those after the 5 in its"), "{message}");
}

#[test]
fn an_intervened_prefix_is_never_a_clean_one() {
    let model = induction();
    let hooked = model.hooks([hook::attn_out(0).edit(|x, _| x.zeros_like())]);
    let intervened = hooked.prefill("king drum sun star").unwrap();
    let clean = model.prefill("king drum sun star").unwrap();
    assert!(clean.interventions().is_empty());
    assert_eq!(intervened.interventions().len(), 1);
    assert!(intervened.interventions()[0].contains("attn_out"), "{:?}", intervened.interventions());
    let again = hooked.prefill("king drum sun star").unwrap();
    assert_ne!(again.interventions(), intervened.interventions(), "two interventions are told apart");
    // Everything derived from the cache is marked as computed under interventions, also on disk.
    let mut intervened = intervened;
    let fork = intervened.fork(2).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fork.save(folder.path().join("x.safetensors"), &model).unwrap();
    let loaded = KeyValueCache::load(folder.path().join("x.safetensors"), &model).unwrap();
    assert_eq!(loaded.interventions(), intervened.interventions());
    let mut store = PrefixStore::new(&model);
    let refused = store.insert("king drum sun star", intervened).unwrap_err();
    assert!(matches!(refused, Error::Cache(CacheError::Intervened { .. })));
    store.insert("king drum sun star", clean).unwrap();
    let mut cache = store.get("king drum sun star").unwrap();
    assert_eq!(store.tokens_run(), 0);
    let given = model.forward_with([5], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    let mut expected = model.prefill("king drum sun star").unwrap();
    let expected = model.forward_with([5], ForwardOptions::new().kv_cache(&mut expected)).unwrap();
    assert_close(&given, &expected, 1e-6, "from the store");
    let short = model.prefill("king").unwrap();
    assert!(matches!(store.insert("king drum", short), Err(Error::Cache(CacheError::Length { .. }))));
    // One hook counts as one intervention, in however many runs it is active; another hook counts separately.
    let mut cache = hooked.prefill("king").unwrap();
    for token in [5, 9, 5] {
        hooked.forward_with([token], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    }
    assert_eq!(cache.interventions().len(), 1);
    let mut twice = cache.fork(2).unwrap();
    let other = model.hooks([hook::attn_out(0).edit(|x, _| x * 2.0)]);
    other.forward_with(vec![vec![5]; 2], ForwardOptions::new().kv_cache(&mut twice)).unwrap();
    assert_eq!(twice.interventions().len(), 2);
    for slot in [0, 1, 0] {
        twice.insert(&cache, slot).unwrap();
    }
    assert_eq!(twice.interventions().len(), 2);
    twice.truncate(0).unwrap();
    assert!(twice.interventions().is_empty());
    hooked.forward_with(vec![vec![5]; 2], ForwardOptions::new().kv_cache(&mut twice)).unwrap();
    assert_eq!(twice.interventions().len(), 1);
    // Hooks that are declared neutral do not mark the cache either.
    let neutral = model.hooks([hook::z(0).edit(|z, _| z).neutral()]).prefill("king").unwrap();
    assert!(neutral.interventions().is_empty());
    // Reading hooks change nothing, and are not interventions.
    let watched = model.hooks([hook::z(0).read(|_, _| ())]).prefill("king").unwrap();
    assert!(watched.interventions().is_empty());
}

#[test]
fn positions_are_named_by_text() {
    let model = induction();
    let tokenized = model.tokenize("king drum sun king").unwrap();
    assert_eq!((tokenized.ids.len(), tokenized.spans[0].clone(), tokenized.spans[2].clone()), (5, 0..0, 5..9));
    assert!(matches!(tokenized.position("king"), Err(InputError::NotOnce { count: 2, .. })));
    assert!(matches!(tokenized.position("moon"), Err(InputError::NotOnce { count: 0, .. })));
    assert_eq!(tokenized.positions("ing dr").first(), Some(&(1..3)));
    assert!(tokenized.positions("").is_empty());
    assert_eq!(model.get_token_position("king", "king drum sun king", Occurrence::First).unwrap(), 1);
    assert!(model.get_token_position("moon", "king drum sun king", Occurrence::First).is_err());
    let Some(folder) = crate::trained::folder("stories260k") else { return };
    let stories = HookedTransformer::from_pretrained(folder.to_str().unwrap()).unwrap();
    for text in ["Once upon a time, Lily met Tim.", "naïve 🙂 Lily"] {
        let tokenized = stories.tokenize(text).unwrap();
        assert_eq!(tokenized.ids, stories.to_tokens(text).unwrap().row(0));
        let lily = tokenized.position("Lily").unwrap();
        let said: String = tokenized.tokens[lily].concat();
        assert!(said.contains("Lily"), "{said} in {tokenized}");
    }
}

/// A chat template like those of published models, with the features they use.
#[test]
fn conversations_follow_their_template() {
    let model = induction();
    let folder = tempfile::tempdir().unwrap();
    model.save_pretrained(folder.path()).unwrap();
    let path = folder.path().join("tokenizer_config.json");
    let messages = [Message::new("system", " Be brief. "), Message::new("user", "Hi")];
    let without = model.tokenizer().unwrap().chat(&messages, true).unwrap_err();
    assert!(without.to_string().contains("no chat template"), "{without}");
    let template = "{%- for message in messages %}\n    {%- if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('unknown role') }}{% endif %}\n    {{- '<|' + message.role + '|>' + message['content'].strip() }}{{ eos_token }}\n{%- endfor %}\n{%- if add_generation_prompt %}<|assistant|>{% endif %}";
    for (json, works) in [
        (serde_json::json!({"bos_token": "<bos>", "chat_template": template}), true),
        (
            serde_json::json!({"chat_template": [{"name": "tool", "template": "no"}, {"name": "default", "template": template}]}),
            true,
        ),
        (serde_json::json!({"chat_template": "{% if %}"}), false),
    ] {
        std::fs::write(&path, json.to_string()).unwrap();
        let tokenizer = hooklens::Tokenizer::from_folder(folder.path()).unwrap().unwrap();
        let text = tokenizer.chat(&messages, true);
        if !works {
            assert!(matches!(text, Err(InputError::Chat { .. })));
            continue;
        }
        assert_eq!(text.unwrap(), "<|system|>Be brief.<|user|>Hi<|assistant|>");
        assert_eq!(tokenizer.chat(&messages[1..], false).unwrap(), "<|user|>Hi");
        let refused = tokenizer.chat(&[Message::new("king", "Hi")], false).unwrap_err();
        let refused = hooklens::error_chain(&refused);
        assert!(refused.contains("unknown role"), "{refused}");
    }
}
