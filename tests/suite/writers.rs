//! Guarantees for outputs of several files: only one process writes them at a time, either all replace the existing
//! files or none does, and files of two results are never mistaken for one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use burn::tensor::{Device, Tensor};
use hooklens::features::{Dictionary, DictionaryWeights, Labels, Metadata, Transcoders};
use hooklens::prelude::*;

use crate::support::program;

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}

/// A dictionary with recognizable values.
fn dictionary(seed: f32, latents: usize) -> Dictionary {
    let device = Device::flex();
    let weights = DictionaryWeights {
        encoder: Tensor::ones([4, latents], &device) * seed,
        encoder_bias: Tensor::zeros([latents], &device),
        decoder: Tensor::ones([latents, 4], &device),
        decoder_bias: Tensor::zeros([4], &device),
        skip: None,
    };
    let metadata = Metadata::between("blocks.0.mlp.hook_in", "blocks.0.hook_mlp_out");
    Dictionary::new("by hand", weights).unwrap().with_metadata(metadata)
}

/// Starts all commands, and waits for all.
fn together(commands: impl IntoIterator<Item = Command>) -> Vec<Output> {
    let children: Vec<_> = commands
        .into_iter()
        .map(|mut command| command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    children.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = program();
    command.current_dir(folder).args(arguments).env("HOOKLENS_DEVICE", "flex");
    command
}

/// Of several training runs that write to one folder, one succeeds, and the others report that the folder is in use.
/// The folder contains only the files of the one that succeeded.
#[test]
fn one_of_several_trainings_wins() {
    let place = tempfile::tempdir().unwrap();
    let prompts = "Mary went to the park. John gave a drink to Mary.\n".repeat(40);
    fs::write(place.path().join("prompts.txt"), prompts).unwrap();
    let train = |seed: usize, out: &str| {
        let seed = seed.to_string();
        let usual = ["features", "train", "--model", "embedded:ioi", "--prompts", "prompts.txt", "--out", out];
        let sae = ["--at", "blocks.1.hook_resid_post", "--latents", "32", "--k", "4", "--seed", &seed];
        let short = ["--tokens", "1000", "--batch-size", "200"];
        command(place.path(), &[&usual[..], &sae, &short].concat())
    };
    for (round, processes) in [2, 3, 8].into_iter().enumerate() {
        let out = format!("out{round}");
        let outputs = together((0..processes).map(|seed| train(seed, &out)));
        let won: Vec<usize> = (0..processes).filter(|process| outputs[*process].status.success()).collect();
        let message = |process: usize| String::from_utf8_lossy(&outputs[process].stderr).into_owned();
        assert_eq!(won.len(), 1, "{:?}", (0..processes).map(message).collect::<Vec<_>>());
        for process in (0..processes).filter(|process| *process != won[0]) {
            let message = message(process);
            let expected = ["is being written by another run", "already contains a dictionary; choose another --out"];
            assert!(expected.iter().any(|words| message.contains(words)), "{message}");
        }
        let alone = format!("alone{round}");
        assert!(train(won[0], &alone).output().unwrap().status.success());
        assert!(contents(&place.path().join(out)) == contents(&place.path().join(alone)));
    }
}

/// Of several conversions that write to one folder, each succeeds completely or reports a conflict. The folder contains
/// only files of one conversion.
#[test]
fn conversions_are_never_mixed() {
    let place = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    for number in 0..6 {
        let given = place.path().join(format!("given{number}"));
        dictionary(number as f32 + 1.0, 2000 + number).save(&given).unwrap();
        expected.push(contents(&given));
    }
    for _ in 0..3 {
        let given = (0..6).map(|number| format!("given{number}"));
        let outputs =
            together(given.map(|given| command(place.path(), &["features", "convert", &given, "--out", "out"])));
        for output in &outputs {
            let message = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() || message.contains("is being written by another run"), "{message}");
        }
        assert!(outputs.iter().any(|output| output.status.success()));
        let there = contents(&place.path().join("out"));
        assert!(expected.contains(&there), "{:?}", there.keys());
    }
}

/// A dictionary replaces a set of transcoders in its folder, and a set a dictionary.
#[test]
fn other_layouts_are_replaced() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("labels.csv"), "latent,label\n3,names\n").unwrap();
    let convert = |given: &str, out: &str| {
        let labels: &[&str] = if given.ends_with("sae") { &["--labels", "labels.csv"] } else { &[] };
        let arguments = [&["features", "convert", given, "--out", out][..], labels].concat();
        let output = command(place.path(), &arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        contents(&place.path().join(out))
    };
    let (one, set) = (convert("embedded:ioi-sae", "one"), convert("embedded:ioi-transcoders", "set"));
    assert!(one.contains_key("labels.json") && set.contains_key("config.yaml"));
    assert!(convert("embedded:ioi-transcoders", "one") == set);
    assert!(convert("embedded:ioi-sae", "one") == one);
}

/// If several graphs store their rows in one folder, only one is computed at a time.
#[test]
fn one_graph_at_a_time_keeps_rows_in_a_folder() {
    let place = tempfile::tempdir().unwrap();
    let graph = |out: &str| {
        let usual = ["graph", "--model", "embedded:ioi", "--prompt", "When Mary and John went to the store"];
        command(place.path(), &[&usual[..], &["--resume", "rows", "--out", out]].concat())
    };
    let outs: Vec<String> = (0..4).map(|number| format!("{number}/graph.json")).collect();
    (0..4).for_each(|number| fs::create_dir(place.path().join(number.to_string())).unwrap());
    let outputs = together(outs.iter().map(|out| graph(out)));
    let mut made = Vec::new();
    for (output, out) in outputs.iter().zip(&outs) {
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || message.contains("is being written by another run"), "{message}");
        made.extend(output.status.success().then(|| fs::read(place.path().join(out)).unwrap()));
    }
    assert!(!made.is_empty() && made.iter().all(|graph| *graph == made[0]));
    assert!(contents(&place.path().join("rows")).keys().eq(["graph_rows.bin"]));
}

/// If any file of a dictionary can't be written, the existing dictionary stays unchanged.
#[cfg(unix)]
#[test]
fn a_failing_write_leaves_the_earlier_dictionary() {
    let place = tempfile::tempdir().unwrap();
    let (out, given) = (place.path().join("out"), place.path().join("given"));
    let labels: Labels = [(0, "first".to_string())].into_iter().collect();
    dictionary(1.0, 8).with_labels(labels).unwrap().save(&out).unwrap();
    let before = contents(&out);
    // The weights are too large in one case, and the labels in the other.
    let labels: Labels = (0..500).map(|latent| (latent, "x".repeat(1000))).collect();
    for one in [dictionary(2.0, 20_000), dictionary(2.0, 500).with_labels(labels).unwrap()] {
        one.save(&given).unwrap();
        let script = "ulimit -f 200; exec \"$0\" features convert given --out out";
        let mut limited = Command::new("sh");
        limited.args(["-c", script]).arg(program().get_program()).current_dir(place.path());
        let output = limited.env("HOOKLENS_DEVICE", "flex").output().unwrap();
        assert!(!output.status.success());
        assert!(contents(&out) == before);
        assert!(command(place.path(), &["features", "convert", "given", "--out", "whole"]).status().unwrap().success());
        assert!(contents(&place.path().join("whole")) == contents(&given));
    }
}

/// Files of two dictionaries in one folder are an error. Files of other programs have no hash, and are read.
#[test]
fn mixed_dictionaries_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let folder = |name: &str| place.path().join(name);
    dictionary(1.0, 8).save(folder("one")).unwrap();
    dictionary(2.0, 8).save(folder("other")).unwrap();
    let weights = |name: &str| folder(name).join("sae_weights.safetensors");
    fs::copy(weights("other"), weights("one")).unwrap();
    let message = hooklens::error_chain(&Dictionary::open(folder("one")).unwrap_err());
    assert!(message.contains("mixes files of two dictionaries") && message.contains("cfg.json"), "{message}");
    // Weights without a hash in their header, as SAELens saves them, are accepted.
    let own = fs::read(weights("other")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&own).unwrap();
    fs::write(weights("one"), safetensors::serialize(tensors.tensors(), None).unwrap()).unwrap();
    assert_eq!(Dictionary::open(folder("one")).unwrap().latents(), 8);
    // The hash applies to files, and is not shown as a property of the dictionary.
    let again = Dictionary::open(folder("other")).unwrap();
    assert!(again.metadata().others.keys().all(|key| !key.contains("hooklens")), "{:?}", again.metadata().others);

    // Weights without their configuration, as a process killed between the two would leave them.
    fs::remove_file(folder("other").join("cfg.json")).unwrap();
    let message = hooklens::error_chain(&Dictionary::open(folder("other")).unwrap_err());
    assert!(message.contains("the description saved with it"), "{message}");

    let set = |seed: f32, layers: usize, name: &str| -> PathBuf {
        let layer = |layer: usize| {
            let block = |point: &str| format!("blocks.{layer}.{point}");
            dictionary(seed + layer as f32, 8)
                .with_metadata(Metadata::between(block("mlp.hook_in"), block("hook_mlp_out")))
        };
        Transcoders::new("set", (0..layers).map(layer).collect()).save(folder(name)).unwrap();
        folder(name)
    };
    let (one, other) = (set(1.0, 3, "set"), set(5.0, 3, "other set"));
    assert_eq!(Transcoders::open(&one).unwrap().layers().len(), 3);
    fs::copy(other.join("layer_1.safetensors"), one.join("layer_1.safetensors")).unwrap();
    let message = hooklens::error_chain(&Transcoders::open(&one).unwrap_err());
    assert!(message.contains("mixes files") && message.contains("config.yaml"), "{message}");
    // A smaller set replaces all of a larger one.
    set(7.0, 2, "set");
    assert_eq!(Transcoders::open(&one).unwrap().layers().len(), 2);
    assert!(contents(&one).keys().eq(["config.yaml", "layer_0.safetensors", "layer_1.safetensors"]));
}

/// Labels of a dictionary are not inherited by the one that replaces it.
#[test]
fn labels_go_with_their_dictionary() {
    let place = tempfile::tempdir().unwrap();
    let labels: Labels = [(0, "first".to_string())].into_iter().collect();
    dictionary(1.0, 8).with_labels(labels).unwrap().save(place.path()).unwrap();
    assert!(place.path().join("labels.json").is_file());
    dictionary(2.0, 8).save(place.path()).unwrap();
    assert!(Dictionary::open(place.path()).unwrap().labels().iter().next().is_none());
    assert!(contents(place.path()).keys().eq(["cfg.json", "sae_weights.safetensors"]));
}

/// Saving a model over another replaces it completely.
#[test]
fn saved_models_replace_others_together() {
    let place = tempfile::tempdir().unwrap();
    let [first, second] =
        ["embedded:induction", "embedded:ioi"].map(|name| HookedTransformer::from_pretrained(name).unwrap());
    first.save_pretrained(place.path()).unwrap();
    // These win over what is saved, or are read beside it.
    for name in ["chat_template.jinja", "added_tokens.json", "special_tokens_map.json"] {
        std::fs::write(place.path().join(name), "{}").unwrap();
    }
    second.save_pretrained(place.path()).unwrap();
    let files =
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    assert!(contents(place.path()).keys().eq(files), "{:?}", contents(place.path()).keys());
    let again = HookedTransformer::from_pretrained(place.path().display().to_string()).unwrap();
    assert_eq!(again.fingerprint().unwrap(), second.fingerprint().unwrap());
}

/// Links in an output folder may point to files of other users, which are neither read nor written.
#[cfg(unix)]
#[test]
fn links_in_place_of_own_files() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path();
    fs::write(path.join("prompts.txt"), "Mary went to the park.\n".repeat(40)).unwrap();
    let train = ["features", "train", "--model", "embedded:ioi", "--prompts", "prompts.txt", "--out", "out"];
    let train = [&train[..], &["--at", "blocks.1.hook_resid_post", "--latents", "8", "--k", "2", "--tokens", "64"]];
    let train = [&train.concat()[..], &["--batch-size", "32", "--checkpoint-every", "32"]].concat();
    let resumed = [&train[..], &["--resume"]].concat();
    let patch = ["patch", "--model", "embedded:ioi", "--at", "z0", "--per", "head", "--ioi", "2", "--out", "out"];
    let patch = [&patch[..], &["--shard", "1/2"]].concat();
    let own = ["cfg.json", "sae_weights.safetensors", "training.csv", "training.json", "training.svg"];
    let own = own.iter().chain(&["checkpoint.safetensors"]);
    let cases = own.flat_map(|name| [(*name, &train), (*name, &resumed)]).chain([("00001-of-00002.json", &patch)]);
    for (name, arguments) in cases {
        for (target, there) in [("../precious", true), ("../nothing", false)] {
            fs::write(path.join("precious"), "years of work").unwrap();
            fs::create_dir(path.join("out")).unwrap();
            std::os::unix::fs::symlink(target, path.join("out").join(name)).unwrap();
            let Output { status, stderr, .. } = command(path, arguments).output().unwrap();
            let said = String::from_utf8(stderr).unwrap();
            assert!(status.code() == Some(1) && said.contains(name), "{name}, {there}: {status}, {said}");
            assert!(
                said.contains("it is a symbolic link, but hooklens needs a file of its own here"),
                "{name}: {said}"
            );
            assert_eq!(fs::read_to_string(path.join("precious")).unwrap(), "years of work");
            assert!(!path.join("nothing").exists());
            let left: Vec<_> =
                fs::read_dir(path.join("out")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(left, [name]);
            fs::remove_dir_all(path.join("out")).unwrap();
        }
    }
    // The library's own writers do not follow links either.
    std::os::unix::fs::symlink("../precious", path.join("cfg.json")).unwrap();
    let error = hooklens::error_chain(&dictionary(1.0, 3).save(path).unwrap_err());
    assert!(error.contains("cfg.json") && error.contains("symbolic link"), "{error}");
}
