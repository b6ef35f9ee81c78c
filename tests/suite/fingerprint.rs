//! Fingerprints of models depend on every bit of every weight, and on nothing else.

use std::fs;
use std::path::Path;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::TensorData;
use hooklens::dump::Dump;
use hooklens::prelude::*;
use hooklens::{ActivationFn, CacheError, DumpError, Error, Positional};
use hooklens_model::config::{Experts, Layers, Settings};

use crate::support::{program, random_model};

/// Flips the lowest bit of one element of one parameter, a third of the way in, so that it is not in the first, middle
/// or last row.
struct Flip {
    parameter: usize,
    seen: usize,
    /// Shape of the changed parameter.
    shape: Vec<usize>,
}

impl ModuleMapper for Flip {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.seen += 1;
        if self.seen != self.parameter + 1 {
            return param;
        }
        self.shape = param.val().dims().to_vec();
        param.map(|tensor| {
            let (device, dtype, shape) = (tensor.device(), tensor.dtype(), tensor.dims());
            let mut bytes = tensor.into_data().into_bytes().to_vec();
            let at = bytes.len() / dtype.size() / 3 * dtype.size();
            bytes[at] ^= 1;
            Tensor::from_data(TensorData::from_bytes_vec(bytes, shape, dtype), (&device, dtype))
        })
    }
}

/// The model with one bit of this parameter flipped, and the parameter's shape. `None` if there are fewer parameters.
fn flipped(model: &HookedTransformer, parameter: usize) -> Option<(HookedTransformer, Vec<usize>)> {
    let mut flip = Flip { parameter, seen: 0, shape: Vec::new() };
    let other = model.clone().map_weights(|weights| weights.map(&mut flip));
    (flip.seen > parameter).then_some((other, flip.shape))
}

/// Models that together have every kind of weight.
fn models() -> Vec<HookedTransformer> {
    let plain = TransformerConfig::new(2, 16, 2, 20, 16);
    let gated = TransformerConfig::new(1, 16, 2, 20, 16)
        .with_gated_mlp(true)
        .with_positional(Positional::None)
        .with_activation(ActivationFn::Silu)
        .with_post_norms(true)
        .with_qk_norm(hooklens_model::config::QkNorm::HEADS)
        .with_post_embedding_norm(true);
    let experts = gated.clone().with_mixture(Experts::new(3, 2)).with_attn_sinks(true);
    [plain, gated, experts].map(|config| random_model(config, 5)).into()
}

#[test]
fn one_bit_of_any_weight_is_noticed() {
    for model in models() {
        let before = model.fingerprint().unwrap();
        let mut parameter = 0;
        while let Some((other, shape)) = flipped(&model, parameter) {
            assert_ne!(other.fingerprint().unwrap(), before, "parameter {parameter} of shape {shape:?}");
            parameter += 1;
        }
        assert!(parameter > 10, "{parameter} parameters");
        assert_eq!(model.fingerprint().unwrap(), before);
    }
}

/// A changed bit is also detected in weights that are hashed in pieces of several matrices.
#[test]
fn one_bit_of_a_large_matrix_is_noticed() {
    let model = random_model(TransformerConfig::new(1, 64, 2, 40_000, 16), 1);
    let before = model.fingerprint().unwrap();
    let (other, shape) = flipped(&model, 0).unwrap();
    assert_eq!(shape, [40_000, 64]);
    assert_ne!(other.fingerprint().unwrap(), before);
}

#[test]
fn a_cache_and_a_dump_of_other_weights_are_refused() {
    let model = random_model(TransformerConfig::new(2, 16, 2, 20, 32), 7);
    let folder = tempfile::tempdir().unwrap();
    let (saved, out) = (folder.path().join("cache.safetensors"), folder.path().join("out"));
    model.prefill([1, 2, 3]).unwrap().save(&saved, &model).unwrap();
    let rows: Vec<Vec<u32>> = (0..4).map(|i| vec![i, i + 1]).collect();
    let dump = Dump::new("*resid_post").batch_size(2);
    dump.run(&model, &rows, &out).unwrap();
    let mut parameter = 0;
    while let Some((other, shape)) = flipped(&model, parameter) {
        match KeyValueCache::load(&saved, &other) {
            Err(Error::Cache(CacheError::OtherModel { .. })) => {}
            message => panic!("parameter {parameter} of shape {shape:?}: {message:?}"),
        }
        match dump.clone().resume(true).run(&other, &rows, &out) {
            Err(error) if matches!(error.downcast_ref(), Some(DumpError::Mismatch { what, .. }) if what == "weights") =>
                {}
            message => panic!("parameter {parameter} of shape {shape:?}: {message:?}"),
        }
        parameter += 1;
    }
    assert!(KeyValueCache::load(&saved, &model).is_ok());
    assert!(dump.resume(true).run(&model, &rows, &out).is_ok());
}

/// The fingerprint is the same however the weights were loaded, and in every process.
#[test]
fn the_same_weights_have_the_same_everywhere() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let expected = model.fingerprint().unwrap();
    let folder = tempfile::tempdir().unwrap();
    model.save_pretrained(folder.path()).unwrap();
    let name = folder.path().to_str().unwrap();
    for options in [LoadOptions::new(), LoadOptions::new().mmap(false), LoadOptions::new().trainable()] {
        let again = HookedTransformer::from_pretrained_with(name, options).unwrap();
        assert_eq!(again.fingerprint().unwrap(), expected);
    }
    let half = HookedTransformer::from_pretrained_with(name, LoadOptions::new().dtype(DType::F16)).unwrap();
    assert_ne!(half.fingerprint().unwrap(), expected);
    let out = folder.path().join("out");
    let done = program()
        .args(["dump", "--model", name, "--tokens", "1,2,3", "--hooks", "resid_post0", "--no-mmap", "--out"])
        .arg(&out)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(weights_of(&out), expected);
}

/// The fingerprint that a dump's manifest records.
fn weights_of(dump: &Path) -> String {
    let manifest: serde_json::Value = serde_json::from_slice(&fs::read(dump.join("manifest.json")).unwrap()).unwrap();
    manifest["model"]["fingerprint"].as_str().unwrap().to_string()
}
