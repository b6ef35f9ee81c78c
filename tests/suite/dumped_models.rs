//! The model recorded in dumps: training and stores reject activations of another model.

use std::path::Path;

use hooklens::dump::{ActivationStore, Dump};
use hooklens::prelude::*;
use hooklens::{DumpError, Error, Processing};
use hooklens_data::dump::DescribeStore;

use crate::support::{program, random_model};

const POINT: &str = "blocks.1.hook_resid_post";

fn dump(model: &HookedTransformer, rows: &[Vec<u32>], out: &Path) {
    Dump::new(POINT).run(model, rows, out).unwrap();
}

fn is_other(error: &Error, what: &str) -> bool {
    matches!(error.downcast_ref(), Some(DumpError::AnotherModel { what: message, .. }) if *message == what)
}

/// Folders, shards and single files record their model. Two models, or one model processed in two ways, are not mixed.
#[test]
fn stores_hold_one_model() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let rows = vec![vec![0, 21, 1, 57, 3], vec![0, 9, 4]];
    let processed = model.clone().processed(&Processing::standard()).unwrap();
    let other = random_model(TransformerConfig::new(2, 64, 4, 63, 16), 3);
    for (name, own) in [("plain", &model), ("processed", &processed), ("other", &other)] {
        dump(own, &rows, &at(name));
        dump(own, &rows, &at(&format!("{name}.safetensors")));
    }
    let store = |names: &[&str]| ActivationStore::new(names.iter().map(|name| at(name)), [POINT]);
    for ending in ["", ".safetensors"] {
        let [plain, of_processed, of_other] = ["plain", "processed", "other"].map(|name| format!("{name}{ending}"));
        let alone = store(&[&plain]);
        let dumped = alone.model().unwrap().unwrap();
        // Small weights are hashed completely.
        let json = serde_json::to_value(&dumped).unwrap();
        assert_eq!((&json["identity"], &json["bos"]), (&model.fingerprint().unwrap().into(), &0.into()));
        assert_eq!(dumped.fingerprint().is_some(), ending.is_empty());
        assert_eq!((dumped.name(), dumped.prepend_bos()), ("embedded:ioi", Some(true)));
        assert_eq!(json["processing"]["fold_ln"], false);
        alone.check_model(&model).unwrap();
        assert!(is_other(&alone.check_model(&processed).unwrap_err(), "model weights"));
        assert!(is_other(&alone.check_model(&other).unwrap_err(), "model weights"));
        let recorded = serde_json::to_value(store(&[&of_processed]).model().unwrap()).unwrap();
        let steps = &recorded["processing"];
        assert_eq!((&steps["fold_ln"], &steps["center_writing_weights"]), (&true.into(), &true.into()));
        for second in [&of_processed, &of_other] {
            let message = store(&[&plain, second]).batches().unwrap_err();
            assert!(is_other(&message, "model weights"), "{message}");
            assert!(message.to_string().contains(second.as_str()), "{message}");
        }
        assert!(store(&[&plain, "plain.safetensors"]).batches().is_ok());
        assert!(alone.unidentified().unwrap().is_empty());
    }
}

/// Edits, parts and BOS settings are recorded, too.
#[test]
fn edits_parts_and_beginnings_are_recorded() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let rows = vec![vec![0, 21, 1, 57, 3], vec![21, 9, 4]];
    let zero = || hook::resid_post(0).edit(|x: Tensor<3>, _| x * 0.0).named("zero");
    Dump::new(POINT).run(&model.hooks([zero()]), &rows, at("edited")).unwrap();
    dump(&model, &rows, &at("some"));
    dump(&model, &rows[1..], &at("none"));
    let sae = hooklens::features::Dictionary::open("embedded:ioi-sae").unwrap();
    let spliced = hooklens::features::SpliceDictionary::splice_dictionary(&model, &sae).unwrap();
    dump(&spliced, &rows, &at("spliced"));
    let store = |name: &str| ActivationStore::new([at(name)], [POINT]);
    let model_of = |name: &str| store(name).model().unwrap().unwrap();
    let count = |name: &str, list: &str| serde_json::to_value(model_of(name)).unwrap()[list].as_array().map(Vec::len);
    assert_eq!(count("edited", "edits"), Some(1));
    assert!(is_other(&store("edited").check_model(&model).unwrap_err(), "edits"));
    assert_eq!(count("spliced", "parts"), Some(1));
    assert!(is_other(&store("spliced").check_model(&model).unwrap_err(), "spliced parts"));
    store("spliced").check_model(&spliced).unwrap();
    assert_eq!((model_of("some").prepend_bos(), model_of("none").prepend_bos()), (None, Some(false)));
}

/// `features train --dump` only accepts dumps of its model, and notes missing information.
#[test]
fn trainings_take_their_own_models_dumps() {
    let scratch = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = program().current_dir(scratch.path()).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let line = "When Mary and John went to the store, John gave a drink to Mary.\n";
    std::fs::write(scratch.path().join("prompts.txt"), line.repeat(20)).unwrap();
    let dump = |out: &str, more: &[&str]| {
        let given = ["dump", "--model", "embedded:ioi", "--prompts", "prompts.txt", "--hooks", POINT, "--out", out];
        assert_eq!(run(&[&given[..], more].concat()).0, Some(0));
    };
    dump("plain", &[]);
    dump("standard", &["--process", "standard"]);
    dump("bare", &["--prepend-bos", "false"]);
    let train = |out: &str, more: &[&str]| {
        let given = ["features", "train", "--model", "embedded:ioi", "--at", POINT, "--latents", "16", "--k", "2"];
        let given = [&given[..], &["--tokens", "400", "--batch-size", "100", "--out", out], more].concat();
        let (code, message) = run(&given);
        let cfg = std::fs::read(scratch.path().join(out).join("cfg.json"));
        (
            code,
            message,
            cfg.ok().map(|cfg| serde_json::from_slice::<serde_json::Value>(&cfg).unwrap()["metadata"].clone()),
        )
    };
    let (code, message, cfg) = train("a", &["--dump", "plain"]);
    assert!(code == Some(0) && !message.contains("does not record"), "{message}");
    let cfg = cfg.unwrap();
    assert_eq!((&cfg["prepend_bos"], &cfg["exclude_special_tokens"]), (&true.into(), &serde_json::json!([0])));
    assert_eq!(cfg["model_from_pretrained_kwargs"]["center_writing_weights"], false);
    let (_, message, cfg) = train("b", &["--dump", "bare"]);
    assert_eq!(cfg.unwrap()["prepend_bos"], false, "{message}");
    for (out, more) in [("c", &["--dump", "standard"][..]), ("d", &["--dump", "plain", "--dump", "standard"])] {
        let (code, message, cfg) = train(out, more);
        assert!(
            code == Some(1) && message.contains("standard were computed with different model weights") && cfg.is_none(),
            "{message}"
        );
        assert!(message.contains("fold_ln") && !scratch.path().join(out).exists(), "{message}");
    }
    let (code, message, cfg) = train("e", &["--dump", "standard", "--process", "standard"]);
    assert_eq!(code, Some(0), "{message}");
    assert_eq!(cfg.unwrap()["model_from_pretrained_kwargs"]["center_writing_weights"], true);
    // From another program, or an earlier version.
    let path = scratch.path().join("plain/manifest.json");
    let mut manifest: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    manifest["version"] = 4.into();
    let model = manifest.as_object_mut().unwrap().remove("model").unwrap();
    manifest["settings"]["weights"] = model["fingerprint"].clone();
    std::fs::write(&path, manifest.to_string()).unwrap();
    assert_eq!(train("f", &["--dump", "plain"]).0, Some(0));
    manifest["settings"]["weights"] = "0".into();
    std::fs::write(&path, manifest.to_string()).unwrap();
    assert_eq!(train("g", &["--dump", "plain"]).0, Some(1));
    manifest["settings"].as_object_mut().unwrap().remove("weights");
    std::fs::write(&path, manifest.to_string()).unwrap();
    let (code, message, _) = train("h", &["--dump", "plain"]);
    assert!(code == Some(0) && message.contains("plain does not record which model"), "{message}");
}
