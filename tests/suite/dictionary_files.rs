//! Dictionaries in files: which class they are, what is refused, and that saved is what was opened.

use std::fs;
use std::path::{Path, PathBuf};

use hooklens::features::Dictionary;
use serde_json::Value;
use tempfile::TempDir;

use crate::features::Golden;
use crate::support::{assert_close, device, fixtures};

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

