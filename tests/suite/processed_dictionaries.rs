//! Dictionaries and tuned lenses on models with weights processed differently than during their training.

use std::collections::HashMap;
use std::path::Path;

use burn::tensor::{Distribution, Tensor};
use hooklens::features::{Dictionary, DictionaryWeights, FeatureError, Metadata, SpliceDictionary};
use hooklens::hook::Axis;
use hooklens::lens::TunedLens;
use hooklens::prelude::*;
use hooklens::{Activation, Error, ProcessingError, write_safetensors};
use proptest::prelude::*;

use crate::support::{any_decoder, cases, device, distance, failure, fixtures, program, random_model};
use hooklens_model::config::Layers;

const STEPS: [&str; 3] = ["fold_ln", "center_writing_weights", "fold_value_biases"];

fn step(name: &str) -> Processing {
    match name {
        "fold_ln" => Processing::none().fold_ln(),
        "center_writing_weights" => Processing::none().center_writing_weights(),
        "center_unembed" => Processing::none().center_unembed(),
        _ => Processing::none().fold_value_biases(),
    }
}

/// A dictionary for a point, whose files say whether its model went through a processing step.
fn said(point: &str, width: usize, name: &str, done: bool) -> Dictionary {
    let draw = |shape: [usize; 2]| Tensor::random(shape, Distribution::Normal(0.0, 0.3), &device());
    let weights = DictionaryWeights {
        encoder: draw([width, 3]),
        encoder_bias: Tensor::zeros([3], &device()),
        decoder: draw([3, width]),
        decoder_bias: Tensor::zeros([width], &device()),
        skip: None,
    };
    let mut metadata = Metadata::at(point);
    metadata.model_options.insert(name.into(), done.into());
    Dictionary::new("one", weights).unwrap().with_metadata(metadata)
}

/// Whether a dictionary is rejected because of a processing step. (Some points do not support dictionaries, which is
/// another error.)
fn refused(model: &HookedTransformer, dictionary: &Dictionary) -> bool {
    matches!(failure(model.splice_dictionary(dictionary)), Some(FeatureError::Processing { .. }))
}

/// Points of a model with one vector per position, or several, and their widths.
fn points(model: &HookedTransformer) -> Vec<(String, usize)> {
    let tokens = vec![1u32, 2];
    let names = model.catalog().points().iter().filter(|info| {
        info.axes.starts_with(&[Axis::Batch, Axis::Pos]) && info.axes.len() > 2 && !info.name.ends_with("hook_scale")
    });
    let names: Vec<String> = names.map(|info| info.name.to_string()).collect();
    let cache = model.record(tokens, Record::new(names.clone())).unwrap();
    let width = |name: &String| cache.activation(name.as_str()).unwrap().shape()[2..].iter().product::<usize>();
    names.iter().map(|name| (name.clone(), width(name))).collect()
}

proptest! {
    #![proptest_config(cases(32))]

    /// At every point of any model, a dictionary is rejected exactly if the point is changed by a processing step that
    /// was applied to only one of the two models.
    #[test]
    fn dictionaries_are_refused_where_a_step_changes_their_point(config in any_decoder(), seed in 0u64..1000) {
        let model = random_model(config, seed);
        let experts = model.config().experts().is_some();
        let normalized_embedding = serde_json::to_value(model.config()).unwrap()["post_embedding_norm"] == true;
        let points = points(&model);
        let names: Vec<&str> = points.iter().map(|(name, _)| name.as_str()).collect();
        let tokens: Vec<u32> = (0..5).map(|n| (n * 7 + seed as u32) % model.config().d_vocab() as u32).collect();
        let record = |model: &HookedTransformer| model.record(&tokens, Record::new(names.clone())).unwrap();
        let before = record(&model);
        for name in STEPS {
            let Ok(processed) = model.clone().processed(&step(name)) else { continue };
            let after = record(&processed);
            for (point, width) in &points {
                let [plain, done] = [&before, &after].map(|cache| cache.activation(point.as_str()).unwrap().to_ndarray().unwrap());
                // A norm after the embedding may leave nothing to center in the first stream. Dictionaries of it are
                // refused by the step alone.
                let unseen = name == "center_writing_weights" && normalized_embedding && point.starts_with("blocks.0.");
                let changed = distance(&done, &plain) > 1e-3 || (unseen && refused(&model, &said(point, *width, name, true)));
                let message = |model, done| refused(model, &said(point, *width, name, done));
                // TransformerLens never folds a norm into experts.
                let moved = !(name == "fold_ln" && experts);
                prop_assert_eq!(message(&model, true), changed && moved, "{} at {}: plain", name, point);
                prop_assert!(!message(&model, false), "{} at {}: plain", name, point);
                prop_assert_eq!(message(&processed, false), changed, "{} at {}: processed", name, point);
                prop_assert!(!message(&processed, true) || !moved, "{} at {}: processed", name, point);
            }
        }
    }

    /// Translators read the residual stream: steps that preserve it preserve a tuned lens's probabilities, and
    /// centering is rejected.
    #[test]
    fn a_tuned_lens_reads_the_same_through_any_step_but_centering(config in any_decoder(), seed in 0u64..1000) {
        let model = random_model(config, seed);
        let lens = lens(&model, tempfile::tempdir().unwrap().path());
        let tokens = vec![1u32, 3, 2, 5];
        let read = |model: &HookedTransformer| -> hooklens::Result<_> {
            let cache = model.record(&tokens, "*hook_resid_{pre,post}")?;
            Ok(Activation::from(model.analyze(&cache)?.tuned_lens(&lens)?.log_probs()).to_ndarray()?)
        };
        // Some models have no stream that can be read this way.
        let Ok(plain) = read(&model) else { return Ok(()) };
        for name in ["fold_ln", "center_unembed", "fold_value_biases", "center_writing_weights"] {
            let Ok(processed) = model.clone().processed(&step(name)) else { continue };
            match (name, read(&processed)) {
                ("center_writing_weights", Err(Error::Processing(ProcessingError::Centered { .. }))) => {}
                ("center_writing_weights", other) => prop_assert!(false, "{:?}", other.map(drop)),
                (_, given) => prop_assert!(distance(&given.unwrap(), &plain) < 1e-4, "{}", name),
            }
        }
    }
}

/// A tuned lens with random translators.
fn lens(model: &HookedTransformer, folder: &Path) -> TunedLens {
    let path = folder.join("params.safetensors");
    random_lens(model, &path);
    TunedLens::load(&path, &device()).unwrap()
}

fn random_lens(model: &HookedTransformer, path: &Path) {
    let width = model.config().d_model();
    let draw = |rows: usize| Tensor::<2>::random([rows, width], Distribution::Normal(0.0, 0.2), &device());
    let mut tensors = Vec::new();
    for layer in 0..model.config().n_layers() {
        tensors.push((format!("{layer}.weight"), Activation::from(draw(width))));
        tensors.push((format!("{layer}.bias"), Activation::from(draw(1).reshape([width]))));
    }
    let named: Vec<_> = tensors.iter().map(|(name, tensor)| (name.clone(), tensor)).collect();
    write_safetensors(path, named, HashMap::new()).unwrap();
}

#[test]
fn a_tuned_lens_of_a_centered_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let gpt2 = fixtures().join("gpt2");
    let model = HookedTransformer::from_pretrained(gpt2.to_str().unwrap()).unwrap();
    let path = folder.path().join("lens.safetensors");
    random_lens(&model, &path);
    let run = |process: &str| {
        let mut command = program();
        command
            .args(["lens", "--tokens", "1,2,3", "--process", process, "--model"])
            .arg(&gpt2)
            .arg("--tuned")
            .arg(&path);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(run("none"), (Some(0), String::new()));
    let (code, message) = run("standard");
    assert!(code == Some(1) && message.contains("stream is centered (`center_writing_weights`)"), "{message}");
    assert!(message.contains("load the model without `--process`"), "{message}");
}

/// A dictionary's files record its model's processing and BOS setting: commands reject a mismatch of the first and
/// follow the second.
#[test]
fn commands_refuse_a_model_processed_otherwise_and_note_only_what_they_do_not_obey() {
    let folder = tempfile::tempdir().unwrap();
    let sae = Dictionary::open("embedded:ioi-sae").unwrap();
    let mut metadata = sae.metadata().clone();
    metadata.model_options.insert("center_writing_weights".into(), true.into());
    metadata.model_options.insert("fold_ln".into(), true.into());
    metadata.prepend_bos = Some(false);
    sae.with_metadata(metadata).save(folder.path().join("sae")).unwrap();
    let prompt = "When Mary and John went to the store, John gave a drink to";
    std::fs::write(folder.path().join("a.txt"), format!("{prompt}\n")).unwrap();
    let run = |command: &str, more: &[&str]| {
        let words: Vec<&str> = command.split(' ').collect();
        let mut command = program();
        command
            .current_dir(folder.path())
            .args(words)
            .args(["--model", "embedded:ioi", "--dictionary", "sae"])
            .args(more);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let asked: [(&str, &[&str], bool); 11] = [
        ("features eval", &["--prompts", "a.txt"], true),
        ("features show", &["--prompts", "a.txt", "--out", "a.html"], true),
        ("features find", &["--prompt", prompt], true),
        ("features find", &["--prompt", prompt, "--answer", "Mary"], true),
        ("features find", &["--more", "a.txt", "--less", "a.txt"], true),
        ("graph", &["--prompt", prompt], true),
        (
            "dump",
            &["--prompt", prompt, "--hooks", "*hook_sae_acts_post", "--prepend-bos", "false", "--out", "a.safetensors"],
            true,
        ),
        ("generate", &["--prompt", prompt, "--max-new-tokens", "1", "--prepend-bos", "false"], true),
        ("generate", &["--prompt", prompt, "--max-new-tokens", "1"], false),
        ("patch", &["--ioi", "1"], false),
        ("attention", &["--prompt", prompt], false),
    ];
    for (command, more, obeys) in asked {
        let (code, message) = run(command, more);
        let expected = "was trained on a model processed with `center_writing_weights`, which changes \
            `blocks.2.hook_resid_post`, but this model was processed without it; load the model with \
            `--process standard`";
        assert!(code == Some(1) && message.contains(expected), "{command}: {message}");
        let (code, message) = run(command, &[more, &["--process", "standard"]].concat());
        assert_eq!(code, Some(0), "{command}: {message}");
        let noted = message
            .contains("trained on prompts without a beginning-of-sequence token, but these prompts are with one");
        assert_eq!(noted, !obeys, "{command}: {message}");
    }
}

/// Every command that runs a decoder supports processing: a centered model has other directions, but the same
/// predictions.
#[test]
fn every_command_that_runs_a_decoder_processes_it() {
    let prompt = "When Mary and John went to the store, John gave a drink to";
    for command in [
        &["lens", "--prompt", prompt, "--answer", "Mary"][..],
        &["attention", "--prompt", prompt],
        &["heads", "--prompt", prompt],
        &["generate", "--prompt", prompt, "--max-new-tokens", "2"],
        &["patch", "--ioi", "2", "--top", "3"],
        &["attribute", "--prompt", prompt, "--answer", "Mary"],
        &["graph", "--prompt", prompt, "--neurons", "4"],
        &["features", "show", "--neurons", "1", "--prompt", prompt, "--out", "/dev/null/none.html"],
        &["features", "find", "--dictionary", "embedded:ioi-sae", "--prompt", prompt],
        &["features", "eval", "--dictionary", "embedded:ioi-sae", "--prompt", prompt],
    ] {
        let run = |process: &[&str]| {
            let mut all = program();
            all.args(command).args(["--model", "embedded:ioi"]).args(process);
            all.output().unwrap()
        };
        let wrong = run(&["--process", "folded"]);
        assert!(String::from_utf8_lossy(&wrong.stderr).contains("[possible values: none, standard]"), "{command:?}");
        if command.contains(&"show") {
            continue;
        }
        let (plain, processed) = (run(&[]), run(&["--process", "standard"]));
        assert!(processed.status.success(), "{command:?}: {}", String::from_utf8_lossy(&processed.stderr));
        assert_eq!(plain.stdout, run(&["--process", "none"]).stdout, "{command:?}");
    }
    let other = program()
        .args(["attention", "--tokens", "1,2", "--process", "standard", "--model"])
        .arg(fixtures().join("bert"))
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&other.stderr).contains("does not support weight processing"), "{other:?}");
}
