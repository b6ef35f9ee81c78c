//! Dictionaries in files: which class they are, what is refused, and that saved is what was opened.

use std::fs;
use std::path::{Path, PathBuf};

use hooklens::features::{Dictionary, open};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::features::Golden;
use crate::support::{assert_close, device, fixtures, program};

fn case(name: &str) -> PathBuf {
    fixtures().join("features").join(name)
}

/// The files of a case, but for its golden, with its description changed.
fn changed(name: &str, described: &str, change: impl FnOnce(&mut Value)) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(case(name)).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_file() && !entry.ends_with("golden.safetensors") {
            fs::copy(&entry, to.path().join(entry.file_name().unwrap())).unwrap();
        }
    }
    edit(&to.path().join(described), change);
    to
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

fn refused<T>(given: hooklens::Result<T>) -> String {
    hooklens::error_chain(&given.err().expect("it is refused"))
}

/// Asserts that a dictionary has a case's golden latents and output.
fn assert_golden(name: &str, opened: &Dictionary, what: &str) {
    let golden = Golden::of(&case(name));
    let (opened, input) = (opened.to_device(&device()), golden.rows("input"));
    assert_close(&opened.encode(input.clone()).unwrap(), &golden.rows("acts_post"), 1e-5, what);
    assert_close(&opened.forward(input).unwrap(), &golden.rows("recons"), 1e-5, what);
}

/// dictionary_learning saves the same tensors for TopK and BatchTopK: the class is what `config.json` names, in either of
/// two keys and by old names.
#[test]
fn classes_of_dictionary_learning_are_those_that_are_named() {
    let named = |name: &str, class: Option<&str>, trainer: Option<&str>| {
        let folder = changed(name, "config.json", |config| {
            for (key, value) in [("dict_class", class), ("trainer_class", trainer)] {
                match value {
                    Some(value) => config["trainer"][key] = value.into(),
                    None => drop(config["trainer"].as_object_mut().unwrap().remove(key)),
                }
            }
        });
        Dictionary::open(folder.path())
    };
    for (name, class, trainers) in [
        ("dl-topk", "AutoEncoderTopK", &["TopKTrainer", "TrainerTopK"][..]),
        ("dl-batchtopk", "BatchTopKSAE", &["BatchTopKTrainer", "TrainerBatchTopK"]),
        ("dl-batchtopk-untrained", "BatchTopKSAE", &["BatchTopKTrainer", "TrainerBatchTopK"]),
        ("dl-matryoshka", "MatryoshkaBatchTopKSAE", &["MatryoshkaBatchTopKTrainer", "MatroyshkaBatchTopKTrainer"]),
        ("dl-gated", "GatedAutoEncoder", &["GatedSAETrainer", "GatedAnnealTrainer"]),
        ("dl-jumprelu", "JumpReluAutoEncoder", &["JumpReluTrainer", "TrainerJumpRelu"]),
        ("dl-autoencoder", "AutoEncoder", &["StandardTrainer", "StandardTrainerAprilUpdate", "PAnnealTrainer"]),
        ("dl-autoencoder-new", "AutoEncoderNew", &["StandardTrainerNew", "StandardTrainer"]),
    ] {
        assert_golden(name, &named(name, Some(class), None).unwrap(), name);
        assert_golden(name, &named(name, Some(class), Some("MyTrainer")).unwrap(), name);
        for trainer in trainers {
            assert_golden(name, &named(name, None, Some(trainer)).unwrap(), trainer);
        }
        // By the tensors alone, those of one class.
        let alone = tempfile::tempdir().unwrap();
        fs::copy(case(name).join("ae.pt"), alone.path().join("ae.pt")).unwrap();
        let by_tensors = [Dictionary::open(alone.path()), named(name, None, None)];
        for opened in by_tensors {
            match name.starts_with("dl-topk") || name.starts_with("dl-batchtopk") {
                true => {
                    let told = refused(opened);
                    assert!(told.contains("missing `dict_class` or `trainer_class`, which decides"), "{told}");
                }
                false => assert_golden(name, &opened.unwrap(), name),
            }
        }
    }
    // What they compute differs: the k largest of a token, or all above the threshold.
    let kind = |trainer| named("dl-topk", None, Some(trainer)).unwrap().architecture().to_string();
    assert_eq!((&*kind("TopKTrainer"), &*kind("BatchTopKTrainer")), ("topk (k 4)", "jumprelu"));

    for (name, class, trainer, expected) in [
        (
            "dl-topk",
            Some("AutoEncoderTopK"),
            Some("BatchTopKTrainer"),
            "`dict_class` is AutoEncoderTopK, but `trainer_class` is BatchTopKTrainer",
        ),
        (
            "dl-topk",
            None,
            Some("JumpReluTrainer"),
            "`trainer_class` is JumpReluTrainer, but the tensors fit AutoEncoderTopK or BatchTopKSAE",
        ),
        (
            "dl-jumprelu",
            Some("AutoEncoderTopK"),
            None,
            "`dict_class` is AutoEncoderTopK, but the tensors fit JumpReluAutoEncoder",
        ),
        ("dl-gated", Some("AutoEncoder"), None, "`dict_class` is AutoEncoder, but the tensors fit GatedAutoEncoder"),
        (
            "dl-autoencoder",
            None,
            Some("TopKTrainer"),
            "`trainer_class` is TopKTrainer, but the tensors fit AutoEncoder",
        ),
        ("dl-topk", Some("TanhSAE"), Some("TopKTrainer"), "config.json: `dict_class` `TanhSAE` is not supported"),
        ("dl-autoencoder", None, Some("TanhTrainer"), "config.json: `trainer_class` `TanhTrainer` is not supported"),
    ] {
        let told = refused(named(name, class, trainer));
        assert!(told.contains(expected), "{told}");
    }
    let other = changed("dl-topk", "config.json", |config| config["trainer"]["k"] = 5.into());
    assert!(refused(Dictionary::open(other.path())).ends_with("`k` is 5, and the tensor's 4"));
}

/// What an old description of SAELens says of the activation function is applied or refused by name, and so are positions
/// that were left out.
#[test]
fn saelens_settings_are_applied_or_refused() {
    let legacy = |change: &dyn Fn(&mut Value)| {
        let folder = changed("legacy-standard", "cfg.json", change);
        Dictionary::open(folder.path())
    };
    for (key, value, shown) in [
        ("activation_fn_str", json!("tanh-relu"), "\"tanh-relu\""),
        ("activation_fn_str", json!("identity"), "\"identity\""),
        ("activation_fn_str", json!("swish"), "\"swish\""),
        ("activation_fn_str", json!(3), "3"),
        ("activation_fn", json!("tanh-relu"), "\"tanh-relu\""),
    ] {
        let told = refused(legacy(&|cfg| {
            cfg.as_object_mut().unwrap().remove("activation_fn_str");
            cfg[key] = value.clone();
        }));
        let expected =
            format!("cfg.json: the activation function {shown} of the architecture `standard` is not supported");
        assert!(told.ends_with(&expected), "{told}");
    }
    assert_golden("legacy-standard", &legacy(&|cfg| cfg["activation_fn_str"] = Value::Null).unwrap(), "null");

    // k is a setting, or an argument of the activation function, in either layout.
    let top_k = |name: &'static str, change: &dyn Fn(&mut Value)| {
        let folder = changed(name, "cfg.json", change);
        Dictionary::open(folder.path())
    };
    for (architecture, activation) in [("topk", "topk"), ("topk", "relu"), ("standard", "topk")] {
        let opened = top_k("legacy-topk", &|cfg| {
            cfg["architecture"] = architecture.into();
            cfg["activation_fn_str"] = activation.into();
        });
        assert_golden("legacy-topk", &opened.unwrap(), architecture);
    }
    let newer = |k: Value, argument: Value| {
        top_k("saelens-topk", &move |cfg| {
            cfg["k"] = k.clone();
            cfg["activation_fn_kwargs"] = json!({ "k": argument });
        })
    };
    assert_golden("saelens-topk", &newer(Value::Null, 4.into()).unwrap(), "newer");
    assert!(refused(newer(3.into(), 4.into())).ends_with("`k` is 3, and `activation_fn_kwargs` has 4"));
    let without = top_k("legacy-topk", &|cfg| cfg["activation_fn_kwargs"] = json!({}));
    assert!(refused(without).ends_with("cfg.json: `k` is missing"));
    let newer = top_k("saelens-jumprelu", &|cfg| cfg["activation_fn"] = "tanh-relu".into());
    assert!(refused(newer).contains("the activation function \"tanh-relu\" of the architecture `jumprelu`"));

    for (name, metadata) in [("legacy-standard", false), ("legacy-standard", true), ("saelens-standard", true)] {
        let sliced = |slice: &Value| {
            let folder = changed(name, "cfg.json", |cfg| match metadata {
                true => cfg["metadata"]["seqpos_slice"] = slice.clone(),
                false => cfg["seqpos_slice"] = slice.clone(),
            });
            (open(folder.path()).map(drop), folder)
        };
        for all in ["null", "[null]", "[null, null]", "[0, null]", "[null, null, null]", "[0, null, 1]"] {
            sliced(&serde_json::from_str(all).unwrap()).0.unwrap();
        }
        for some in ["[5]", "[0]", "[1, null]", "[-5, null]", "[null, -1]", "[null, null, 2]"] {
            let (given, folder) = sliced(&serde_json::from_str(some).unwrap());
            let told = refused(given);
            let shown = some.replace(", ", ",");
            let expected = format!("trained at some positions only (`seqpos_slice` {shown}) is not supported");
            assert!(told.ends_with(&expected), "{told}");
            let out = folder.path().join("out");
            let convert = program().args(["features", "convert"]).arg(folder.path()).arg("--out").arg(&out).output();
            assert!(!convert.unwrap().status.success() && !out.exists());
        }
        for wrong in ["\"all\"", "[]", "[0, 1, 2, 3]"] {
            let told = refused(sliced(&serde_json::from_str(wrong).unwrap()).0);
            assert!(told.contains("`seqpos_slice` is ") && told.contains("one to three numbers"), "{told}");
        }
    }
}

