//! A run that can't be kept leaves its cache as it was, wherever keeping it fails.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{Device, Tensor, TensorData};

use crate::config::{
    GatedDelta, Latent, Mixer, Positional, RopeScaling, Rotary, ShortConv, StateSpace, TransformerConfig, Window,
};
use crate::driver::ForwardOptions;
use crate::encoder_decoder::{DecoderCache, HookedEncoderDecoder};
use crate::error::{CacheError, Result};
use crate::kv_cache::{Bits, CacheKind, KeyValueCache, Offload};
use crate::model::HookedTransformer;
use crate::prelude::*;

/// How a point fails.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Error,
    Panic,
}

thread_local! {
    /// The point of this thread that fails next, counted from now on.
    static NEXT: Cell<Option<(usize, Fault)>> = const { Cell::new(None) };
}

pub(in crate::kv_cache) fn point() -> std::result::Result<(), CacheError> {
    let Some((left, fault)) = NEXT.get() else { return Ok(()) };
    NEXT.set(left.checked_sub(1).map(|left| (left, fault)));
    match (left, fault) {
        (1.., _) => Ok(()),
        (0, Fault::Error) => Err(CacheError::Disk { source: std::io::Error::other("no room") }),
        (0, Fault::Panic) => panic!("a device's own panic"),
    }
}

/// Whether the work reaches its `n`-th point, which then fails, as does the work.
fn fails<T>(n: usize, fault: Fault, work: impl FnOnce() -> Result<T>) -> bool {
    NEXT.set(Some((n, fault)));
    let done = catch_unwind(AssertUnwindSafe(work));
    let failed = NEXT.replace(None).is_none();
    assert_eq!(failed, !matches!(done, Ok(Ok(_))), "what fails is reported");
    failed
}

fn kinds() -> Vec<CacheKind> {
    let whole = [CacheKind::GROWING, CacheKind::preallocated(40), CacheKind::GROWING.offloaded(Offload::Memory)];
    let few = [CacheKind::EIGHT_BIT, CacheKind::FOUR_BIT, CacheKind::GROWING.quantized(Bits::Sixteen, 4)];
    let on_disk = CacheKind::GROWING.offloaded(Offload::Disk);
    let all = whole.into_iter().chain(few).chain([on_disk]);
    all.flat_map(|kind| [kind, kind.sliding()]).collect()
}

fn configs() -> Vec<(&'static str, TransformerConfig)> {
    let plain = TransformerConfig::new(3, 16, 2, 20, 64);
    let windows = vec![Some(Window::Sliding(3)), None, Some(Window::Chunked(4))];
    let net = Mixer::GatedDelta(GatedDelta { n_key_heads: 2, n_value_heads: 2, d_key: 5, d_value: 6, width: 3 });
    let space = Mixer::StateSpace(StateSpace { width: 3, ..StateSpace::new(2, 6, 5) });
    let conv = Mixer::ShortConv(ShortConv { width: 3 });
    let attention = Mixer::Attention { n_kv_heads: 2, d_head: 8 };
    let latent = Latent { q_rank: None, kv_rank: 5, d_rope: 4, d_value: 6, eps: 1e-6 };
    let rotary = Positional::Rotary(Rotary { dim: 4, base: 1000.0, adjacent_pairs: false, scaling: RopeScaling::None });
    vec![
        (
            "states and a window",
            TransformerConfig {
                n_layers: 4,
                mixers: vec![net, attention, space, conv],
                windows: vec![None, Some(Window::Sliding(3)), None, None],
                ..plain.clone()
            },
        ),
        ("latents", TransformerConfig { latent: Some(latent), positional: rotary, ..plain.clone() }),
        ("windows", TransformerConfig { windows, ..plain }),
    ]
}

fn model(config: TransformerConfig) -> HookedTransformer {
    HookedTransformer::random(config, 7, &Device::flex()).unwrap()
}

fn step(model: &HookedTransformer, cache: &mut KeyValueCache, tokens: &[Vec<u32>]) -> Result<TensorData> {
    Ok(model.forward_with(tokens.to_vec(), ForwardOptions::new().kv_cache(cache))?.into_data())
}

/// Texts of two rows, in steps of this many positions.
fn steps() -> Vec<Vec<Vec<u32>>> {
    let lens = [5, 1, 2, 6, 1];
    let token = |at: usize| (at * 7 % 19) as u32;
    lens.iter().enumerate().map(|(at, len)| vec![(0..*len).map(|i| token(at + i)).collect(); 2]).collect()
}

#[test]
fn a_failed_run_leaves_every_kind_as_it_was() {
    for (name, config) in configs() {
        let model = model(config);
        for kind in kinds() {
            let mut reached = 0;
            for fault in [Fault::Error, Fault::Panic] {
                let new = || KeyValueCache::of_kind(model.config(), 3, kind).unwrap();
                let (mut cache, mut never_failed) = (new(), new());
                for tokens in steps() {
                    let (before, batch) = (cache.to_data().unwrap(), cache.batch());
                    for n in 0.. {
                        if !fails(n, fault, || step(&model, &mut cache, &tokens)) {
                            break;
                        }
                        reached += 1;
                        let now = (cache.to_data().unwrap(), cache.batch());
                        assert_eq!(now, (before.clone(), batch), "{name}, {}, point {n}", kind.name());
                    }
                    step(&model, &mut never_failed, &tokens).unwrap();
                    let (now, right) = (cache.to_data().unwrap(), never_failed.to_data().unwrap());
                    assert_eq!(now, right, "{name}, {}", kind.name());
                    // What follows reads the same.
                    let next = vec![vec![3]; 2];
                    let behind = |cache: &KeyValueCache| step(&model, &mut cache.clone(), &next).unwrap();
                    assert_eq!(behind(&cache), behind(&never_failed), "{name}, {}", kind.name());
                }
            }
            assert!(reached > 0, "{name}, {}", kind.name());
        }
    }
}

#[test]
fn a_failed_change_leaves_every_kind_as_it_was() {
    type Change = fn(&mut KeyValueCache, &KeyValueCache) -> std::result::Result<(), CacheError>;
    let changes: [(&str, Change); 7] = [
        ("select_rows", |cache, _| cache.select_rows(&[1, 0, 1])),
        ("repeat_rows", |cache, _| cache.repeat_rows(2)),
        ("fork", |cache, _| cache.fork(2).map(drop)),
        ("insert", |cache, other| cache.insert(other, 1)),
        ("to_kind", |cache, _| cache.to_kind(cache.kind()).map(|made| *cache = made)),
        ("append", |cache, _| {
            let new = || Tensor::ones([2, 2, 2, 8], &Device::flex());
            cache[0].append(new(), new()).map(drop)
        }),
        ("set", |cache, _| {
            let (keys, values) = (cache[0].keys()?, cache[0].values()?);
            cache[0].set(values, keys)
        }),
    ];
    let (_, config) = configs().pop().unwrap();
    let model = model(config);
    for kind in kinds() {
        let filled = |rows: usize, count: usize| {
            let mut cache = KeyValueCache::of_kind(model.config(), rows, kind).unwrap();
            let tokens = |tokens: Vec<u32>| vec![tokens[..tokens.len().min(count)].to_vec(); rows];
            step(&model, &mut cache, &tokens(vec![4, 9, 2, 11, 7])).unwrap();
            step(&model, &mut cache, &tokens(vec![1])).unwrap();
            cache
        };
        for (name, change) in changes {
            for fault in [Fault::Error, Fault::Panic] {
                let (mut cache, other) = (filled(2, 5), filled(1, 5));
                let before = cache.to_data().unwrap();
                for n in 0.. {
                    if !fails(n, fault, || Ok(change(&mut cache, &other)?)) {
                        break;
                    }
                    assert_eq!(cache.to_data().unwrap(), before, "{name}, {}, point {n}", kind.name());
                }
                let mut never_failed = filled(2, 5);
                change(&mut never_failed, &other).unwrap();
                let content = |cache: &KeyValueCache| {
                    cache.iter().map(|entry| (entry.len(), entry.keys().unwrap().into_data())).collect::<Vec<_>>()
                };
                assert_eq!(content(&cache), content(&never_failed), "{name}, {}", kind.name());
            }
        }
    }
}

#[test]
fn a_failed_run_leaves_a_decoders_cache_as_it_was() {
    let model = HookedEncoderDecoder::from_pretrained("../../tests/fixtures/t5").unwrap();
    let encoded = model.encode(vec![vec![5, 6, 7, 1]]).unwrap();
    for kind in kinds() {
        let new = || {
            let mut cache = model.decoder_cache(encoded.clone());
            cache.own = cache.own.to_kind(kind).unwrap();
            cache
        };
        let (mut cache, mut never_failed) = (new(), new());
        let step = |cache: &mut DecoderCache, token: u32| model.decode_cached(cache, vec![vec![token]]);
        for token in [0, 4, 9] {
            let before = (cache.own.to_data().unwrap(), cache.cross_layers());
            for n in 0.. {
                if !fails(n, Fault::Error, || step(&mut cache, token)) {
                    break;
                }
                let now = (cache.own.to_data().unwrap(), cache.cross_layers());
                assert_eq!(now, before, "{}, point {n}", kind.name());
            }
            step(&mut never_failed, token).unwrap();
            assert_eq!(cache.own.to_data().unwrap(), never_failed.own.to_data().unwrap(), "{}", kind.name());
        }
    }
}
