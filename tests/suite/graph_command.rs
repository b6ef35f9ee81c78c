//! `hooklens graph` and `hooklens graph view`.

use hooklens::FromPretrained;
use std::fs;
use std::path::Path;

use hooklens::HookedTransformer;
use serde_json::Value;

use crate::support::{fixtures, program};

const PROMPT: &str = "When Mary and John went to the store, John gave a drink to";

/// Returns exit code, standard output and standard error.
fn graph(arguments: &[&str]) -> (i32, String, String) {
    let output = program().arg("graph").args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn of_ioi(more: &[&str]) -> (i32, String, String) {
    graph(&[&["--model", "embedded:ioi", "--prompt", PROMPT], more].concat())
}

fn json(out: &str) -> Value {
    serde_json::from_str(out).unwrap_or_else(|e| panic!("{e}: {}", &out[..out.len().min(300)]))
}

fn at(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_string()
}

#[test]
fn a_graph_is_told_checked_written_and_viewed() {
    let folder = tempfile::tempdir().unwrap();
    let (file, page) = (at(folder.path(), "graph.json"), at(folder.path(), "graph.html"));
    let (code, out, message) =
        of_ioi(&["--answer", "Mary", "--wrong", "John", "--group", "0.7", "--check", "--out", &file]);
    assert_eq!(code, 0, "{message}");
    for words in [
        "15 tokens",
        "rows sum to their values",
        "checked: 5 features",
        "direct effects on \"Mary minus John\", in logits: +",
        "latents by total influence",
        "strongest paths",
        "groups",
    ] {
        assert!(out.contains(words), "no {words:?} in {out}");
    }
    let told = out;
    let written = json(&fs::read_to_string(&file).unwrap());
    assert_eq!(written["metadata"]["slug"], "graph");
    assert!(!written["qParams"]["supernodes"].as_array().unwrap().is_empty());
    assert!(!written["qParams"]["pinnedIds"].as_array().unwrap().is_empty());

    let (code, out, message) = graph(&["view", &file]);
    assert_eq!(code, 0, "{message}");
    let nodes = written["nodes"].as_array().unwrap().len();
    assert!(out.contains(&format!("{nodes} nodes: ")) && out.contains("groups"), "{out}");
    // The summary has the same numbers as the one of the command that made the graph.
    let kept = told.lines().find_map(|line| line.strip_prefix("kept ")).unwrap();
    let (kinds, _) = kept.split_once(';').unwrap();
    assert!(out.contains(kinds) && kinds.contains(" latents, ") && kinds.ends_with(", 1 output"), "{kinds} {out}");
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!doctype html>") && !html.contains("src=\"http") && !html.contains("href=\"http"));
    // The same page as from the command that made the graph.
    let direct = at(folder.path(), "direct.html");
    let (code, ..) = of_ioi(&["--out", &direct]);
    assert!(code == 0 && fs::metadata(direct).unwrap().len() > 10_000);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn json_has_the_numbers() {
    let (code, out, _) = of_ioi(&["--json", "--check", "3", "--top", "4"]);
    let message = json(&out);
    assert_eq!(code, 0);
    assert!(message["deviation"].as_f64().unwrap() < 1e-4 && message["check"]["deviation"].as_f64().unwrap() < 1e-4);
    assert_eq!(message["check"]["edits"], 3);
    let target = &message["targets"][0];
    assert_eq!((&target["target"], target["inputs"].as_array().unwrap().len()), (&Value::from("Mary"), 4));
    let parts = ["features", "errors", "tokens", "constant"].map(|part| target[part].as_f64().unwrap());
    let value = target["value"].as_f64().unwrap();
    assert!((parts.iter().sum::<f64>() - value).abs() < 1e-4 * value.abs(), "{parts:?} {value}");
    assert!(target["paths"][0]["share"].as_f64().unwrap() > 0.0);
    let influential = message["most_influential"].as_array().unwrap();
    let shares: Vec<f64> = influential.iter().map(|one| one["share"].as_f64().unwrap()).collect();
    assert!(shares.len() == 5 && shares.is_sorted_by(|a, b| a >= b) && shares[0] < 1.0, "{shares:?}");
}

/// Changed features, heads and attention scores are reported in text and JSON, and every answer is a target.
#[test]
fn what_is_asked_beside_a_graph() {
    let more = ["--set", "3:14:12=x-5", "--set", "2:14+:119=0", "--generate", "3", "--heads", "--looks", "3.0:14:2"];
    let (code, out, message) = of_ioi(&more);
    assert_eq!(code, 0, "{message}");
    let edited = "layer 3 latent 12 at 14 \"to\": 3.376 -> -16.88";
    for words in
        ["probability before", edited, "with changes: ", "via L", "directly ", "L3H0 from 14 \"to\" to 2 \"Mary\": "]
    {
        assert!(out.contains(words), "no {words:?} in {out}");
    }
    let (_, out, _) = of_ioi(&[&more[..], &["--json", "--answer", "Mary", "--answer", "John"]].concat());
    let message = json(&out);
    let mary = &message["changed"]["tokens"][0];
    assert_eq!(mary["token"], "Mary");
    assert!(mary["before"].as_f64().unwrap() > mary["after"].as_f64().unwrap());
    assert!(mary["logit_before"].as_f64().unwrap() > mary["logit_after"].as_f64().unwrap());
    let value = message["targets"][0]["value"].as_f64().unwrap();
    assert!((mary["logit_before"].as_f64().unwrap() - value).abs() < 1e-3, "{mary} {value}");
    let edits: Vec<[u64; 3]> = message["changed"]["edits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|edit| ["layer", "position", "latent"].map(|key| edit[key].as_u64().unwrap()))
        .collect();
    assert_eq!(edits, [[3, 14, 12], [2, 14, 119]]);
    let targets: Vec<&str> =
        message["targets"].as_array().unwrap().iter().map(|target| target["target"].as_str().unwrap()).collect();
    assert_eq!(targets, ["Mary", "John"]);
    let input = &message["targets"][0]["inputs"][0];
    let by_heads = input["heads"]["carried"].as_array().unwrap();
    assert!(by_heads.len() <= 2 && input["heads"]["direct"].is_number());
    assert!(!message["looks"]["pairs"].as_array().unwrap().is_empty() && message["looks"]["score"].is_number());
}

/// A change of a feature that is not active has no effect, which a note says.
#[test]
fn changes_of_inactive_features_are_noted() {
    let inactive = "note: latent 224 of layer 0 is not active at position 2 (\"Mary\"), so ";
    for (set, change) in [("0:2:224=0", "setting it to 0"), ("0:2:224=x2", "multiplying it by 2")] {
        let (code, out, message) = of_ioi(&["--set", "3:14:12=0", "--set", set]);
        assert_eq!(code, 0, "{message}");
        assert!(message.contains(&format!("{inactive}{change} changes nothing")), "{message}");
        assert_eq!(message.matches("changes nothing").count(), 1, "{message}");
        assert!(out.contains("layer 0 latent 224 at 2 \"Mary\": 0 -> 0"), "{out}");
    }
    let (code, out, message) = of_ioi(&["--set", "0:2:224=5", "--json"]);
    assert!(code == 0 && !message.contains("changes nothing"), "{message}");
    let edit = &json(&out)["changed"]["edits"][0];
    assert_eq!((edit["before"].as_f64(), edit["after"].as_f64()), (Some(0.0), Some(5.0)));
}

/// Dictionaries of several layers that exclude the same tokens share a note.
#[test]
fn excluded_tokens_are_noted_once() {
    let layers =
        ["--dictionary", "embedded:ioi-transcoders/layer_0", "--dictionary", "embedded:ioi-transcoders/layer_1"];
    for more in [&layers[..], &[]] {
        let (code, _, message) = of_ioi(more);
        assert_eq!((code, message.matches("trained without").count()), (0, 1), "{message}");
        assert!(message.contains("note: embedded:ioi-transcoders was trained without the tokens"), "{message}");
    }
    let (_, _, message) = of_ioi(&layers[..2]);
    assert!(message.contains("note: embedded:ioi-transcoders/layer_0 was trained without"), "{message}");
}

/// Directions from a file are targets, under their names.
#[test]
fn directions_are_targets() {
    let folder = tempfile::tempdir().unwrap();
    let width = HookedTransformer::from_pretrained("embedded:ioi").unwrap().config().d_model();
    let [probe, short] = [("probe.json", width), ("short.json", width - 1)].map(|(name, width)| {
        let direction: Vec<f32> = (0..width).map(|at| (at as f32).sin()).collect();
        let file = at(folder.path(), name);
        fs::write(&file, serde_json::to_string(&direction).unwrap()).unwrap();
        file
    });
    let (code, out, message) = of_ioi(&["--direction", &probe, "--answer", "Mary", "--json", "--check"]);
    assert_eq!(code, 0, "{message}");
    let message = json(&out);
    let targets: Vec<&str> =
        message["targets"].as_array().unwrap().iter().map(|target| target["target"].as_str().unwrap()).collect();
    assert_eq!(targets, ["Mary", "probe"]);
    assert!(message["check"]["deviation"].as_f64().unwrap() < 1e-4);
    let (code, _, message) = of_ioi(&["--direction", &short]);
    assert!(code != 0 && message.contains(&width.to_string()) && !message.contains("panicked"), "{message}");
    let (code, _, message) = of_ioi(&["--direction", "no-such.json"]);
    assert!(code != 0 && message.contains("no-such.json"), "{message}");
}

/// A file records its model by name, and nothing about the machine.
#[test]
fn files_say_what_they_are_of() {
    let folder = tempfile::tempdir().unwrap();
    let file = at(folder.path(), "graph.json");
    let [model, transcoders] = ["llama", "graph/llama-jumprelu"].map(|name| fixtures().join(name));
    let arguments = ["--model", model.to_str().unwrap(), "--dictionary", transcoders.to_str().unwrap(), "--out", &file];
    let (code, _, message) = graph(&[&arguments[..], &["--tokens", "1,2,3,4", "--max-nodes", "20"]].concat());
    assert_eq!(code, 0, "{message}");
    let text = fs::read_to_string(&file).unwrap();
    assert!(!text.contains(model.parent().unwrap().to_str().unwrap()), "a path");
    let metadata = &json(&text)["metadata"];
    assert_eq!((&metadata["scan"], &metadata["hooklens"]["model"]), (&Value::from("llama"), &Value::from("llama")));
    let layers = metadata["transcoder_list"].as_array().unwrap().len();
    assert!(layers >= 2, "{metadata}");
    assert_eq!(metadata["generation_settings"]["max_feature_nodes"], 20);
    assert!(!metadata["hooklens"]["targets"].as_array().unwrap().is_empty());
}

/// The same command writes the same bytes, also when it resumes from an interrupted run.
#[test]
fn the_same_graph_is_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let made = |ending: &str, more: &[&str], date: Option<&str>| {
        let out = at(folder.path(), &format!("graph.{ending}"));
        let mut command = program();
        command.args(["graph", "--model", "embedded:ioi", "--prompt", PROMPT, "--max-nodes", "200", "--out", &out]);
        command.args(more).env_remove("SOURCE_DATE_EPOCH").envs(date.map(|date| ("SOURCE_DATE_EPOCH", date)));
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap(), fs::read(&out).unwrap_or_default())
    };
    for ending in ["json", "html"] {
        let (code, message, whole) = made(ending, &[], None);
        assert!(code == Some(0) && !whole.is_empty(), "{message}");
        assert!(made(ending, &[], None).2 == whole);
        let kept = at(folder.path(), ending);
        assert!(made(ending, &["--resume", &kept], None).2 == whole);
        let rows = at(folder.path(), &format!("{ending}/graph_rows.bin"));
        let bytes = fs::read(&rows).unwrap();
        for share in 1..4 {
            fs::write(&rows, &bytes[..bytes.len() * share / 4]).unwrap();
            assert!(made(ending, &["--resume", &kept], None).2 == whole);
        }
        let mut damaged = bytes.clone();
        damaged[bytes.len() / 2] ^= 1;
        fs::write(&rows, damaged).unwrap();
        let (code, message, graph) = made(ending, &["--resume", &kept], None);
        assert!(code == Some(0) && graph == whole && message.contains("has damaged rows"), "{message}");
    }
    let (_, _, dated) = made("json", &[], Some("1600000000"));
    assert_eq!(json(&String::from_utf8(dated).unwrap())["metadata"]["info"]["create_time_ms"], 1_600_000_000_000u64);
    let (code, message, _) = made("json", &[], Some("yesterday"));
    assert!(code == Some(2) && message.contains("SOURCE_DATE_EPOCH is `yesterday`"), "{message}");
}

#[test]
fn graphs_of_several_prompts_and_of_neurons() {
    let (code, out, message) = graph(&["--model", "embedded:ioi", "--ioi", "4", "--json"]);
    assert_eq!((code, &json(&out)["prompts"]), (0, &Value::from(4)), "{message}");
    let against = "When Mary and John went to the store, Mary gave a drink to";
    let (code, out, message) = of_ioi(&["--against", against, "--answer", "Mary", "--json"]);
    assert_eq!(code, 0, "{message}");
    assert!(json(&out)["deviation"].as_f64().unwrap() < 1e-4);
    // Without MLPs, only tokens have effects.
    let (code, out, _) = graph(&["--model", "embedded:induction", "--neurons", "8", "--tokens", "1,2,3,1", "--check"]);
    assert!(out.contains("0 features and 4 tokens changed"), "{out}");
    assert!(code == 0 && out.contains("features +0.00") && out.contains("token \"red\" at 0"), "{out}");
    let (code, out, message) = of_ioi(&["--neurons", "16", "--check"]);
    assert!(code == 0 && out.contains("checked"), "{out}{message}");
    // Transcoders from a folder, and a graph of some of their features.
    let [model, transcoders] = ["llama", "graph/llama-jumprelu"].map(|name| fixtures().join(name));
    let arguments = ["--model", model.to_str().unwrap(), "--dictionary", transcoders.to_str().unwrap()];
    let (code, out, message) =
        graph(&[&arguments[..], &["--tokens", "1,2,3,4", "--max-nodes", "20", "--json"]].concat());
    assert_eq!(code, 0, "{message}");
    let message = json(&out);
    assert!(message["active"].as_u64().unwrap() > 20 && message["deviation"].as_f64().unwrap() < 1e-4);
    assert_ne!(message["targets"][0]["features_left_out"], 0.0);
}

#[test]
fn wrong_usage_of_graphs() {
    let folder = tempfile::tempdir().unwrap();
    let other = at(folder.path(), "graph.txt");
    let usage: [(&[&str], &str); 16] = [
        (&["--model", "embedded:ioi"], "--prompt"),
        (&["--model", "embedded:induction", "--tokens", "1,2"], "--neurons"),
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--out", &other], ".html or .json"),
        (&["--model", "embedded:ioi", "--tokens", "1,2;3,4"], "one prompt"),
        // Reported before anything is computed.
        (&["--model", "embedded:ioi", "--ioi", "1000000", "--check"], "--check"),
        (&["--model", "embedded:ioi", "--ioi", "1000000", "--set", "1:2:3=0"], "--set"),
        (&["--model", "embedded:ioi", "--ioi", "1000000", "--node-share", "7"], "from 0 to 1"),
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--edge-share", "-1"], "--edge-share"),
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--group", "nan"], "from 0 to 1"),
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--group", "2"], "from 0 to 1"),
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--check", "0"], "--check"),
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--set", "1:2"], "LAYER:POS:LATENT=VALUE"),
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--generate", "3"], "--set"),
        (
            &["--model", "embedded:ioi", "--prompt", PROMPT, "--answer", "Mary", "--wrong", "John", "--wrong", "Tom"],
            "or one per --answer",
        ),
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--wrong", "John"], "--answer"),
        (&["view"], "FILE"),
    ];
    for (arguments, words) in usage {
        let (code, _, message) = graph(arguments);
        assert!(code == 2 && message.contains(words), "{arguments:?}: {code} {message}");
    }
    let broken = at(folder.path(), "broken.json");
    fs::write(&broken, "{\"nodes\": 3}").unwrap();
    let of_torch = at(folder.path(), "graph.pt");
    fs::write(&of_torch, b"PK\x03\x04\x00\xff").unwrap();
    let failures: [(&[&str], &str); 8] = [
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--answer", "Mry"], "Mry"),
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--set", "9:2:3=0"], "layer 9"),
        (&["view", &of_torch], "a PyTorch file"),
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--leave-out", "15"], "15"),
        (&["view", "nowhere.json"], "nowhere.json: can't read the graph: "),
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--against", "When Mary"], "tokens"),
        (&["--model", "embedded:ioi", "--prompt", ""], "empty"),
        (&["view", &broken], "broken.json"),
    ];
    for (arguments, words) in failures {
        let (code, _, message) = graph(arguments);
        assert!(
            code == 1 && message.contains(words) && !message.contains("panicked"),
            "{arguments:?}: {code} {message}"
        );
    }
    // Inputs are not overwritten.
    let page = at(folder.path(), "graph.html");
    fs::copy(&broken, &page).unwrap();
    let (code, _, message) = graph(&["view", &page, "--out", &page]);
    assert!(code != 0 && message.contains("is also an input"), "{message}");
    assert_eq!(fs::read_to_string(&page).unwrap(), "{\"nodes\": 3}");
}

/// Duplicate targets would count twice, and a target minus itself is zero: both are rejected, by text, by id, with one
/// wrong token or several.
#[test]
fn a_target_is_given_once() {
    for (targets, reason) in [
        (&["--answer", "Mary", "--answer", "Mary"][..], "the target \"Mary\" is given twice (token 1)"),
        (&["--answer", "Mary", "--answer", " Mary"], "the target \" Mary\" is given twice (token 1)"),
        (&["--answer-token", "21,1,21"], "the target 21 is given twice (token 21)"),
        (
            &["--answer", "Mary", "--answer", "Mary", "--wrong", "John"],
            "the target \"Mary\" minus \"John\" is given twice",
        ),
        (
            &["--answer", "Mary", "--wrong", "Mary"],
            "the answer \"Mary\" and the wrong token \"Mary\" are the same token, 1",
        ),
        (&["--answer-token", "1,2", "--wrong-token", "2"], "the answer 2 and the wrong token 2 are the same token, 2"),
    ] {
        let (code, _, message) = of_ioi(targets);
        assert!(code == 2 && message.contains(reason), "{targets:?}: {message}");
    }
    // Differences from several tokens are several targets.
    let (code, out, message) =
        of_ioi(&["--json", "--answer", "Mary", "--wrong", "John", "--answer", "Mary", "--wrong", "Anna"]);
    assert!(code == 0 && json(&out)["targets"].as_array().unwrap().len() == 2, "{message}");
}
