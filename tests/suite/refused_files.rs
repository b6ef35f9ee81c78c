//! A file that is refused takes at most 200 MB of memory, or as much as it is large.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use zip::write::SimpleFileOptions;

use crate::support::program;

/// Memory that the refusal of a small file may take, besides the program's own.
const MEMORY: u64 = 200 << 20;

/// Exit code, error message and peak memory of a command.
#[expect(clippy::zombie_processes, reason = "`wait4` waits for the process, and returns its memory as well")]
fn run(arguments: &[&str], folder: &Path) -> (i32, String, u64) {
    let errors = folder.join("errors.txt");
    let mut command = program();
    command.args(arguments).current_dir(folder).env("HOOKLENS_DEVICE", "flex").env("RAYON_NUM_THREADS", "1");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&errors).unwrap());
    let child = command.spawn().unwrap();
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: both pointers are valid, and nothing else waits for the child.
    let usage = unsafe {
        assert_eq!(libc::wait4(child.id() as i32, &mut status, 0, usage.as_mut_ptr()), child.id() as i32);
        usage.assume_init()
    };
    assert!(libc::WIFEXITED(status), "{arguments:?}: {status}");
    (libc::WEXITSTATUS(status), fs::read_to_string(errors).unwrap(), usage.ru_maxrss as u64 * 1024)
}

/// Runs a command that must refuse the last file written to a folder, and returns the message.
#[track_caller]
fn refused(arguments: &[&str], folder: &Path, file: &Path) -> String {
    let own = run(&["info", "--model", "embedded:ioi"], folder).2;
    let (code, message, peak) = run(arguments, folder);
    assert_eq!(code, 1, "{arguments:?}: {message}");
    assert!(!message.contains("panicked") && message.len() < 10_000, "{arguments:?}: {message}");
    let most = own + MEMORY.max(fs::metadata(file).unwrap().len());
    assert!(peak <= most, "{arguments:?}: {} MB, at most {} MB: {message}", peak >> 20, most >> 20);
    message
}

/// Writes a zip archive with a deflated file, whose contents are blocks that are repeated.
fn archive(path: &Path, name: &str, blocks: &[(&[u8], usize)]) {
    let mut archive = zip::ZipWriter::new(File::create(path).unwrap());
    archive.start_file(name, SimpleFileOptions::default()).unwrap();
    for (block, times) in blocks {
        (0..*times).for_each(|_| archive.write_all(block).unwrap());
    }
    archive.finish().unwrap();
}

/// A list in JSON.
fn list(value: &str, times: usize) -> String {
    format!("[{}{value}]", format!("{value},").repeat(times))
}

/// A configuration with this width.
fn config(width: &str) -> String {
    format!(
        r#"{{"architectures": ["LlamaForCausalLM"], "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 50,
        "intermediate_size": 64, "max_position_embeddings": 32, "hidden_size": {width}}}"#
    )
}

#[test]
fn pickles() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pt");
    // Lists and dictionaries: more than fit, and as many as do.
    for (object, times) in [(&b"]"[..], 40_000_000), (b"K\x01", 500_000), (b"}K\x01K\x01s", 2_000_000)] {
        let many = object.repeat(1000);
        archive(&path, "a/data.pkl", &[(b"\x80\x02](", 1), (&many, times / 1000), (b"e.", 1)]);
        let message = refused(&["features", "info", "a.pt"], folder.path(), &path);
        let reason = if times == 500_000 { "found list" } else { "its objects take more than 160 MiB of memory" };
        assert!(message.contains(reason), "{message}");
    }
    fs::write(&path, [&b"\x80\x02}("[..], &b"J\x01\x02\x03\x04K\x01".repeat(1_500_000), b"u."].concat()).unwrap();
    let message = refused(&["features", "info", "a.pt"], folder.path(), &path);
    assert!(message.contains("its objects take more than 160 MiB of memory"), "{message}");
}

#[test]
fn tokenizers() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config("32")).unwrap();
    let path = folder.path().join("tokenizer.json");
    let nested = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let with_merges = |merges: &str| {
        format!(r#"{{"version": "1.0", "model": {{"type": "BPE", "vocab": {{"a": 0}}, "merges": {merges}}}}}"#)
    };
    let model_last = |field: &str, value: &str| {
        format!(r#"{{"version": "1.0", "{field}": {value}, "model": {{"type": "BPE", "vocab": {{}}, "merges": []}}}}"#)
    };
    for (text, reason) in [
        (with_merges(&list(&nested, 50_000)), "its `model.merges` is invalid: invalid type: sequence"),
        (with_merges(&list("[]", 4_000_000)), "a merge does not have two tokens"),
        (with_merges(&list(r#"["a", "b"]"#, 1_000_000)), "`b` is not in the vocabulary"),
        (with_merges(&list(r#""ab""#, 2_000_000)), "`ab` is not a pair of tokens"),
        (model_last("normalizer", &list("0", 5_000_000)), r#"(limit reached at "normalizer")"#),
        (model_last("added_tokens", &list("{}", 2_000_000)), "its `added_tokens` is invalid: missing field `id`"),
        (model_last("more", &list(r#"{"": 0}"#, 1_000_000)), r#"(limit reached at "more")"#),
        (list("0", 5_000_000), "the tokenizer is not an object"),
    ] {
        fs::write(&path, text).unwrap();
        let message = refused(&["info", "--model", "."], folder.path(), &path);
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn configurations() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for (value, reason) in [
        (list("0", 2_000_000), "`hidden_size` is [0,0,0,"),
        (list("0", 10_000_000), "its text and values take more than 190 MiB of memory"),
        (list(r#"{"": 0}"#, 200_000), "`hidden_size` is [{\"\":0},"),
        (list(r#"{"": 0}"#, 2_000_000), "its text and values take more than 190 MiB of memory"),
        (format!("\"{}\"", "x".repeat(80_000_000)), "`hidden_size` is \"xxx"),
        (format!("\"{}\"", "x".repeat(120_000_000)), "its text and values take more than 190 MiB of memory"),
    ] {
        fs::write(&path, config(&value)).unwrap();
        let message = refused(&["info", "--model", "."], folder.path(), &path);
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn deflated_directions() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    let prompt = "When Mary and John went to the store, John gave a drink to";
    let graph = ["graph", "--model", "embedded:ioi", "--prompt", prompt, "--direction", "a.npz"];
    for (shape, reason) in [((200_000, 320), "its directions have 320 elements"), ((1_000_000, 64), "directions")] {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape:?}, }}");
        let start = [&b"\x93NUMPY\x02\x00"[..], &(header.len() as u32).to_le_bytes(), header.as_bytes()].concat();
        archive(&path, "a.npy", &[(&start, 1), (&vec![0; shape.1 * 4000], shape.0 / 1000)]);
        let message = refused(&graph, folder.path(), &path);
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn manifests_and_shards() {
    let folder = tempfile::tempdir().unwrap();
    let objects = list(r#"{"": 0}"#, 2_000_000);
    let dump = folder.path().join("dump/a");
    fs::create_dir_all(&dump).unwrap();
    let path = dump.join("manifest.json");
    for (settings, shards, reason) in [
        (list("0", 10_000_000), "[]".to_string(), "a value takes more than 16777216 bytes of memory"),
        (objects.clone(), "[]".to_string(), "a value takes more than 16777216 bytes of memory"),
        ("{}".to_string(), format!(r#"[{{"x": {objects}}}]"#), "missing field `file`"),
        (
            "{}".to_string(),
            format!(r#"[{{"file": "a", "first_row": 0, "rows": 1, "bytes": 1, "checksum": "a", "x": {objects}}}]"#),
            "it is missing or was modified",
        ),
    ] {
        let text = format!(
            r#"{{"format": "hooklens-dump", "version": 5, "rows": 4, "input": "", "settings": {settings},
            "shards": {shards}, "part": {{"index": 1, "of": 1}}, "part_rows": 4, "complete": true}}"#
        );
        fs::write(&path, text).unwrap();
        let message = refused(&["merge", "--out", "dump"], folder.path(), &path);
        assert!(message.contains(reason), "{message}");
    }
    let results = folder.path().join("results");
    fs::create_dir(&results).unwrap();
    let path = results.join("00001-of-00001.json");
    let array =
        |values: &str| format!(r#"{{"values": {{"axes": [], "values": {values}}}, "baseline": [], "source": null}}"#);
    for (kind, settings, result, reason) in [
        ("features-eval", "{}".to_string(), list("0", 15_000_000), "its results are invalid"),
        ("patch", "{}".to_string(), array(&objects), "its results are invalid: invalid type: map"),
        ("patch", "{}".to_string(), array(&list("0", 10_000_000)), "the labels are for shape [], but the array"),
        ("patch", format!(r#"{{"x": {objects}}}"#), "null".to_string(), "a value takes more than 16777216 bytes"),
    ] {
        let text = format!(
            r#"{{"format": "hooklens-share", "kind": "{kind}", "shard": {{"index": 1, "of": 1}},
            "settings": {settings}, "result": {result}}}"#
        );
        fs::write(&path, text).unwrap();
        let message = refused(&["merge", "--out", "results"], folder.path(), &path);
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn labels() {
    let folder = tempfile::tempdir().unwrap();
    let convert = |file: &str| {
        let path = folder.path().join(file);
        let arguments = ["features", "convert", "embedded:ioi-sae", "--labels", file, "--out", "out"];
        refused(&arguments, folder.path(), &path)
    };
    let path = folder.path().join("a.csv");
    let rows = |count: usize| (0..count).map(|latent| format!("{latent},a\n")).collect::<String>();
    for (text, reason) in [
        (rows(3_000_000) + "7,b\n", "line 3000001: latent 7 already has a label"),
        (rows(3_000_000) + "x,b\n", "line 3000001: `x,b` is not `latent,label`: `x` is not a whole number"),
        (rows(5_000_000), "it has more than 4194304 labels"),
        (rows(3) + "3,\"" + &"a".repeat(100_000_000), "a row is longer than 16777216 bytes; is a quote not closed?"),
        (rows(3) + "3,\"" + &"a\n".repeat(1_000_000), "a quote is not closed"),
    ] {
        fs::write(&path, text).unwrap();
        let message = convert("a.csv");
        assert!(message.contains(reason), "{message}");
    }
    let path = folder.path().join("a.json");
    let fields: Vec<String> = (0..2_000_000).map(|latent| format!("\"{latent}\":\"a\"")).collect();
    for (last, reason) in [(r#""007": """#, "latent 7 has two labels"), (r#""x": 0"#, "`x` is not a latent index")] {
        fs::write(&path, format!("{{{},{last}}}", fields.join(","))).unwrap();
        let message = convert("a.json");
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn gguf_headers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    let text = |text: &[u8]| [&(text.len() as u64).to_le_bytes()[..], text].concat();
    let list = |kind: u32, len: u64, entries: &[u8]| [&kind.to_le_bytes()[..], &len.to_le_bytes(), entries].concat();
    let field = |name: &str, kind: u32, value: &[u8]| [&text(name.as_bytes())[..], &kind.to_le_bytes(), value].concat();
    let llama = || field("general.architecture", 8, &text(b"llama"));
    let letters = text(b"a").repeat(1_000_000);
    for (fields, reason) in [
        (vec![field("general.architecture", 8, &text(&[0xff; 40_000_000]))], "is not UTF-8"),
        (vec![field("general.architecture", 8, &text(&[b'x'; 60_000_000]))], "xxx… (in a GGUF file)` is not supported"),
        (vec![field("general.architecture", 8, &text(&[b'x'; 100_000_000]))], "does not end within the first 67108864"),
        (
            vec![llama(), field("llama.block_count", 9, &list(0, 1_800_000, &[1, 2].repeat(900_000)))],
            "…, not one value for all layers",
        ),
        (vec![llama(), field("llama.block_count", 9, &list(8, 1_000_000, &letters))], "\"a\",\"a\""),
        (vec![field("a", 9, &list(8, 1_400_000, &text(b"a").repeat(1_400_000)))], "take more than 128 MiB of memory"),
    ] {
        let start = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &(fields.len() as u64).to_le_bytes()];
        fs::write(&path, [start.concat(), fields.concat()].concat()).unwrap();
        let message = refused(&["info", "--model", "a.gguf"], folder.path(), &path);
        assert!(message.contains(reason), "{message}");
    }
}
