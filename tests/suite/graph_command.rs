//! `hooklens graph` and `hooklens graph view`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{fixtures, program};

const PROMPT: &str = "When Mary and John went to the store, John gave a drink to";

/// Exit code, standard output, standard error.
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
    let (code, out, told) =
        of_ioi(&["--answer", "Mary", "--wrong", "John", "--group", "0.7", "--check", "--out", &file]);
    assert_eq!(code, 0, "{told}");
    for words in
        ["15 tokens", "every row sums to its value", "checked: 5 features", "why \"Mary", "strongest paths", "groups"]
    {
        assert!(out.contains(words), "no {words:?} in {out}");
    }
    let written = json(&fs::read_to_string(&file).unwrap());
    assert_eq!(written["metadata"]["slug"], "graph");
    assert!(!written["qParams"]["supernodes"].as_array().unwrap().is_empty());
    assert!(!written["qParams"]["pinnedIds"].as_array().unwrap().is_empty());

    let (code, out, told) = graph(&["view", &file]);
    assert_eq!(code, 0, "{told}");
    let nodes = written["nodes"].as_array().unwrap().len();
    assert!(out.contains(&format!("{nodes} nodes")) && out.contains("groups"), "{out}");
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!doctype html>") && !html.contains("src=\"http") && !html.contains("href=\"http"));
    // The same page from the command that made the graph.
    let direct = at(folder.path(), "direct.html");
    let (code, ..) = of_ioi(&["--out", &direct]);
    assert!(code == 0 && fs::metadata(direct).unwrap().len() > 10_000);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn json_has_the_numbers() {
    let (code, out, _) = of_ioi(&["--json", "--check", "3", "--top", "4"]);
    let told = json(&out);
    assert_eq!(code, 0);
    assert!(told["deviation"].as_f64().unwrap() < 1e-4 && told["check"]["deviation"].as_f64().unwrap() < 1e-3);
    assert_eq!(told["check"]["edits"], 3);
    let target = &told["targets"][0];
    assert_eq!((&target["target"], target["inputs"].as_array().unwrap().len()), (&Value::from("Mary"), 4));
    let parts = ["features", "errors", "tokens", "constant"].map(|part| target[part].as_f64().unwrap());
    let value = target["value"].as_f64().unwrap();
    assert!((parts.iter().sum::<f64>() - value).abs() < 1e-4 * value.abs(), "{parts:?} {value}");
    assert!(target["paths"][0]["share"].as_f64().unwrap() > 0.0);
}

#[test]
fn graphs_of_several_prompts_and_of_neurons() {
    let (code, out, told) = graph(&["--model", "embedded:ioi", "--ioi", "4", "--json"]);
    assert_eq!((code, &json(&out)["prompts"]), (0, &Value::from(4)), "{told}");
    let against = "When Mary and John went to the store, Mary gave a drink to";
    let (code, out, told) = of_ioi(&["--against", against, "--answer", "Mary", "--json"]);
    assert_eq!(code, 0, "{told}");
    assert!(json(&out)["deviation"].as_f64().unwrap() < 1e-4);
    // Without MLPs tokens alone act.
    let (code, out, _) = graph(&["--model", "embedded:induction", "--neurons", "8", "--tokens", "1,2,3,1"]);
    assert!(code == 0 && out.contains("features +0.00") && out.contains("token \"red\" at 0"), "{out}");
    let (code, out, told) = of_ioi(&["--neurons", "16", "--check"]);
    assert!(code == 0 && out.contains("checked"), "{out}{told}");
    // Transcoders from a folder, and a graph of some of their features.
    let [model, transcoders] = ["llama", "graph/llama-jumprelu"].map(|name| fixtures().join(name));
    let arguments = ["--model", model.to_str().unwrap(), "--dictionary", transcoders.to_str().unwrap()];
    let (code, out, told) = graph(&[&arguments[..], &["--tokens", "1,2,3,4", "--max-nodes", "20", "--json"]].concat());
    assert_eq!(code, 0, "{told}");
    let told = json(&out);
    assert!(told["active"].as_u64().unwrap() > 20 && told["deviation"].as_f64().unwrap() < 1e-4);
    assert_ne!(told["targets"][0]["features_left_out"], 0.0);
}

#[test]
fn wrong_usage_of_graphs() {
    let folder = tempfile::tempdir().unwrap();
    let other = at(folder.path(), "graph.txt");
    let usage: [(&[&str], &str); 7] = [
        (&["--model", "embedded:ioi"], "--prompt"),
        (&["--model", "embedded:induction", "--tokens", "1,2"], "--neurons"),
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--out", &other], ".html or .json"),
        (&["--model", "embedded:ioi", "--tokens", "1,2;3,4"], "one prompt"),
        (&["--model", "embedded:ioi", "--ioi", "2", "--check"], "one prompt"),
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--wrong", "John"], "--answer"),
        (&["view"], "FILE"),
    ];
    for (arguments, words) in usage {
        let (code, _, told) = graph(arguments);
        assert!(code == 2 && told.contains(words), "{arguments:?}: {code} {told}");
    }
    let broken = at(folder.path(), "broken.json");
    fs::write(&broken, "{\"nodes\": 3}").unwrap();
    let failures: [(&[&str], &str); 7] = [
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--answer", "Mry"], "Mry"),
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--node-share", "7"], "7"),
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--leave-out", "15"], "15"),
        (&["view", "nowhere.json"], "nowhere.json: can't read the graph: "),
        (&["--model", "embedded:ioi", "--prompt", PROMPT, "--against", "When Mary"], "tokens"),
        (&["--model", "embedded:ioi", "--prompt", ""], "empty"),
        (&["view", &broken], "broken.json"),
    ];
    for (arguments, words) in failures {
        let (code, _, told) = graph(arguments);
        assert!(code == 1 && told.contains(words) && !told.contains("panicked"), "{arguments:?}: {code} {told}");
    }
    // What is read is not written over.
    let (code, _, told) = graph(&["view", &broken, "--out", &broken]);
    assert!(code != 0 && told.contains("broken.json"), "{told}");
    assert_eq!(fs::read_to_string(&broken).unwrap(), "{\"nodes\": 3}");
}
