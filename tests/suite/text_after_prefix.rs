//! Text after a cached prefix: the tokens of prefix and text equal those of the whole text, in every API.

use hooklens::dump::Dump;
use hooklens::experiments::PrefixStore;
use hooklens::prelude::*;
use hooklens::{CacheKind, DecoderModel, TokenizeOptions};
use proptest::prelude::*;

use crate::support::{assert_close, cases, fixtures, program};

const WORDS: [&str; 8] = ["king", "drum", "sun", "star", "fox", "tea", "red", "moon"];

fn any_text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(&WORDS[..]), 2..5).prop_map(|words| words.join(" "))
}

fn induction() -> HookedTransformer {
    HookedTransformer::from_pretrained("embedded:induction").unwrap()
}

/// Logits of the last `count` positions.
fn last(whole: &Tensor<3>, count: usize) -> Tensor<3> {
    let len = whole.dims()[1];
    whole.clone().narrow(1, len - count, count)
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn prefix_and_text_are_the_whole(prefix in prop::option::of(any_text()), text in any_text(), truncated in any::<bool>()) {
        let model = induction();
        let hooked = model.hooks([hook::z(0).read(|_, _| ())]);
        let whole = match &prefix {
            Some(prefix) => format!("{prefix} {text}"),
            None => text.clone(),
        };
        let tokens = model.to_tokens(&whole).unwrap();
        let logits = model.forward(&tokens).unwrap();
        // Without a prefix the cache is empty, and the text gets its BOS token.
        let count = tokens.row(0).len() - prefix.as_ref().map_or(0, |prefix| model.to_tokens(prefix).unwrap().row(0).len());
        let held = || -> KeyValueCache {
            let mut cache = match &prefix {
                Some(prefix) => model.prefill(prefix).unwrap(),
                None => KeyValueCache::new(model.config(), 1),
            };
            if truncated {
                let len = cache.len();
                model.forward_with([5, 6], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
                cache.truncate(len).unwrap();
            }
            cache
        };

        // Runs that fill the cache, with hooks and without.
        let mut cache = held();
        let given = model.run(&text, ForwardOptions::new().kv_cache(&mut cache).record("z0").loss()).unwrap();
        assert_close(&given.logits.unwrap(), &last(&logits, count), 1e-4, "run");
        prop_assert_eq!(given.cache.get(hook::z(0)).unwrap().dims()[1], count);
        prop_assert_eq!(cache.tokens(), Some(vec![tokens.row(0).to_vec()]));
        let mut cache = held();
        let given = hooked.forward_with(&text, ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        assert_close(&given, &last(&logits, count), 1e-4, "hooked run");
        let mut cache = held();
        model.loss_with(&text, ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        prop_assert_eq!(cache.tokens(), Some(vec![tokens.row(0).to_vec()]));

        // A frozen cache, for several rows of unequal lengths, and with gradients.
        let mut cache = held();
        cache.freeze();
        let rows = [text.clone(), format!("{text} fox")];
        let given = model.forward_with(&rows[..], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        prop_assert_eq!(given.dims()[1], count + 1);
        assert_close(&given.narrow(0, 0, 1).narrow(1, 0, count), &last(&logits, count), 1e-4, "frozen");
        let option = ForwardOptions::new().kv_cache(&mut cache).record("z0");
        let given = model.run_with_gradients(&text, option, |logits| logits.sum().reshape([1])).unwrap();
        prop_assert_eq!(given.cache.get(hook::z(0)).unwrap().dims()[1], count);

        // Generation.
        let own = tokens.row(0)[tokens.row(0).len() - count..].to_vec();
        let expected = model.generate_with(&tokens, GenerateOptions::new().max_new_tokens(3)).unwrap().rows[0].new.clone();
        let (mut cache, mut frozen) = (held(), held());
        frozen.freeze();
        let options = || GenerateOptions::new().max_new_tokens(3);
        for made in [
            model.generate_with(&text, options().kv_cache(&mut frozen)).unwrap(),
            model.generate_with(&text, options().kv_cache(&mut held())).unwrap(),
            hooked.generate_with(&text, options().kv_cache(&mut frozen)).unwrap(),
        ] {
            prop_assert_eq!((&made.rows[0].prompt, &made.rows[0].new), (&own, &expected));
        }
        let mut steps = model.generate_steps(&text, options().kv_cache(&mut cache)).unwrap();
        prop_assert_eq!(steps.next().unwrap().unwrap().tokens, vec![Some(expected[0])]);
        drop(steps);
        prop_assert_eq!(cache.tokens(), Some(vec![tokens.row(0).to_vec()]));

        // A prefix store, and dumps.
        if let Some(prefix) = &prefix {
            let mut cache = PrefixStore::new(&model).get(prefix).unwrap();
            let given = model.forward_with(&text, ForwardOptions::new().kv_cache(&mut cache)).unwrap();
            assert_close(&given, &last(&logits, count), 1e-4, "from the store");
            let folder = tempfile::tempdir().unwrap();
            let before = model.to_tokens(prefix).unwrap().row(0).to_vec();
            let dump = Dump::new("z0").prefix(before);
            let done = dump.run(&model, &text, folder.path().join("a.safetensors")).unwrap();
            prop_assert_eq!(done.tokens, count);
            let done = dump.run(&hooked, &text, folder.path().join("b.safetensors")).unwrap();
            prop_assert_eq!(done.tokens, count);
        }
    }
}

#[test]
fn a_row_that_holds_nothing_begins() {
    let model = induction();
    // The second row has no real token yet.
    let tokens = Tokens::new(vec![vec![0, 5], vec![3, 3]]).unwrap();
    let tokens = tokens.with_mask(vec![vec![true; 2], vec![false; 2]]).unwrap();
    let mut cache = KeyValueCache::new(model.config(), 2);
    model.run(&tokens, ForwardOptions::new().logits(Logits::None).kv_cache(&mut cache)).unwrap();
    assert_eq!(cache.lengths(), [2, 0]);
    model.run(["red fox", "red fox"], ForwardOptions::new().logits(Logits::None).kv_cache(&mut cache)).unwrap();
    assert_eq!(cache.lengths(), [2 + 2, 3]);
}

#[test]
fn one_that_is_asked_for_is_there() {
    let model = induction();
    let mut cache = model.prefill("king drum").unwrap();
    let options = TokenizeOptions { prepend_bos: Some(true), ..Default::default() };
    let tokens = model.to_tokens_with("sun", options).unwrap();
    model.run(&tokens, ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    assert_eq!(cache.tokens().unwrap()[0][3..], [0, tokens.row(0)[1]]);
}

#[test]
fn kinds_of_caches_are_alike() {
    let model = induction();
    let whole = model.to_tokens("king drum sun").unwrap().row(0).to_vec();
    for kind in [CacheKind::GROWING.limited(16), CacheKind::GROWING.sliding(), CacheKind::EIGHT_BIT] {
        let mut cache = KeyValueCache::of_kind(model.config(), 1, kind).unwrap();
        model.run("king drum", ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        model.run("sun", ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        assert_eq!(cache.tokens(), Some(vec![whole.clone()]), "{kind:?}");
    }
}

#[test]
fn a_text_that_goes_on_in_a_decoder_gets_no_special_tokens() {
    let folder = fixtures().join("marian-text");
    let model = HookedEncoderDecoder::from_pretrained(folder.to_str().unwrap()).unwrap();
    let mut cache = model.decoder_cache(model.encode("the old house").unwrap());
    model.decode(&mut cache, [model.decoder_start_token()]).unwrap();
    model.decode(&mut cache, "the old").unwrap();
    model.decode(&mut cache, "house").unwrap();
    let target = model.tokenizer().unwrap().target();
    let text = [target.encode("the old").unwrap(), target.encode("house").unwrap()].concat();
    assert_eq!(cache.own().tokens().unwrap()[0][1..], text);
}

#[test]
fn the_program_agrees() {
    let folder = tempfile::tempdir().unwrap();
    for (name, more, tokens) in [("a", vec![], "3 tokens"), ("b", vec!["--prefix", "king drum"], "2 tokens")] {
        let args = ["dump", "--model", "embedded:induction", "--prompt", "sun star", "--out"];
        let done = program().args(args).arg(folder.path().join(name)).args(&more).output().unwrap();
        let message = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        assert!(done.status.success() && message.contains(tokens), "{message}");
    }
}
