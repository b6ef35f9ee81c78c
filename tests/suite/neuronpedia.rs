//! Requirements of Neuronpedia's schema for attribution graphs, checked for every kind of graph and for files saved by
//! the page.

use hooklens::FromPretrained;
use std::path::Path;
use std::process::Command;

use hooklens::HookedTransformer;
use hooklens::attribution::graph::{AttributionGraph, GraphFile, GraphOptions, Replacement};
use hooklens::features::Transcoders;
use hooklens_features::graph::{GraphFileParts, batch_size};
use serde_json::{Value, json};

use crate::support::{fixtures, program, skipped};

const PROMPT: &str = "When Mary and John went to the store, John gave a drink to";

/// Properties by path, with `[]` for each entry of a list: their allowed JSON types, and whether they are required.
const PROPERTIES: [(&str, &[&str], bool); 51] = [
    ("", &["object"], true),
    ("metadata", &["object"], true),
    ("metadata.slug", &["string"], true),
    ("metadata.scan", &["string"], true),
    ("metadata.prompt_tokens", &["array"], true),
    ("metadata.prompt_tokens[]", &["string"], true),
    ("metadata.prompt", &["string"], true),
    ("metadata.feature_details", &["object"], false),
    ("metadata.feature_details.feature_json_base_url", &["string"], false),
    ("metadata.feature_details.neuronpedia_source_set", &["string"], false),
    ("metadata.node_threshold", &["number"], false),
    ("metadata.info", &["object"], false),
    ("metadata.info.description", &["string"], false),
    ("metadata.info.source_urls", &["array"], false),
    ("metadata.info.generator", &["object"], false),
    ("metadata.info.generator.name", &["string"], false),
    ("metadata.info.generator.version", &["string"], false),
    ("metadata.info.create_time_ms", &["number"], false),
    ("metadata.generation_settings", &["object"], false),
    ("metadata.generation_settings.max_n_logits", &["integer"], false),
    ("metadata.generation_settings.desired_logit_prob", &["number"], false),
    ("metadata.generation_settings.batch_size", &["integer"], false),
    ("metadata.generation_settings.max_feature_nodes", &["integer"], false),
    ("metadata.pruning_settings", &["object"], false),
    ("metadata.pruning_settings.node_threshold", &["number"], false),
    ("metadata.pruning_settings.edge_threshold", &["number"], false),
    ("qParams", &["object"], true),
    ("qParams.pinnedIds", &["array"], false),
    ("qParams.pinnedIds[]", &["string"], true),
    // Entries that Neuronpedia's viewer reads, although the schema only says that it is a list.
    ("qParams.supernodes", &["array"], false),
    ("qParams.supernodes[]", &["array"], true),
    ("qParams.supernodes[][]", &["string"], true),
    ("qParams.linkType", &["string"], false),
    ("qParams.clickedId", &["string"], false),
    ("qParams.sg_pos", &["string"], false),
    ("nodes", &["array"], true),
    ("nodes[]", &["object"], true),
    ("nodes[].node_id", &["string"], true),
    ("nodes[].feature", &["integer", "null"], true),
    ("nodes[].layer", &["string", "integer"], true),
    ("nodes[].ctx_idx", &["integer"], true),
    ("nodes[].feature_type", &["string"], true),
    ("nodes[].influence", &["number", "null"], false),
    ("nodes[].jsNodeId", &["string"], true),
    ("nodes[].clerp", &["string"], true),
    ("nodes[].activation", &["number", "null"], false),
    ("links", &["array"], true),
    ("links[]", &["object"], true),
    ("links[].source", &["string"], true),
    ("links[].target", &["string"], true),
    ("links[].weight", &["number"], true),
];

/// Whether a value has a JSON Schema type. Numbers without a fraction are integers, too.
fn is_a(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "null" => value.is_null(),
        other => panic!("{other}"),
    }
}

/// All values at a path with their locations; empty if it is missing.
fn at<'v>(value: &'v Value, path: &str, place: String) -> Vec<(String, Option<&'v Value>)> {
    if path.is_empty() {
        return vec![(place, Some(value))];
    }
    if let Some(rest) = path.strip_prefix("[]") {
        let entries = value.as_array().into_iter().flatten().enumerate();
        return entries.flat_map(|(n, entry)| at(entry, rest, format!("{place}[{n}]"))).collect();
    }
    let path = path.strip_prefix('.').unwrap_or(path);
    let (name, rest) = path.split_at(path.find(['.', '[']).unwrap_or(path.len()));
    // A missing parent is reported by its own entry.
    match value.as_object().map(|object| object.get(name)) {
        None => Vec::new(),
        Some(None) if rest.is_empty() => vec![(format!("{place}.{name}"), None)],
        Some(None) => Vec::new(),
        Some(Some(own)) => at(own, rest, format!("{place}.{name}")),
    }
}

/// The violations of Neuronpedia's schema in a file.
fn violations(json: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, kinds, required) in &PROPERTIES {
        for (place, value) in at(json, path, String::new()) {
            match value {
                None if *required => wrong.push(format!("{place} is missing")),
                Some(value) if !kinds.iter().any(|kind| is_a(value, kind)) => {
                    wrong.push(format!("{place} is {value}, not {}", kinds.join(" or ")));
                }
                _ => {}
            }
        }
    }
    wrong
}

#[test]
fn violations_are_seen() {
    let node = json!({ "node_id": "a", "feature": null, "layer": 1, "ctx_idx": 0, "feature_type": "logit", "jsNodeId": "",
        "clerp": "" });
    let metadata = json!({ "slug": "", "scan": "", "prompt_tokens": ["a"], "prompt": "a" });
    let right = json!({ "metadata": metadata, "qParams": {}, "nodes": [node], "links": [] });
    assert_eq!(violations(&right), [""; 0]);
    let mut wrong = right.clone();
    wrong["metadata"]["generation_settings"] = json!({ "batch_size": null });
    wrong["nodes"][0]["feature"] = json!(0.5);
    wrong["nodes"][0].as_object_mut().unwrap().remove("clerp");
    wrong["links"] = json!([{ "source": "a", "target": "a", "weight": null }]);
    assert_eq!(
        violations(&wrong),
        [
            ".metadata.generation_settings.batch_size is null, not integer",
            ".nodes[0].feature is 0.5, not integer or null",
            ".nodes[0].clerp is missing",
            ".links[0].weight is null, not number",
        ]
    );
}

/// Runs the page's Save with Node.js, if available: the downloaded file, and the page's message on what it left out.
fn saved_by_the_page(page: &str) -> Option<(Value, String)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.html");
    std::fs::write(&path, page).unwrap();
    let run = Command::new("node").arg(fixtures().join("graph-page/save.js")).arg(&path).output();
    let Ok(output) = run else {
        skipped("there is no Node.js to try the page's Save");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut message: Value = serde_json::from_slice(&output.stdout).unwrap();
    Some((message["saved"].take(), message["note"].as_str().unwrap().to_string()))
}

#[track_caller]
fn check(file: &GraphFile, kind: &str) {
    let json = file.json();
    assert!(!json["nodes"].as_array().unwrap().is_empty(), "{kind}");
    assert_eq!(violations(json), [""; 0], "{kind}");
    if let Some((saved, note)) = saved_by_the_page(&file.page()) {
        assert_eq!(violations(&saved), [""; 0], "{kind}, saved");
        for list in ["nodes", "links"] {
            assert_eq!(saved[list].as_array().unwrap().len(), json[list].as_array().unwrap().len(), "{kind}, saved");
        }
        assert_eq!(note, "", "{kind}");
        assert_eq!(saved["qParams"]["pinnedIds"].as_array().unwrap().len(), pinned(json), "{kind}, saved");
        assert_eq!(saved["qParams"]["supernodes"], json["qParams"]["supernodes"], "{kind}, saved");
    }
}

fn pinned(json: &Value) -> usize {
    json["qParams"]["pinnedIds"].as_array().unwrap().len()
}

#[test]
fn every_kind_of_graph_is_within_the_schema() {
    let folder = tempfile::tempdir().unwrap();
    let direction = folder.path().join("up.json");
    std::fs::write(&direction, json!(vec![0.1; 64]).to_string()).unwrap();
    let pairs = folder.path().join("pairs.jsonl");
    std::fs::write(&pairs, format!("{}\n", json!({ "clean": PROMPT, "answer": "Mary", "wrong": "John" }))).unwrap();
    let [direction, pairs] = [&direction, &pairs].map(|path| path.to_str().unwrap());
    let ids = "0,21,1,57,20,33";
    for (kind, arguments) in [
        ("transcoders", &["--prompt", PROMPT][..]),
        ("a residual dictionary", &["--prompt", PROMPT, "--dictionary", "embedded:ioi-sae"]),
        ("neurons", &["--prompt", PROMPT, "--neurons", "4"]),
        ("a direction", &["--prompt", PROMPT, "--direction", direction]),
        ("an answer", &["--prompt", PROMPT, "--answer", "Mary"]),
        ("a difference", &["--prompt", PROMPT, "--answer", "Mary", "--wrong", "John"]),
        ("ids", &["--tokens", ids, "--answer-token", "1,21"]),
        (
            "two prompts",
            &["--prompt", PROMPT, "--against", "When Mary and John went to the store, Mary gave a drink to"],
        ),
        ("a mean", &["--ioi", "2"]),
        ("a mean of a file", &["--pairs", pairs]),
        ("groups", &["--prompt", PROMPT, "--answer", "Mary", "--wrong", "John", "--group", "0.7"]),
    ] {
        let path = folder.path().join("graph.json");
        let mut command = program();
        command.args(["graph", "--model", "embedded:ioi", "--out"]).arg(&path).args(arguments);
        let output = command.env("SOURCE_DATE_EPOCH", "1").output().unwrap();
        assert!(output.status.success(), "{kind}: {}", String::from_utf8_lossy(&output.stderr));
        let file = GraphFile::open(&path).unwrap();
        assert!(kind != "groups" || !file.json()["qParams"]["supernodes"].as_array().unwrap().is_empty());
        check(&file, kind);
    }
}

#[test]
fn a_cross_layer_graph_and_a_set_batch_are_within_the_schema() {
    let folder = fixtures().join("graph/llama-clt");
    let model = HookedTransformer::from_pretrained(model_of(&folder).to_str().unwrap()).unwrap();
    let replacement = Replacement::transcoders(Transcoders::open(&folder).unwrap());
    let options = batch_size(GraphOptions::new(), 7);
    let graph = AttributionGraph::new(&model, vec![3u32, 9, 1, 7], &replacement, &options).unwrap();
    let file = GraphFile::with_defaults(&graph, &model).unwrap().named("a", "b").dated(5);
    check(&file, "cross-layer");
    assert_eq!(file.json()["metadata"]["generation_settings"]["batch_size"], 7);
}

/// The model of a golden's graph.
fn model_of(folder: &Path) -> std::path::PathBuf {
    let said: Value = serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    fixtures().join(said["model"].as_str().unwrap())
}

/// Pinned nodes, groups and labels may be text, as in Neuronpedia's URLs. Page and program show the same.
#[test]
fn lists_as_text_are_read_and_what_is_no_list_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("graph.json");
    let node = |id: &str| json!({ "node_id": id, "layer": "0", "ctx_idx": 0, "feature": 1, "feature_type": "latent", "jsNodeId": "", "clerp": "" });
    let graph = |params: Value| {
        json!({ "metadata": { "prompt_tokens": ["a"] }, "nodes": [node("0_1_0"), node("0_2_0"), node("0_3_0")], "links": [],
            "qParams": params })
    };
    let view = |params: Value| {
        std::fs::write(&path, graph(params).to_string()).unwrap();
        let output = program().args(["graph", "view"]).arg(&path).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let lists =
        json!({ "pinnedIds": ["0_3_0"], "supernodes": [["x, \"y\"", "0_1_0", "0_2_0"]], "clerps": [["0_3_0", "z"]] });
    let as_text = |params: &Value| json!({ "pinnedIds": "0_3_0", "supernodes": params["supernodes"].to_string(), "clerps": params["clerps"].to_string() });
    for params in [lists.clone(), as_text(&lists)] {
        let (code, out, message) = view(params.clone());
        assert!(code == 0 && out.contains("1 group\n"), "{out}{message}");
        assert_eq!(GraphFile::open(&path).unwrap().json()["qParams"], lists, "{params}");
        // As the page reads a file that is dropped on it.
        let page = GraphFile::open(&path).unwrap().page().replacen(&lists.to_string(), &params.to_string(), 1);
        assert!(page.contains(&params.to_string()));
        if let Some((saved, note)) = saved_by_the_page(&page) {
            assert_eq!((&saved["qParams"]["supernodes"], &*note), (&lists["supernodes"], ""));
            assert_eq!(saved["qParams"]["pinnedIds"].as_array().unwrap().len(), 3);
            assert_eq!(saved["nodes"][2]["clerp"], "z");
        }
    }
    let (code, _, message) = view(json!({ "pinnedIds": "0_3_0,0_9_0", "supernodes": [["x", "0_1_0", "0_8_0"]] }));
    assert!(code == 0 && message.contains("2 ids are") && message.contains("0_8_0, 0_9_0"), "{message}");
    assert_eq!(view(json!({ "pinnedIds": "", "supernodes": "", "clerps": null })).0, 0);
    assert_eq!(view(Value::Null).0, 0);
    for (params, reason) in [
        (json!({ "supernodes": "[[" }), "`qParams.supernodes` is text that is not JSON"),
        (json!({ "supernodes": "{}" }), "`qParams.supernodes` is {}; expected a list of lists"),
        (json!({ "supernodes": 7 }), "`qParams.supernodes` is 7"),
        (json!({ "supernodes": [["x"], "y"] }), "entry 1 of `qParams.supernodes` is \"y\""),
        (json!({ "supernodes": [["x", {}]] }), "entry 0 of `qParams.supernodes` is [\"x\",{}]"),
        (json!({ "pinnedIds": { "a": 1 } }), "`qParams.pinnedIds` is {\"a\":1}"),
        (json!({ "pinnedIds": "[1" }), "`qParams.pinnedIds` is text that is not JSON"),
        (json!({ "clerps": [[]] }), "entry 0 of `qParams.clerps` is []"),
        (json!("slug=a"), "`qParams` is \"slug=a\"; expected an object"),
    ] {
        let (code, _, message) = view(params);
        assert!(code == 1 && message.contains(reason), "{message}");
    }
    // The page accepts any file, and counts what it can't read.
    let page = |params: &str| {
        std::fs::write(&path, graph(json!({ "pinnedIds": ["HERE"] })).to_string()).unwrap();
        let page = GraphFile::open(&path).unwrap().page();
        saved_by_the_page(&page.replacen(r#"{"pinnedIds":["HERE"]}"#, params, 1)).map(|(_, note)| note)
    };
    for (params, message) in [
        (r#"{"supernodes":"[["}"#, "groups that can't be read (1)"),
        (r#"{"supernodes":[["x","0_1_0"],7]}"#, "groups that can't be read (1)"),
        (r#"{"pinnedIds":7}"#, "lists of pinned nodes that can't be read (1)"),
        (r#"{"clerps":[["0_9_0","x"]]}"#, "labels without a node (1)"),
        (r#"{"pinnedIds":"0_1_0, 0_9_0"}"#, "ids without a node (1)"),
    ] {
        assert!(page(params).is_none_or(|note| note.contains(message)), "{params}: {:?}", page(params));
    }
}
