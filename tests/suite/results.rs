//! JSON results of all commands: valid against `docs/results.schema.json`, and the same in files and on the terminal.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::reference::{decoder, reference};
use crate::seeded::fixture;
use crate::support::{program, root, skipped};

const PROMPT: &str = "When Mary and John went to the store, John gave a drink to";

/// A result in the schema, and a command that prints it.
struct Case {
    result: &'static str,
    arguments: Vec<&'static str>,
}

fn case(result: &'static str, arguments: &str) -> Case {
    let words = arguments.split_whitespace().map(|word| if word == "PROMPT" { PROMPT } else { word });
    // Arguments of a test live as long as the test program.
    Case { result, arguments: words.map(|word| &*word.to_string().leak()).collect() }
}

/// At least one command for each result. They run in this order in one folder.
fn cases() -> Vec<Case> {
    vec![
        case("patch", "patch --ioi 2"),
        case("patch", "patch --ioi 1 --ablate zero --per none"),
        case("patch", "patch --ioi 3 --shuffled 0 --estimate=grad-drop"),
        case("attribute", "attribute --prompt PROMPT --answer Mary --wrong John"),
        case("attribute", "attribute --to layers --ioi 3"),
        case("edges", "attribute --to edges --ioi 2"),
        case("circuit", "circuit --ioi 2 --subsets 2 --adversary-steps 1 --minimality --keep 12"),
        case("circuit", "circuit --ioi 1 --subsets 0 --adversary-steps 0 --method acdc --threshold 0.5"),
        case("node_circuit", "circuit --ioi 3 --nodes heads --keep 4"),
        case("node_circuit", "circuit --ioi 1 --nodes neurons --by-position --subsets 0 --ablate zero"),
        case("lens", "lens --prompt PROMPT --answer Mary"),
        case("lens", "lens --tokens 1,2,3"),
        case("heads", "heads"),
        case("heads", "heads --prompt PROMPT"),
        case("heads", "heads --prompts prompts.txt --measure mul"),
        case("attention", "attention --prompt PROMPT"),
        case("dump_estimate", "dump --prompts prompts.txt --hooks *hook_z --dry-run --out no"),
        case("dump", "dump --prompts prompts.txt --hooks *hook_pattern --out dumped"),
        case("dump", "dump --prompts prompts.txt --hooks *hook_z --shard 1/2 --out shards"),
        case("dump", "dump --prompts prompts.txt --hooks *hook_z --shard 2/2 --out shards"),
        case("merge", "merge --out shards"),
        case(
            "training",
            "features train --prompts prompts.txt --at blocks.2.hook_resid_pre --latents 16 --k 4 --tokens 600 --batch-size 64 \
             --out sae",
        ),
        case("evaluation", "features eval --dictionary sae --prompts prompts.txt"),
        case("set_evaluation", "features eval --dictionary embedded:ioi-transcoders --prompts prompts.txt"),
        case("latents", "features find --dictionary embedded:ioi-sae --prompt PROMPT"),
        case("dictionary", "features info embedded:ioi-sae"),
        case("dictionary", "features info --dictionary embedded:ioi-transcoders"),
        case("points", "hooks"),
        case("vocabulary", "vocabulary"),
        case("model", "info"),
        case("overview", "info"),
        case("devices", "info --devices"),
        case("families", "info --families"),
        case("generation", "generate --prompts prompts.txt --max-new-tokens 2 --temperature 1 --samples 2"),
        case("generation", "generate --prompt PROMPT --max-new-tokens 2 --set 3:14+:12=x2"),
        case("graph", "graph --prompt PROMPT --check --heads --looks L3H0:14:2 --set 2:14:12=0 --group 0.5"),
        case("bench", "bench --rounds 1 --work forward"),
        case("doctor", "doctor"),
        case("parity", "parity --reference reference.safetensors"),
    ]
}

/// A folder with the files that the cases read.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let prompts = format!("{PROMPT}\n{PROMPT} Mary\nWhen Mary and Tom went to the park\n");
    std::fs::write(folder.path().join("prompts.txt"), prompts).unwrap();
    reference("llama", &folder.path().join("reference.safetensors"), decoder(2));
    folder
}

/// Runs a case with further arguments.
fn ran(case: &Case, more: &[&str], folder: &Path) -> Output {
    let mut program = program();
    program.current_dir(folder).args(&case.arguments).args(more);
    match case.result {
        "parity" => program.arg("--model").arg(fixture("llama")),
        // Without a model, `info` lists what exists.
        "overview" => program.env_remove("HOOKLENS_MODEL"),
        _ => program.env("HOOKLENS_MODEL", "embedded:ioi"),
    };
    program.output().unwrap()
}

/// The output of Python code that needs the package `jsonschema`, if there is one.
fn python_with_jsonschema(code: &str, arguments: &[&str]) -> Option<String> {
    let python = std::env::var("HOOKLENS_PYTHON").unwrap_or("python3".into());
    let has_package = Command::new(python).args(["-c", "import jsonschema"]).output();
    if !has_package.is_ok_and(|output| output.status.success()) {
        skipped("HOOKLENS_PYTHON does not name a Python with the package jsonschema");
        return None;
    }
    crate::outputs::python(code, arguments)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Validates each file, whose name begins with its result's, against the schema; and again with a misspelled field.
/// Prints what is wrong.
const VALIDATE: &str = r##"
import json, pathlib, sys
from jsonschema import Draft202012Validator
schema = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
Draft202012Validator.check_schema(schema)
for path in sorted(pathlib.Path(sys.argv[2]).glob("*.result")):
    name = path.name.split(".")[0]
    value = json.loads(path.read_text(encoding="utf-8"))
    own = Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]})
    for error in own.iter_errors(value):
        print(path.name, error.json_path, error.message[:200])
    if not Draft202012Validator(schema).is_valid(value):
        print(path.name, "is none of the results")
    if own.is_valid({**value, "misspelled": 1}) != (name in ["dictionary", "model", "doctor"]):
        print(path.name, "is as valid with a misspelled field")
"##;

#[test]
fn results_follow_the_schema() {
    let folder = folder();
    let schema = root().join("docs/results.schema.json");
    for (number, case) in cases().iter().enumerate() {
        let command = case.arguments.join(" ");
        let output = ran(case, &["--json"], folder.path());
        assert!(output.status.success(), "{command}: {}", text(&output.stderr));
        std::fs::write(folder.path().join(format!("{}.{number}.result", case.result)), output.stdout).unwrap();
    }
    if let Some(printed) =
        python_with_jsonschema(VALIDATE, &[schema.to_str().unwrap(), folder.path().to_str().unwrap()])
    {
        assert_eq!(printed, "");
    }
    let schema: Value = serde_json::from_slice(&std::fs::read(schema).unwrap()).unwrap();
    let tried: BTreeSet<&str> = cases().iter().map(|case| case.result).collect();
    let known = schema["anyOf"].as_array().unwrap().iter().map(|one| one["$ref"].as_str().unwrap());
    let known: BTreeSet<&str> = known.map(|name| name.strip_prefix("#/$defs/").unwrap()).collect();
    assert_eq!(tried, known);
}

/// Every command that takes `--json` is among the cases.
#[test]
fn every_command_with_json_is_tried() {
    let folder = tempfile::tempdir().unwrap();
    let out = program().args(["man", "--out"]).arg(folder.path()).output().unwrap();
    assert!(out.status.success());
    let tried: BTreeSet<String> = cases().iter().map(|case| case.arguments.join("-")).collect();
    let mut with_json = 0;
    for page in std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()) {
        let name = page.file_stem().unwrap().to_str().unwrap().trim_start_matches("hooklens-").to_string();
        let takes_json = std::fs::read_to_string(&page).unwrap().contains("\\-\\-json");
        assert!(!takes_json || tried.iter().any(|arguments| arguments.starts_with(&name)), "{name}");
        with_json += usize::from(takes_json);
    }
    assert!(with_json >= 18, "{with_json}");
}

#[test]
fn files_hold_what_json_prints() {
    let folder = folder();
    for case in cases().iter().filter(|case| {
        ["patch", "attribute", "edges", "circuit", "node_circuit", "lens", "heads", "attention"].contains(&case.result)
    }) {
        let output = ran(case, &["--json", "--out", "result.json"], folder.path());
        assert!(output.status.success(), "{:?}: {}", case.arguments, text(&output.stderr));
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        let written = std::fs::read(folder.path().join("result.json")).unwrap();
        assert_eq!(printed, serde_json::from_slice::<Value>(&written).unwrap(), "{:?}", case.arguments);
        assert!(printed["settings"].get("out").is_none());
    }
}

/// `--quiet` prints results, but no notes and no names of files.
#[test]
fn quiet_commands_print_only_results() {
    let folder = folder();
    let quiet = |result: &'static str, arguments: &str| {
        let output = ran(&case(result, arguments), &[], folder.path());
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "", "{arguments}");
        text(&output.stdout)
    };
    let loud = ran(&case("graph", "graph --prompt PROMPT --out g.html"), &[], folder.path());
    assert!(text(&loud.stderr).contains("note: ") && text(&loud.stdout).contains("-> g.html"));
    let printed = quiet("graph", "graph --prompt PROMPT --out g.html --quiet");
    assert!(printed.contains("Mary") && !printed.contains("-> g.html"), "{printed}");
    assert!(!quiet("heads", "-q heads --out h.svg").contains("->"));
}

/// The numbers that a result was computed with, and its options, are in `settings`.
#[test]
fn settings_are_those_of_the_command_line() {
    let folder = folder();
    let output =
        ran(&case("generation", "generate --prompt PROMPT --max-new-tokens 2 --stop 7"), &["--json"], folder.path());
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let settings = &result["settings"];
    assert_eq!(settings["prompt"], json!([PROMPT]));
    assert_eq!((&settings["max_new_tokens"], &settings["seed"]), (&json!(2), &json!(0)));
    // A text that looks like a number stays a text.
    assert_eq!((&settings["stop"], &settings["repetition_penalty"]), (&json!(["7"]), &json!(1.0)));
    assert_eq!(settings["model"], "embedded:ioi");
    assert!(settings.get("json").is_none() && settings.get("greedy").is_none());
}

/// With several prompts, results have intervals around their values, in JSON and in CSV alike; with one prompt, none.
#[test]
fn several_prompts_have_intervals() {
    let folder = folder();
    let numbers = |value: &Value| -> Vec<Option<f64>> {
        fn collect(value: &Value, all: &mut Vec<Option<f64>>) {
            match value {
                Value::Array(values) => values.iter().for_each(|value| collect(value, all)),
                other => all.push(other.as_f64()),
            }
        }
        let mut all = Vec::new();
        collect(&value["values"], &mut all);
        all
    };
    let attribute = "attribute --ioi";
    for (result, command, field, one) in [
        ("attribute", format!("{attribute} 9"), "attribution", format!("{attribute} 1")),
        ("edges", format!("{attribute} 9 --to edges"), "edges", format!("{attribute} 1 --to edges")),
        ("heads", "heads".to_string(), "scores", "heads --prompt PROMPT".to_string()),
        ("heads", "heads --measure abs".to_string(), "scores", "heads --tokens 1,2,1,2".to_string()),
    ] {
        let several = case(result, &command);
        let output = ran(&several, &["--json", "--out", "i.csv"], folder.path());
        assert!(output.status.success(), "{command}: {}", text(&output.stderr));
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let [values, low, high] = [field, "low", "high"].map(|name| numbers(&json[name]));
        assert!(low.iter().any(Option::is_some), "{command}");
        for ((value, low), high) in values.iter().zip(&low).zip(&high) {
            let (Some(value), Some(low), Some(high)) = (value, low, high) else { continue };
            assert!(low - 1e-6 <= *value && *value <= high + 1e-6, "{command}: {low} {value} {high}");
        }
        let table = std::fs::read_to_string(folder.path().join("i.csv")).unwrap();
        let mut rows = csv::Reader::from_reader(table.as_bytes());
        let headers = rows.headers().unwrap().clone();
        let at = |name: &str| headers.iter().position(|header| header == name);
        assert_eq!(at("adjusted_p_value").is_some(), result != "heads", "{headers:?}");
        let written: Vec<Option<f64>> =
            rows.records().map(|row| row.unwrap()[at("low").unwrap()].parse().ok()).collect();
        assert_eq!(written, low, "{command}");

        let output = ran(&case(result, &one), &["--json"], folder.path());
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&json["low"], &json["high"]), (&Value::Null, &Value::Null), "{one}");
        assert_eq!(json["adjusted_p_value"], Value::Null, "{one}");
    }
}
