//! `hooklens circuit`.

use std::path::Path;

use serde_json::Value;

use crate::support::program;

const QUICK: [&str; 4] = ["--subsets", "2", "--adversary-steps", "2"];

fn circuit(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut program = program();
    program.current_dir(folder).args(["circuit", "--model", "embedded:ioi"]).args(arguments);
    let done = program.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (done.status.code(), text(done.stdout), text(done.stderr))
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let arguments = [&["--json"], &QUICK[..], arguments].concat();
    let (code, stdout, stderr) = circuit(folder, &arguments);
    assert_eq!(code, Some(0), "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn saved_circuits_are_proven_again() {
    let folder = tempfile::tempdir().unwrap();
    let found = json(folder.path(), &["--ioi", "6", "--share", "0.1", "--save", "own.json", "--save-mib", "mib.json"]);
    assert!(found["faithfulness"].as_f64().unwrap() > 0.8, "{found}");
    assert!(found["curve"]["cpr"].as_f64().unwrap() > 0.8);
    assert!(found["adversary"]["worst"].as_f64().unwrap() <= found["faithfulness"].as_f64().unwrap() + 1e-9);
    for file in ["own.json", "mib.json"] {
        let again = json(folder.path(), &["--ioi", "6", "--circuit", file]);
        let [first, second] = [&found, &again].map(|own| own["faithfulness"].as_f64().unwrap());
        assert!((first - second).abs() < 1e-6, "{file}: {first}, {second}");
        assert_eq!(again["edges"].as_array().unwrap().len(), found["edges"].as_array().unwrap().len());
        assert!(again["curve"].is_null() && again["stability"].is_null());
    }
    // Equal seeds give equal results.
    assert_eq!(json(folder.path(), &["--ioi", "6", "--share", "0.1"]), found);
}

#[test]
fn every_method_and_ablation_reports() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        &["--method", "eap"][..],
        &["--method", "eap-ig", "--steps", "2", "--select", "greedy"],
        &["--method", "exact", "--select", "most-helpful"],
        &["--method", "relp", "--select", "greedy-helpful"],
        &["--method", "learned-masks", "--steps", "10"],
        &["--method", "acdc", "--threshold", "0.3"],
        &["--ablate", "zero"],
        &["--ablate", "mean", "--out", "curve.svg", "--diagram", "circuit.svg"],
        &["--out", "edges.csv"],
        &["--out", "curve.png"],
    ] {
        let (code, stdout, stderr) = circuit(folder.path(), &[&["--ioi", "3"], &QUICK[..], arguments].concat());
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
        assert!(stdout.contains("faithfulness") && stdout.contains("adversarial ablation"), "{stdout}");
    }
    let csv = std::fs::read_to_string(folder.path().join("edges.csv")).unwrap();
    assert!(csv.starts_with("sender,receiver,score,inclusion,loss\n") && csv.lines().count() > 10, "{csv}");
    assert!(std::fs::read_to_string(folder.path().join("curve.svg")).unwrap().contains("</svg>"));
    let diagram = std::fs::read_to_string(folder.path().join("circuit.svg")).unwrap();
    assert!(diagram.contains("logits") && diagram.contains("0_mlp") && diagram.contains("</svg>"));
}

#[test]
fn circuits_of_nodes_are_found_and_proven_again() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        &["--nodes", "heads", "--by-position", "--method", "exact"][..],
        &["--nodes", "mlps", "--share", "0.5", "--ablate", "zero"],
        &["--nodes", "neurons", "--method", "relp", "--select", "most-helpful"],
        &[
            "--nodes",
            "latents",
            "--dictionary",
            "embedded:ioi-transcoders",
            "--method",
            "grad-drop",
            "--ablate",
            "zero",
        ],
    ] {
        let with = |more: &[&str]| {
            let (code, stdout, stderr) = circuit(folder.path(), &[&["--ioi", "4", "--json"], arguments, more].concat());
            assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
            serde_json::from_str::<Value>(&stdout).unwrap()
        };
        let found = with(&["--save", "nodes.json", "--out", "nodes.csv"]);
        let nodes = found["nodes"].as_array().unwrap();
        let csv = std::fs::read_to_string(folder.path().join("nodes.csv")).unwrap();
        assert_eq!(csv.lines().count(), nodes.len() + 1);
        // Magnitudes have no intervals around zero.
        let has_intervals = !arguments.contains(&"grad-drop");
        assert!(!nodes.is_empty() && nodes[0]["interval"].is_array() == has_intervals, "{found}");
        let kept: Vec<&str> = arguments
            .iter()
            .copied()
            .filter(|word| !["--method", "exact", "relp", "grad-drop"].contains(word))
            .collect();
        let kept: Vec<&str> = match kept.iter().position(|word| ["--share", "--select"].contains(word)) {
            Some(at) => [&kept[..at], &kept[at + 2..]].concat(),
            None => kept,
        };
        let (code, stdout, stderr) =
            circuit(folder.path(), &[&["--ioi", "4", "--json", "--circuit", "nodes.json"], &kept[..]].concat());
        assert_eq!(code, Some(0), "{kept:?}: {stderr}");
        let again: Value = serde_json::from_str(&stdout).unwrap();
        let [first, second] = [&found, &again].map(|own| own["faithfulness"].as_f64().unwrap());
        assert!((first - second).abs() < 1e-6, "{arguments:?}: {first}, {second}");
        assert!(again["curve"].is_null() && again["nodes"].as_array().unwrap().len() == nodes.len());
    }
    let (code, stdout, stderr) = circuit(folder.path(), &["--ioi", "4", "--nodes", "heads", "--out", "curve.svg"]);
    assert!(code == Some(0) && stdout.contains("no node outside has an effect above"), "{stdout} {stderr}");
    assert!(std::fs::read_to_string(folder.path().join("curve.svg")).unwrap().contains("share of the nodes"));
}

#[test]
fn budgets_and_estimates_stop_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let (code, stdout, stderr) = circuit(folder.path(), &["--ioi", "5", "--dry-run", "--save", "c.json"]);
    assert_eq!((code, stdout.as_str()), (Some(0), ""));
    assert!(stderr.contains("passes over a prompt (479 edges, 5 prompts)"), "{stderr}");
    assert!(!folder.path().join("c.json").exists());
    let (code, _, stderr) = circuit(folder.path(), &["--ioi", "5", "--method", "exact", "--budget", "1000"]);
    assert!(code == Some(2) && stderr.contains("more than --budget 1000"), "{stderr}");
    // Minimality takes one pass per edge of the circuit and prompt, and one more per prompt.
    let passes = |more: &[&str]| {
        let (_, _, stderr) = circuit(folder.path(), &[&["--ioi", "5", "--keep", "100", "--dry-run"], more].concat());
        let number = stderr.split_once("about ").and_then(|(_, rest)| rest.split_once(" passes")).unwrap().0;
        number.parse::<usize>().unwrap()
    };
    assert_eq!(passes(&["--minimality"]), passes(&[]) + 5 * 101);
    let acdc = ["--ioi", "5", "--method", "acdc", "--threshold", "0.1", "--dry-run", "--save-mib", "m.json"];
    let (code, _, stderr) = circuit(folder.path(), &acdc);
    assert!(code == Some(2) && stderr.contains("--save-mib needs scores"), "{stderr}");
}

#[test]
fn circuits_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("edge.json", r#"{"format": "hooklens circuit 1", "edges": [["L0H0", "L9H0.q"]]}"#);
    write("weights.json", r#"{"format": "hooklens circuit 1", "model": "ab", "edges": []}"#);
    write("null.json", "null");
    write("text.json", "{\"format\": ");
    write(
        "same.jsonl",
        r#"{"clean": "When Mary and", "corrupted": "When Mary and", "answer": "John", "wrong": "Tom"}"#,
    );
    let ioi = ["--ioi", "2"];
    for (arguments, code, expected) in [
        (&[ioi[0], ioi[1], "--circuit", "edge.json"][..], 1, "no receiver `L9H0.q`; did you mean"),
        (&[ioi[0], ioi[1], "--circuit", "weights.json"], 1, "its hash is ab"),
        (&[ioi[0], ioi[1], "--circuit", "null.json"], 1, "cannot read the circuit"),
        (&[ioi[0], ioi[1], "--circuit", "text.json"], 1, "text.json"),
        (&[ioi[0], ioi[1], "--circuit", "missing.json"], 1, "missing.json"),
        (&["--pairs", "same.jsonl"], 2, "there is nothing to measure"),
        (&[ioi[0], ioi[1], "--method", "acdc"], 2, "--method acdc requires --threshold"),
        (&[ioi[0], ioi[1], "--method", "eap", "--steps", "4"], 2, "--steps requires"),
        (&[ioi[0], ioi[1], "--steps", "0"], 1, "the number of steps is 0"),
        (&[ioi[0], ioi[1], "--diagram", "d.csv"], 2, "must end in .svg, .png or .html"),
        (&[ioi[0], ioi[1], "--share", "1", "--diagram", "d.svg", "--ablate", "zero"], 0, ""),
        (&[ioi[0], ioi[1], "--share", "1.5"], 2, "--share is 1.5"),
        (&[ioi[0], ioi[1], "--by-position"], 2, "--nodes"),
        (&[ioi[0], ioi[1], "--method", "attribution"], 2, "require --nodes"),
        (&[ioi[0], ioi[1], "--checkpoint", "c.json"], 2, "--checkpoint requires --method learned-masks"),
        (&[ioi[0], ioi[1], "--method", "learned-masks", "--checkpoint", "edge.json"], 1, "can't continue from"),
        (&[ioi[0], ioi[1], "--method", "learned-masks", "--checkpoint", "/dev/zero"], 1, "/dev/zero"),
        (&[ioi[0], ioi[1], "--share", "nan"], 2, "--share is NaN"),
        (
            &[ioi[0], ioi[1], "--method", "acdc", "--threshold", "1", "--save-mib", "m.json"],
            2,
            "--save-mib needs scores",
        ),
    ] {
        let (given, _, stderr) = circuit(folder.path(), &[&QUICK[..], arguments].concat());
        assert!(given == Some(code) && stderr.contains(expected), "{arguments:?}: {given:?} {stderr}");
    }
    write("nodes.json", &circuit_of_heads(folder.path()));
    let (code, _, stderr) = circuit(folder.path(), &["--ioi", "2", "--circuit", "nodes.json"]);
    assert!(code == Some(1) && stderr.contains("circuit of nodes, not of edges; use --nodes"), "{stderr}");
    for (arguments, code, expected) in [
        (&["--nodes", "latents"][..], 2, "--nodes latents requires --dictionary"),
        (&["--nodes", "heads", "--method", "acdc", "--threshold", "1"], 2, "the others score edges"),
        (&["--nodes", "heads", "--steps", "2"], 2, "--nodes cannot be combined with --steps"),
        (&["--nodes", "heads", "--adversary-steps", "2"], 2, "--adversary-steps"),
        (&["--nodes", "heads", "--select", "greedy"], 2, "--select top or most-helpful"),
        (&["--nodes", "heads", "--method", "grad-drop", "--select", "most-helpful"], 2, "use --select top"),
        (&["--nodes", "heads", "--circuit", "edge.json"], 1, "of edges, not of nodes; leave out --nodes"),
        (&["--nodes", "mlps", "--circuit", "nodes.json"], 1, "hook_z` per [head], [4, 4]; expected 4 points"),
        (&["--nodes", "heads", "--circuit", "same.jsonl"], 1, "no `format` field; use the options"),
        (&["--nodes", "heads", "--budget", "10"], 2, "more than --budget 10"),
        (&["--nodes", "heads", "--out", "a.json", "--save", "a.json"], 2, "two results would be written to a.json"),
        (&["--nodes", "mlps", "--share", "0.1"], 0, ""),
        (
            &["--nodes", "neurons", "--dictionary", "embedded:ioi-transcoders"],
            0,
            "no node has an effect by this method",
        ),
    ] {
        let (given, stdout, stderr) = circuit(folder.path(), &[&ioi[..], arguments].concat());
        assert!(given == Some(code) && stderr.contains(expected), "{arguments:?}: {given:?} {stderr}");
        assert!(!stdout.contains("circuit of 0 of"), "{stdout}");
    }
}

fn circuit_of_heads(folder: &Path) -> String {
    let (code, _, stderr) = circuit(folder, &["--ioi", "2", "--nodes", "heads", "--keep", "2", "--save", "h.json"]);
    assert_eq!(code, Some(0), "{stderr}");
    std::fs::read_to_string(folder.join("h.json")).unwrap()
}
