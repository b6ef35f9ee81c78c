//! A run that can't be stored leaves its cache unchanged, wherever the failure occurs.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::Param;
use burn::tensor::{Device, Tensor, TensorData};

use crate::config::{
    ActivationFn, AttentionConfig, GatedDelta, Latent, Layers, MixerConfig, NormKind, Positional, RopeScaling, Rotary,
    Settings, ShortConv, StateSpace, TransformerConfig, Window,
};
use crate::driver::{ForwardOptions, HookedModel};
use crate::encoder_decoder::{
    DecoderBlock, DecoderCache, EncoderBlock, EncoderDecoderConfig, EncoderDecoderWeights, HookedEncoderDecoder,
    LoadedEncoderDecoder, StackAttention, StackPositions, TokenRules,
};
use crate::error::{CacheError, Result};
use crate::kv_cache::compat::HuggingFaceCache;
use crate::kv_cache::{Bits, CacheKind, KeyValueCache, Offload};
use crate::model::{HookedTransformer, LoadReport, ModelParts};

/// How an injected failure manifests.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Error,
    Panic,
}

thread_local! {
    /// The next point on this thread to fail, counted from now.
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

/// Whether the work reaches its `n`-th failure point. If so, both the point and the work fail.
fn fails<T>(n: usize, fault: Fault, work: impl FnOnce() -> Result<T>) -> bool {
    NEXT.set(Some((n, fault)));
    let done = catch_unwind(AssertUnwindSafe(work));
    let failed = NEXT.replace(None).is_none();
    assert_eq!(failed, !matches!(done, Ok(Ok(_))), "a failure was not reported");
    failed
}

fn kinds() -> Vec<CacheKind> {
    let whole = [CacheKind::GROWING, CacheKind::GROWING.limited(40), CacheKind::GROWING.offloaded(Offload::Memory)];
    let few = [CacheKind::EIGHT_BIT, CacheKind::FOUR_BIT, CacheKind::GROWING.quantized(Bits::Sixteen, 4)];
    let on_disk = CacheKind::GROWING.offloaded(Offload::Disk);
    let all = whole.into_iter().chain(few).chain([on_disk]);
    all.flat_map(|kind| [kind, kind.sliding()]).collect()
}

fn configs() -> Vec<(&'static str, TransformerConfig)> {
    let plain = TransformerConfig::new(3, 16, 2, 20, 64);
    let windows = vec![Some(Window::Sliding(3)), None, Some(Window::Chunked(4))];
    let net =
        MixerConfig::GatedDeltaNet(GatedDelta { n_key_heads: 2, n_value_heads: 2, d_key: 5, d_value: 6, width: 3 });
    let space = MixerConfig::Mamba2(StateSpace { width: 3, ..StateSpace::new(2, 6, 5) });
    let conv = MixerConfig::ShortConvolution(ShortConv { width: 3 });
    let attention = MixerConfig::Attention(AttentionConfig::new(2, 8));
    let latent = Latent { q_rank: None, kv_rank: 5, d_rope: 4, d_value: 6, eps: 1e-6 };
    let rotary = Positional::Rotary(Rotary { dim: 4, base: 1000.0, adjacent_pairs: false, scaling: RopeScaling::None });
    vec![
        (
            "states and a window",
            TransformerConfig::new(4, 16, 2, 20, 64)
                .with_mixers([net, attention, space, conv])
                .unwrap()
                .with_windows([None, Some(Window::Sliding(3)), None, None])
                .unwrap(),
        ),
        ("latents", plain.clone().with_positional(rotary).with_latent(latent)),
        ("windows", plain.with_windows(windows).unwrap()),
    ]
}

fn model(config: TransformerConfig) -> HookedTransformer {
    HookedTransformer::random(config, 7, &Device::flex()).unwrap()
}

fn step(model: &HookedTransformer, cache: &mut KeyValueCache, tokens: &[Vec<u32>]) -> Result<TensorData> {
    Ok(model.forward_with(tokens.to_vec(), ForwardOptions::new().kv_cache(cache))?.into_data())
}

/// Texts of two rows, in steps of different lengths.
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
                        assert_eq!(now, (before.clone(), batch), "{name}, {}, point {n}", kind);
                    }
                    step(&model, &mut never_failed, &tokens).unwrap();
                    let (now, right) = (cache.to_data().unwrap(), never_failed.to_data().unwrap());
                    assert_eq!(now, right, "{name}, {}", kind);
                    // Subsequent runs also give the same result.
                    let next = vec![vec![3]; 2];
                    let behind = |cache: &KeyValueCache| step(&model, &mut cache.clone(), &next).unwrap();
                    assert_eq!(behind(&cache), behind(&never_failed), "{name}, {}", kind);
                }
            }
            assert!(reached > 0, "{name}, {}", kind);
        }
    }
}

#[test]
fn a_failed_change_leaves_every_kind_as_it_was() {
    type Change = fn(&mut KeyValueCache, &KeyValueCache) -> std::result::Result<(), CacheError>;
    let changes: [(&str, Change); 7] = [
        ("select_rows", |cache, _| cache.select_rows(&[1, 0, 1])),
        ("batch_repeat_interleave", |cache, _| cache.batch_repeat_interleave(2)),
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
                    assert_eq!(cache.to_data().unwrap(), before, "{name}, {}, point {n}", kind);
                }
                let mut never_failed = filled(2, 5);
                change(&mut never_failed, &other).unwrap();
                let content = |cache: &KeyValueCache| {
                    cache.into_iter().map(|entry| (entry.len(), entry.keys().unwrap().into_data())).collect::<Vec<_>>()
                };
                assert_eq!(content(&cache), content(&never_failed), "{name}, {}", kind);
            }
        }
    }
}

/// A two-layer encoder and a two-layer decoder, built from blocks of randomly initialized decoders.
fn encoder_decoder() -> HookedEncoderDecoder {
    let attention = StackAttention::plain(2, 1.0);
    let config = EncoderDecoderConfig {
        n_encoder_layers: 2,
        n_decoder_layers: 2,
        d_model: 16,
        d_decoder_model: 16,
        n_heads: 2,
        d_head: 8,
        d_mlp: 64,
        n_decoder_heads: 2,
        d_decoder_head: 8,
        d_decoder_mlp: 64,
        d_vocab: 20,
        d_decoder_vocab: 20,
        shared_embed: true,
        embed_scale: None,
        decoder_embed_scale: None,
        positions: StackPositions::Distances { buckets: 8, max_distance: 16, each_layer: false },
        embed_norm: false,
        decoder_tokens_normed: false,
        norm: NormKind::LayerNorm,
        norm_after: false,
        post_norms: false,
        eps: 1e-5,
        attention: attention.clone(),
        decoder_attention: attention,
        activation: ActivationFn::Relu,
        gated_mlp: false,
        output_scale: None,
        output_logits_soft_cap: None,
        decoder_start_token: 0,
        token_rules: TokenRules::default(),
    };
    let weights = HookedTransformer::random(TransformerConfig::new(4, 16, 2, 20, 64), 7, &Device::flex()).unwrap();
    let weights = weights.parts();
    let bias = || vec![Param::from_tensor(Tensor::<2>::ones([8, 2], &Device::flex()))];
    let block = |at: usize| weights.blocks[at].clone();
    let encoder = |at: usize| EncoderBlock {
        ln1: block(at).ln1,
        attn: block(at).attn().unwrap().clone(),
        ln1_post: None,
        ln2: block(at).ln2.unwrap(),
        mlp: block(at).dense_mlp().unwrap().clone(),
        ln2_post: None,
    };
    let decoder = |at: usize| DecoderBlock {
        ln1: block(at).ln1,
        attn: block(at).attn().unwrap().clone(),
        ln1_post: None,
        ln2: block(at).ln2.unwrap(),
        cross_attn: block(at - 2).attn().unwrap().clone(),
        ln2_post: None,
        ln3: block(at - 2).ln1,
        mlp: block(at).dense_mlp().unwrap().clone(),
        ln3_post: None,
    };
    let weights = EncoderDecoderWeights {
        embed: Param::from_tensor(weights.embed.matrix()),
        decoder_embed: None,
        encoder_positions: None,
        decoder_positions: None,
        encoder_embed_ln: None,
        decoder_embed_ln: None,
        encoder: (0..2).map(encoder).collect(),
        encoder_bias: bias(),
        encoder_ln: weights.ln_final.clone(),
        decoder: (2..4).map(decoder).collect(),
        decoder_bias: bias(),
        decoder_ln: weights.ln_final.clone(),
        unembed: weights.unembed.clone(),
    };
    let report = LoadReport::default();
    HookedEncoderDecoder::try_from(LoadedEncoderDecoder {
        config,
        weights,
        tokenizer: None,
        eos_tokens: vec![],
        report,
    })
    .unwrap()
}

#[test]
fn a_failed_run_leaves_a_decoders_cache_as_it_was() {
    let model = encoder_decoder();
    let encoded = model.encode(vec![vec![5, 6, 7, 1]]).unwrap();
    for kind in kinds() {
        let new = || {
            let mut cache = model.decoder_cache(encoded.clone());
            cache.own = cache.own.to_kind(kind).unwrap();
            cache
        };
        let (mut cache, mut never_failed) = (new(), new());
        let step = |cache: &mut DecoderCache, token: u32| model.decode(cache, vec![vec![token]]);
        for token in [0, 4, 9] {
            let before = (cache.own.to_data().unwrap(), cache.cross_layers());
            for n in 0.. {
                if !fails(n, Fault::Error, || step(&mut cache, token)) {
                    break;
                }
                let now = (cache.own.to_data().unwrap(), cache.cross_layers());
                assert_eq!(now, before, "{}, point {n}", kind);
            }
            step(&mut never_failed, token).unwrap();
            assert_eq!(cache.own.to_data().unwrap(), never_failed.own.to_data().unwrap(), "{}", kind);
        }
    }
}
