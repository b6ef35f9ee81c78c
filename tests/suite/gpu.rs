//! CubeCL devices: their names, their limits, and the operations of a run. wgpu stands for all of them, and a software
//! driver is enough.

use std::sync::{Arc, Mutex, PoisonError};

use burn::cubecl::logging::{LaunchObservation, LaunchObserver};
use burn::tensor::FloatDType;
use hooklens::dump::Dump;
use hooklens::generation::Sampling;
use hooklens::prelude::*;
use hooklens::{CacheError, CacheKind, Error, LoadOptions, devices, error_chain, parse_device};
use hooklens_hooks::Transfers;
use hooklens_model::config::{AttentionConfig, MixerConfig};
use hooklens_model::device::element_types;
use safetensors::SafeTensors;

use crate::support::{assert_close, distance, fixtures, skipped, values};

/// The first wgpu device, if there is one.
fn gpu() -> Option<Device> {
    let found = parse_device("wgpu").ok();
    if found.is_none() {
        skipped("no wgpu device is there");
    }
    found
}

const ROW: [u32; 6] = [3, 1, 4, 1, 5, 9];

fn model_on(device: &Device) -> HookedTransformer {
    let on_cpu = HookedTransformer::random(TransformerConfig::new(2, 16, 4, 20, 64), 3, &Device::flex()).unwrap();
    on_cpu.to_devices(std::slice::from_ref(device))
}

#[test]
fn numbers_name_what_is_listed() {
    let Some(first) = gpu() else { return };
    assert_eq!(parse_device("wgpu:0").unwrap(), first);
    assert_eq!(model_on(&first).device(), first);
    let listed: Vec<_> = devices().into_iter().filter(|device| device.name.starts_with("wgpu:")).collect();
    assert_eq!(listed[0].name, "wgpu:0");
    assert!(listed[0].dtypes.contains(&DType::F32) && !listed[0].description.is_empty(), "{listed:?}");
    let message = parse_device(format!("wgpu:{}", listed.len())).unwrap_err().to_string();
    assert!(message.contains(&format!("{} wgpu device", listed.len())), "{message}");
    assert!(parse_device("wgpu:x").unwrap_err().to_string().contains("expected a number"));
}

/// A dtype that a device does not support is an error for computation, and converted on the host for storage.
#[test]
fn element_types_are_asked_for_before_use() {
    let Some(device) = gpu() else { return };
    let model = model_on(&device);
    let on_cpu = model_on(&Device::flex());
    let folder = tempfile::tempdir().unwrap();
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        let path = fixtures().join("gpt2");
        let loaded = HookedTransformer::from_pretrained_with(
            path.to_str().unwrap(),
            LoadOptions::new().dtype(dtype).device(&device),
        );
        let mut cache = KeyValueCache::new(model.config(), 1).with_dtype(dtype).unwrap();
        let cached = model.forward_with(ROW, ForwardOptions::new().kv_cache(&mut cache));
        if element_types(&device).contains(&dtype) {
            loaded.unwrap();
            cached.unwrap();
        } else {
            assert!(matches!(loaded, Err(Error::ElementType { .. })), "{dtype}");
            assert!(matches!(cached, Err(Error::Cache(CacheError::ElementType { .. }))), "{dtype}");
        }
        // Rounded as on the CPU, whichever of the two does it.
        let rounded = |model: &HookedTransformer| {
            let cache = model.record(ROW, Record::new("*resid_post").dtype(dtype)).unwrap();
            let recorded = cache.activation(hook::resid_post(1)).unwrap();
            assert_eq!(recorded.dtype(), dtype.burn());
            recorded.to_ndarray().unwrap()
        };
        assert!(distance(&rounded(&model), &rounded(&on_cpu)) < 0.01, "{dtype}");
        let out = folder.path().join(format!("{dtype}.safetensors"));
        Dump::new("*resid_post").dtype(dtype).run(&model, &[ROW.to_vec()], &out).unwrap();
        let bytes = std::fs::read(&out).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let written = file.tensor("blocks.1.hook_resid_post").unwrap();
        assert_eq!(written.data().len(), ROW.len() * 16 * dtype.size());
        if dtype == DType::BF16 {
            let written = written.data().as_chunks::<2>().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32());
            let written = ndarray::ArrayD::from_shape_vec(vec![1, ROW.len(), 16], written.collect()).unwrap();
            assert!(distance(&written, &rounded(&on_cpu)) < 0.01);
        }
    }
    // A model that was moved to the device in another way fails on its first run.
    let odd = model.clone().map_weights(|weights| weights.map(&mut crate::support::Cast(FloatDType::F64)));
    if !element_types(&device).contains(&DType::F64) {
        assert!(matches!(odd.forward(ROW), Err(Error::ElementType { .. })));
    }
}

/// A device that reads its weights lazily must have its own copy, because the file may be overwritten.
#[test]
fn weights_are_not_lent_to_a_device_that_reads_later() {
    let Some(device) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let from = fixtures().join("llama");
    for file in std::fs::read_dir(&from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let expected = HookedTransformer::from_pretrained(from.to_str().unwrap()).unwrap().forward(ROW).unwrap();
    let options = LoadOptions::new().device(&device);
    let model = HookedTransformer::from_pretrained_with(folder.path().to_str().unwrap(), options).unwrap();
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            std::fs::File::create(path).unwrap(); // truncated, so mapped pages are gone
        }
    }
    assert_close(&model.forward(ROW).unwrap(), &expected, 1e-4, "weights of a file that is gone");
}

/// Running out of device memory is an error, after which the model is still usable.
#[test]
fn full_memory_is_an_error() {
    let Some(device) = gpu() else { return };
    let model = model_on(&device);
    let before = model.forward(ROW).unwrap();
    let greedy = hook::resid_post(0).edit(|x, _| {
        let all = Tensor::<1>::zeros([1usize << 42], &x.device());
        x + all.narrow(0, 0, 1).reshape([1, 1, 1])
    });
    let read = |logits: Tensor<3>| Ok(Activation::from(logits).to_ndarray()?);
    match model.run_with_hooks(ROW, [greedy]).and_then(read) {
        Err(Error::OutOfMemory { .. }) => {}
        Err(error) if error_chain(&error).contains("SHADER_INT64") => {
            skipped("the driver has no addresses of 64 bits to ask for too much with");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(values(&model.forward(ROW).unwrap()), values(&before));
}

/// With half of the blocks on the device and half on the CPU, gradients, patches and caches work across both.
#[test]
fn blocks_beside_the_cpu() {
    let Some(device) = gpu() else { return };
    let whole = HookedTransformer::random(TransformerConfig::new(4, 16, 4, 20, 64), 3, &Device::flex()).unwrap();
    let spread = whole.clone().to_devices(&[device.clone(), Device::flex()]);
    assert_eq!(spread.devices(), [device.clone(), Device::flex()]);
    let gradients = |model: &HookedTransformer| {
        let number = |logits: Tensor<3>| logits.narrow(1, 5, 1).narrow(2, 0, 1).sum();
        let output = model.run_with_gradients(ROW, Record::new("*resid_pre"), number).unwrap();
        (0..4)
            .map(|layer| {
                let name = format!("blocks.{layer}.hook_resid_pre_grad");
                output.cache.activation(name).unwrap().to_ndarray().unwrap()
            })
            .collect::<Vec<_>>()
    };
    for (given, expected) in gradients(&spread).iter().zip(&gradients(&whole)) {
        assert!(distance(given, expected) < 1e-4);
    }
    let patched = |model: &HookedTransformer| {
        let metric = Metric::last(|logits, _| logits.narrow(1, 3, 1).squeeze_dim::<1>(1));
        let patching = model.patching(ROW, [3, 1, 4, 2, 5, 9]).metric(metric).unwrap();
        patching.sweep(&Sites::new("blocks.*.hook_resid_pre").per([Axis::Pos])).unwrap().values.values().to_owned()
    };
    let apart = (patched(&spread) - patched(&whole)).mapv(f64::abs);
    assert!(apart.iter().all(|apart| *apart < 1e-4), "{apart}");
    let mut cache = spread.prefill(ROW).unwrap();
    let next = spread.forward_with([2], ForwardOptions::new().kv_cache(&mut cache)).unwrap();
    assert_close(&next, &whole.forward([&ROW[..], &[2]].concat()).unwrap().narrow(1, 6, 1), 1e-4, "behind a cache");
    assert_eq!([0, 3].map(|layer: usize| cache[layer].keys().unwrap().device()), [device, Device::flex()]);
}

/// The stream is moved to the device of a layer's weights, even if the layer only has an MLP.
#[test]
fn layers_without_attention_are_where_their_weights_are() {
    let Some(device) = gpu() else { return };
    let mixers = vec![MixerConfig::Attention(AttentionConfig::new(4, 4)), MixerConfig::None];
    let config = TransformerConfig::new(2, 16, 4, 20, 64).with_mixers(mixers).unwrap();
    let logits_on = |device: &Device| {
        let on_cpu = HookedTransformer::random(config.clone(), 3, &Device::flex()).unwrap();
        let model = on_cpu.to_devices(std::slice::from_ref(device));
        let mut cache = model.prefill(ROW).unwrap();
        model.forward_with([2], ForwardOptions::new().kv_cache(&mut cache)).unwrap()
    };
    assert_close(&logits_on(&device), &logits_on(&Device::flex()), 1e-4, "logits");
}

#[derive(Default)]
struct Launched(Mutex<Vec<&'static str>>);

impl LaunchObserver for Launched {
    fn launched(&self, kernel: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(kernel);
    }
}

/// A forward pass never waits. A generated token waits once and reads a few bytes per row, and no step copies the past.
#[test]
fn a_token_reads_once_and_copies_nothing_of_the_past() {
    let Some(device) = gpu() else { return };
    // Launches are counted per process, so this runs in a separate process.
    const ALONE: &str = "HOOKLENS_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let name = "gpu::a_token_reads_once_and_copies_nothing_of_the_past";
        let output = alone.args(["--exact", name]).env(ALONE, "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    for n_kv_heads in [4, 2] {
        reads_and_copies(&device, TransformerConfig::new(2, 16, 4, 200, 64).with_kv_heads(n_kv_heads));
    }
}

fn reads_and_copies(device: &Device, config: TransformerConfig) {
    let on_cpu = HookedTransformer::random(config, 3, &Device::flex()).unwrap();
    let model = on_cpu.to_devices(std::slice::from_ref(device));
    model.forward(ROW).unwrap();
    let before = Transfers::so_far();
    model.forward(ROW).unwrap();
    assert_eq!(Transfers::so_far().since(before).reads, 0, "a forward pass");
    let drawn = Sampling { temperature: 0.7, top_k: Some(20), top_p: Some(0.9), ..Sampling::default() };
    for (sampling, kind) in [
        (Sampling::default(), CacheKind::GROWING),
        (drawn, CacheKind::GROWING),
        (Sampling::default(), CacheKind::EIGHT_BIT),
        (drawn, CacheKind::FOUR_BIT),
    ] {
        let options = GenerateOptions::new().max_new_tokens(8).sampling(sampling).cache_kind(kind);
        let mut steps = model.generate_steps(vec![ROW.to_vec(), ROW.to_vec()], options).unwrap();
        steps.by_ref().take(3).for_each(|step| drop(step.unwrap()));
        device.sync().unwrap();
        let launched = Arc::new(Launched::default());
        let (watching, before) = (LaunchObservation::new(launched.clone()), Transfers::so_far());
        steps.next().unwrap().unwrap();
        device.sync().unwrap();
        drop(watching);
        let moved = Transfers::so_far().since(before);
        assert!(moved.reads <= 1 && moved.read_bytes <= 2 * 16, "{sampling:?}, {}: {moved:?}", kind);
        let launched = launched.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(!launched.is_empty());
        if kind == CacheKind::GROWING && sampling == Sampling::default() {
            let copies = launched.iter().filter(|kernel| kernel.contains("Copy")).count();
            assert_eq!(copies, 0, "{launched:?}");
        }
    }
}
