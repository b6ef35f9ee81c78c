//! Running a text in parts with a cache gives the same result as running the whole text.

use burn::tensor::Tensor;
use hooklens::PaddingSide;
use hooklens::kv_cache::compat::{EasyDelCache, HuggingFaceCache};
use hooklens::prelude::*;
use hooklens::{Bits, CacheError, CacheKind, CacheShape, Error, HookError, Offload, Positional, Window};
use proptest::prelude::*;

use crate::support::{DEVICE_IS_FULL, any_config, any_row, assert_close, cases, device, has, random_model, values};

fn part(x: &Tensor<3>, row: usize, from: usize, to: usize) -> Tensor<3> {
    x.clone().narrow(0, row, 1).narrow(1, from, to - from)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(150) })]

    /// Running parts after a cache equals a whole run, for any split of a padded batch, any padding of the parts, and
    /// any configuration.
    #[test]
    fn parts_behind_a_cache_are_the_whole(
        config in any_config(), seed in 0..1000u64, rows in prop::collection::vec(any_row(4..8), 1..3),
        cut in 1..3usize, second_cut in 3..4usize, sides in prop::array::uniform3(any::<bool>()),
    ) {
        let model = random_model(config, seed);
        let mut cache = KeyValueCache::new(model.config(), rows.len());
        let mut outputs = vec![vec![]; rows.len()];
        for (chunk, range) in [0..cut, cut..second_cut, second_cut..8].into_iter().enumerate() {
            let parts: Vec<Vec<u32>> = rows.iter().map(|row| row[range.start..range.end.min(row.len())].to_vec()).collect();
            let side = if sides[chunk] { PaddingSide::Left } else { PaddingSide::Right };
            let tokens = Tokens::padded(&parts, 0, side).unwrap();
            let logits = model.forward_with(&tokens, ForwardOptions::new().kv_cache(&mut cache)).unwrap();
            let len = tokens.shape()[1];
            for (row, part_ids) in parts.iter().enumerate() {
                let from = if sides[chunk] { len - part_ids.len() } else { 0 };
                outputs[row].push(part(&logits, row, from, from + part_ids.len()));
            }
        }
        for (row, outputs) in rows.into_iter().zip(outputs) {
            let whole = model.forward(vec![row]).unwrap();
            assert_close(&Tensor::cat(outputs, 1), &whole, 1e-5, "in three parts");
        }
    }

    /// A frozen row serves a batch without changing, and hooks see the right values.
    #[test]
    fn one_frozen_row_serves_any_batch(
        config in any_config(), seed in 0..1000u64, prefix in any_row(1..5), suffixes in prop::collection::vec(any_row(3), 1..4),
    ) {
        let model = random_model(config, seed);
        let mut cache = model.prefill(vec![prefix.clone()]).unwrap();
        cache.freeze();
        let past = prefix.len();
        for _ in 0..2 {
            let record = Selection::from(["*hook_pattern", "*hook_k"]);
            let options = ForwardOptions::new().kv_cache(&mut cache).record(record);
            let output = model.run(suffixes.clone(), options).unwrap();
            prop_assert_eq!(cache.len(), past);
            for (row, suffix) in suffixes.iter().enumerate() {
                let whole = [&prefix[..], suffix].concat();
                let (logits, alone) = model.run_with_cache(vec![whole], "*hook_pattern").unwrap();
                let given = output.logits.as_ref().unwrap();
                assert_close(&part(given, row, 0, 3), &part(&logits, 0, past, past + 3), 1e-5, "logits behind a prefix");
                let pattern = output.cache.get(hook::pattern(1)).unwrap().narrow(0, row, 1);
                let expected = alone.get(hook::pattern(1)).unwrap().narrow(2, past, 3);
                assert_close(&pattern, &expected, 1e-5, "pattern behind a prefix");
            }
            let keys = output.cache.get(hook::k(0)).unwrap();
            prop_assert_eq!(keys.dims()[1], 3, "hook_k sees new positions only");
        }
    }
}

fn model() -> HookedTransformer {
    random_model(TransformerConfig::new(2, 16, 4, 20, 32), 7)
}

fn cache_error(result: Result<impl std::fmt::Debug, Error>) -> CacheError {
    match result.unwrap_err() {
        Error::Cache(error) => error,
        other => panic!("not a cache's error: {other}"),
    }
}

#[test]
fn wrong_caches_are_refused_and_left_as_they_were() {
    let model = model();
    let mut cache = model.prefill([1, 2, 3]).unwrap();
    let batch = cache_error(model.forward_with(vec![vec![1], vec![2]], ForwardOptions::new().kv_cache(&mut cache)));
    assert!(matches!(batch, CacheError::Batch { cache: 1, run: 2 }));
    let other = random_model(TransformerConfig::new(2, 16, 2, 20, 32), 7);
    assert!(matches!(
        cache_error(other.forward_with([1], ForwardOptions::new().kv_cache(&mut cache))),
        CacheError::Model { layer: 0, .. }
    ));
    let deeper = random_model(TransformerConfig::new(3, 16, 4, 20, 32), 7);
    assert!(matches!(
        cache_error(deeper.forward_with([1], ForwardOptions::new().kv_cache(&mut cache))),
        CacheError::Layers { .. }
    ));
    let partial = model.forward_with([1], ForwardOptions::new().kv_cache(&mut cache).stop_at_layer(1));
    assert!(matches!(cache_error(partial), CacheError::Partial));
    let failing = hook::z(1).edit(|_, _| Err::<Tensor<4>, _>("no"));
    assert!(model.forward_with([4], ForwardOptions::new().kv_cache(&mut cache).hooks([failing])).is_err());
    assert_eq!((cache.len(), cache[0].len(), cache[1].len()), (3, 3, 3));
    let long = model.forward_with(vec![vec![1; 30]], ForwardOptions::new().kv_cache(&mut cache));
    assert!(long.unwrap_err().to_string().contains("33 positions"));
    cache.freeze();
    assert!(matches!(cache.truncate(1), Err(CacheError::Frozen)));
}

/// TransformerLens's own test of freezing: equal output while frozen, different after unfreezing.
#[test]
fn freezing_and_unfreezing() {
    let model = model();
    let run = |row: [u32; 3], cache: &mut KeyValueCache| {
        model.forward_with(row, ForwardOptions::new().kv_cache(cache)).unwrap()
    };
    let mut cache = model.prefill([1, 2, 3]).unwrap();
    cache.freeze();
    let first = run([4, 5, 6], &mut cache);
    run([7, 8, 9], &mut cache);
    assert_eq!(values(&run([4, 5, 6], &mut cache)), values(&first));
    cache.unfreeze();
    assert_close(&run([4, 5, 6], &mut cache), &first, 1e-6, "once it is undone");
    assert_eq!(cache.len(), 6);
    assert_ne!(values(&run([4, 5, 6], &mut cache)), values(&first));
    cache.truncate(3).unwrap();
    assert_close(&run([4, 5, 6], &mut cache), &first, 1e-6, "after forgetting");
    assert_eq!(cache.append_attention_mask(&[vec![false]]).unwrap()[0].len(), 7);
}

/// With a frozen cache, a run may start at a middle layer.
#[test]
fn a_restart_behind_a_frozen_cache() {
    let model = model();
    let mut cache = model.prefill([1, 2, 3]).unwrap();
    cache.freeze();
    let whole = model.forward_with([4, 5], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    let resid = model.forward_with([4, 5], ForwardOptions::new().kv_cache(&mut cache).stop_at_layer(1)).unwrap();
    let again = model.forward_with(resid, ForwardOptions::new().kv_cache(&mut cache).start_at_layer(1)).unwrap();
    assert_close(&again, &whole, 1e-6, "stop and start behind a cache");
}

/// Hooks see positions offset by the length of the cache, except at rotated keys, which include those of the cache.
#[test]
fn hooks_are_told_their_offset() {
    use hooklens::{RopeScaling, Rotary};
    let rotary = Positional::Rotary(Rotary { dim: 4, base: 100.0, adjacent_pairs: false, scaling: RopeScaling::None });
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32).with_positional(rotary), 7);
    let mut cache = model.prefill([1, 2, 3]).unwrap();
    let mut seen = vec![];
    let watch = at(["q0", "rot_q0", "rot_k0"])
        .read(|x: Tensor<4>, at| seen.push((at.name().to_string(), at.offset(), x.dims()[1])));
    let record = Record::new(["rot_k0", "rot_q0"]).positions(-1);
    let options = ForwardOptions::new().kv_cache(&mut cache).hooks([watch]).record(record);
    let output = model.run([4, 5], options).unwrap();
    assert_eq!(
        seen,
        [
            ("blocks.0.attn.hook_q".to_string(), 3, 2),
            ("blocks.0.attn.hook_rot_q".to_string(), 3, 2),
            ("blocks.0.attn.hook_rot_k".to_string(), 0, 5),
        ]
    );
    let whole = model.record([1, 2, 3, 4, 5], Record::new("rot_k0").positions(-1)).unwrap();
    let (cached, whole) = (output.cache.get(hook::rot_k(0)).unwrap(), whole.get(hook::rot_k(0)).unwrap());
    assert_close(&cached, &whole, 1e-6, "the last rotated key");
    // One token at a time, its position is all of the run's own, but not all that the tensor holds.
    for record in [Record::new("rot_k0").positions(-1), Record::new("rot_k0").new_positions(0)] {
        let mut cache = model.prefill([1, 2, 3, 4]).unwrap();
        let output = model.run([5], ForwardOptions::new().kv_cache(&mut cache).record(record)).unwrap();
        let key = output.cache.get(hook::rot_k(0)).unwrap();
        assert_close(&key, &whole, 1e-6, "the only rotated key");
    }
    // A hook at the run's own positions leaves the cached keys alone.
    let mut cache = model.prefill([1, 2, 3, 4]).unwrap();
    let watched = std::cell::RefCell::new(Vec::new());
    let zero = hook::rot_k(0).new_positions(hooklens::Positions::All).zero();
    let read = at("rot_k0").read(|x: Tensor<4>, _| *watched.borrow_mut() = values(&x).into_raw_vec_and_offset().0);
    model.run([5], ForwardOptions::new().kv_cache(&mut cache).hooks([zero, read])).unwrap();
    let (cached, own) = {
        let all = watched.borrow();
        (all[..4 * 16].to_vec(), all[4 * 16..].to_vec())
    };
    assert!(cached.iter().any(|x| *x != 0.0) && own.iter().all(|x| *x == 0.0));
}

/// Caches also work where Burn's own operations run instead of our kernels (here: 64-bit floats).
#[test]
fn a_cache_in_another_element_type() {
    if !has(DType::F64) {
        return;
    }
    use hooklens::{RopeScaling, Rotary};
    let rotary = Positional::Rotary(Rotary { dim: 4, base: 100.0, adjacent_pairs: false, scaling: RopeScaling::None });
    for positional in [Positional::Learned, Positional::Alibi, rotary] {
        let windows = vec![Some(Window::Sliding(3)), None];
        let config = TransformerConfig::new(2, 16, 4, 20, 32)
            .with_kv_heads(2)
            .with_positional(positional)
            .with_windows(windows)
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        random_model(config, 5).save_pretrained(folder.path()).unwrap();
        let options = LoadOptions::new().dtype(DType::F64);
        let model = HookedTransformer::from_pretrained_with(folder.path().to_str().unwrap(), options).unwrap();
        let whole = model.forward([1, 2, 3, 4, 5, 6]).unwrap();
        let mut cache = model.prefill([1, 2, 3, 4]).unwrap();
        let first = model.forward_with([5], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        assert_close(&first, &whole.clone().narrow(1, 4, 1), 1e-6, "one token");
        cache.freeze();
        let both = model.forward_with(vec![vec![6], vec![6]], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        assert_close(&part(&both, 1, 0, 1), &whole.narrow(1, 5, 1), 1e-6, "a frozen row under two");
    }
}

fn random(shape: [usize; 4], seed: u64) -> Tensor<4> {
    let device = device();
    let values = (0..shape.iter().product::<usize>()).map(|i| ((i as f32 + seed as f32) * 12.9898).sin() * 3.0);
    Tensor::<1>::from_floats(values.collect::<Vec<_>>().as_slice(), &device).reshape(shape)
}

/// torchtune's cache: a fixed size, with errors for texts that are too long or too wide.
#[test]
fn a_preallocated_cache_has_a_size() {
    let shape = CacheShape::new(2, 1, 2, 4).unwrap();
    let mut cache = KeyValueCache::of_shape(shape, CacheKind::GROWING.limited(5)).unwrap();
    let bytes = || 2 * 2 * 5 * 2 * 4 * 4;
    let (keys, _) = cache.append(random([2, 3, 2, 4], 1), random([2, 3, 2, 4], 2), 0).unwrap();
    assert_eq!((keys.dims(), cache[0].len(), cache.memory()), ([2, 3, 2, 4], 3, vec![bytes()]));
    let long = cache.append(random([2, 3, 2, 4], 3), random([2, 3, 2, 4], 4), 0).unwrap_err();
    assert!(matches!(long, CacheError::Full { max_len: 5, needed: 6 }));
    let wide = cache.append(random([3, 1, 2, 4], 3), random([3, 1, 2, 4], 4), 0).unwrap_err();
    assert!(matches!(wide, CacheError::Batch { cache: 2, run: 3 }));
    let (keys, values) = cache.append(random([2, 2, 2, 4], 3), random([2, 2, 2, 4], 4), 0).unwrap();
    assert_eq!(values_of(&keys.narrow(1, 3, 2)), values_of(&random([2, 2, 2, 4], 3)));
    assert_eq!(values_of(&values.narrow(1, 0, 3)), values_of(&random([2, 3, 2, 4], 2)));
    cache.append_attention_mask(&[vec![true; 5], vec![true; 5]]).unwrap();
    cache.truncate(0).unwrap();
    assert_eq!((cache.len(), cache[0].len(), cache.memory()), (0, 0, vec![bytes()]));

    let model = model();
    let mut cache = KeyValueCache::of_kind(model.config(), 1, CacheKind::GROWING.limited(4)).unwrap();
    model.forward_with([1, 2, 3], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    let full = cache_error(model.forward_with([4, 5], ForwardOptions::new().kv_cache(&mut cache)));
    assert!(matches!(full, CacheError::Full { max_len: 4, needed: 5 }));
    assert_eq!((cache.len(), cache[1].len(), cache.max_len()), (3, 3, Some(4)));
    // Sealed columns count toward the limit, too.
    let mut fork = cache.fork(2).unwrap();
    let full = cache_error(model.forward_with(vec![vec![4, 5]; 2], ForwardOptions::new().kv_cache(&mut fork)));
    assert!(matches!(full, CacheError::Full { max_len: 4, needed: 5 }));
    model.forward_with(vec![vec![4]; 2], ForwardOptions::new().kv_cache(&mut fork)).unwrap();
    // Released memory becomes available again.
    model.forward_with([4], ForwardOptions::new().kv_cache(&mut cache.scoped())).unwrap();
    cache.truncate(1).unwrap();
    model.forward_with([2, 3, 4], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    cache.truncate(0).unwrap();
    model.forward_with([1, 2, 3, 4], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    assert_eq!(cache.len(), 4);
}

fn values_of(tensor: &Tensor<4>) -> ndarray::ArrayD<f32> {
    values(tensor)
}

/// Every invalid size has its own error.
#[test]
fn sizes_are_checked_one_by_one() {
    let field = |sizes: [usize; 4]| match CacheShape::new(sizes[0], sizes[1], sizes[2], sizes[3]) {
        Err(CacheError::Size { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        [[0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, usize::MAX]].map(field),
        ["batch", "layers", "kv_heads", "d_head"]
    );
    let shape = || CacheShape::new(1, 1, 1, 1).unwrap();
    for (kind, field) in
        [(CacheKind::GROWING.limited(0), "max_len"), (CacheKind::GROWING.quantized(Bits::Eight, 0), "group")]
    {
        let error = KeyValueCache::of_shape(shape(), kind).unwrap_err();
        assert!(error.to_string().contains(field), "{error}");
    }
}

/// A cache converted to Hugging Face's tuples and back continues at the same position.
#[test]
fn legacy_tuples_both_ways() {
    let model = model();
    let rows = Tokens::padded(&[vec![1, 2, 3], vec![4, 5]], 0, PaddingSide::Left).unwrap();
    let cache = model.prefill(&rows).unwrap();
    let tuples = cache.to_legacy_cache().unwrap();
    assert_eq!((tuples.len(), tuples[0].0.dims()), (2, [2, 4, 3, 4]));
    let mask = Some(cache.attention_mask());
    let mut again = KeyValueCache::from_legacy_cache(model.config(), tuples.clone(), mask).unwrap();
    let (mut cache, next) = (cache, vec![vec![6], vec![7]]);
    let expected = model.forward_with(next.clone(), ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    let given = model.forward_with(next, ForwardOptions::new().kv_cache(&mut again)).unwrap();
    assert_close(&given, &expected, 1e-6, "from tuples");
    let short = KeyValueCache::from_legacy_cache(model.config(), tuples[..1].to_vec(), None).unwrap_err();
    assert!(matches!(short, CacheError::Layers { cache: 1, model: 2 }));
    let mask = Some(vec![vec![true; 2]; 2]);
    let wrong = KeyValueCache::from_legacy_cache(model.config(), tuples.clone(), mask).unwrap_err();
    assert!(matches!(wrong, CacheError::MaskLength { expected: 3, given: 2 }));
    let other = TransformerConfig::new(2, 16, 2, 20, 32);
    let shape = KeyValueCache::from_legacy_cache(&other, tuples, None).unwrap_err();
    assert!(matches!(shape, CacheError::Shape { what: "keys", expected: [2, 3, 2, 8], given: [2, 3, 4, 4] }));
}

/// Each element is restored within half a quantization step of its group, and stored data takes the expected memory.
#[test]
fn few_bits_are_near_enough() {
    for (bits, steps, share) in [(Bits::Sixteen, 256.0, 0.51), (Bits::Eight, 255.0, 0.3), (Bits::Four, 15.0, 0.17)] {
        let shape = CacheShape::new(2, 1, 3, 64).unwrap();
        let mut cache = KeyValueCache::of_shape(shape, CacheKind::GROWING.quantized(bits, 64)).unwrap();
        let whole = [random([2, 100, 3, 64], 5), random([2, 100, 3, 64], 9)];
        let part = |which: usize, from, len| whole[which].clone().narrow(1, from, len);
        cache.append(part(0, 0, 70), part(1, 0, 70), 0).unwrap();
        let before = values_of(&cache[0].keys().unwrap());
        for at in 70..100 {
            cache.append(part(0, at, 1), part(1, at, 1), 0).unwrap();
        }
        let after = cache[0].keys().unwrap();
        assert_eq!(values_of(&after.clone().narrow(1, 0, 70)), before, "what was stored has changed");
        for (given, expected) in [(after, &whole[0]), (cache[0].values().unwrap(), &whole[1])] {
            let (given, expected) = (values_of(&given), values_of(expected));
            for (given, expected) in given.rows().into_iter().zip(expected.rows()) {
                let (least, most) = expected.iter().fold((f32::MAX, f32::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
                let half = (most - least) / steps / 2.0 * 1.001 + 1e-6;
                assert!(given.iter().zip(expected).all(|(a, b)| (a - b).abs() <= half));
            }
        }
        let floats = (2 * 2 * 100 * 3 * 64 * 4) as f64;
        let ratio = cache.memory()[0] as f64 / floats;
        assert!(ratio <= share, "{bits:?}: {ratio:.3} of f32");
        cache.append_attention_mask(&[vec![true; 100], vec![true; 100]]).unwrap();
        cache.truncate(80).unwrap();
        cache.select_rows(&[1, 1, 0]).unwrap();
        let chosen = values_of(&cache[0].keys().unwrap().narrow(0, 2, 1).narrow(1, 0, 70));
        assert_eq!(chosen, before.select(ndarray::Axis(0), &[0]));
    }
}

/// Runs after a quantized cache are close to runs after an exact one, also for its forks.
#[test]
fn runs_behind_few_bits() {
    let model = random_model(TransformerConfig::new(2, 64, 4, 20, 64), 3);
    let whole = model.forward([1, 2, 3, 4, 5, 6, 7, 8]).unwrap().narrow(1, 6, 2);
    for (kind, tolerance) in [(CacheKind::SIXTEEN_BIT, 0.01), (CacheKind::EIGHT_BIT, 0.01), (CacheKind::FOUR_BIT, 0.15)]
    {
        let mut cache = KeyValueCache::of_kind(model.config(), 1, kind).unwrap();
        model.forward_with([1, 2, 3, 4], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        let mut fork = cache.fork(2).unwrap();
        model.forward_with(vec![vec![5, 6]; 2], ForwardOptions::new().kv_cache(&mut fork)).unwrap();
        let given = model.forward_with(vec![vec![7, 8]; 2], ForwardOptions::new().kv_cache(&mut fork)).unwrap();
        assert_close(&part(&given, 1, 0, 2), &whole, tolerance, &kind.to_string());
        assert_eq!((cache.len(), fork.len()), (4, 8));
    }
}

/// A sliding window cannot restore positions that it has dropped.
#[test]
fn what_a_window_dropped_stays_dropped() {
    let windows = vec![Some(Window::Sliding(3)), None];
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32).with_windows(windows).unwrap(), 7);
    let mut cache = KeyValueCache::of_kind(model.config(), 1, CacheKind::GROWING.sliding()).unwrap();
    for token in 0..10 {
        model.forward_with([token], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    }
    // Keys and values of 4 heads of width 4, for two columns in one layer and for all ten in the other.
    assert_eq!(cache.memory()[0], 2 * 2 * 16 * 4);
    assert_eq!((cache[0].first(), cache[1].first(), cache[0].len()), (8, 0, 10));
    let dropped = cache.truncate(9).unwrap_err();
    assert!(matches!(dropped, CacheError::Dropped { layer: 0, first: 8, wanted: 7 }));
    assert!(matches!(cache.to_legacy_cache(), Err(CacheError::Dropped { .. })));
    assert_eq!(cache.len(), 10);
    let watch = model.run([1], ForwardOptions::new().kv_cache(&mut cache).record("*hook_pattern")).unwrap();
    assert_eq!(watch.cache.get(hook::pattern(0)).unwrap().dims(), [1, 4, 1, 11]);
    let elsewhere = random_model(TransformerConfig::new(2, 16, 4, 20, 32), 7);
    let other = cache_error(elsewhere.forward_with([1], ForwardOptions::new().kv_cache(&mut cache)));
    assert!(matches!(other, CacheError::Window { layer: 0, model: None, .. }));
}

#[test]
fn rotated_keys_that_were_dropped_can_not_be_shown() {
    use hooklens::{RopeScaling, Rotary};
    let rotary = Positional::Rotary(Rotary { dim: 4, base: 100.0, adjacent_pairs: false, scaling: RopeScaling::None });
    let windows = vec![Some(Window::Sliding(2)), None];
    let config = TransformerConfig::new(2, 16, 4, 20, 32).with_positional(rotary).with_windows(windows).unwrap();
    let model = random_model(config, 7);
    let mut cache = KeyValueCache::of_kind(model.config(), 1, CacheKind::GROWING.sliding()).unwrap();
    model.forward_with([1, 2, 3, 4], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    let error = model.run([5], ForwardOptions::new().kv_cache(&mut cache).record("rot_k0")).unwrap_err();
    assert!(error.to_string().contains("dropped keys"), "{error}");
    let shown = model.run([5], ForwardOptions::new().kv_cache(&mut cache).record("rot_k1")).unwrap();
    assert_eq!(shown.cache.get(hook::rot_k(1)).unwrap().dims(), [1, 5, 4, 4]);
}

/// A saved cache only works with the model that computed it. Damaged files are rejected.
#[test]
fn saved_caches_are_checked() {
    let model = model();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.safetensors");
    let mut cache = model.prefill([1, 2, 3]).unwrap();
    cache.freeze();
    cache.save(&path, &model).unwrap();
    let again = KeyValueCache::load(&path, &model).unwrap();
    assert!(again.is_frozen() && again.to_data().unwrap() == cache.to_data().unwrap());
    let other = random_model(TransformerConfig::new(2, 16, 4, 20, 32), 8);
    let error = cache_error(KeyValueCache::load(&path, &other));
    assert!(matches!(error, CacheError::OtherModel { .. }), "{error}");
    let whole = std::fs::read(&path).unwrap();
    for end in [0, 4, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..end]).unwrap();
        let error = cache_error(KeyValueCache::load(&path, &model));
        assert!(matches!(&error, CacheError::File { .. }), "{error}");
    }
    // A valid file of another kind, and one whose parts do not match.
    model.save_pretrained(folder.path()).unwrap();
    let error = cache_error(KeyValueCache::load(folder.path().join("model.safetensors"), &model));
    assert!(error.to_string().contains("not a saved cache"), "{error}");
    let data = serde_json::to_value(cache.to_data().unwrap()).unwrap();
    for list in ["/mask/0", "/layers"] {
        let mut shorter = data.clone();
        shorter.pointer_mut(list).unwrap().as_array_mut().unwrap().pop();
        let shorter = serde_json::from_value(shorter).unwrap();
        assert!(matches!(KeyValueCache::from_data(&shorter, &device()), Err(CacheError::Data { .. })), "{list}");
    }
}

/// Invalid input is an error that leaves the cache unchanged.
#[test]
fn wrong_rows_are_refused() {
    let model = model();
    let mut cache = model.prefill(vec![vec![1, 2], vec![3, 4]]).unwrap();
    let before = cache.to_data().unwrap();
    assert!(matches!(cache.select_rows(&[0, 2]), Err(CacheError::Slot { slot: 2, batch: 2 })));
    assert!(matches!(cache.select_rows(&[]), Err(CacheError::Size { .. })));
    assert!(matches!(cache.reorder_cache(&[0]), Err(CacheError::Batch { cache: 2, run: 1 })));
    assert!(matches!(cache.fork(0), Err(CacheError::Size { .. })));
    assert!(matches!(cache.crop(-3), Err(CacheError::TooFew { held: 2, asked: 3 })));
    assert!(matches!(cache.insert_index(&[0], 5), Err(CacheError::Slot { slot: 5, .. })));
    assert!(matches!(cache.insert_index(&[3], 0), Err(CacheError::TooFew { held: 2, asked: 3 })));
    let other = model.prefill([5]).unwrap();
    assert!(matches!(cache.insert(&other, 2), Err(CacheError::Slot { slot: 2, batch: 2 })));
    let wide = model.prefill(vec![vec![1], vec![2]]).unwrap();
    assert!(matches!(cache.insert(&wide, 1), Err(CacheError::Slots { slot: 1, count: 2, batch: 2 })));
    let heads = random_model(TransformerConfig::new(2, 16, 2, 20, 32), 7).prefill([1]).unwrap();
    assert!(matches!(cache.insert(&heads, 0), Err(CacheError::Model { .. })));
    let (keys, values) = (random([2, 1, 4, 4], 1), random([2, 1, 4, 5], 1));
    assert!(matches!(cache.append(keys.clone(), values, 0), Err(CacheError::Shape { .. })));
    assert!(matches!(cache.append(keys.clone(), keys.clone(), 2), Err(CacheError::Layer { layer: 2, layers: 2 })));
    let half = keys.cast(burn::tensor::FloatDType::F16);
    assert!(matches!(cache.append(half.clone(), half, 0), Err(CacheError::DType { .. })));
    let ragged = cache.append_attention_mask(&[vec![true], vec![true; 2]]);
    assert!(matches!(ragged, Err(CacheError::Ragged)));
    assert_eq!(cache.to_data().unwrap(), before);
    cache.freeze();
    for refused in [
        cache.select_rows(&[0]),
        cache.insert(&other, 0),
        cache.batch_repeat_interleave(2),
        cache.insert_index(&[1], 0),
    ] {
        assert!(matches!(refused, Err(CacheError::Frozen)));
    }
    assert!(cache.to_string().starts_with("growing cache, 2 layers of 2 rows by 2 positions, frozen"), "{cache}");
}

/// A failed run leaves every kind of cache unchanged.
#[test]
fn a_failed_run_leaves_the_cache_alone() {
    let windows = vec![Some(Window::Sliding(3)), None];
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32).with_windows(windows).unwrap(), 7);
    let plain = [CacheKind::GROWING, CacheKind::GROWING.sliding(), CacheKind::EIGHT_BIT, CacheKind::GROWING.limited(9)];
    let away = [Offload::Memory, Offload::Disk].map(|to| CacheKind::GROWING.sliding().offloaded(to));
    for kind in plain.into_iter().chain(away).chain([CacheKind::FOUR_BIT.sliding().limited(9)]) {
        let mut cache = KeyValueCache::of_kind(model.config(), 1, kind).unwrap();
        model.forward_with([1, 2, 3, 4], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        let before = cache.to_data().unwrap();
        let failing = hook::z(1).edit(|_, _| Err::<Tensor<4>, _>("no"));
        assert!(model.forward_with([5, 6], ForwardOptions::new().kv_cache(&mut cache).hooks([failing])).is_err());
        assert_eq!(cache.to_data().unwrap(), before, "{}", kind);
    }
}

/// Running out of memory during a run, or any other panic, leaves every kind of cache unchanged.
#[test]
fn a_panic_leaves_the_cache_alone() {
    let windows = vec![Some(Window::Sliding(3)), None];
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32).with_windows(windows).unwrap(), 7);
    let kinds = [CacheKind::GROWING, CacheKind::GROWING.sliding(), CacheKind::SIXTEEN_BIT, CacheKind::EIGHT_BIT];
    for kind in kinds.into_iter().chain([CacheKind::GROWING.limited(9)]) {
        let mut cache = KeyValueCache::of_kind(model.config(), 1, kind).unwrap();
        model.forward_with([1, 2, 3, 4], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        let before = cache.to_data().unwrap();
        let full = hook::z(1).edit(|z: Tensor<4>, _| if z.dims()[0] == 1 { panic!("{DEVICE_IS_FULL}") } else { z });
        let refused = model.forward_with([5, 6], ForwardOptions::new().kv_cache(&mut cache).hooks([full]));
        assert!(matches!(&refused, Err(Error::OutOfMemory { asked, .. }) if asked == "2.00 GiB"), "{refused:?}");
        // A hook's own panic message is preserved.
        for own in ["a hook's own", "out of memory", "CUDA out of memory. Tried to allocate 2.00 GiB."] {
            let other = hook::z(1).edit(|z: Tensor<4>, _| if z.dims()[0] == 1 { panic!("{own}") } else { z });
            let run = std::panic::AssertUnwindSafe(|| {
                let _ = model.forward_with([5, 6], ForwardOptions::new().kv_cache(&mut cache).hooks([other]));
            });
            let panic = std::panic::catch_unwind(run).unwrap_err();
            assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some(own));
            let other = hook::z(1).edit(|_: Tensor<4>, _| Err::<Tensor<4>, _>(own));
            let refused = model.forward_with([5, 6], ForwardOptions::new().kv_cache(&mut cache).hooks([other]));
            assert!(matches!(&refused, Err(Error::Hook(HookError::Failed { .. }))), "{refused:?}");
        }
        assert_eq!(cache.to_data().unwrap(), before, "{}", kind);
        model.forward_with([5, 6], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    }
}

/// Gradients flow through cached keys and values.
#[test]
fn gradients_flow_through_a_cache() {
    let device = device().autodiff();
    let model = HookedTransformer::random(TransformerConfig::new(2, 16, 4, 20, 32), 5, &device).unwrap();
    let scale = |cached: bool| {
        let steer = Tensor::<3>::zeros([1, 3, 16], &device).require_grad();
        let add = steer.clone();
        let hook = hook::resid_pre(0).edit(move |x, at| {
            if at.offset() > 0 {
                return x;
            }
            let [_, len, _] = x.dims();
            let rest = Tensor::zeros([1, len - 3 + 1, 16], &x.device()).narrow(1, 0, len - 3 + 1);
            x + Tensor::cat(vec![add.clone(), rest], 1).narrow(1, 0, len)
        });
        let hooked = model.hooks([hook]);
        let logits = if cached {
            let mut cache = KeyValueCache::new(model.config(), 1);
            hooked.forward_with([1, 2, 3], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
            let first = hooked.forward_with([4], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
            let mut fork = cache.fork(2).unwrap();
            let second =
                hooked.forward_with(vec![vec![5], vec![5]], ForwardOptions::new().kv_cache(&mut fork)).unwrap();
            Tensor::cat(vec![first, second.narrow(0, 0, 1)], 1)
        } else {
            hooked.forward([1, 2, 3, 4, 5]).unwrap().narrow(1, 3, 2)
        };
        let gradients = logits.square().sum().backward();
        steer.grad(&gradients).expect("a gradient")
    };
    assert_close(&scale(true), &scale(false), 1e-4, "gradient through cached positions");
}

/// Appending a token does not copy earlier keys and values: other handles do not see the new token, and existing data
/// stays in place.
#[test]
fn appending_leaves_the_past_where_it_is() {
    let shape = CacheShape::new(1, 1, 2, 8).unwrap();
    let mut cache = KeyValueCache::of_shape(shape, CacheKind::GROWING).unwrap();
    for at in 0..100 {
        cache.append(random([1, 1, 2, 8], at), random([1, 1, 2, 8], at + 7), 0).unwrap();
    }
    let bytes = cache.memory()[0];
    assert!(bytes <= 2 * 150 * 16 * 4, "{bytes} bytes for 100 positions");
    // Shared memory is counted in both handles, including spare capacity.
    let fork = cache.fork(3).unwrap();
    assert_eq!((cache.memory()[0], fork.memory()[0]), (bytes, bytes));
    let keys = values_of(&cache[0].keys().unwrap());
    for at in 0..100u64 {
        let row = keys.slice_axis(ndarray::Axis(1), ndarray::Slice::from(at as usize..at as usize + 1)).to_owned();
        assert_eq!(row, values_of(&random([1, 1, 2, 8], at)));
    }
}

/// TransformerLens's mask tests: a masked token has no effect, and padding on either side, before and after the split,
/// changes nothing.
#[test]
fn masks_behind_a_cache() {
    let model = model();
    let mut cache = model.prefill([1, 2, 3]).unwrap();
    cache.freeze();
    let mask = vec![vec![true, true, true, false, true]];
    let options = ForwardOptions::new().kv_cache(&mut cache).attention_mask(mask);
    let masked = model.forward_with([4, 5, 6, 9, 7], options).unwrap();
    let without = model.forward_with([4, 5, 6, 7], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    assert_close(&masked.narrow(1, 4, 1), &without.narrow(1, 3, 1), 1e-5, "a masked token");
    let (first, second) = ([vec![1, 2, 3], vec![4, 5]], [vec![6, 7], vec![8, 9, 10]]);
    for before in [PaddingSide::Left, PaddingSide::Right] {
        for behind in [PaddingSide::Left, PaddingSide::Right] {
            let mut cache = model.prefill(Tokens::padded(&first, 0, before).unwrap()).unwrap();
            cache.freeze();
            let suffix = Tokens::padded(&second, 0, behind).unwrap();
            let last = ForwardOptions::new().kv_cache(&mut cache).logits(Logits::Last);
            let given = model.forward_with(&suffix, last).unwrap();
            for row in 0..2 {
                let whole = [&first[row][..], &second[row]].concat();
                let alone = model.forward_with(vec![whole], ForwardOptions::new().logits(Logits::Last)).unwrap();
                assert_close(&part(&given, row, 0, 1), &alone, 1e-5, "padded twice");
            }
        }
    }
}

mod once {
    use super::*;

    proptest! {
        /// Damage anywhere in a saved cache gives an error or a cache, but never a panic.
        #[test]
        fn damaged_caches_never_panic(at in any::<prop::sample::Index>(), byte: u8) {
            let model = model();
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("cache.safetensors");
            model.prefill([1, 2, 3]).unwrap().save(&path, &model).unwrap();
            let mut bytes = std::fs::read(&path).unwrap();
            let place = at.index(bytes.len().min(3000));
            bytes[place] = byte;
            std::fs::write(&path, bytes).unwrap();
            if let Ok(mut cache) = KeyValueCache::load(&path, &model) {
                let _ = model.forward_with([4], ForwardOptions::new().kv_cache(&mut cache));
            }
        }
    }
}
