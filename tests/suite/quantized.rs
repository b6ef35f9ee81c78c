//! Quantized checkpoints of Hugging Face's libraries, compared with the libraries' own results.

use std::fs;
use std::path::{Path, PathBuf};

use hooklens::prelude::*;
use hooklens::{ConfigError, Error, LoadError, inspect};
use hooklens_model::model::ModelParts;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::support::{assert_close, device, distance, fixtures, skipped, values};

fn folder() -> PathBuf {
    fixtures().join("quantized")
}

fn floats(view: &TensorView<'_>) -> Vec<f32> {
    view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Whether blocks stay quantized on the tests' device.
fn kept_here() -> bool {
    let kept = device() == Device::flex()
        || std::env::var(hooklens_model::device::DEVICE_VARIABLE).as_deref() == Ok("libtorch");
    if !kept {
        skipped("the device takes weights of the type it computes in, not blocks");
    }
    kept
}

/// Checkpoints whose column groups are not whole blocks, so they are widened at load.
const WIDENED: [&str; 3] = ["gptq-4bit-act", "fp8-block", "ct-int4-asym"];

#[test]
fn every_format_computes_as_its_library_says() {
    let kept = kept_here();
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        let expected = fs::read(path.join("logits.safetensors")).unwrap();
        let expected = SafeTensors::deserialize(&expected).unwrap();
        let ids = expected.tensor("ids").unwrap();
        let ids: Vec<u32> =
            ids.data().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b).try_into().unwrap()).collect();
        let tokens = Tokens::new(ids.chunks(12).map(<[u32]>::to_vec).collect()).unwrap();
        let logits = expected.tensor("logits").unwrap();
        let shape: [usize; 3] = logits.shape().try_into().unwrap();
        let logits = ndarray::ArrayD::from_shape_vec(shape.to_vec(), floats(&logits)).unwrap();
        let ways = [LoadOptions::new(), LoadOptions::new().dtype(DType::F32), LoadOptions::new().mmap(false)];
        for options in ways {
            let model = HookedTransformer::from_pretrained_with(path.to_str().unwrap(), options.clone())
                .unwrap_or_else(|error| panic!("{name}: {}", hooklens::error_chain(&error)));
            let gap = distance(&values(&model.forward(&tokens).unwrap()), &logits);
            if gap > 1e-4 {
                wrong.push(format!("{name}, {options:?}: logits differ by {gap:e}"));
            }
        }
        let model = HookedTransformer::from_pretrained(path.to_str().unwrap()).unwrap();
        let report = model.load_report();
        let packed = kept && !WIDENED.contains(&name.as_str());
        assert_eq!((!report.in_blocks.is_empty(), report.widened.is_empty()), (packed, packed), "{name}: {report}");
        assert!(report.unused.is_empty(), "{name}: {report}");
        // Every value, as read and as decoded from blocks.
        let files = inspect(path.to_str().unwrap()).unwrap().weights.unwrap().files;
        for (own, view) in expected.tensors() {
            let Some(weight) = own.strip_prefix("dequantized.") else { continue };
            let expected = floats(&view);
            let read: Vec<f32> = files.read(weight, DType::F32).unwrap().iter().collect();
            // A few rows of each matrix, and of each expert's in an MoE model.
            let width = *view.shape().last().unwrap();
            let rows = match view.shape() {
                [experts, rows, _] => (0..experts * rows)
                    .map(|row| row / rows * (read.len() / experts / width) + row % rows)
                    .collect::<Vec<usize>>(),
                shape => (0..shape[0]).collect(),
            };
            for (expected, row) in expected.chunks(width).zip(rows) {
                compared += 1;
                if read[row * width..][..width] != *expected {
                    wrong.push(format!("{name}: {weight}, row {row}"));
                }
            }
            if weight == "model.layers.0.self_attn.k_proj.weight" {
                let ours = values(&model.weights().get::<2>("blocks.0.attn.W_K").unwrap().transpose());
                for (ours, expected) in ours.iter().zip(&expected) {
                    assert!((ours - expected).abs() <= expected.abs() * f32::EPSILON, "{name}: {ours}, not {expected}");
                }
            }
        }
    }
    assert!(wrong.is_empty() && compared > 300, "{compared}: {}", wrong.join("\n"));
}

/// Gradients, processing, saving and fingerprints of a block-quantized model equal those of the model widened at load.
#[test]
fn models_in_blocks_are_used_like_others() {
    let path = folder().join("gptq-4bit");
    let path = path.to_str().unwrap();
    let (model, wide) = (
        HookedTransformer::from_pretrained(path).unwrap(),
        HookedTransformer::from_pretrained_with(path, LoadOptions::new().dtype(DType::F32)).unwrap(),
    );
    let tokens = || Tokens::new(vec![vec![3, 1, 4, 1, 5]]).unwrap();
    let last = |logits: Tensor<3>| logits.narrow(1, 4, 1).narrow(2, 7, 1).reshape([1]);
    let gradients = |model: &HookedTransformer| {
        let options = ForwardOptions::new().record("*hook_resid_pre");
        let seen = model.run_with_gradients(tokens(), options, last).unwrap();
        seen.cache.grad(hook::resid_pre(0)).unwrap()
    };
    assert_close(&gradients(&model), &gradients(&wide), 1e-5, "gradients");
    let folded = |model: &HookedTransformer| model.clone().processed(&Processing::standard()).unwrap();
    let at_load =
        HookedTransformer::from_pretrained_with(path, LoadOptions::new().process(Processing::standard())).unwrap();
    let expected = wide.clone().processed(&Processing::standard()).unwrap().forward(tokens()).unwrap();
    assert_close(&folded(&model).forward(tokens()).unwrap(), &expected, 1e-5, "processed");
    assert_close(&at_load.forward(tokens()).unwrap(), &expected, 1e-5, "processed at load");
    assert!(at_load.load_report().in_blocks.is_empty() && !at_load.load_report().widened.is_empty());
    // Processing a copy leaves the model unchanged.
    assert_eq!(model.fingerprint().unwrap(), HookedTransformer::from_pretrained(path).unwrap().fingerprint().unwrap());
    if kept_here() {
        assert_ne!(model.fingerprint().unwrap(), wide.fingerprint().unwrap());
    }
    let queries = |model: &HookedTransformer| model.stacked::<4>("W_Q").unwrap();
    assert_close(&queries(&model), &queries(&wide), 0.0, "queries");
    let outputs = |model: &HookedTransformer| model.stacked::<3>("W_out").unwrap();
    assert_close(&outputs(&model), &outputs(&wide), 0.0, "outputs of the MLP");
    // Reading a weight by name leaves it in blocks.
    let before = model.fingerprint().unwrap();
    for name in ["embed.W_E", "blocks.0.attn.W_Q", "blocks.0.mlp.W_out", "unembed.W_U"] {
        let read = |model: &HookedTransformer| model.weights().get::<2>(name).unwrap();
        assert_close(&read(&model), &read(&wide), 0.0, name);
    }
    assert_eq!(model.fingerprint().unwrap(), before);
    let saved = tempfile::tempdir().unwrap();
    model.save_pretrained(saved.path()).unwrap();
    let again = HookedTransformer::from_pretrained(saved.path().to_str().unwrap()).unwrap();
    assert_close(&again.forward(tokens()).unwrap(), &wide.forward(tokens()).unwrap(), 1e-5, "saved");
    // Accessing a weight widens it, and it remains the model's parameter.
    let value = model.parts().blocks[0].attn().unwrap().q.weight.val();
    assert_close(&value, &wide.weights().get("blocks.0.attn.W_Q").unwrap(), 0.0, "a weight");
    assert_close(&model.forward(tokens()).unwrap(), &wide.forward(tokens()).unwrap(), 1e-5, "after it was asked for");
    let trained = HookedTransformer::from_pretrained_with(path, LoadOptions::new().trainable()).unwrap();
    assert!(trained.load_report().in_blocks.is_empty());
    assert_close(&trained.forward(tokens()).unwrap().inner(), &wide.forward(tokens()).unwrap(), 1e-5, "trainable");
}

/// The error of loading a copy of a checkpoint with something changed.
fn changed(
    name: &str,
    config: impl FnOnce(&mut Value),
    tensor: impl Fn(&str, &mut Vec<usize>, &mut Vec<u8>) -> bool,
) -> Error {
    loaded(name, config, tensor).expect_err(name)
}

/// Loads a copy of a checkpoint with something changed.
fn loaded(
    name: &str,
    config: impl FnOnce(&mut Value),
    tensor: impl Fn(&str, &mut Vec<usize>, &mut Vec<u8>) -> bool,
) -> Result<HookedTransformer, Error> {
    let from = folder().join(name);
    let to = tempfile::tempdir().unwrap();
    let mut json: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    config(&mut json);
    fs::write(to.path().join("config.json"), json.to_string()).unwrap();
    let bytes = fs::read(from.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut held: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, view) in tensors.iter() {
        let (mut shape, mut data) = (view.shape().to_vec(), view.data().to_vec());
        if tensor(name, &mut shape, &mut data) {
            held.push((name.to_string(), view.dtype(), shape, data));
        }
    }
    let views =
        held.iter().map(|(name, dtype, shape, data)| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    fs::write(to.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    HookedTransformer::from_pretrained(Path::new(to.path()).to_str().unwrap())
}

/// The zero points of a symmetric file must be the middle code, in either storage convention.
#[test]
fn zeros_of_symmetric_files() {
    let zeros = |byte: u8| {
        move |name: &str, _: &mut Vec<usize>, data: &mut Vec<u8>| {
            if name.ends_with("qzeros") {
                data.fill(byte);
            }
            true
        }
    };
    let tokens = || Tokens::new(vec![vec![3, 1, 4, 1, 5]]).unwrap();
    for (name, [less_one, whole, other]) in [("gptq-4bit", [0x77, 0x88, 0x99]), ("gptq-8bit", [0x7f, 0x80, 0x81])] {
        let model = HookedTransformer::from_pretrained(folder().join(name).to_str().unwrap()).unwrap();
        let expected = model.forward(tokens()).unwrap();
        for format in ["gptq", "gptq_v2"] {
            let format = |json: &mut Value| json["quantization_config"]["checkpoint_format"] = json!(format);
            for stored in [less_one, whole] {
                let logits = loaded(name, format, zeros(stored)).unwrap().forward(tokens()).unwrap();
                assert_close(&logits, &expected, 0.0, &format!("{name}, zeros of {stored:x}"));
            }
            let message = changed(name, format, zeros(other)).to_string();
            assert!(message.contains("`sym` is true, but") && message.contains("_proj"), "{message}");
        }
        // An asymmetric file uses its stored zero points.
        let asymmetric = |json: &mut Value| json["quantization_config"]["sym"] = json!(false);
        let logits = loaded(name, asymmetric, zeros(whole)).unwrap().forward(tokens()).unwrap();
        assert!((logits - expected).abs().max().into_scalar::<f32>() > 0.01, "{name}");
    }
    let symmetric = |json: &mut Value| json["quantization_config"]["zero_point"] = json!(false);
    assert!(loaded("awq-gemm", symmetric, zeros(0x88)).is_ok());
    let message = changed("awq-gemm", symmetric, zeros(0x98)).to_string();
    assert!(message.contains("`zero_point` is false, but"), "{message}");
    let symmetric = |json: &mut Value| {
        json["quantization_config"]["config_groups"]["group_0"]["weights"]["symmetric"] = json!(true);
    };
    let message = changed("ct-int4-asym", symmetric, |_, _, _| true).to_string();
    assert!(message.contains("`symmetric` is true, but"), "{message}");
}

#[test]
fn what_does_not_fit_is_said() {
    let as_is = |_: &str, _: &mut Vec<usize>, _: &mut Vec<u8>| true;
    let method = |name: &str, own: Value| changed(name, |json| json["quantization_config"] = own, as_is);
    for (own, named) in [
        (json!({"quant_method": "hqq"}), "hqq"),
        (json!({"quant_method": "gptq", "bits": 3}), "gptq with 3 bits"),
        (json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}), "marlin"),
        (json!({"quant_method": "awq", "version": "gemv"}), "gemv"),
        (json!({"quant_method": "compressed-tensors", "format": "marlin-24"}), "marlin-24"),
        (json!({"bits": 4}), "unnamed"),
    ] {
        let error = method("gptq-4bit", own);
        assert!(
            matches!(&error, Error::Config(ConfigError::Quantized { method, .. }) if method.contains(named)),
            "{error}"
        );
    }
    // A tensor that is missing, has another shape, or names an invalid group.
    let error = changed("gptq-4bit", |_| {}, |name, _, _| !name.ends_with("layers.0.mlp.down_proj.scales"));
    assert!(
        matches!(&error, Error::Load(LoadError::MissingTensor { name, .. }) if name.ends_with("down_proj.scales")),
        "{error}"
    );
    let error = changed("awq-gemm", |json| json["quantization_config"]["group_size"] = json!(16), as_is);
    assert!(matches!(&error, Error::Load(LoadError::Shape { name, .. }) if name.ends_with("qzeros")), "{error}");
    let error = changed(
        "gptq-4bit-act",
        |_| {},
        |name, _, data| {
            if name.ends_with("g_idx") {
                data[..4].copy_from_slice(&77u32.to_le_bytes());
            }
            true
        },
    );
    assert!(matches!(&error, Error::Load(LoadError::Quantized { reason, .. }) if reason.contains("group")), "{error}");
    let error = changed(
        "bnb-nf4",
        |_| {},
        |name, _, data| {
            if name.ends_with("quant_map") {
                data[0] ^= 1;
            }
            true
        },
    );
    assert!(
        matches!(&error, Error::Load(LoadError::Quantized { reason, .. }) if reason.contains("quant_map")),
        "{error}"
    );
    let error = changed(
        "bnb-nf4",
        |_| {},
        |name, _, data| {
            if name.contains("quant_state") {
                *data = vec![b' '; data.len()];
            }
            true
        },
    );
    assert!(matches!(&error, Error::Load(LoadError::Quantized { .. })), "{error}");
    let error = changed("fp8-block", |json| json["quantization_config"]["weight_block_size"] = json!([7, 7]), as_is);
    assert!(
        matches!(&error, Error::Load(LoadError::Quantized { reason, .. }) if reason.contains("does not match")),
        "{error}"
    );
}

/// The value of an 8-bit float with four exponent bits.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size =
        if exponent == 0 { mantissa / 8.0 * 2f32.powi(-6) } else { (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7) };
    if code > 127 { -size } else { size }
}

/// DeepSeek V3 is published like this: the fused projections of latent attention are also split.
#[test]
fn latent_attention_in_fp8_is_that_of_its_numbers() {
    let case = fixtures().join("deepseek-v3");
    let bytes = fs::read(case.join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    type Tensors = Vec<(String, Dtype, Vec<usize>, Vec<u8>)>;
    let (mut blocks, mut plain): (Tensors, Tensors) = (vec![], vec![]);
    for (name, view) in stored.tensors() {
        let (shape, data) = (view.shape().to_vec(), view.data().to_vec());
        if !name.contains("proj") {
            blocks.push((name.clone(), Dtype::F32, shape.clone(), data.clone()));
            plain.push((name, Dtype::F32, shape, data));
            continue;
        }
        let values = floats(&view);
        let scale = values.iter().fold(0f32, |most, x| most.max(x.abs())) / 448.0;
        let nearest = |x: f32| {
            let gap = |code: &u8| (e4m3(*code) - x.abs() / scale).abs();
            let code = (0..127u8).min_by(|a, b| gap(a).total_cmp(&gap(b))).unwrap();
            if x < 0.0 { code | 128 } else { code }
        };
        let codes: Vec<u8> = values.iter().map(|x| nearest(*x)).collect();
        let numbers: Vec<u8> = codes.iter().flat_map(|code| (e4m3(*code) * scale).to_le_bytes()).collect();
        blocks.push((format!("{name}_scale_inv"), Dtype::F32, vec![1, 1], scale.to_le_bytes().to_vec()));
        blocks.push((name.clone(), Dtype::F8_E4M3, shape.clone(), codes));
        plain.push((name, Dtype::F32, shape, numbers));
    }
    let mut json: Value = serde_json::from_slice(&fs::read(case.join("config.json")).unwrap()).unwrap();
    let mut logits = vec![];
    for tensors in [plain, blocks] {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("config.json"), json.to_string()).unwrap();
        let views = tensors
            .iter()
            .map(|(name, dtype, shape, data)| (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
        let bytes = safetensors::serialize(views, None).unwrap();
        fs::write(place.path().join("model.safetensors"), bytes).unwrap();
        let model = HookedTransformer::from_pretrained(place.path().to_str().unwrap()).unwrap();
        assert!(model.load_report().unused.is_empty(), "{}", model.load_report());
        logits.push(values(&model.forward([3, 1, 4, 1, 5]).unwrap()));
        json["quantization_config"] = json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]});
    }
    assert!(distance(&logits[1], &logits[0]) < 1e-5, "{}", distance(&logits[1], &logits[0]));
}
