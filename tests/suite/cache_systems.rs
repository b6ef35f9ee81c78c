//! Features of five other caching systems, one by one.

use std::any::Any;

use burn::tensor::Tensor;
use hooklens::kv_cache::compat::{EasyDelCache, HuggingFaceCache};
use hooklens::prelude::*;
use hooklens::{ActivationQueue, PaddingSide};
use hooklens::{Bits, CacheError, CacheKind, CacheShape, Entry, Error, Offload, QueueError, Stored, Window};
use proptest::prelude::*;

use crate::support::{any_config, any_row, assert_close, cases, device, random_model, values};

fn model() -> HookedTransformer {
    random_model(TransformerConfig::new(2, 16, 4, 20, 32), 7)
}

/// Values that are different at every position.
fn counted(shape: [usize; 4], from: f32) -> Tensor<4> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|at| from + at as f32 / 64.0).collect();
    Tensor::from_data(burn::tensor::TensorData::new(values, shape), &device())
}

fn cache_error(result: Result<impl std::fmt::Debug, Error>) -> CacheError {
    match result.unwrap_err() {
        Error::Cache(error) => error,
        other => panic!("not a cache's error: {other}"),
    }
}

/// labml's `Cache`: queues and values by name.
#[test]
fn labml() {
    let cache = ActivationQueue::<i32>::unbounded();
    assert_eq!(cache.q_size("q"), None);
    (1..4).try_for_each(|n| cache.push("q", n)).unwrap();
    assert_eq!(cache.q_size("q"), Some(3));
    assert_eq!(cache.try_get("q"), Some(Stored::Queue(vec![1, 2, 3])));
    assert_eq!((1..4).map(|_| cache.pop("q").unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(cache.q_size("q"), Some(0));
    assert!(matches!(cache.pop("q"), Err(QueueError::Empty { .. })));
    assert!(matches!(cache.pop("p"), Err(QueueError::Absent { nearest, .. }) if nearest.is_empty()));
    cache.push("losses", 1).unwrap();
    assert!(matches!(cache.pop("loses"), Err(QueueError::Absent { nearest, .. }) if nearest == ["losses"]));

    cache.push("q", 5).unwrap();
    cache.set("q", 6);
    assert_eq!((cache.q_size("q"), cache.get("q", 0)), (None, Stored::Value(6)));
    assert!(matches!(cache.pop("q"), Err(QueueError::NoQueue { .. })));
    assert!(matches!(cache.push("q", 7).unwrap_err().error, QueueError::NoQueue { .. }));
    cache.set("q", 8);
    assert_eq!(
        (cache.get("q", 0), cache.get("other", 9), cache.try_get("other")),
        (Stored::Value(8), Stored::Value(9), None)
    );
    cache.clear("q").unwrap();
    assert!(matches!(cache.clear("q"), Err(QueueError::Absent { .. })));
    cache.push("q", 1).unwrap();
    cache.clear_all();
    assert_eq!(cache.q_size("q"), None);

    // There is one program-wide cache per value type, and one cache can also store values of any type.
    ActivationQueue::shared_of::<String>().push("seen by all", "once").unwrap();
    assert_eq!(ActivationQueue::shared_of::<String>().pop("seen by all").unwrap(), "once");
    assert!(ActivationQueue::shared_of::<u64>().try_get("seen by all").is_none());
    let any = ActivationQueue::<Box<dyn Any + Send>>::unbounded();
    any.push("q", Box::new(1i32) as Box<dyn Any + Send>).unwrap();
    any.push("q", Box::new("text") as Box<dyn Any + Send>).unwrap();
    assert_eq!(any.pop("q").unwrap().downcast_ref::<i32>(), Some(&1));
    // A writer that waits for space in a queue is notified when its value is accepted.
    let full = ActivationQueue::<i32>::bounded(1, hooklens::WhenFull::Block);
    full.push("q", 1).unwrap();
    let writer = full.clone();
    let waits = std::thread::spawn(move || writer.push("q", 2).unwrap_err().error);
    while !waits.is_finished() {
        full.set("q", 3);
        std::thread::yield_now();
    }
    assert!(matches!(waits.join().unwrap(), QueueError::NoQueue { .. }));
}

/// TransformerLens's cache: entries can be modified individually.
#[test]
fn transformer_lens() {
    let model = model();
    let mut cache = KeyValueCache::new(model.config(), 1);
    let none = || Tensor::<4>::zeros([1, 0, 4, 4], &device());
    assert_eq!((cache[0].keys().unwrap().dims(), cache[0].values().unwrap().dims()), ([1, 0, 4, 4], [1, 0, 4, 4]));
    // A run over no positions is a no-op, after an empty cache and after a filled one.
    let (keys, _) = cache.append(none(), none(), 0).unwrap();
    assert_eq!((keys.dims(), cache[0].len(), cache.len()), ([1, 0, 4, 4], 0, 0));
    for layer in 0..2 {
        let (keys, _) = cache[layer].append(counted([1, 3, 4, 4], 0.0), counted([1, 3, 4, 4], 1.0)).unwrap();
        assert_eq!(keys.dims(), [1, 3, 4, 4]);
    }
    let (keys, _) = cache.append(none(), none(), 1).unwrap();
    assert_eq!((keys.dims(), cache.len()), ([1, 3, 4, 4], 3));
    for kind in
        [CacheKind::GROWING.sliding(), CacheKind::SIXTEEN_BIT, CacheKind::EIGHT_BIT, CacheKind::GROWING.limited(4)]
    {
        let mut cache = KeyValueCache::of_kind(model.config(), 1, kind).unwrap();
        assert_eq!(cache.append(none(), none(), 0).unwrap().0.dims(), [1, 0, 4, 4], "{}", kind);
    }

    // One frozen layer is read but not extended; runs need all layers in the same state.
    let plain = cache[1].clone();
    let mut frozen = cache.clone();
    frozen.freeze();
    cache[1] = frozen[1].clone();
    assert!(frozen.is_frozen() && !cache.is_frozen());
    let (keys, _) = cache[1].append(counted([1, 1, 4, 4], 5.0), counted([1, 1, 4, 4], 5.0)).unwrap();
    assert_eq!((keys.dims(), cache[1].len()), ([1, 4, 4, 4], 3));
    let mixed = cache_error(model.forward_with([1], ForwardOptions::new().kv_cache(&mut cache)));
    assert!(matches!(mixed, CacheError::Mixed { layer: 1, frozen: true }));
    cache[1] = plain;
    model.forward_with([1], ForwardOptions::new().kv_cache(&mut cache)).unwrap();

    // Entries are assigned, iterated, and created individually.
    let filled = model.prefill([1, 2, 3, 4]).unwrap();
    let mut other = KeyValueCache::new(model.config(), 1);
    for layer in 0..2 {
        other[layer] = filled[layer].clone();
    }
    let next = |cache: &mut KeyValueCache| model.forward_with([5], ForwardOptions::new().kv_cache(cache)).unwrap();
    assert_eq!(values(&next(&mut other)), values(&next(&mut filled.clone())));
    assert_eq!((&filled).into_iter().map(Entry::len).collect::<Vec<_>>(), [4, 4]);
    assert_eq!((&filled).into_iter().count(), 2);
    let mut zeroed = filled.clone();
    for entry in &mut zeroed {
        entry.set(entry.keys().unwrap(), entry.values().unwrap().zeros_like()).unwrap();
    }
    assert_ne!(values(&next(&mut zeroed)), values(&next(&mut filled.clone())));
    let alone = KeyValueCache::new(model.config(), 3)[0].clone();
    assert_eq!((alone.keys().unwrap().dims(), alone.is_empty()), ([3, 0, 4, 4], true));
    // An entry of another shape is rejected when it is used.
    let mut wrong = filled.clone();
    wrong[1] = KeyValueCache::of_shape(CacheShape::new(1, 1, 2, 8).unwrap(), CacheKind::GROWING).unwrap()[0].clone();
    assert!(matches!(
        cache_error(model.forward_with([1], ForwardOptions::new().kv_cache(&mut wrong))),
        CacheError::Model { layer: 1, .. }
    ));

    // A dtype and device set from the start.
    let made = || KeyValueCache::new(model.config(), 1).with_dtype(DType::F16).unwrap().with_device(&device()).unwrap();
    assert_eq!(made()[0].keys().unwrap().dtype(), DType::F16.burn());
    let mut half = made();
    let near = model.forward_with([1, 2, 3, 4], ForwardOptions::new().kv_cache(&mut half)).unwrap();
    let behind = model.forward_with([5, 6], ForwardOptions::new().kv_cache(&mut half)).unwrap();
    assert_eq!((near.dtype(), half[1].values().unwrap().dtype()), (DType::F32.burn(), DType::F16.burn()));
    let whole = model.forward([1, 2, 3, 4, 5, 6]).unwrap().narrow(1, 4, 2);
    assert_close(&behind, &whole, 5e-3, "behind keys in 16 bits");
    assert!(matches!(half.with_dtype(DType::F32), Err(CacheError::NotEmpty { held: 6 })));
    assert!((&filled).into_iter().all(|entry| format!("{entry:?}").len() < 200));
}

/// A cache that stores another element type than the model computes in is the same cache after it was copied to another
/// kind, saved, or converted to data, and takes rows from caches that do not.
#[test]
fn an_element_type_stays() {
    let model = model();
    let half = || KeyValueCache::new(model.config(), 1).with_dtype(DType::F16).unwrap();
    let run = |cache: &mut KeyValueCache, rows: Vec<Vec<u32>>| {
        model.forward_with(rows, ForwardOptions::new().kv_cache(cache)).unwrap()
    };
    let mut own = half();
    run(&mut own, vec![vec![1, 2, 3, 4]]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("half.safetensors");
    own.save(&path, &model).unwrap();
    let text = serde_json::to_string(&own.to_data().unwrap()).unwrap();
    let copies = [
        own.to_kind(CacheKind::GROWING.limited(10)).unwrap(),
        own.to_kind(CacheKind::GROWING).unwrap(),
        KeyValueCache::load(&path, &model).unwrap(),
        KeyValueCache::from_data(&serde_json::from_str(&text).unwrap(), &device()).unwrap(),
    ];
    let expected = values(&run(&mut own.clone(), vec![vec![5, 6]]));
    for mut copy in copies {
        assert_eq!(values(&run(&mut copy, vec![vec![5, 6]])), expected);
        assert_eq!(copy[0].keys().unwrap().dtype(), DType::F16.burn());
    }
    // A row of a cache in f32 is rounded when it takes the place of another.
    let mut two = KeyValueCache::new(model.config(), 2).with_dtype(DType::F16).unwrap();
    run(&mut two, vec![vec![1, 2, 3, 4], vec![7, 8, 9, 3]]);
    two.insert(&model.prefill(vec![vec![1, 2, 3, 4]]).unwrap(), 1).unwrap();
    let both = values(&run(&mut two, vec![vec![5, 6], vec![5, 6]]));
    let apart = |row: usize| both.index_axis(ndarray::Axis(0), row).to_owned();
    assert!((apart(0) - apart(1)).iter().all(|gap| gap.abs() < 5e-3));

    // Sizes of damaged files are errors, not allocations.
    for (place, value) in [("/shape/batch", 1u64 << 60), ("/shape/kv_heads", 1 << 40), ("/kind/max_len", 1 << 50)] {
        let mut data: serde_json::Value = serde_json::from_str(&text).unwrap();
        *data.pointer_mut(place).unwrap() = value.into();
        let message = KeyValueCache::from_data(&serde_json::from_value(data).unwrap(), &device()).unwrap_err();
        assert!(matches!(message, CacheError::Size { .. }), "{place}: {message}");
    }
    let absurd = CacheKind::GROWING.limited(1 << 60);
    assert!(matches!(KeyValueCache::of_kind(model.config(), 1, absurd), Err(CacheError::Size { .. })));
}

/// torchtune's cache: size, batch size and dtype are set up once.
#[test]
fn torchtune() {
    let shape = CacheShape::new(4, 2, 2, 4).unwrap();
    let made = KeyValueCache::of_shape(shape, CacheKind::GROWING.limited(16)).unwrap();
    let mut cache = made.with_dtype(DType::F32).unwrap().with_device(&device()).unwrap();
    let bytes = vec![2 * 4 * 16 * 2 * 4 * 4; 2];
    assert_eq!(cache.memory(), bytes);
    let new = |rows: usize, len: usize, from: f32| counted([rows, len, 2, 4], from);
    // The size changes once every layer has been updated, without updating the mask.
    cache.append(new(2, 8, 0.0), new(2, 8, 1.0), 0).unwrap();
    assert_eq!((cache.len(), cache[0].len()), (0, 8));
    cache.append(new(2, 8, 2.0), new(2, 8, 3.0), 1).unwrap();
    assert_eq!((cache.len(), cache.batch(), cache.lengths()), (8, 2, vec![8, 8]));
    for layer in 0..2 {
        let (keys, values) = cache.append(new(2, 1, 4.0), new(2, 1, 5.0), layer).unwrap();
        assert_eq!((keys.dims(), values.dims()), ([2, 9, 2, 4], [2, 9, 2, 4]));
    }
    assert_eq!((cache.len(), cache.memory()), (9, bytes.clone()));
    // A later mask can exclude columns that were assumed to be valid.
    let message = cache.append_attention_mask(&[[vec![false; 2], vec![true; 7]].concat(), vec![true; 9]]).unwrap();
    assert_eq!((message[0][..3].to_vec(), cache.lengths()), (vec![false, false, true], vec![7, 9]));
    assert_eq!(cache.len(), 9);
    let long = cache.append(new(2, 8, 0.0), new(2, 8, 0.0), 0).unwrap_err();
    assert!(matches!(long, CacheError::Full { max_len: 16, needed: 17 }));
    // The number of rows can change only after emptying the cache, and only up to the allocated number.
    let other = cache.append(new(3, 1, 0.0), new(3, 1, 0.0), 0).unwrap_err();
    assert!(matches!(other, CacheError::Batch { cache: 2, run: 3 }));
    cache.truncate(0).unwrap();
    assert_eq!((cache.len(), cache.batch(), cache.memory()), (0, 4, bytes.clone()));
    let wide = cache.append(new(5, 1, 0.0), new(5, 1, 0.0), 0).unwrap_err();
    assert!(matches!(wide, CacheError::Batch { cache: 4, run: 5 }));
    cache.append(new(3, 1, 0.0), new(3, 1, 0.0), 0).unwrap();
    let uneven = cache.append(new(2, 1, 0.0), new(2, 1, 0.0), 1).unwrap_err();
    assert!(matches!(uneven, CacheError::Batch { cache: 3, run: 2 }));
    assert_eq!(cache.memory(), bytes);

    // The same rules apply in runs of a model.
    let model = model();
    let mut cache = KeyValueCache::of_kind(model.config(), 3, CacheKind::GROWING.limited(9)).unwrap();
    let rows = vec![vec![1, 2, 3], vec![4, 5, 6]];
    let behind = model.forward_with(rows.clone(), ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    assert_eq!((values(&behind), cache.batch()), (values(&model.forward(rows).unwrap()), 2));
}

/// A cache that was updated by hand in only one layer, without its mask, is not saved.
#[test]
fn half_a_cache_is_not_saved() {
    let model = model();
    let mut cache = model.prefill([1, 2]).unwrap();
    cache.append(counted([1, 1, 4, 4], 0.0), counted([1, 1, 4, 4], 0.0), 0).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let refused = cache_error(cache.save(folder.path().join("half.safetensors"), &model));
    assert_eq!(refused.to_string(), "layer 0 holds 3 positions, but the mask has 2");
    assert!(matches!(cache.to_data(), Err(CacheError::Length { layer: 0, entry: 3, mask: 2 })));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let data = |tokens: &[u32]| serde_json::to_value(model.prefill(tokens).unwrap().to_data().unwrap()).unwrap();
    let mut mixed = data(&[1, 2, 3]);
    mixed["layers"][0]["keys"] = data(&[1, 2])["layers"][0]["keys"].clone();
    let mixed = serde_json::from_value(mixed).unwrap();
    let message = KeyValueCache::from_data(&mixed, &device()).unwrap_err().to_string();
    assert_eq!(
        message,
        "invalid cache data: keys of layer 0 have shape [1, 2, 4, 4] and type F32; expected floats of shape [1, 3, 4, 4]"
    );
}

/// Hugging Face's caches of every kind: in generation, and with masks over past and new columns.
#[test]
fn hugging_face() {
    let model = model();
    let prompt = vec![vec![1, 2, 3, 4]];
    let options = || GenerateOptions::new().max_new_tokens(5);
    let made = model.generate_with(prompt.clone(), options()).unwrap();
    let given_back = made.kv_cache.unwrap();
    assert_eq!((given_back.len(), given_back.to_legacy_cache().unwrap()[1].0.dims()), (8, [1, 4, 8, 4]));
    for kind in [
        CacheKind::GROWING,
        CacheKind::GROWING.limited(12),
        CacheKind::GROWING.offloaded(Offload::Memory),
        CacheKind::GROWING.offloaded(Offload::Disk),
        CacheKind::GROWING.limited(12).offloaded(Offload::Memory),
    ] {
        let mut cache = KeyValueCache::of_kind(model.config(), 1, kind).unwrap();
        let first = model.generate_with(prompt.clone(), options().max_new_tokens(2).kv_cache(&mut cache)).unwrap();
        assert!(first.kv_cache.is_none() && cache.len() == 5);
        // Every position but the last was run; the last starts the continuation.
        let last = vec![vec![first.rows[0].new[1]]];
        let rest = model.generate_with(last, options().max_new_tokens(3).kv_cache(&mut cache)).unwrap();
        assert_eq!([&first.rows[0].new[..], &rest.rows[0].new].concat(), made.rows[0].new, "{}", kind);
        let same = cache.to_legacy_cache().unwrap().into_iter().zip(given_back.to_legacy_cache().unwrap());
        for ((keys, kept), (expected_keys, expected)) in same {
            assert_close(&keys, &expected_keys, 1e-5, "keys of a generation");
            assert_close(&kept, &expected, 1e-5, "values of a generation");
        }
        // Any kind can be converted to a static cache.
        let fixed = cache.to_kind(CacheKind::GROWING.limited(10)).unwrap();
        assert_eq!((fixed.len(), fixed.max_len()), (8, Some(10)));
        assert!(matches!(
            cache.to_kind(CacheKind::GROWING.limited(7)),
            Err(CacheError::Full { max_len: 7, needed: 8 })
        ));
    }
    // A frozen cache is continued, but not filled.
    let mut frozen = given_back.clone();
    frozen.freeze();
    let after = model.generate_with(vec![vec![1]; 2], options().kv_cache(&mut frozen)).unwrap();
    let filled = model.generate_with(vec![vec![1]], options().kv_cache(&mut given_back.clone())).unwrap();
    assert!(after.rows.iter().all(|row| row.new == filled.rows[0].new));
    assert_eq!((frozen.len(), after.kv_cache.map(|cache| (cache.batch(), cache.len()))), (8, Some((2, 13))));

    // A mask over past and new columns is accepted if its past equals the cache's.
    let rows = Tokens::padded(&[vec![1, 2, 3], vec![4, 5]], 0, PaddingSide::Left).unwrap();
    let cache = model.prefill(&rows).unwrap();
    let next = || vec![vec![6, 7], vec![8, 9]];
    let run = |mask: Vec<Vec<bool>>| {
        let mut cache = cache.clone();
        model.forward_with(next(), ForwardOptions::new().kv_cache(&mut cache).attention_mask(mask))
    };
    let new = vec![vec![true, true], vec![true, false]];
    let whole: Vec<Vec<bool>> = cache.attention_mask().iter().zip(&new).map(|(a, b)| [&a[..], b].concat()).collect();
    assert_eq!(values(&run(whole.clone()).unwrap()), values(&run(new).unwrap()));
    let mut other = whole;
    other[1][0] = true;
    let refused = cache_error(run(other));
    assert!(matches!(refused, CacheError::PastMask { row: 1, column: 0, given: true }));
    let message = run(vec![vec![true; 4]; 2]).unwrap_err().to_string();
    assert!(message.contains("of the 2 new positions, or of all 5"), "{message}");
}

/// EasyDeL's cache: windows with quantization, rows put into slots, starts and indices.
#[test]
fn easydel() {
    let windows = [Some(Window::Sliding(4)), None];
    let shape = |rows: usize| {
        CacheShape::new(rows, 2, 2, 8).unwrap().values(1, 4).unwrap().windows(windows).unwrap().pad_token(9)
    };
    let keys = |rows: usize, len: usize, from: f32| counted([rows, len, 2, 8], from);
    let kept = |rows: usize, len: usize, from: f32| counted([rows, len, 1, 4], from);
    for kind in [
        CacheKind::GROWING.sliding(),
        CacheKind::GROWING.limited(12).sliding(),
        CacheKind::GROWING.sliding().quantized(Bits::Eight, 8),
        CacheKind::GROWING.sliding().offloaded(Offload::Disk),
        CacheKind::GROWING.sliding().offloaded(Offload::Memory),
    ] {
        let mut cache = KeyValueCache::of_shape(shape(3), kind).unwrap();
        assert!(cache[0].is_empty());
        for layer in 0..2 {
            cache.append(keys(3, 6, 0.0), kept(3, 6, 0.0), layer).unwrap();
        }
        let view = &cache[0];
        // A window of four keeps the three positions that the next query sees besides itself.
        assert_eq!((view.first(), cache[1].first(), view.keys().unwrap().dims()), (3, 0, [3, 3, 2, 8]));
        assert_close(&view.keys().unwrap(), &keys(3, 6, 0.0).narrow(1, 3, 3), 1e-2, &kind.to_string());
        assert_close(&cache[1].values().unwrap(), &kept(3, 6, 0.0), 1e-2, &kind.to_string());
        let mask = cache.append_tokens(&[vec![9, 9, 1, 1, 1, 1], vec![1; 6], vec![1; 6]]).unwrap();
        assert_eq!((mask[0][..3].to_vec(), cache.lengths()), (vec![false, false, true], vec![4, 6, 6]));

        // Two rows at once, into slots 1 and 2.
        let mut other = KeyValueCache::of_shape(shape(2), CacheKind::GROWING).unwrap();
        for layer in 0..2 {
            other.append(keys(2, 3, 9.0), kept(2, 3, 9.0), layer).unwrap();
        }
        let before = cache[1].keys().unwrap().narrow(0, 0, 1);
        cache.insert(&other, 1).unwrap();
        assert_eq!(cache.lengths(), [4, 3, 3]);
        assert_close(&cache[1].keys().unwrap().narrow(0, 0, 1), &before, 1e-5, "the row that stays");
        let starts = cache.starts();
        let inserted = cache[1].keys().unwrap().narrow(0, 1, 2).narrow(1, starts[1], 3);
        assert_close(&inserted, &keys(2, 3, 9.0), 1e-2, "the rows that come");
        assert!(matches!(cache.insert(&other, 2), Err(CacheError::Slots { slot: 2, count: 2, batch: 3 })));
        assert!(matches!(cache.insert_index(&[9], 1), Err(CacheError::TooFew { held: 3, asked: 9 })));
        assert!(matches!(cache.insert_starts(&[0, 0], 2), Err(CacheError::Slots { .. })));
        // Conversion to and from plain data, and replacing an entry.
        let data = cache.to_data().unwrap();
        let again = KeyValueCache::from_data(&data, &device()).unwrap();
        assert_eq!(again.lengths(), cache.lengths());
        cache[1] = again[1].clone();
        assert_close(&cache[1].keys().unwrap(), &again[1].keys().unwrap(), 1e-6, "an entry for another");
    }
    let one = [Some(Window::Sliding(4))];
    let too_few = CacheShape::new(1, 2, 2, 8).unwrap().windows(one).unwrap_err();
    assert!(matches!(too_few, CacheError::Entries { field: "windows", given: 1, expected: 2 }));
    let both = CacheKind::EIGHT_BIT.offloaded(Offload::Disk);
    assert!(matches!(KeyValueCache::of_shape(shape(3), both), Err(CacheError::Unsupported { .. })));

    // Heads sharded over devices.
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32).with_kv_heads(2), 7);
    for kind in [CacheKind::GROWING, CacheKind::EIGHT_BIT, CacheKind::GROWING.limited(9)] {
        let mut spread = KeyValueCache::of_kind(model.config(), 1, kind).unwrap();
        spread = spread.with_heads_on(&[Device::flex(), device()]).unwrap();
        let mut together = KeyValueCache::of_kind(model.config(), 1, kind).unwrap();
        for tokens in [vec![1, 2, 3], vec![4], vec![5, 6]] {
            let run = |cache: &mut KeyValueCache| {
                model.forward_with(vec![tokens.clone()], ForwardOptions::new().kv_cache(cache)).unwrap()
            };
            assert_close(&run(&mut spread), &run(&mut together), 1e-5, "heads on two devices");
        }
        let mut fork = spread.fork(2).unwrap();
        model.forward_with(vec![vec![7], vec![8]], ForwardOptions::new().kv_cache(&mut fork)).unwrap();
        assert_eq!((fork.len(), spread.len()), (7, 6));
    }
    let none = KeyValueCache::new(model.config(), 1).with_heads_on(&[]);
    assert!(matches!(none, Err(CacheError::Size { field: "devices", given: 0 })));
    let many = KeyValueCache::new(model.config(), 1).with_heads_on(&vec![device(); 3]);
    assert!(matches!(many, Err(CacheError::Size { field: "devices", given: 3 })));
}

/// A row shortened by a window still lacks positions when it is inserted elsewhere: truncating it does not restore
/// them.
#[test]
fn what_an_inserted_row_lacks_stays_lacking() {
    let windows = vec![Some(Window::Sliding(3)), None];
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32).with_windows(windows).unwrap(), 0);
    let made = || KeyValueCache::of_kind(model.config(), 1, CacheKind::GROWING.sliding()).unwrap();
    // Three columns, the last of which is padding: the window needs all of them.
    let (mut cache, mut other) = (made(), made());
    let padded = Tokens::padded(&[vec![1, 2], vec![1, 2, 3]], 0, PaddingSide::Right).unwrap();
    let padded = Tokens::new(vec![padded.row(0).to_vec()]).unwrap().with_mask(vec![vec![true, true, false]]).unwrap();
    model.forward_with(&padded, ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    model.forward_with([4, 5, 6], ForwardOptions::new().kv_cache(&mut other)).unwrap();
    assert_eq!((cache[0].first(), other[0].first()), (0, 1));
    cache.insert(&other, 0).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.safetensors");
    cache.save(&path, &model).unwrap();
    let copies = [KeyValueCache::load(&path, &model).unwrap(), cache.fork(1).unwrap(), cache];
    for mut cache in copies {
        assert!(matches!(cache.insert_index(&[2], 0), Err(CacheError::Dropped { layer: 0, first: 1, wanted: 0 })));
        assert!(matches!(cache.truncate(2), Err(CacheError::Dropped { layer: 0, first: 1, wanted: 0 })));
        let behind = model.forward_with([7], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        let whole = model.forward([4, 5, 6, 7]).unwrap().narrow(1, 3, 1);
        assert_close(&behind, &whole, 1e-5, "behind an inserted row");
    }
}

/// A layer whose window has dropped everything accepts new positions, and rows next to others.
#[test]
fn a_layer_that_holds_nothing_goes_on() {
    let windows = vec![Some(Window::Chunked(3)), Some(Window::Sliding(4))];
    let model = random_model(TransformerConfig::new(2, 16, 4, 20, 32).with_windows(windows).unwrap(), 0);
    let mut cache = KeyValueCache::of_kind(model.config(), 2, CacheKind::GROWING.sliding()).unwrap();
    model.forward_with(vec![vec![1, 2, 3]; 2], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    let mut cache = cache.to_kind(CacheKind::GROWING.sliding()).unwrap();
    assert_eq!((cache[0].len(), cache[0].first()), (3, 3));
    model.forward_with(vec![vec![4]; 2], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    assert_eq!(cache[0].keys().unwrap().dims(), [2, 1, 4, 4]);
    cache.insert(&model.prefill([9]).unwrap(), 0).unwrap();
    let behind = model.forward_with(vec![vec![5]; 2], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    let whole = model.forward([1, 2, 3, 4, 5]).unwrap().narrow(1, 4, 1);
    assert_close(&behind.narrow(0, 1, 1), &whole, 1e-5, "the row that stays");
}

/// A cache stored away from the model's device gives the same results as one on it, step by step and in forks.
#[test]
fn away_is_as_near() {
    let model = random_model(TransformerConfig::new(3, 16, 4, 20, 64), 7);
    for offload in [Offload::Memory, Offload::Disk] {
        let mut away = KeyValueCache::of_kind(model.config(), 1, CacheKind::GROWING.offloaded(offload)).unwrap();
        let mut near = KeyValueCache::new(model.config(), 1);
        let both = |away: &mut KeyValueCache, near: &mut KeyValueCache, rows: Vec<Vec<u32>>| {
            let run = |cache| model.forward_with(rows.clone(), ForwardOptions::new().kv_cache(cache)).unwrap();
            assert_close(&run(away), &run(near), 1e-5, &format!("{offload:?}"));
        };
        both(&mut away, &mut near, vec![vec![1, 2, 3, 4]]);
        (0..8).for_each(|at| both(&mut away, &mut near, vec![vec![at]]));
        // A run that ends early leaves fetched data behind, which must not be used once the cache has changed.
        for cache in [&mut away, &mut near] {
            cache.freeze();
            model.forward_with([5], ForwardOptions::new().kv_cache(cache).stop_at_layer(1)).unwrap();
            cache.unfreeze();
            cache.truncate(6).unwrap();
        }
        both(&mut away, &mut near, vec![vec![9, 1]]);
        both(&mut away.fork(3).unwrap(), &mut near.fork(3).unwrap(), vec![vec![1], vec![2], vec![3]]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("away.safetensors");
        away.save(&path, &model).unwrap();
        let again = KeyValueCache::load(&path, &model).unwrap();
        assert_eq!((again.kind(), again.lengths()), (away.kind(), near.lengths()));
        for layer in 0..3 {
            assert_close(&again[layer].keys().unwrap(), &near[layer].keys().unwrap(), 1e-5, "saved from afar");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(60) })]

    /// Hidden tokens act as if every later query's score for them were minus infinity; positions do not change.
    #[test]
    fn a_start_hides_and_moves_nothing(
        config in any_config(), seed in 0..1000u64, row in any_row(7..9), start in 0..5usize, sliding in any::<bool>(),
    ) {
        let kind = if sliding { CacheKind::GROWING.sliding() } else { CacheKind::GROWING };
        let model = random_model(config, seed);
        let mut cache = KeyValueCache::of_kind(model.config(), 1, kind).unwrap();
        model.forward_with(vec![row[..5].to_vec()], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        cache.insert_starts(&[start], 0).unwrap();
        prop_assert_eq!(cache.lengths(), vec![5]);
        let mut forked = cache.fork(1).unwrap();
        let given: Vec<Tensor<3>> = row[5..].iter().map(|token| {
            model.forward_with([*token], ForwardOptions::new().kv_cache(&mut forked)).unwrap()
        }).collect();
        let hide = |layer: usize| hook::attn_scores(layer as isize).edit(move |scores, _| {
            if start == 0 {
                return scores;
            }
            let [batch, heads, queries, _] = scores.dims();
            let hidden = Tensor::full([batch, heads, queries - 5, start], f32::NEG_INFINITY, &scores.device());
            scores.slice_assign([0..batch, 0..heads, 5..queries, 0..start], hidden)
        });
        let hooks: Vec<_> = (0..model.config().n_layers()).map(hide).collect();
        let whole = model.run_with_hooks(vec![row.clone()], hooks).unwrap();
        assert_close(&Tensor::cat(given, 1), &whole.narrow(1, 5, row.len() - 5), 1e-5, "behind hidden tokens");
        // Tokens that are no longer hidden can be attended to again.
        cache.insert_starts(&[0], 0).unwrap();
        let again = model.forward_with(vec![row[5..].to_vec()], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
        let plain = model.forward(vec![row.clone()]).unwrap().narrow(1, 5, row.len() - 5);
        assert_close(&again, &plain, 1e-5, "shown again");
    }
}
