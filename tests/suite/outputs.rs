//! Output files of commands: written before anything is printed, and read back unchanged by other programs.

use hooklens::FromPretrained;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use hooklens::{LabeledArray, LabeledAxis};
use proptest::prelude::*;
use serde_json::Value;

use crate::support::{cases, fixtures, program, skipped};

const CLEAN: &str = "When Mary and John went to the store, John gave a drink to";
const CORRUPTED: &str = "When Mary and John went to the store, Mary gave a drink to";

/// Characters that any label may contain.
fn labels() -> Vec<String> {
    let mut labels: Vec<String> = [
        "a\nb",
        "a,b",
        "say \"so\"",
        "\"",
        "=1+1",
        "+1",
        "-2",
        "@sum",
        "'",
        "",
        " ",
        "\r\n",
        "<script>alert(1)</script>",
        "\u{202e}\u{feff}\u{200f}",
        "né 日本 👍",
    ]
    .map(str::to_string)
    .to_vec();
    labels.push("x,\"\n".repeat(3_334)[..10_000].to_string());
    labels
}

/// The output of Python code, if Python is available.
pub(crate) fn python(code: &str, arguments: &[&str]) -> Option<String> {
    let python = std::env::var("HOOKLENS_PYTHON").unwrap_or("python3".into());
    let Ok(output) = Command::new(python).args(["-c", code]).args(arguments).output() else {
        skipped("there is no Python");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Rows of a CSV file, read identically by Python's `csv` and the `csv` crate.
fn rows(path: &Path) -> Vec<Vec<String>> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_path(path).unwrap();
    let rows: Vec<Vec<String>> =
        reader.records().map(|row| row.unwrap().iter().map(str::to_string).collect()).collect();
    let code = "import csv, json, sys\ncsv.field_size_limit(10**7)\n\
                print(json.dumps(list(csv.reader(open(sys.argv[1], newline='', encoding='utf-8')))))";
    if let Some(printed) = python(code, &[path.to_str().unwrap()]) {
        assert_eq!(serde_json::from_str::<Vec<Vec<String>>>(&printed).unwrap(), rows);
    }
    rows
}

#[test]
fn any_label_is_read_back_from_csv_and_json() {
    let folder = tempfile::tempdir().unwrap();
    let labels = labels();
    let axes = [LabeledAxis::new("what,\n", &labels), LabeledAxis::numbered("n", 2)];
    let values: Vec<f64> = (0..labels.len() * 2).map(|value| value as f64 - 3.5).collect();
    let array = LabeledArray::from_values(axes, values.clone()).unwrap();
    let path = folder.path().join("labels.csv");
    std::fs::write(&path, array.to_csv()).unwrap();
    let rows = rows(&path);
    assert_eq!(rows[0], ["what,\n", "n", "value"]);
    assert_eq!(rows.len(), values.len() + 1);
    for (place, row) in rows[1..].iter().enumerate() {
        assert_eq!(
            (&row[0], &row[1], &row[2]),
            (&labels[place / 2], &(place % 2).to_string(), &values[place].to_string())
        );
    }
    let path = folder.path().join("labels.json");
    std::fs::write(&path, serde_json::to_string(&array).unwrap()).unwrap();
    let code =
        "import json, sys\nprint(json.dumps(json.load(open(sys.argv[1], encoding='utf-8'))['axes'][0]['labels']))";
    if let Some(printed) = python(code, &[path.to_str().unwrap()]) {
        assert_eq!(serde_json::from_str::<Vec<String>>(&printed).unwrap(), labels);
    }
}

/// A prompt with line breaks in its tokens shifts no rows, and effects equal those in JSON.
#[test]
fn a_line_break_in_a_prompt_shifts_no_row_of_csv() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixtures().join("gguf/bloom.gguf");
    let written = |name: &str, more: &[&str]| {
        let out = folder.path().join(name);
        let arguments =
            ["patch", "--clean", "a b\nc d", "--corrupted", "a c\nc d", "--answer", "d", "--wrong", "c", "--model"];
        let output = program().args(arguments).arg(&model).arg("--out").arg(&out).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        out
    };
    let json: Value = serde_json::from_slice(&std::fs::read(written("t.json", &[])).unwrap()).unwrap();
    let effects = json["effect"]["values"].as_array().unwrap().concat_numbers();
    let table = rows(&written("t.csv", &[]));
    let column = table[0].iter().position(|name| name == "effect").unwrap();
    assert_eq!(table.len(), effects.len() + 1);
    for (row, effect) in table[1..].iter().zip(&effects) {
        assert_eq!(row.len(), table[0].len(), "{row:?}");
        assert_eq!(row[column].parse::<f64>().unwrap(), *effect);
    }
    assert!(table.iter().any(|row| row[1].contains('\n')), "{table:?}");
    // Spreadsheet-safe labels are the same after the apostrophe.
    let safe = rows(&written("s.csv", &["--spreadsheet-safe"]));
    let plain =
        |row: &Vec<String>| row.iter().map(|cell| cell.strip_prefix('\'').unwrap_or(cell).to_string()).collect();
    assert_eq!(safe.iter().map(plain).collect::<Vec<Vec<String>>>(), table);
}

trait ConcatNumbers {
    fn concat_numbers(&self) -> Vec<f64>;
}

impl ConcatNumbers for Vec<Value> {
    fn concat_numbers(&self) -> Vec<f64> {
        self.iter()
            .flat_map(|value| match value {
                Value::Array(values) => values.concat_numbers(),
                number => vec![number.as_f64().unwrap()],
            })
            .collect()
    }
}

/// Commands that write a file (or a folder) and print, and what they write.
fn writers(folder: &Path) -> Vec<(Vec<String>, std::path::PathBuf)> {
    let ioi = ["--model", "embedded:ioi"];
    let pair = ["--clean", CLEAN, "--corrupted", CORRUPTED, "--answer", "Mary", "--wrong", "John"];
    let out = |name: &str| folder.join(name);
    let mut all = Vec::new();
    let mut add = |name: &str, arguments: &[&[&str]], option: &str| {
        let path = out(name);
        let mut arguments: Vec<String> = arguments.concat().iter().map(ToString::to_string).collect();
        arguments.extend((!option.is_empty()).then(|| option.to_string()));
        arguments.push(path.to_str().unwrap().to_string());
        all.push((arguments, path));
    };
    add("p.csv", &[&["patch"], &ioi, &pair], "--out");
    add("a.json", &[&["attribute"], &ioi, &["--prompt", CLEAN, "--answer", "Mary"]], "--out");
    add("e.csv", &[&["attribute", "--to", "edges"], &ioi, &pair], "--out");
    add("c.json", &[&["circuit", "--adversary-steps", "1", "--subsets", "1"], &ioi, &pair], "--save");
    add("l.csv", &[&["lens"], &ioi, &["--prompt", CLEAN]], "--out");
    add("h.csv", &[&["heads"], &ioi], "--out");
    add("t.html", &[&["attention"], &ioi, &["--prompt", CLEAN]], "--out");
    add("g.html", &[&["graph"], &ioi, &["--prompt", "When Mary and John went"]], "--out");
    add("gj.json", &[&["graph", "--json"], &ioi, &["--prompt", "When Mary and John went"]], "--out");
    add("d.safetensors", &[&["dump"], &ioi, &["--prompt", CLEAN, "--hooks", "*hook_z"]], "--out");
    add("q.jsonl", &[&["prompts", "ioi"], &ioi], "--out");
    add("n.ipynb", &[&["notebook"]], "");
    add("man", &[&["man"]], "--out");
    let dictionary = ["--dictionary", "embedded:ioi-transcoders", "--layer", "1", "--prompt", CLEAN];
    add("f.csv", &[&["features", "eval"], &ioi, &dictionary], "--out");
    add("fj.json", &[&["features", "eval", "--json"], &ioi, &dictionary], "--out");
    add("s.html", &[&["features", "show"], &ioi, &dictionary], "--out");
    all
}

fn ran_into(arguments: &[String], stdout: Stdio) -> Output {
    program().args(arguments).stdout(stdout).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
}

/// Every command creates the folder of its output.
#[test]
fn folders_of_outputs_are_created() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, path) in writers(&folder.path().join("not/yet")) {
        let output = ran_into(&arguments, Stdio::null());
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && path.exists(), "{arguments:?}: {message}");
    }
}

/// Outputs are checked before any work: the error is about the output, although the model does not exist either.
#[test]
fn outputs_are_checked_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut places = writers(&file);
    // A folder where a file should be, or the other way around.
    let others = folder.path().join("others");
    for (arguments, path) in writers(&others) {
        match path.extension() {
            Some(_) => std::fs::create_dir_all(&path).unwrap(),
            None => std::fs::write(&path, "").unwrap(),
        }
        places.push((arguments, path));
    }
    for (mut arguments, path) in places {
        if let Some(at) = arguments.iter().position(|argument| argument == "--model") {
            arguments[at + 1] = "no-such-model".into();
        }
        let output = ran_into(&arguments, Stdio::null());
        let message = String::from_utf8_lossy(&output.stderr);
        let expected = format!("error: can't write {}: ", path.display());
        // A notebook that exists is only replaced if that is requested.
        let exists = format!("error: {} already exists", path.display());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        assert!(message.starts_with(&expected) || message.starts_with(&exists), "{arguments:?}: {message}");
    }
}

/// If the reader of standard output closes the pipe, files are still written, and the command succeeds.
#[cfg(unix)]
#[test]
fn files_are_written_though_nobody_reads_what_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, path) in writers(folder.path()) {
        let mut child = program().args(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {message}");
        assert!(path.exists(), "{arguments:?}: {message}");
    }
}

/// If nothing can be printed, the files exist, and the exit code reports failure.
#[cfg(target_os = "linux")]
#[test]
fn files_are_written_though_nothing_can_be_printed() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, path) in writers(folder.path()) {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = ran_into(&arguments, full.into());
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        assert!(message.contains("standard output: No space left"), "{arguments:?}: {message}");
        assert!(path.exists(), "{arguments:?}: {message}");
    }
}

/// Commands that only print also fail if standard output cannot be written, whatever they print last.
#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_printed_is_an_error() {
    let model = ["--model", "embedded:induction"];
    let commands: [&[&str]; 7] = [
        &["completions", "bash"],
        &["man"],
        &[&["hooks"], &model[..]].concat(),
        &[&["info", "--json"], &model[..]].concat(),
        &[&["vocabulary"], &model[..]].concat(),
        &["prompts", "ioi", "--model", "embedded:ioi"],
        &[&["generate", "--prompt", "red fox", "--max-new-tokens", "2"], &model[..]].concat(),
    ];
    for arguments in commands {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = ran_into(&arguments, full.into());
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
    }
}

/// Token ids give the same results as the texts they encode.
#[test]
fn token_ids_give_what_their_text_gives() {
    let folder = tempfile::tempdir().unwrap();
    let model = hooklens::HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let ids = |text: &str| {
        let row = model.to_tokens(text).unwrap().row(0).to_vec();
        row.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    };
    let token = |text: &str| model.to_single_token(text).unwrap().to_string();
    let (clean, corrupted, mary, john) = (ids(CLEAN), ids(CORRUPTED), token("Mary"), token("John"));
    let table = |name: &str, command: &[&str], given: &[&str]| {
        let path = folder.path().join(name);
        let output = program()
            .args(command)
            .args(["--model", "embedded:ioi", "--out", path.to_str().unwrap()])
            .args(given)
            .output()
            .unwrap();
        assert!(output.status.success(), "{given:?}: {}", String::from_utf8_lossy(&output.stderr));
        rows(&path)
    };
    let texts = ["--clean", CLEAN, "--corrupted", CORRUPTED, "--answer", "Mary", "--wrong", "John"];
    let tokens =
        ["--tokens", &clean, "--corrupted-tokens", &corrupted, "--answer-token", &mary, "--wrong-token", &john];
    let file = folder.path().join("pairs.jsonl");
    let line = format!(r#"{{"clean": [{clean}], "corrupted": [{corrupted}], "answer": {mary}, "wrong": "John"}}"#);
    std::fs::write(&file, line).unwrap();
    for command in [&["patch"][..], &["attribute", "--to", "edges"]] {
        let expected = table("texts.csv", command, &texts);
        assert_eq!(table("tokens.csv", command, &tokens), expected);
        assert_eq!(table("pairs.csv", command, &["--pairs", file.to_str().unwrap()]), expected);
    }
    let of_text = ["--prompt", CLEAN, "--answer", "Mary"];
    let of_tokens = ["--tokens", &clean, "--answer-token", &mary];
    for command in ["lens", "attribute"] {
        assert_eq!(table("tokens.csv", &[command], &of_tokens), table("text.csv", &[command], &of_text));
    }
    assert_eq!(table("tokens.csv", &["attention"], &of_tokens[..2]), table("text.csv", &["attention"], &of_text[..2]));
}

/// Control characters in text from files are escaped on the terminal, in errors, pages and pictures.
#[test]
fn hidden_characters_are_shown_wherever_text_is() {
    let folder = tempfile::tempdir().unwrap();
    let hidden = "\u{202e}\u{feff}\u{200f}\u{61c}\u{2066}\u{2028}";
    let output = program().args(["info", "--model", &format!("no{hidden}such")]).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!message.contains(|letter| hidden.contains(letter)), "{message}");
    let output = program().args(["info", "--modle", hidden]).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && !message.contains(|letter| hidden.contains(letter)), "{message}");

    let axes = [LabeledAxis::new(hidden, [format!("a{hidden}")]), LabeledAxis::new("<b>", ["c"])];
    let array = LabeledArray::from_values(axes, [1.0]).unwrap();
    for name in ["map.svg", "map.html"] {
        let path = folder.path().join(name);
        hooklens::plot::Heatmap::of(&array).unwrap().title(format!("t{hidden}")).save(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("U+202E") && !text.contains(|letter| hidden.contains(letter)), "{name}");
    }
    // A graph's page contains the file's own text, escaped.
    let graph = format!(
        r#"{{"metadata": {{"slug": "s", "prompt": "p{hidden}"}}, "links": [],
            "nodes": [{{"node_id": "0_1_2", "layer": "0", "ctx_idx": 2}}, {{"node_id": "0_1_2", "layer": "0", "ctx_idx": 2}}]}}"#
    );
    let path = folder.path().join("g.json");
    std::fs::write(&path, graph).unwrap();
    let output = program().args(["graph", "view"]).arg(&path).output().unwrap();
    let (out, message) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && !out.contains(|letter| hidden.contains(letter)), "{out}");
    assert!(message.contains("1 node is not shown") && message.contains("0_1_2"), "{message}");
    let page = std::fs::read_to_string(folder.path().join("g.html")).unwrap();
    assert!(page.contains("\\u202e") && !page.contains(|letter| hidden.contains(letter)));
}

#[test]
fn a_file_of_labels_loses_nothing() {
    use hooklens::features::Labels;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("labels.csv");
    let read = |text: &str| {
        std::fs::write(&path, text).unwrap();
        Labels::read(&path).map_err(|error| error.to_string())
    };
    let all = labels();
    let mut writer = csv::Writer::from_writer(Vec::new());
    for (latent, label) in all.iter().enumerate() {
        writer.write_record([&latent.to_string(), label]).unwrap();
    }
    let text = String::from_utf8(writer.into_inner().unwrap()).unwrap();
    let labels = read(&format!("\u{feff}latent,label\n{text}")).unwrap();
    for (latent, label) in all.iter().enumerate() {
        assert_eq!(labels.get(latent), Some(label.trim_matches([' ', '\t'])), "{latent}");
    }
    for (text, message) in [
        ("3,a,b\n", "the number of fields is 3"),
        ("x3,a\n", "`x3` is not a whole number"),
        ("latent,label\n3\n", "the number of fields is 1"),
        ("latent,label,more\n3,a,b\n", "line 2"),
        ("3,a\n3,b\n", "latent 3 already has a label"),
        ("3,\"a\n4,b\n", "a quote is not closed"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(message), "{text}: {error}");
    }
    let json = path.with_extension("json");
    std::fs::write(&json, r#"{"3": "a", "03": "b"}"#).unwrap();
    assert!(Labels::read(&json).unwrap_err().to_string().contains("latent 3 has two labels"));
    std::fs::write(&json, r#"{"1": {"3": "a"}, "01": {"3": "b"}}"#).unwrap();
    assert!(Labels::read_by_layer(&json).unwrap_err().to_string().contains("layer 1 is given twice"));
    std::fs::write(&path, "layer,latent,label\n0,3,\"a\nb\"\n1,3,c\n").unwrap();
    let layers = Labels::read_by_layer(&path).unwrap();
    assert_eq!((layers[&0].get(3), layers[&1].get(3)), (Some("a\nb"), Some("c")));
}

proptest! {
    #![proptest_config(cases(64))]

    /// Labels with any quotes, commas, line breaks and spaces are read from CSV in every style of RFC 4180 and of
    /// spreadsheets. Only surrounding spaces are removed.
    #[test]
    fn labels_are_read_from_every_style_of_csv(
        texts in prop::collection::vec("([a-z,\"\r\n\t ;é\u{1}]|\r\n){0,12}", 1..6),
        (always, crlf, bom, header) in any::<(bool, bool, bool, bool)>(),
        last in 0usize..3,
    ) {
        use hooklens::features::Labels;
        let field = |text: &str| match always || text.contains(['"', ',', '\r', '\n']) {
            true => format!("\"{}\"", text.replace('"', "\"\"")),
            false => text.to_string(),
        };
        let end = if crlf { "\r\n" } else { "\n" };
        let names = header.then(|| format!("{},{}", field("latent"), field("label")));
        let rows = texts.iter().enumerate().map(|(latent, text)| format!("{latent},{}", field(text)));
        let rows = names.into_iter().chain(rows).collect::<Vec<_>>().join(end);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("labels.csv");
        let bom = if bom { "\u{feff}" } else { "" };
        std::fs::write(&path, format!("{bom}{rows}{}", ["", end, "\n\n"][last])).unwrap();
        let labels = Labels::read(&path).unwrap();
        prop_assert_eq!(labels.iter().count(), texts.len());
        for (latent, text) in texts.iter().enumerate() {
            prop_assert_eq!(labels.get(latent), Some(text.trim_matches([' ', '\t'])));
        }
    }
}
