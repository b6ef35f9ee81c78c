//! GGUF files, compared with transformers and ggml's own dequantization.

use std::fs;
use std::path::PathBuf;

use hooklens::prelude::*;
use hooklens::{ConfigError, Error, InputError, LoadError, inspect};
use hooklens_kernels::isa::{Isa, with_isa};
use hooklens_kernels::packed::{Format, Order, Packed};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::Value;

use crate::support::{assert_close, device, distance, fixtures, skipped, values};

const FORMATS: [(&str, Format); 13] = [
    ("q4_0", Format::Q4_0),
    ("q4_1", Format::Q4_1),
    ("q5_0", Format::Q5_0),
    ("q5_1", Format::Q5_1),
    ("q8_0", Format::Q8_0),
    ("q2_k", Format::Q2K),
    ("q3_k", Format::Q3K),
    ("q4_k", Format::Q4K),
    ("q5_k", Format::Q5K),
    ("q6_k", Format::Q6K),
    ("iq4_nl", Format::Iq4Nl),
    ("iq4_xs", Format::Iq4Xs),
    ("mxfp4", Format::Mxfp4),
];

fn folder() -> PathBuf {
    fixtures().join("gguf")
}

/// Every model's file, with the weights that transformers decodes.
fn models() -> Vec<(String, PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut models: Vec<_> = entries
        .filter(|path| path.extension().is_some_and(|ending| ending == "gguf"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_string();
            let golden = fs::read(path.with_extension("safetensors")).unwrap();
            (name, path, golden)
        })
        .collect();
    models.sort();
    assert!(models.len() > 30);
    models
}

fn floats(view: &TensorView<'_>) -> Vec<f32> {
    view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// The ids of a golden file, and two of its tensors.
fn golden(bytes: &[u8]) -> (Tokens, [Tensor<3>; 2]) {
    let tensors = SafeTensors::deserialize(bytes).unwrap();
    let ids = tensors.tensor("ids").unwrap();
    let all: Vec<u32> =
        ids.data().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b).try_into().unwrap()).collect();
    let rows = all.chunks(ids.shape()[1]).map(<[u32]>::to_vec).collect();
    let tensor = |name: &str| {
        let view = tensors.tensor(name).unwrap();
        let shape: [usize; 3] = view.shape().try_into().unwrap();
        Tensor::from_data(burn::tensor::TensorData::new(floats(&view), shape), &device())
    };
    (Tokens::new(rows).unwrap(), ["logits", "resid_pre_1"].map(tensor))
}

/// Blocks are decoded bit for bit, with any instruction set.
#[test]
fn blocks_hold_ggmls_numbers() {
    let bytes = fs::read(folder().join("blocks.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    for (name, format) in FORMATS {
        let (blocks, expected) =
            (tensors.tensor(&format!("{name}.bytes")).unwrap(), tensors.tensor(&format!("{name}.values")).unwrap());
        let [rows, width] = expected.shape() else { panic!("{name} is no matrix") };
        let expected = floats(&expected);
        for isa in Isa::available() {
            with_isa(*isa, || {
                let packed = Packed::new(blocks.data(), format, *width, Order::AsIs);
                assert_eq!((packed.rows(), packed.cols()), (*width, *rows));
                let mut numbers = vec![f32::NAN; expected.len()];
                packed.decode(&mut numbers);
                for (i, (got, expected)) in numbers.iter().zip(&expected).enumerate() {
                    assert!(got == expected, "{name}, {isa:?}, number {i}: {got:e}, not {expected:e}");
                }
            });
        }
    }
}

/// Logits equal those of the same weights in transformers: from the blocks, from weights widened at load, and from a
/// file that is not mapped.
#[test]
fn every_architecture_computes_as_transformers_does() {
    let kept = device() == Device::flex()
        || std::env::var(hooklens_model::device::DEVICE_VARIABLE).as_deref() == Ok("libtorch");
    if !kept {
        skipped("the device takes weights of the type it computes in, not blocks");
    }
    let mut wrong = Vec::new();
    for (name, path, expected) in models() {
        let (tokens, [logits, resid]) = golden(&expected);
        let ways = [LoadOptions::new(), LoadOptions::new().dtype(DType::F32), LoadOptions::new().mmap(false)];
        let loaded = ways.map(|options| HookedTransformer::from_pretrained_with(path.to_str().unwrap(), options));
        let [Ok(packed), Ok(wide), Ok(read)] = loaded else {
            wrong.push(format!("{name}: {loaded:?}"));
            continue;
        };
        let report = packed.load_report();
        assert_eq!(report.in_blocks.is_empty(), !kept || name == "llama-bf16", "{name}: {report}");
        assert!(wide.load_report().in_blocks.is_empty() && wide.load_report().widened.len() >= report.in_blocks.len());
        for (way, model) in [("blocks", &packed), ("widened", &wide), ("read", &read)] {
            let (given, cache) = model.run_with_cache(&tokens, hook::resid_pre(1)).unwrap();
            let seen = cache.get(hook::resid_pre(1)).unwrap();
            for (what, given, expected) in [("resid_pre", &seen, &resid), ("logits", &given, &logits)] {
                let gap = distance(&values(given), &values(expected));
                if gap > 1e-4 {
                    wrong.push(format!("{name}, {way}: {what} differ by {gap:e}"));
                }
            }
        }
        assert_eq!(packed.weights().count(), wide.weights().count(), "{name}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A tokenizer built from a file's vocabulary gives the ids of the one that the file was made from.
#[test]
fn tokenizers_are_those_the_files_were_made_from() {
    let known: Value = serde_json::from_slice(&fs::read(folder().join("tokens.json")).unwrap()).unwrap();
    let texts: Vec<&str> = known["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let (mut compared, mut wrong) = (0, Vec::new());
    for (name, expected) in known.as_object().unwrap().iter().filter(|(name, _)| *name != "texts") {
        let info = inspect(folder().join(format!("{name}.gguf")).to_str().unwrap()).unwrap();
        let tokenizer = info.tokenizer.unwrap_or_else(|| panic!("{name} has no tokenizer"));
        for (text, ids) in texts.iter().zip(expected["plain"].as_array().unwrap()) {
            let ids: Vec<u32> = ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            let ours = tokenizer.encode(text).unwrap();
            if ours != ids {
                wrong.push(format!("{name}: {text:?} is {ids:?}, not {ours:?}"));
            }
            compared += 1;
        }
    }
    assert!(wrong.is_empty() && compared >= 70, "{compared}: {}", wrong.join("\n"));
}

/// Changing any byte gives an error that names the file, or a model that runs.
#[test]
fn damaged_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.gguf");
    let mut seed = 7u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % below
    };
    let (mut refused, mut cases) = (0, 0);
    for name in ["llama", "gpt2", "mixtral", "gemma3", "gpt-oss", "phi3"] {
        let sound = fs::read(self::folder().join(format!("{name}.gguf"))).unwrap();
        // The tensors' data starts here; the metadata comes before.
        let head = sound.len() / 3;
        for case in 0..500 {
            let mut bytes = sound.clone();
            match case % 5 {
                0 => bytes.truncate(random(sound.len())),
                1 => bytes[random(head)] ^= 1 << random(8),
                2 => {
                    let at = random(head - 8);
                    let odd = [0u64, 1, u64::MAX, 1 << 40, i64::MAX as u64, 0x7fc0_0000][random(6)];
                    bytes[at..at + 8].copy_from_slice(&odd.to_le_bytes());
                }
                3 => {
                    let (from, to, len) = (random(head - 64), random(head - 64), 1 + random(64));
                    bytes.copy_within(from..from + len, to);
                }
                _ => {
                    let (at, len) = (random(head - 16), 1 + random(16));
                    bytes.drain(at..at + len);
                }
            }
            if bytes == sound {
                continue;
            }
            fs::write(&path, &bytes).unwrap();
            cases += 1;
            let mapped = LoadOptions::new().mmap(case % 2 == 0);
            match HookedTransformer::from_pretrained_with(path.to_str().unwrap(), mapped) {
                Err(error) => {
                    refused += 1;
                    assert!(matches!(error, Error::Load(_) | Error::Config(_)), "{name} {case}: {error:?}");
                    assert!(!error.to_string().is_empty());
                }
                Ok(model) => match model.forward(Tokens::new(vec![vec![0, 1, 2]]).unwrap()) {
                    Ok(logits) => assert_eq!(logits.dims()[1], 3),
                    Err(error) => assert!(matches!(error, Error::Input(InputError::Token { .. })), "{name}: {error:?}"),
                },
            }
        }
    }
    assert!(cases > 2_900 && refused > cases / 2, "{refused} of {cases} were refused");
}

#[test]
fn what_is_not_read_is_said() {
    let sound = fs::read(folder().join("qwen2.gguf")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.gguf");
    let message = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let at = sound.windows(from.len()).position(|bytes| bytes == from.as_bytes()).unwrap();
        let mut bytes = sound.clone();
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        fs::write(&path, bytes).unwrap();
        HookedTransformer::from_pretrained(path.to_str().unwrap())
    };
    let Err(Error::Config(ConfigError::UnknownArchitecture { given, supported })) = message("qwen2", "qwen9") else {
        panic!("an architecture that is none")
    };
    assert!(given.starts_with("qwen9") && supported.contains(&"qwen2"));
    // A folder with one file is read as that file. With two, one must be named.
    fs::write(folder.path().join("other.gguf"), &sound).unwrap();
    let error = HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).unwrap_err();
    assert!(
        error.to_string().ends_with("several GGUF files; pass the path of one: changed.gguf, other.gguf"),
        "{error}"
    );
    fs::remove_file(&path).unwrap();
    assert!(HookedTransformer::from_pretrained(folder.path().to_str().unwrap()).is_ok());
    // A tensor of a part that this architecture does not have.
    let error = message("blk.1.ffn_norm.weight", "blk.1.ffn_nose.weight").unwrap_err();
    assert!(matches!(&error, Error::Load(LoadError::Corrupt { reason, .. }) if reason.contains("ffn_nose")), "{error}");
    // Unknown rules for splitting texts.
    let model = message("pre\u{8}\0\0\0\u{5}\0\0\0\0\0\0\0qwen2", "pre\u{8}\0\0\0\u{5}\0\0\0\0\0\0\0qwerz").unwrap();
    assert!(model.load_report().ignored[0].contains("`qwerz`"), "{:?}", model.load_report().ignored);
    assert!(matches!(model.forward("a text"), Err(Error::Input(InputError::NoTokenizer))));
}

/// A model whose blocks are reread from the file on each run computes the same as in memory. Limits that can't be met
/// are rejected.
#[cfg(unix)]
#[test]
fn a_model_is_held_under_a_limit_of_memory() {
    if device() != Device::flex() {
        return skipped("weights are lent from the file to the CPU alone");
    }
    let (_, path, expected) = models().into_iter().find(|(name, ..)| name == "gemma3").unwrap();
    let tokens = golden(&expected).0;
    let load = |memory: Option<u64>| {
        let options = memory.into_iter().fold(LoadOptions::new(), LoadOptions::memory);
        HookedTransformer::from_pretrained_with(path.to_str().unwrap(), options)
    };
    let Err(Error::Load(LoadError::Memory { limit: 1, needed })) = load(Some(1)) else { panic!("held under a byte") };
    assert!(load(Some(needed - 1)).is_err());
    let (held, whole) = (load(Some(needed)).unwrap(), load(None).unwrap());
    assert_eq!((held.load_report().read_each_time, whole.load_report().read_each_time), (7, 0));
    assert!(load(Some(needed + 10_000)).unwrap().load_report().read_each_time < 7);
    assert_eq!(load(Some(needed + 10_000_000)).unwrap().load_report().read_each_time, 0);
    let everything = || Record::new(Selection::matching(|_| true));
    for _ in 0..2 {
        let [(logits, seen), (expected, expected_seen)] =
            [&held, &whole].map(|model| model.run_with_cache(&tokens, everything()).unwrap());
        assert_close(&logits, &expected, 0.0, "logits");
        for name in expected_seen.names() {
            let [own, expected] =
                [&seen, &expected_seen].map(|cache| cache.activation(name).unwrap().to_ndarray().unwrap());
            assert!(own == expected, "{name}");
        }
    }
    let generated = |model: &HookedTransformer| {
        let options = hooklens::generation::GenerateOptions::new().max_new_tokens(6);
        let rows = model.generate_with(tokens.clone(), options).unwrap().rows;
        rows.into_iter().map(|row| row.new).collect::<Vec<_>>()
    };
    assert_eq!(generated(&held), generated(&whole));
}

/// Loading reports progress for every tensor, up to the last.
#[test]
fn loading_tells_how_far_it_is() {
    use std::sync::{Arc, Mutex};
    let message = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&message);
    let options = LoadOptions::new().progress(move |done, total| seen.lock().unwrap().push((done, total)));
    let path = folder().join("llama.gguf");
    HookedTransformer::from_pretrained_with(path.to_str().unwrap(), options).unwrap();
    let message = message.lock().unwrap();
    assert!(
        message.len() > 10 && message.is_sorted() && message.iter().all(|(done, total)| done <= total),
        "{message:?}"
    );
    let (done, total) = message[message.len() - 1];
    // The rotary divisors are the only tensors in the file that are not weights.
    assert!(done * 100 > total * 95, "{done} of {total}");
}
