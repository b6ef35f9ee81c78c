//! Gated delta nets: their cached state, and operations rejected because layers have no attention.

use hooklens::activations::Stage;
use hooklens::kv_cache::compat::{EasyDelCache, HuggingFaceCache};
use hooklens::patching::{Metric, Patching, Sites};
use hooklens::prelude::*;
use hooklens::{CacheError, CacheKind, Error, InputError, NormKind, PaddingSide, RopeScaling, Rotary};
use hooklens_model::config::{AttentionConfig, GatedDelta, Layers, MixerConfig, Settings};
use proptest::prelude::*;

use crate::support::{any_hybrid, any_row, assert_close, cases, random_model};

fn behind(model: &HookedTransformer, cache: &mut KeyValueCache, rows: impl Into<hooklens::Input>) -> Tensor<3> {
    model.forward_with(rows, ForwardOptions::new().kv_cache(cache)).unwrap()
}

/// A hybrid of four layers, of which the second and the last have attention.
fn hybrid() -> HookedTransformer {
    let net = GatedDelta { n_key_heads: 2, n_value_heads: 4, d_key: 5, d_value: 6, width: 4 };
    let attention = MixerConfig::Attention(AttentionConfig::new(2, 8));
    let rotary = Rotary { dim: 8, base: 100.0, adjacent_pairs: false, scaling: RopeScaling::None };
    let config = TransformerConfig::new(4, 32, 4, 40, 64)
        .with_mixers([MixerConfig::GatedDeltaNet(net), attention.clone(), MixerConfig::GatedDeltaNet(net), attention])
        .unwrap()
        .with_positional(rotary)
        .with_attn_gates(true)
        .with_norm(NormKind::Rms);
    random_model(config, 3)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(60) })]

    /// In parts with a cache, in a batch, with padding on either side or in between, the logits equal those of the
    /// whole text.
    #[test]
    fn pieces_behind_a_cache_are_the_whole(
        config in any_hybrid(), seed in 0..1000u64, first in any_row(1..9), second in any_row(1..9), cuts in prop::collection::vec(1..4usize, 1..6),
        left: bool, kind in 0..4usize,
    ) {
        let kinds = [
            CacheKind::GROWING,
            CacheKind::GROWING.limited(40),
            CacheKind::GROWING.sliding(),
            CacheKind::GROWING,
        ];
        let model = random_model(config, seed);
        let rows = [first, second];
        let mut cache = KeyValueCache::of_kind(model.config(), 2, kinds[kind]).unwrap();
        let mut taken = [0, 0];
        let mut last: Vec<Option<Tensor<3>>> = vec![None, None];
        for cut in cuts.iter().chain([&20]) {
            // The rows take turns being longer, so that there is padding on either side and in between.
            let of = |row: usize| rows[row].len().min(taken[row] + cut + usize::from((cut + row).is_multiple_of(2)));
            let ends = [of(0), of(1)];
            let parts: Vec<Vec<u32>> = (0..2).map(|row| rows[row][taken[row]..ends[row]].to_vec()).collect();
            let len = parts.iter().map(Vec::len).max().unwrap();
            if len == 0 {
                break;
            }
            let mask: Vec<Vec<bool>> = parts.iter().map(|part| {
                let (real, blank) = (vec![true; part.len()], vec![false; len - part.len()]);
                if left { [blank, real].concat() } else { [real, blank].concat() }
            }).collect();
            let padded: Vec<Vec<u32>> = parts.iter().map(|part| {
                let blank = vec![7; len - part.len()];
                if left { [blank, part.clone()].concat() } else { [part.clone(), blank].concat() }
            }).collect();
            let tokens = Tokens::new(padded).unwrap().with_mask(mask).unwrap();
            let logits = behind(&model, &mut cache, &tokens);
            for row in 0..2 {
                let count = ends[row] - taken[row];
                if count > 0 {
                    let end = if left { len } else { count };
                    last[row] = Some(logits.clone().narrow(0, row, 1).narrow(1, end - 1, 1));
                }
            }
            taken = ends;
        }
        for row in 0..2 {
            let whole = model.forward(vec![rows[row][..taken[row]].to_vec()]).unwrap();
            let end = whole.dims()[1];
            assert_close(last[row].as_ref().unwrap(), &whole.narrow(1, end - 1, 1), 2e-5, "the last token");
        }
    }

    /// Recurrent states follow their rows through forks, selection and reordering, frozen rows that serve many rows,
    /// and files.
    #[test]
    fn states_go_with_their_rows(config in any_hybrid(), seed in 0..1000u64, prompts in prop::collection::vec(any_row(4), 2..4), next in any_row(3)) {
        let model = random_model(config, seed);
        let mut cache = model.prefill(prompts.clone()).unwrap();
        let whole = |row: usize| model.forward(vec![[&prompts[row][..], &next].concat()]).unwrap().narrow(1, 4, 3);
        let mut branches = cache.fork(2).unwrap();
        let logits = behind(&model, &mut branches, vec![next.clone(); 2 * prompts.len()]);
        for row in 0..2 * prompts.len() {
            assert_close(&logits.clone().narrow(0, row, 1), &whole(row / 2), 2e-5, "a fork's row");
        }
        // The original of the fork is unchanged.
        let last = prompts.len() - 1;
        let mut chosen = cache.fork(1).unwrap();
        chosen.select_rows(&[last, 0, last]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache.safetensors");
        chosen.save(&path, &model).unwrap();
        let mut chosen = KeyValueCache::load(&path, &model).unwrap();
        let mut other = chosen.to_kind(CacheKind::GROWING.limited(20)).unwrap();
        for cache in [&mut chosen, &mut other] {
            let logits = behind(&model, cache, vec![next.clone(); 3]);
            assert_close(&logits.clone().narrow(0, 1, 1), &whole(0), 2e-5, "a chosen row");
            assert_close(&logits.narrow(0, 2, 1), &whole(last), 2e-5, "a row chosen twice");
        }
        let mut one = model.prefill(vec![prompts[0].clone()]).unwrap();
        one.freeze();
        for _ in 0..2 {
            let logits = behind(&model, &mut one, vec![next.clone(); 3]);
            assert_close(&logits.narrow(0, 2, 1), &whole(0), 2e-5, "behind a frozen row");
        }
        let mut batch = model.prefill(prompts.clone()).unwrap();
        let shorter = model.prefill(vec![prompts[last][..2].to_vec()]).unwrap();
        batch.insert(&shorter, 0).unwrap();
        let logits = behind(&model, &mut batch, vec![next.clone(); prompts.len()]);
        let inserted = model.forward(vec![[&prompts[last][..2], &next].concat()]).unwrap().narrow(1, 2, 3);
        assert_close(&logits.clone().narrow(0, 0, 1), &inserted, 2e-5, "an inserted row");
        assert_close(&logits.narrow(0, last, 1), &whole(last), 2e-5, "a row beside it");
    }

    /// The outputs of attention heads, delta-net heads, MLPs and biases sum to the residual stream.
    #[test]
    fn what_is_written_adds_up(config in any_hybrid(), seed in 0..1000u64, row in any_row(1..8)) {
        let model = random_model(config, seed);
        let cache = model.record(vec![row], Record::all()).unwrap();
        let analysis = model.analyze(&cache).unwrap();
        let parts = analysis.full_resid_decomposition(Stage::Final, Neurons::Summed).unwrap();
        assert_close(&parts.sum(), &analysis.stream(Stage::Final).unwrap(), 1e-5, "all parts");
    }
}

#[test]
fn a_run_that_fails_leaves_the_state_as_it_was() {
    let model = hybrid();
    let mut cache = model.prefill([5, 6, 7]).unwrap();
    let stop = at("blocks.3.hook_resid_post").edit_any(|_, _| Err("the hook's own".into()));
    let options = ForwardOptions::new().hooks([stop]).kv_cache(&mut cache);
    model.forward_with([8, 9], options).unwrap_err();
    let logits = behind(&model, &mut cache, [10]);
    assert_close(&logits, &model.forward([5, 6, 7, 10]).unwrap().narrow(1, 3, 1), 1e-5, "behind a failed run");
}

#[test]
fn generation_and_shared_prefixes_are_what_whole_runs_give() {
    let model = hybrid();
    let prompt = vec![vec![5, 6, 7, 8, 9, 10]];
    let options = || GenerateOptions::new().max_new_tokens(5);
    let cached = model.generate_with(prompt.clone(), options()).unwrap();
    let mut row = prompt[0].clone();
    for _ in 0..5 {
        let logits = model.forward(vec![row.clone()]).unwrap();
        let end = logits.dims()[1];
        row.push(logits.narrow(1, end - 1, 1).argmax(2).into_scalar::<i64>() as u32);
    }
    assert_eq!([&prompt[0][..], &cached.rows[0].new].concat(), row);
    let mut shared = hooklens::experiments::SharedPrefix::new(&model, Record::default(), Logits::All);
    for rows in [vec![vec![5, 6, 7, 8], vec![5, 6, 9, 9]], vec![vec![5, 7, 7, 8], vec![5, 7, 9, 9]]] {
        let output = shared.run(&rows).unwrap();
        assert_close(&output.logits.unwrap(), &model.forward(rows).unwrap(), 1e-5, "behind a shared prefix");
    }
}

#[test]
fn patching_runs_the_whole_prompt_again() {
    let model = hybrid();
    let (clean, corrupted) = (vec![5, 6, 7, 8, 9], vec![5, 6, 11, 8, 9]);
    let metric = Metric::logit_diff(&model, 3, 4).unwrap();
    let patching = Patching::new(&model, vec![clean.clone()], vec![corrupted.clone()], metric).unwrap();
    let swept = patching.sweep(&Sites::new("resid_pre2").per([hook::Axis::Pos])).unwrap().mean();
    let source = model.record(clean, hook::resid_pre(2)).unwrap().get(hook::resid_pre(2)).unwrap();
    for pos in 0..5 {
        let source = source.clone();
        let patch =
            hook::resid_pre(2).edit(move |x, _| x.slice_assign([0..1, pos..pos + 1], source.clone().narrow(1, pos, 1)));
        let logits = model.run_with_hooks(corrupted.clone(), [patch]).unwrap().narrow(1, 4, 1);
        let of = |token: usize| logits.clone().narrow(2, token, 1).into_scalar::<f32>();
        let expected = f64::from(of(3) - of(4));
        let given = swept.values()[[0, pos]];
        assert!((given - expected).abs() < 1e-4 * expected.abs().max(1.0), "{given} {expected}");
    }
}

#[test]
fn what_a_state_can_not_do_is_an_error_and_changes_nothing() {
    let model = hybrid();
    let mut cache = model.prefill([5, 6, 7]).unwrap();
    for refused in [
        cache.truncate(2),
        cache.insert_index(&[2], 0),
        cache.insert_starts(&[1], 0),
        cache.to_legacy_cache().map(drop),
        cache.clone().with_heads_on(&[]).map(drop),
    ] {
        let message = refused.unwrap_err();
        assert!(matches!(message, CacheError::State { layer: 0, .. } | CacheError::NotEmpty { .. }), "{message}");
    }
    let whole = model.forward([5, 6, 7, 8]).unwrap().narrow(1, 3, 1);
    assert_close(&behind(&model, &mut cache, [8]), &whole, 1e-5, "behind what was refused");
    cache.truncate(0).unwrap();
    assert_close(&behind(&model, &mut cache, [5, 6, 7, 8]).narrow(1, 3, 1), &whole, 1e-5, "behind a reset");
    // A cache with another model's state.
    let attention = MixerConfig::Attention(AttentionConfig::new(2, 8));
    let plain = model.config().clone().with_mixers(vec![attention; 4]).unwrap();
    let mut other = KeyValueCache::new(&plain, 1);
    let message = model.forward_with([5], ForwardOptions::new().kv_cache(&mut other)).unwrap_err().to_string();
    assert!(message.contains("layer 0 of the cache"), "{message}");
    // Quantized caches do not quantize states.
    let mut quantized = KeyValueCache::of_kind(model.config(), 1, CacheKind::EIGHT_BIT).unwrap();
    let logits = behind(&model, &mut quantized, [5, 6, 7, 8]).narrow(1, 3, 1);
    assert_close(&logits, &whole, 0.05, "of eight bits");
}

#[test]
fn what_needs_attention_in_every_layer_says_so() {
    let model = hybrid();
    let edges = model.composition_scores(hooklens::circuits::Composition::K).unwrap_err();
    assert!(matches!(edges, Error::Input(InputError::NoAttention { layer: 0, .. })), "{edges}");
    let scores = model.head_scores([5, 6, 7, 5, 6]).unwrap();
    assert_eq!(scores.axes()[1].labels, ["1", "3"]);
    assert_eq!(model.stacked::<4>("W_Q").unwrap().dims(), [4, 4, 32, 8]);
    let message = model.record([5, 6], hook::pattern(0)).unwrap_err().to_string();
    assert!(message.contains("gated delta net"), "{message}");
    let padded = Tokens::padded(&[vec![5, 6, 7], vec![5]], 0, PaddingSide::Left).unwrap();
    assert!(model.loss(&padded).is_ok());
}

#[test]
fn gradients_reach_every_weight() {
    let model = hybrid();
    let device = model.device().autodiff();
    let model = model.to_devices(&[device]);
    let gradients = model.loss(vec![(1..20).collect::<Vec<u32>>()]).unwrap().backward();
    let of_layer = |name: &str| format!("blocks.0.linear_attn.{name}");
    let matrix = |name| model.weights().get::<2>(&of_layer(name)).unwrap().grad(&gradients).map(|own| own.abs().sum());
    let rates = model.weights().get::<1>(&of_layer("A_log")).unwrap().grad(&gradients).map(|own| own.abs().sum());
    for (name, size) in
        ["W_decay", "W_beta", "conv"].map(|name| (name, matrix(name))).into_iter().chain([("rates", rates)])
    {
        let size = size.map(|size| size.into_scalar::<f32>());
        assert!(size.is_some_and(|size| size.is_finite() && size > 0.0), "{name}: {size:?}");
    }
}
