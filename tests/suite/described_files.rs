//! Manifests, trainings and dictionaries describe themselves, and those of earlier versions still open.

use std::fs;
use std::path::Path;

use hooklens::dump::{ActivationStore, Dump, Shard, merge};
use hooklens::features::Dictionary;
use hooklens::prelude::*;
use serde_json::{Value, json};

use crate::support::{fixtures, program};

const RESID: &str = "blocks.1.hook_resid_post";
const PATTERN: &str = "blocks.0.attn.hook_pattern";
/// Prompts of the fixtures.
const ROWS: [&[u32]; 5] = [&[1, 2, 3, 4], &[5, 6], &[7, 8, 9, 10, 11, 12], &[13], &[14, 15, 16]];

fn rows() -> Vec<Vec<u32>> {
    ROWS.map(<[u32]>::to_vec).to_vec()
}

fn parsed(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn copied(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        fs::copy(&entry, to.join(entry.file_name().unwrap())).unwrap();
    }
}

fn run(arguments: &[&str], out: &Path) -> String {
    let output = program().args(arguments).arg("--out").arg(out).output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{said}");
    said
}

/// A manifest has JSON values, and describes the tensors of all files together; so does a merged one.
#[test]
fn manifests_describe_the_dump() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let dump = || Dump::new([RESID, PATTERN]).positions(1..).batch_size(2).dtype(DType::BF16);
    let rows: Vec<Vec<u32>> = rows().into_iter().filter(|row| row.len() > 1).collect();
    dump().run(&model, &rows, at("whole")).unwrap();
    dump().run(&model, &rows, at("one.safetensors")).unwrap();
    let shards = [1, 2].map(|index| at("all").join(index.to_string()));
    for (index, out) in shards.iter().enumerate() {
        dump().shard(Shard::new(index + 1, 2).unwrap()).run(&model, &rows, out).unwrap();
    }
    merge(at("all"), &shards).unwrap();
    let files = hooklens::WeightFiles::open(&[at("one.safetensors")]).unwrap();
    let bytes = fs::read(at("one.safetensors")).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let header: Value = serde_json::from_str(&header.metadata().as_ref().unwrap()["hooklens_dump"]).unwrap();
    for manifest in [parsed(&at("whole/manifest.json")), parsed(&at("all/manifest.json")), header] {
        assert_eq!((&manifest["version"], &manifest["complete"]), (&5.into(), &true.into()));
        assert_eq!(manifest["hooklens"], env!("CARGO_PKG_VERSION"));
        let settings = &manifest["settings"];
        assert_eq!((&settings["hooks"], &settings["batch_size"]), (&json!([RESID, PATTERN]), &2.into()));
        assert_eq!(settings["prefix_tokens"], json!([]));
        let tensors = &manifest["tensors"];
        let expected = json!({ "axes": ["batch", "pos", "d_model"], "shape": [4, 5, 64], "dtype": "bf16" });
        assert_eq!(tensors[RESID], expected, "{manifest:#}");
        let expected = json!({ "axes": ["batch", "head", "query", "key"], "shape": [4, 4, 5, 6], "dtype": "bf16" });
        assert_eq!(tensors[PATTERN], expected);
        assert_eq!(tensors["positions"], json!({ "axes": ["batch", "pos"], "shape": [4, 5], "dtype": "i64" }));
        for (name, own) in tensors.as_object().unwrap() {
            let shape = json!(files.info(name).unwrap().shape);
            assert_eq!(own["shape"], shape, "{name}");
        }
        let texts = manifest["token_texts"].as_object().unwrap();
        assert_eq!(texts.len(), rows.concat().len());
        assert!(texts.iter().all(|(id, text)| *text == model.to_string(&[id.parse().unwrap()]).unwrap()));
    }
}

/// Latents are stored without zeros, and a dump of prompt files names them.
#[test]
fn manifests_name_prompt_files() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = folder.path().join("prompts.txt");
    fs::write(&prompts, "Mary and John\nJohn\nMary gave\n").unwrap();
    let given =
        ["dump", "--model", "embedded:ioi", "--dictionary", "embedded:ioi-sae", "--limit", "2", "--truncate", "3"];
    let given = [&given[..], &["--hooks", "*hook_sae_acts_post", "--prompts", prompts.to_str().unwrap()]].concat();
    run(&given, &folder.path().join("out"));
    let manifest = parsed(&folder.path().join("out/manifest.json"));
    assert_eq!(manifest["prompts"], json!({ "files": [prompts.to_str().unwrap()], "limit": 2, "truncate": 3 }));
    let latents = &manifest["tensors"]["blocks.2.hook_resid_post.hook_sae_acts_post"];
    let expected = json!({ "axes": ["batch", "pos", "d_sae"], "shape": [2, 3, 256], "dtype": "f32", "sparse": true });
    assert_eq!(*latents, expected);
    assert_eq!(manifest["token_texts"].as_object().unwrap().len(), 4);
}

/// A dump of version 4, whose settings are strings, is read, compared, resumed and merged.
#[test]
fn dumps_of_earlier_versions_open() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    copied(&fixtures().join("earlier/dump-4"), &at("out"));
    let store = ActivationStore::new([at("out")], [RESID]);
    assert_eq!(store.check_model(&model).unwrap().unwrap().name(), "embedded:induction");
    let tokens = |store: &ActivationStore| {
        let mut all: Vec<u32> = store.batches().unwrap().flat_map(|batch| batch.unwrap().tokens().to_vec()).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(tokens(&store), [3, 4, 5, 6, 11, 12, 13, 15, 16]);
    let dump = |hooks: [&str; 2]| {
        let dump = Dump::new(hooks).positions(-2..).batch_size(2).resume(true);
        dump.setting("model", "embedded:induction").setting("process", "none").run(&model, rows(), at("out"))
    };
    let message = dump([RESID, "z0"]).unwrap_err().to_string();
    assert!(message.contains(&format!("(hooks: [\"{RESID}\",\"{PATTERN}\"] before")), "{message}");
    assert_eq!(dump([RESID, PATTERN]).unwrap().resumed, 3);
    assert_eq!(parsed(&at("out/manifest.json"))["version"], 5);
    // A damaged file is computed again, and the manifest then describes the tensors.
    fs::remove_file(at("out/shard-00002.safetensors")).unwrap();
    assert_eq!(dump([RESID, PATTERN]).unwrap().resumed, 2);
    let manifest = parsed(&at("out/manifest.json"));
    assert_eq!((&manifest["complete"], &manifest["tensors"][RESID]["shape"]), (&true.into(), &json!([5, 2, 64])));
    // Before version 4 had a record of the model, the settings identified it.
    let mut manifest = parsed(&fixtures().join("earlier/dump-4/manifest.json"));
    manifest.as_object_mut().unwrap().remove("model");
    fs::write(at("out/manifest.json"), manifest.to_string()).unwrap();
    assert_eq!(store.check_model(&model).unwrap().unwrap().fingerprint(), Some(&*model.fingerprint().unwrap()));
    manifest["version"] = 7.into();
    fs::write(at("out/manifest.json"), manifest.to_string()).unwrap();
    let message = store.batches().unwrap_err().to_string();
    assert!(message.contains("it has version 7, but this version of hooklens reads versions up to 6"), "{message}");
}

/// A training that recorded its data as text is recognized as finished, and its dictionary opens. Both are described
/// when they are written again.
#[test]
fn trainings_of_earlier_versions_open() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("old").join(RESID);
    copied(&fixtures().join("earlier/trained").join(RESID), &own);
    let prompts = fixtures().join("earlier/prompts.jsonl");
    let given = ["features", "train", "--model", "embedded:ioi", "--at", RESID, "--latents", "8", "--k", "2"];
    let more = ["--tokens", "100", "--batch-size", "10", "--shard", "1/1", "--resume", "--prompts"];
    let given = [&given[..], &more, &[prompts.to_str().unwrap()]].concat();
    let said = run(&given, &folder.path().join("old"));
    assert!(said.contains("shard 1/1 of 1 points is already complete"), "{said}");
    run(&given, &folder.path().join("new"));
    let now = folder.path().join("new").join(RESID);
    let [before, after] = [&own, &now].map(|folder| parsed(&folder.join("training.json")));
    assert_eq!(before["settings"], after["settings"]);
    assert_eq!(after["hooklens"], env!("CARGO_PKG_VERSION"));
    let data = &after["data"];
    let bytes = fs::metadata(&prompts).unwrap().len();
    assert_eq!(data["corpus"], json!([{"file": prompts.to_str().unwrap(), "bytes": bytes}]));
    assert_eq!((&data["tokenization"]["prepended_token"], &data["exclude_tokens"]), (&json!(0), &json!([0])));
    assert!(before["data"].as_str().unwrap().contains("16 tokens of 5 prompts"));
    assert!(after["held_out"][0]["l0"].is_number());
    assert_eq!(parsed(&now.join("cfg.json"))["metadata"]["hooklens_version"], env!("CARGO_PKG_VERSION"));
    // The version is no property of the dictionary.
    let [before, after] = [&own, &now].map(|folder| Dictionary::open(folder).unwrap());
    assert_eq!((before.latents(), before.metadata()), (after.latents(), after.metadata()));
}
