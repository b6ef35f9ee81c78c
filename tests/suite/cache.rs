//! Running in parts behind a cache is running the whole.

use burn::tensor::Tensor;
use hooklens::prelude::*;
use hooklens::{CacheError, Error, Window};
use proptest::prelude::*;

use crate::support::{any_config, any_row, assert_close, random_model, values};

fn part(x: &Tensor<3>, row: usize, from: usize, to: usize) -> Tensor<3> {
    x.clone().narrow(0, row, 1).narrow(1, from, to - from)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any split of a padded batch, any padding of the parts, any configuration.
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
            let logits = model.forward(&tokens, ForwardOptions::new().kv_cache(&mut cache)).unwrap();
            let len = tokens.shape()[1];
            for (row, part_ids) in parts.iter().enumerate() {
                let from = if sides[chunk] { len - part_ids.len() } else { 0 };
                outputs[row].push(part(&logits, row, from, from + part_ids.len()));
            }
        }
        for (row, outputs) in rows.into_iter().zip(outputs) {
            let whole = model.forward(vec![row], ()).unwrap();
            assert_close(&Tensor::cat(outputs, 1), &whole, 1e-5, "in three parts");
        }
    }

    /// A frozen row serves a batch, changes nothing in itself, and hooks see what they should.
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
    let batch = cache_error(model.forward(vec![vec![1], vec![2]], ForwardOptions::new().kv_cache(&mut cache)));
    assert!(matches!(batch, CacheError::Batch { cache: 1, run: 2 }));
    let other = random_model(TransformerConfig::new(2, 16, 2, 20, 32), 7);
    assert!(matches!(
        cache_error(other.forward([1], ForwardOptions::new().kv_cache(&mut cache))),
        CacheError::Model { layer: 0, .. }
    ));
    let deeper = random_model(TransformerConfig::new(3, 16, 4, 20, 32), 7);
    assert!(matches!(
        cache_error(deeper.forward([1], ForwardOptions::new().kv_cache(&mut cache))),
        CacheError::Layers { .. }
    ));
    let partial = model.forward([1], ForwardOptions::new().kv_cache(&mut cache).stop_at_layer(1));
    assert!(matches!(cache_error(partial), CacheError::Partial));
    let failing = hook::z(1).edit(|_, _| Err::<Tensor<4>, _>("no"));
    assert!(model.forward([4], ForwardOptions::new().kv_cache(&mut cache).hooks([failing])).is_err());
    assert_eq!((cache.len(), cache[0].len(), cache[1].len()), (3, 3, 3));
    let long = model.forward(vec![vec![1; 30]], ForwardOptions::new().kv_cache(&mut cache));
    assert!(long.unwrap_err().to_string().contains("33 positions"));
    cache.freeze();
    assert!(matches!(cache.truncate(1), Err(CacheError::Frozen)));
}

/// TransformerLens's own test of freezing: the same after it, different once it is undone.
#[test]
fn freezing_and_unfreezing() {
    let model = model();
    let run =
        |row: [u32; 3], cache: &mut KeyValueCache| model.forward(row, ForwardOptions::new().kv_cache(cache)).unwrap();
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

/// With a frozen cache a run may start in the middle.
#[test]
fn a_restart_behind_a_frozen_cache() {
    let model = model();
    let mut cache = model.prefill([1, 2, 3]).unwrap();
    cache.freeze();
    let whole = model.forward([4, 5], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    let resid = model.forward([4, 5], ForwardOptions::new().kv_cache(&mut cache).stop_at_layer(1)).unwrap();
    let again = model.forward(resid, ForwardOptions::new().kv_cache(&mut cache).start_at_layer(1)).unwrap();
    assert_close(&again, &whole, 1e-6, "stop and start behind a cache");
}

/// Hooks know where their rows stand: behind the cache, or with it for rotated keys.
#[test]
fn hooks_are_told_their_offset() {
    use hooklens::{Positional, RopeScaling, Rotary};
    let rotary = Positional::Rotary(Rotary { dim: 4, base: 100.0, adjacent_pairs: false, scaling: RopeScaling::None });
    let model = random_model(TransformerConfig { positional: rotary, ..TransformerConfig::new(2, 16, 4, 20, 32) }, 7);
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
}

/// Where Burn's own operations do the work (here: 64-bit floats), a cache is the whole too.
#[test]
fn a_cache_in_another_element_type() {
    use hooklens::{Positional, RopeScaling, Rotary};
    let rotary = Positional::Rotary(Rotary { dim: 4, base: 100.0, adjacent_pairs: false, scaling: RopeScaling::None });
    for positional in [Positional::Learned, Positional::Alibi, rotary] {
        let windows = vec![Some(Window::Sliding(3)), None];
        let config =
            TransformerConfig { positional, windows, n_kv_heads: 2, ..TransformerConfig::new(2, 16, 4, 20, 32) };
        let folder = tempfile::tempdir().unwrap();
        random_model(config, 5).save_pretrained(folder.path()).unwrap();
        let options = LoadOptions::new().dtype(DType::F64);
        let model = HookedTransformer::from_pretrained_with(folder.path().to_str().unwrap(), options).unwrap();
        let whole = model.forward([1, 2, 3, 4, 5, 6], ()).unwrap();
        let mut cache = model.prefill([1, 2, 3, 4]).unwrap();
        let first = model.forward([5], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        assert_close(&first, &whole.clone().narrow(1, 4, 1), 1e-6, "one token");
        cache.freeze();
        let both = model.forward(vec![vec![6], vec![6]], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        assert_close(&part(&both, 1, 0, 1), &whole.narrow(1, 5, 1), 1e-6, "a frozen row under two");
    }
}
