//! Devices: names, missing support, running out of memory, and blocks on several devices.

use hooklens::prelude::*;
use hooklens::{Error, InputError, parse_device};
use proptest::prelude::*;

use crate::support::{any_config, assert_close, cases, device, random_model, skipped, values};

fn refused(name: &str) -> String {
    match parse_device(name) {
        Err(Error::Device { name: named, reason, .. }) => {
            assert_eq!(named, name);
            reason
        }
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn a_device_that_can_not_be_used_says_why() {
    assert!(refused("abacus").contains("libtorch:cuda:N"));
    assert!(refused("flex:1").contains("no device number"));
    for (name, built, feature) in [
        ("libtorch:cuda:99", cfg!(feature = "libtorch"), "libtorch"),
        ("cuda:99", cfg!(feature = "cuda"), "cuda"),
        ("wgpu:99", cfg!(feature = "wgpu"), "wgpu"),
        ("vulkan:99", cfg!(feature = "vulkan"), "vulkan"),
        ("metal:99", cfg!(feature = "metal"), "metal"),
        ("remote:ws://127.0.0.1", cfg!(feature = "remote"), "remote"),
    ] {
        let reason = refused(name);
        assert!(built != reason.contains(&format!("--features {feature}")), "{name}: {reason}");
        assert!(!built || reason.contains(" device") || reason.contains("ws://HOST:PORT"), "{name}: {reason}");
    }
}

/// LibTorch panics when its allocator fails. A run turns the panic into an error.
#[cfg(feature = "libtorch")]
#[test]
fn full_memory_of_libtorch_is_an_error() {
    let device = parse_device("libtorch").unwrap();
    let model = HookedTransformer::random(TransformerConfig::new(1, 4, 1, 10, 8), 0, &device).unwrap();
    let greedy = hook::resid_post(0).read(|x, _| drop(Tensor::<1>::zeros([1usize << 46], &x.device())));
    match model.run_with_hooks([1, 2], [greedy]) {
        Err(Error::OutOfMemory { asked, .. }) => assert_eq!(asked, format!("{} bytes", 1u64 << 48)),
        other => panic!("{:?}", other.map(|logits| logits.dims())),
    }
    model.forward([1, 2]).unwrap();
}

proptest! {
    #![proptest_config(cases(40))]

    /// Every device computes the same as the CPU: with padding anywhere, windows, caches, and attention recorded or
    /// not. On LibTorch, this would detect an inverted mask, since its fused attention reads masks.
    #[test]
    fn every_device_agrees_with_the_cpu(
        config in any_config(),
        masks in prop::collection::vec(prop::collection::vec(prop::bool::weighted(0.7), 7), 2),
        seed in 0..1000u64,
    ) {
        let here = random_model(config, seed);
        let on_cpu = here.clone().to_devices(&[Device::flex()]);
        let rows = vec![vec![3, 1, 4, 1, 5, 9, 2], vec![6, 5, 3, 5, 8, 9, 7]];
        let tokens = Tokens::new(rows.clone()).unwrap().with_mask(masks).unwrap();
        let close = |a: &Tensor<3>, b: &Tensor<3>, what: &str| assert_close(a, b, 2e-4, what);
        let (fused, expected) = (here.forward(tokens.clone()).unwrap(), on_cpu.forward(tokens.clone()).unwrap());
        close(&fused, &expected, "attention that no one watches");
        let (watched, cache) = here.run_with_cache(tokens.clone(), "*hook_pattern").unwrap();
        close(&watched, &expected, "attention that someone watches");
        let (_, on_cpu_cache) = on_cpu.run_with_cache(tokens, "*hook_pattern").unwrap();
        assert_close(&cache.get(hook::pattern(1)).unwrap(), &on_cpu_cache.get(hook::pattern(1)).unwrap(), 2e-4, "pattern");
        let (mut kv, mut kv_on_cpu) = (here.prefill([1, 2, 3]).unwrap(), on_cpu.prefill([1, 2, 3]).unwrap());
        kv.freeze();
        kv_on_cpu.freeze();
        let behind = here.forward_with(&rows, ForwardOptions::new().kv_cache(&mut kv)).unwrap();
        let expected = on_cpu.forward_with(&rows, ForwardOptions::new().kv_cache(&mut kv_on_cpu)).unwrap();
        close(&behind, &expected, "behind a cache");
    }
}

/// A second device besides the tests' own, if this build has one.
fn another() -> Option<Device> {
    if device() != Device::flex() {
        return Some(Device::flex());
    }
    parse_device("libtorch").ok()
}

/// A model spread over devices computes the same: forward passes, hooks, all cache operations, stopping and starting at
/// a layer.
#[test]
fn blocks_on_several_devices() {
    let Some(second) = another() else {
        skipped("this build has one device");
        return;
    };
    let first = device();
    let config = TransformerConfig::new(4, 16, 4, 20, 32);
    let whole = random_model(config, 9);
    let spread = whole.clone().to_devices(&[first.clone(), second.clone()]);
    assert_eq!((spread.device(), spread.devices()), (first.clone(), vec![first.clone(), second.clone()]));
    let rows = vec![vec![3, 1, 4, 1], vec![5, 9, 2, 6]];
    let same = |a: &Tensor<3>, b: &Tensor<3>, what: &str| assert_close(a, b, 1e-5, what);
    let (logits, cache) = spread.run_with_cache(&rows, Record::all()).unwrap();
    let (expected, on_one) = whole.run_with_cache(&rows, Record::all()).unwrap();
    same(&logits, &expected, "logits");
    for (name, recorded) in on_one.iter() {
        let given = cache.activation(name).unwrap();
        assert_eq!(given.to_ndarray().unwrap().shape(), recorded.to_ndarray().unwrap().shape(), "{name}");
    }
    // A block's activations are on its device; they are gathered on request.
    assert_eq!(cache.get(hook::resid_post(1)).unwrap().device(), first);
    assert_eq!(cache.get(hook::resid_post(2)).unwrap().device(), second);
    let gathered = spread.record(&rows, Record::new("*resid_post").device(&first)).unwrap();
    assert_eq!(gathered.get(hook::resid_post(3)).unwrap().device(), first);
    // Hooks edit in place, on either device.
    let ablate = || [hook::z(0).edit(|z, _| z.zeros_like()), hook::mlp_out(3).edit(|x, _| x * 2.0)];
    let (a, b) = (spread.run_with_hooks(&rows, ablate()).unwrap(), whole.run_with_hooks(&rows, ablate()).unwrap());
    same(&a, &b, "hooks");
    // Cache entries are on the devices of their blocks.
    let mut kv = spread.prefill([7, 8]).unwrap();
    assert_eq!([kv[0].keys().unwrap().device(), kv[3].keys().unwrap().device()], [first.clone(), second.clone()]);
    let mut kv_whole = whole.prefill([7, 8]).unwrap();
    kv.freeze();
    kv_whole.freeze();
    let a = spread.forward_with(&rows, ForwardOptions::new().kv_cache(&mut kv)).unwrap();
    same(&a, &whole.forward_with(&rows, ForwardOptions::new().kv_cache(&mut kv_whole)).unwrap(), "behind a prefix");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.safetensors");
    kv.save(&path, &spread).unwrap();
    let mut read = KeyValueCache::load(&path, &spread).unwrap();
    assert_eq!(read[3].keys().unwrap().device(), second);
    same(&spread.forward_with(&rows, ForwardOptions::new().kv_cache(&mut read)).unwrap(), &a, "behind a saved prefix");
    // Stop on one device and start on the other.
    let stopped = spread.forward_with(&rows, ForwardOptions::new().stop_at_layer(2)).unwrap();
    same(&spread.forward_with(stopped, ForwardOptions::new().start_at_layer(2)).unwrap(), &expected, "stop and start");
    // An analysis combines weights of several layers, so it requires a model on one device.
    assert_eq!(values(&spread.stacked::<4>("W_Q").unwrap()), values(&whole.stacked::<4>("W_Q").unwrap()));
    assert!(matches!(spread.analyze(&cache), Err(Error::Input(InputError::Spread { .. }))));
}

mod once {
    use super::*;

    /// Sizes beyond any machine's memory are an error, and do not end the process.
    #[test]
    fn logits_too_large_for_memory_are_refused() {
        let config = TransformerConfig::new(1, 4, 1, 10, 1000).with_d_vocab_out(10_000_000);
        let model = HookedTransformer::random(config, 0, &Device::flex()).unwrap();
        let rows = vec![vec![1u32; 10]; 1_000_000];
        match model.forward(rows) {
            Err(Error::OutOfMemory { asked, .. }) => assert_eq!(asked, "400000000000000 bytes"),
            other => panic!("{:?}", other.map(|logits| logits.dims())),
        }
    }
}
