//! Dictionaries in use: in generation and after shared prefixes, with edges, from large and invalid files, and with
//! labels.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use hooklens::attribution::Gradient;
use hooklens::experiments::SharedPrefix;
use hooklens::features::{Architecture, Dictionary, Labels, SpliceDictionary, Transcoders};
use hooklens::generation::GenerateOptions;
use hooklens::patching::{Metric, Patching};
use hooklens::prelude::*;

use crate::support::{assert_close, device, fixtures, program, rounding, skipped, values, with_dictionary};

fn case(name: &str) -> PathBuf {
    fixtures().join("features").join(name)
}

fn message<T: std::fmt::Debug>(result: hooklens::Result<T>) -> String {
    hooklens::error_chain(&result.unwrap_err())
}

fn acts() -> hook::Point<3> {
    hook::resid_post(1).inner::<3>("hook_sae_acts_post")
}

/// With the error term, the model generates its usual text. With an edited latent, or with the reconstruction alone, it
/// generates the same text as if the whole text were rerun at each step.
#[test]
fn spliced_models_generate() {
    let (model, sae) = with_dictionary();
    let prompts = vec![vec![3, 9, 1, 7, 9], vec![2, 2, 8]];
    let tokens = Tokens::padded(&prompts, 0, hooklens::PaddingSide::Left).unwrap();
    let count = 6;
    let made = |model: &HookedTransformer, hooks: Vec<hook::Hook<'_>>| -> Vec<Vec<u32>> {
        let options = GenerateOptions::new().max_new_tokens(count).hooks(hooks);
        model.generate_with(&tokens, options).unwrap().rows.into_iter().map(|row| row.new).collect()
    };
    let anew = |model: &HookedTransformer, hooks: &dyn Fn() -> Vec<hook::Hook<'static>>| -> Vec<Vec<u32>> {
        let row = |prompt: &Vec<u32>| {
            let mut all = prompt.clone();
            for _ in 0..count {
                let options = ForwardOptions::new().logits(Logits::Last).hooks(hooks());
                let logits = values(&model.forward_with(vec![all.clone()], options).unwrap());
                let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0))).unwrap();
                all.push(best.0 as u32);
            }
            all[prompt.len()..].to_vec()
        };
        prompts.iter().map(row).collect()
    };
    let spliced = model.splice_dictionary(&sae).unwrap();
    let plain = made(&model, vec![]);
    assert_eq!(made(&spliced, vec![]), plain);
    let push = || vec![acts().unit(5).edit(|acts, _| acts + 20.0)];
    let pushed = made(&spliced, push());
    assert_eq!(pushed, anew(&spliced, &push));
    assert_ne!(pushed, plain, "nothing was edited");
    // The same edit along the latent's direction.
    let direction = sae.direction(5).unwrap().to_device(&device()) * 20.0;
    assert_eq!(made(&model, vec![hook::resid_post(1).add(direction)]), pushed);
    let bare = model.splice_dictionary(&sae.clone().with_error_term(false)).unwrap();
    assert_eq!(made(&bare, vec![]), anew(&bare, &Vec::new));
}

/// Latents after a shared prefix equal those of whole prompts.
#[test]
fn spliced_models_share_prefixes() {
    let (model, sae) = with_dictionary();
    let bare = model.splice_dictionary(&sae.clone().with_error_term(false)).unwrap();
    for spliced in [model.splice_dictionary(&sae).unwrap(), bare] {
        let mut prefix = SharedPrefix::new(&spliced, Record::new("*hook_sae_acts_post"), Logits::All);
        let rows: Vec<Vec<u32>> = vec![vec![3, 9, 1, 7, 9, 2], vec![3, 9, 1, 7, 4, 4], vec![3, 9, 1, 7, 0, 11]];
        let given = prefix.run(&rows).unwrap();
        assert_eq!(prefix.saved(), 2 * 4); // the prefix of four tokens is computed once
        let (logits, whole) = spliced.run_with_cache(rows, "*hook_sae_acts_post").unwrap();
        assert_close(&given.logits.unwrap(), &logits, 1e-5, "logits");
        assert_close(&given.cache.get(acts()).unwrap(), &whole.get(acts()).unwrap(), 1e-5, "latents");
    }
}

/// Edges to receivers after a dictionary with its error term equal those of the model. For receivers before the dictionary,
/// the gradient passes only through its latents, because the error is a constant.
#[test]
fn edges_of_a_spliced_model() {
    let (model, sae) = with_dictionary();
    let spliced = model.splice_dictionary(&sae).unwrap();
    let edges = |model: &HookedTransformer| {
        let metric = Metric::logit(model, 5).unwrap();
        let patching = Patching::new(model, vec![vec![3u32, 9, 1, 7]], vec![vec![3u32, 4, 1, 7]], metric).unwrap();
        let edges = patching.edges(Gradient::AtBase).unwrap();
        edges
            .largest(usize::MAX)
            .into_iter()
            .map(|(from, to, score)| (format!("{from} {to}"), to, score))
            .collect::<Vec<_>>()
    };
    let own: BTreeMap<String, f64> = edges(&model).into_iter().map(|(name, _, score)| (name, score)).collect();
    let largest = own.values().fold(0f64, |most, score| most.max(score.abs()));
    let (mut behind, mut before) = (0, 0);
    for (name, to, score) in edges(&spliced) {
        let gap = (score - own[&name]).abs() / largest;
        match to {
            Receiver::Query(2, _)
            | Receiver::Key(2, _)
            | Receiver::Value(2, _)
            | Receiver::Mlp(2)
            | Receiver::Logits => {
                behind += 1;
                assert!(gap < 1e-5 + f64::from(rounding()), "{name}: {score} for {}", own[&name]);
            }
            _ => before += usize::from(gap > 1e-4),
        }
    }
    assert!(behind > 20 && before > 10, "{behind} {before}");
}

/// Sender a sparse tensor file: a header, followed by a hole instead of data.
fn hollow(path: &Path, tensors: &[(&str, &[usize])]) {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let start = end;
        end += 4 * shape.iter().product::<usize>();
        header.insert(
            name.to_string(),
            serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]}),
        );
    }
    let mut header = serde_json::Value::from(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = fs::File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let start = file.stream_position().unwrap();
    file.set_len(start + end as u64).unwrap();
}

/// Opening several gigabytes only reads the header: a process limited to 600 MB of its own memory (2 GB with LibTorch
/// loaded) opens 4.3 GB, in row-major and transposed layout.
#[cfg(target_os = "linux")]
#[test]
fn opening_a_large_dictionary_reads_its_header() {
    let folder = tempfile::tempdir().unwrap();
    let (d, latents) = (4096, 131_072);
    let saelens = folder.path().join("saelens");
    let turned = folder.path().join("turned");
    for path in [&saelens, &turned] {
        fs::create_dir(path).unwrap();
    }
    let tensors: [(&str, &[usize]); 4] =
        [("W_enc", &[d, latents]), ("W_dec", &[latents, d]), ("b_enc", &[latents]), ("b_dec", &[d])];
    hollow(&saelens.join("sae_weights.safetensors"), &tensors);
    let cfg = format!(
        r#"{{"architecture": "standard", "d_in": {d}, "d_sae": {latents}, "apply_b_dec_to_input": false,
            "normalize_activations": "none", "metadata": {{"sae_lens_version": "6.0.0", "hook_name": "blocks.1.hook_resid_post"}}}}"#
    );
    fs::write(saelens.join("cfg.json"), cfg).unwrap();
    let linear: [(&str, &[usize]); 4] = [
        ("encoder_linear.weight", &[latents, d]),
        ("encoder_linear.bias", &[latents]),
        ("decoder_linear.weight", &[d, latents]),
        ("decoder_linear.bias", &[d]),
    ];
    hollow(&turned.join("weights.safetensors"), &linear);
    for path in [saelens, turned] {
        let program = program();
        let mut command = Command::new("sh");
        let kilobytes = if cfg!(feature = "libtorch") { 2_000_000 } else { 600_000 };
        let limited = format!("ulimit -d {kilobytes}; exec \"$0\" features info \"$1\"");
        command.args(["-c", &limited]).arg(program.get_program());
        let output = command.arg(&path).output().unwrap();
        let [said, warned] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(output.status.success() && said.contains("131,072"), "{}: {said}{warned}", path.display());
        // A latent's direction is read without the others, in either layout.
        let sae = Dictionary::open(&path).unwrap();
        assert_eq!(values(&sae.direction(77_777).unwrap()).len(), d);
    }
}

/// A zip archive with one stored array.
fn npz(path: &Path, arrays: &[(&str, &str, &[usize], usize)]) {
    let mut archive = zip::ZipWriter::new(fs::File::create(path).unwrap());
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, kind, shape, size) in arrays {
        let shape: String = shape.iter().map(|len| format!("{len}, ")).collect();
        let mut header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
        header.push_str(&" ".repeat(118 - header.len() - 1));
        header.push('\n');
        archive.start_file(format!("{name}.npy"), options).unwrap();
        archive.write_all(b"\x93NUMPY\x01\x00").unwrap();
        archive.write_all(&118u16.to_le_bytes()).unwrap();
        archive.write_all(header.as_bytes()).unwrap();
        archive.write_all(&vec![0; *size]).unwrap();
    }
    archive.finish().unwrap();
}

#[test]
fn unsound_dictionaries_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // Arrays of Python objects; too few thresholds.
    let matrices: [(&str, &str, &[usize], usize); 4] = [
        ("W_enc", "<f4", &[8, 32], 1024),
        ("W_dec", "<f4", &[32, 8], 1024),
        ("b_enc", "<f4", &[32], 128),
        ("b_dec", "<f4", &[8], 32),
    ];
    let with = |name: &str, threshold: (&str, &str, &[usize], usize)| {
        fs::create_dir(path(name)).unwrap();
        npz(&path(name).join("params.npz"), &[&matrices[..], &[threshold]].concat());
        message(Dictionary::open(path(name)))
    };
    let objects = with("objects", ("threshold", "|O", &[32], 256));
    assert!(objects.contains("params.npz") && objects.contains("`threshold` contains Python objects"), "{objects}");
    let few = with("few", ("threshold", "<f4", &[31], 124));
    assert!(few.ends_with("params.npz: the tensor `threshold` has shape [31]; expected [32]"), "{few}");

    // Truncated files, by a little and by much.
    for (case_name, file) in [
        ("gemma-scope", "params.npz"),
        ("gemma-scope-compressed", "params.npz"),
        ("dl-autoencoder", "ae.pt"),
        ("openai-topk", ".pt"),
        ("sparsify", "sae.safetensors"),
    ] {
        let mut found = Vec::new();
        files_below(&case(case_name), &mut found);
        let whole = found.iter().find(|path| path.to_str().unwrap().ends_with(file)).unwrap();
        let bytes = fs::read(whole).unwrap();
        for left in [bytes.len() - 40, bytes.len() / 2, 30, 0] {
            let copy = path(&format!("{case_name}-{left}"));
            fs::create_dir(&copy).unwrap();
            for beside in found.iter().filter(|path| path.extension().is_some_and(|ending| ending == "json")) {
                fs::copy(beside, copy.join(beside.file_name().unwrap())).unwrap();
            }
            fs::write(copy.join(whole.file_name().unwrap()), &bytes[..left]).unwrap();
            let given =
                Dictionary::open(&copy).and_then(|sae| sae.encode(Tensor::<2>::ones([1, sae.d_in()], &Device::flex())));
            let given = message(given);
            assert!(given.contains(whole.file_name().unwrap().to_str().unwrap()), "{case_name}, {left} bytes: {given}");
        }
    }
    let (_, sae) = with_dictionary();
    let short = Architecture::JumpRelu { thresholds: vec![0.1; 23], positive: true };
    assert_eq!(
        message(sae.clone().with_architecture(short)),
        "random: 23 thresholds for 24 latents; expected one per latent"
    );
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            files_below(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Labels stay with a dictionary and with every layer of a set, and must refer to existing latents.
#[test]
fn labels_are_kept_by_layer_and_checked() {
    let (_, sae) = with_dictionary();
    let labels = |latent: usize, text: &str| -> Labels { [(latent, text)].into_iter().collect() };
    let beyond = message(sae.clone().with_labels(labels(24, "beyond")));
    assert_eq!(beyond, "random has no latent 24; valid latents are 0 to 23");
    let set = Transcoders::open("embedded:ioi-transcoders").unwrap();
    let by_layer = BTreeMap::from([(0, labels(3, "names")), (2, labels(3, "places"))]);
    let folder = tempfile::tempdir().unwrap();
    set.clone().with_labels(by_layer.clone()).unwrap().save(folder.path()).unwrap();
    let again = Transcoders::open(folder.path()).unwrap();
    let label = |layer: usize| again.layers()[layer].labels().get(3).map(str::to_string);
    assert_eq!([label(0), label(1), label(2)], [Some("names".into()), None, Some("places".into())]);
    let none = message(set.clone().with_labels(BTreeMap::from([(7, labels(0, "x"))])));
    assert!(none.ends_with("there are labels for layer 7, but only 4 layers"), "{none}");
    fs::write(folder.path().join("labels.json"), "{\"3\": \"of which layer?\"}").unwrap();
    let unclear = message(Transcoders::open(folder.path()));
    assert!(unclear.ends_with("must be in one file per layer, such as labels_0.json"), "{unclear}");
}

/// Positions of `find` are validated as given, and an empty result is reported.
#[test]
fn what_find_lacks_is_told() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.txt"), "When Mary and John went to the store\n").unwrap();
    let find = |arguments: &[&str]| {
        let mut command = program();
        command.current_dir(folder.path()).args(["features", "find", "--model", "embedded:ioi"]);
        let output = command.args(["--dictionary", "embedded:ioi-sae"]).args(arguments).output().unwrap();
        let [message, warned] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.code(), message, warned)
    };
    let at = |position: &str| {
        find(&["--prompt", "When Mary and John went to the store, John gave a drink to", "--position", position])
    };
    for position in ["-16", "15", "9223372036854775807", "-9223372036854775808"] {
        let (code, _, warned) = at(position);
        let message = format!("error: position {position} is not within the 15 positions of the run (0 to 14)\n");
        assert!(code == Some(1) && warned.ends_with(&message), "{warned}");
    }
    assert_eq!(at("-1").1, at("14").1);
    // The first token is excluded.
    assert_eq!((at("-15").0, &*at("0").1), (Some(0), "no latent is active\n"));
    let same = ["--more", "a.txt", "--less", "a.txt"];
    assert_eq!(find(&same).1, "no latent differs\n");
    let found: serde_json::Value = serde_json::from_str(&find(&[&same[..], &["--json"]].concat()).1).unwrap();
    assert_eq!(found["latents"], serde_json::json!([]));
    let show = program()
        .current_dir(folder.path())
        .args(["features", "show", "--model", "embedded:ioi", "--dictionary"])
        .args(["embedded:ioi-sae", "--prompts", "a.txt", "--latents", "3,4,3", "--out", "a.html"])
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&show.stderr).contains("--latents names 3 twice")
            && !folder.path().join("a.html").exists()
    );
}

/// The Python code in the guide reads a dump's latents.
#[test]
fn python_reads_sparse_dumps() {
    let python = std::env::var("HOOKLENS_PYTHON").unwrap_or_else(|_| "python3".into());
    let has = Command::new(&python).args(["-c", "import numpy, safetensors"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        skipped("Python has no numpy and safetensors (HOOKLENS_PYTHON names another)");
        return;
    }
    let guide = fs::read_to_string(crate::support::root().join("docs/dumps.md")).unwrap();
    let snippets = guide.split("```python\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    let snippet = snippets.into_iter().find(|snippet| snippet.contains(".indices")).unwrap();
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let sae = Dictionary::open("embedded:ioi-sae").unwrap();
    let spliced = model.splice_dictionary(&sae).unwrap();
    let acts = hook::resid_post(2).inner::<3>("hook_sae_acts_post");
    let folder = tempfile::tempdir().unwrap();
    let prompts = [vec![0, 5, 6, 9, 20], vec![0, 7, 3]];
    let lines: String = prompts.iter().map(|row| format!("{row:?}\n")).collect();
    fs::write(folder.path().join("prompts.jsonl"), lines).unwrap();
    let dump = ["dump", "--model", "embedded:ioi", "--dictionary", "embedded:ioi-sae", "--prompts", "prompts.jsonl"];
    let more = ["--hooks", "*hook_sae_acts_post", "--batch-size", "1", "--out", "latents"];
    assert!(program().current_dir(folder.path()).args(dump).args(more).status().unwrap().success());
    let script = format!("{snippet}\nprint(dense.shape)\nfor number in dense.ravel(): print(number)\n");
    let output = Command::new(&python).current_dir(folder.path()).args(["-c", &script]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (shape, numbers) = said.split_once('\n').unwrap();
    assert_eq!(shape, "(8, 256)");
    let numbers: Vec<f32> = numbers.lines().map(|line| line.parse().unwrap()).collect();
    // The shorter prompt is computed first.
    for (row, prompt, start) in [(0, &prompts[0], 3), (1, &prompts[1], 0)] {
        let expected = values(&spliced.record(vec![prompt.clone()], &acts).unwrap().get(&acts).unwrap());
        let given = &numbers[start * 256..][..expected.len()];
        assert!(given.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5), "row {row}");
    }
}

mod once {
    use super::*;

    /// On the command line, labels from a file appear in evaluations, pages, found latents and converted files.
    #[test]
    fn labels_from_the_command_line() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("prompts.txt", "When Mary and John went to the store, John gave a drink to\nMary went to the park.\n");
        write("labels.csv", "latent,label\n153,\"speaks for \"\"Mary\"\", mostly\"\n202,John\n");
        write("beyond.csv", "256,none\n");
        write("layers.csv", "layer,latent,label\n1,4,commas\n");
        let run = |arguments: &[&str]| {
            let output = program().current_dir(folder.path()).arg("features").args(arguments).output().unwrap();
            let [message, warned] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
            (output.status.code(), message, warned)
        };
        let common = ["--model", "embedded:ioi", "--dictionary", "embedded:ioi-sae"];
        let done = |arguments: &[&str]| {
            let (code, message, warned) = run(arguments);
            assert_eq!(code, Some(0), "{arguments:?}: {warned}");
            message
        };
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        done(
            &[&["eval"], &common[..], &["--prompts", "prompts.txt", "--labels", "labels.csv", "--out", "e.csv"]]
                .concat(),
        );
        let measures = read("e.csv");
        assert!(measures.lines().next().unwrap().ends_with(",label") && measures.lines().count() == 257, "{measures}");
        let line = measures.lines().find(|line| line.starts_with("153,")).unwrap();
        assert!(line.ends_with(",\"speaks for \"\"Mary\"\", mostly\""), "{line}");
        done(
            &[&["show"], &common[..], &["--prompts", "prompts.txt", "--labels", "labels.csv", "--out", "p.html"]]
                .concat(),
        );
        assert!(read("p.html").contains("speaks for \\\"Mary\\\", mostly"));
        let text = "When Mary and John went to the store, John gave a drink to";
        let found =
            [&["find"], &common[..], &["--prompt", text, "--answer", "Mary", "--labels", "labels.csv"]].concat();
        assert!(done(&found).contains("speaks for \"Mary\", mostly"));
        // A label with two lines.
        write("lines.csv", "latent,label\r\n153,\"two,\r\nlines\"\r\n");
        done(
            &[&["eval"], &common[..], &["--prompts", "prompts.txt", "--labels", "lines.csv", "--out", "l.csv"]]
                .concat(),
        );
        assert!(read("l.csv").contains(",\"two,\r\nlines\"\n"));
        for command in ["show", "eval"] {
            let out = if command == "show" { "x.html" } else { "x.csv" };
            let arguments =
                [&[command], &common[..], &["--prompts", "prompts.txt", "--labels", "beyond.csv", "--out", out]];
            let (code, _, warned) = run(&arguments.concat());
            assert!(code == Some(1) && warned.contains("has no latent 256"), "{command}: {warned}");
        }
        done(&["convert", "embedded:ioi-transcoders", "--labels", "layers.csv", "--out", "set"]);
        assert_eq!(read("set/labels_1.json"), "{\n  \"4\": \"commas\"\n}\n");
    }
}
