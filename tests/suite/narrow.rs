//! Weights that keep the file's 16 bits and are widened during multiplication.

use std::fs;
use std::path::Path;

use hooklens::circuits::WeightMatrix;
use hooklens::prelude::*;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::parity::Golden;
use crate::seeded::fixture;
use crate::support::{assert_close, device, fixtures_with, log_probs, skipped};
use hooklens_model::config::Settings;

/// A fixture's folder with its weights rounded to this dtype.
pub(crate) fn rounded(case: &str, dtype: DType) -> Option<tempfile::TempDir> {
    let bytes = fs::read(fixture(case).join("model.safetensors")).ok()?;
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(case)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let round = |bytes: &[u8]| -> Vec<u8> {
        let floats = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
        match dtype {
            DType::BF16 => floats.flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect(),
            _ => floats.flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect(),
        }
    };
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    if tensors.iter().any(|(_, view)| view.dtype() != Dtype::F32) {
        return None;
    }
    let stored = if dtype == DType::BF16 { Dtype::BF16 } else { Dtype::F16 };
    let halves: Vec<_> = tensors.iter().map(|(name, view)| (name, view.shape().to_vec(), round(view.data()))).collect();
    let views = halves.iter().map(|(name, shape, data)| (*name, TensorView::new(stored, shape.clone(), data).unwrap()));
    fs::write(folder.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    Some(folder)
}

/// The model loaded without a dtype, and the model widened at load.
fn both(folder: &Path, options: LoadOptions) -> [HookedTransformer; 2] {
    let load = |options| HookedTransformer::from_pretrained_with(folder.to_str().unwrap(), options).unwrap();
    [load(options.clone()), load(options.dtype(DType::F32))]
}

/// Whether 16-bit weights are kept on the tests' device.
pub(crate) fn kept_here() -> bool {
    let kept = device() == Device::flex()
        || std::env::var(hooklens_model::device::DEVICE_VARIABLE).as_deref() == Ok("libtorch");
    if !kept {
        skipped("the device takes weights of the type it computes in");
    }
    kept
}

/// Logits, caches, analyses and generated text equal those of the model with weights widened at load.
#[test]
fn every_family_computes_as_if_widened() {
    if !kept_here() {
        return;
    }
    let mut compared = 0;
    for case in fixtures_with("golden.safetensors") {
        let dtype = if case.len() % 2 == 0 { DType::BF16 } else { DType::F16 };
        let Some(folder) = rounded(&case, dtype) else { continue };
        let golden = Golden::read(&case);
        let path = folder.path().to_str().unwrap();
        if HookedTransformer::from_pretrained(path).is_err() {
            continue; // an encoder's
        }
        let [narrow, wide] = both(folder.path(), LoadOptions::new());
        assert_eq!((narrow.dtype(), wide.dtype()), (DType::F32, DType::F32));
        // A projected embedding is a product.
        let kept = if case == "opt-behind" { DType::F32 } else { dtype };
        assert_eq!(narrow.weights().get::<2>("embed.W_E").unwrap().dtype(), kept.burn(), "{case}");
        let tokens = golden.tokens("");
        let everything = || Record::new(Selection::matching(|_| true));
        let [(logits, seen), (expected, expected_seen)] = [&narrow, &wide].map(|model| {
            let output = model.run(&tokens, everything()).unwrap();
            (output.logits.unwrap(), output.cache)
        });
        assert_close(&logits, &expected, 1e-5, &case);
        for name in expected_seen.names() {
            let [given, expected] =
                [&seen, &expected_seen].map(|seen| seen.activation(name).unwrap().to_ndarray().unwrap());
            let worst = crate::support::distance(&given, &expected);
            assert!(worst <= 1e-5, "{case}: {name} differs by {worst:e}");
        }
        if !narrow.config().bidirectional() && narrow.config().d_vocab() == narrow.config().d_vocab_out() {
            let options = || GenerateOptions::new().max_new_tokens(2);
            let prompt = Tokens::new(vec![vec![3, 1]]).unwrap();
            let [own, wide] =
                [&narrow, &wide].map(|model| model.generate_with(&prompt, options()).unwrap().rows[0].new.clone());
            assert_eq!(own, wide, "{case}");
        }
        compared += 1;
    }
    assert!(compared > 60, "{compared}");
}

#[test]
fn processing_and_analyses_are_those_of_widened_weights() {
    if !kept_here() {
        return;
    }
    for case in ["gpt2", "llama-biases", "gemma2", "mixtral"] {
        let folder = rounded(case, DType::BF16).unwrap();
        let [narrow, wide] = both(folder.path(), LoadOptions::new());
        let row = [1, 2, 3, 4, 5];
        let [own, expected] = both(folder.path(), LoadOptions::new().process(Processing::standard()))
            .map(|model| log_probs(model.forward(row).unwrap()));
        assert_close(&own, &expected, 1e-5, case);
        assert_close(&own, &log_probs(wide.forward(row).unwrap()), 1e-4, case);
        let late = narrow.clone().processed(&Processing::standard()).unwrap();
        assert_close(&log_probs(late.forward(row).unwrap()), &expected, 1e-5, case);
        let [parts, expected] = [&narrow, &wide].map(|model| {
            let seen = model.record(row, Record::all()).unwrap();
            let parts = model.analyze(&seen).unwrap().stack_head_results(Stage::Final).unwrap();
            parts.sum()
        });
        assert_close(&parts, &expected, 1e-5, case);
        let queries = |model: &HookedTransformer| model.stacked::<4>("W_Q").unwrap();
        assert_close(&queries(&narrow), &queries(&wide), 0.0, case);
        assert_close(&narrow.w_u(), &wide.w_u(), 0.0, case);
        let [own, expected] =
            [&narrow, &wide].map(|model| model.singular_directions(WeightMatrix::Ov(0, 0), 1).unwrap().values);
        assert_close(&own, &expected, 1e-5, case);
        let [own, expected] = [&narrow, &wide].map(|model| {
            let metric = |logits: Tensor<3>| logits.narrow(2, 3, 1).sum();
            let seen = model.run_with_gradients(row, ForwardOptions::new().record("*hook_resid_pre"), metric).unwrap();
            seen.cache.grad(hook::resid_pre(0)).unwrap()
        });
        assert_close(&own, &expected, 1e-5, case);
    }
}

/// Saved weights equal the loaded ones, bit for bit.
#[test]
fn saved_weights_keep_their_16_bits() {
    if !kept_here() {
        return;
    }
    let folder = rounded("llama", DType::BF16).unwrap();
    let [narrow, _] = both(folder.path(), LoadOptions::new());
    let again = tempfile::tempdir().unwrap();
    narrow.save_pretrained(again.path()).unwrap();
    let [loaded, _] = both(again.path(), LoadOptions::new());
    assert_eq!(loaded.weights().get::<2>("embed.W_E").unwrap().dtype(), DType::BF16.burn());
    assert_eq!(loaded.fingerprint().unwrap(), narrow.fingerprint().unwrap());
    // Tracked weights are 32-bit.
    let trainable = LoadOptions::new().trainable();
    let trained = HookedTransformer::from_pretrained_with(folder.path().to_str().unwrap(), trainable).unwrap();
    assert_eq!(trained.weights().get::<2>("embed.W_E").unwrap().dtype(), DType::F32.burn());
    let moved = narrow.to_devices(&[Device::flex().autodiff()]);
    assert_eq!(moved.weights().get::<2>("embed.W_E").unwrap().dtype(), DType::F32.burn());
}
