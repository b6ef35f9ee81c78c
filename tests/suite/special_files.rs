//! Special files, implausible counts, and small inputs that request much memory: errors, quickly and with little
//! memory.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use hooklens::corpus::{Corpus, Prompt};
use hooklens::dump::merge;
use hooklens::{WeightFiles, inspect};

use crate::support::program;

/// Memory of a process that rejects a file, including its own: an unoptimized program has about 100 MB.
#[cfg(target_os = "linux")]
const MEMORY: libc::rlim_t = 600 << 20;

/// Runs the program for at most a minute with limited memory.
#[cfg(target_os = "linux")]
fn bounded(arguments: &[&str]) -> Output {
    use std::os::unix::process::CommandExt;
    let mut command = program();
    command.args(arguments).env("RAYON_NUM_THREADS", "1").stdin(Stdio::null());
    // SAFETY: `setrlimit` and `alarm` may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let data = libc::rlimit { rlim_cur: MEMORY, rlim_max: MEMORY };
            libc::setrlimit(libc::RLIMIT_DATA, &data);
            libc::alarm(60);
            Ok(())
        });
    }
    command.output().unwrap()
}

/// Runs a command that must fail cleanly, and returns its error.
#[cfg(target_os = "linux")]
fn refused(arguments: &[&str]) -> String {
    let output = bounded(arguments);
    let said = String::from_utf8_lossy(&output.stderr).to_string();
    assert!(matches!(output.status.code(), Some(1 | 2)), "{arguments:?}: {:?} {said}", output.status);
    said
}

#[cfg(unix)]
fn pipe(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

#[cfg(target_os = "linux")]
#[test]
fn pipes_and_devices_are_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = |name: &str| pipe(folder.path(), name).display().to_string();
    let device = |name: &str, of: &str| {
        let path = folder.path().join(name);
        std::os::unix::fs::symlink(of, &path).unwrap();
        path.display().to_string()
    };
    let no_file = "it is a device or a pipe, not a file";
    for path in [fifo("a.gguf"), device("b.gguf", "/dev/zero"), device("c.gguf", "/dev/full")] {
        let said = refused(&["info", "--model", &path]);
        assert!(said.contains(no_file) && said.contains(&path), "{said}");
    }
    for path in [fifo("a.json"), device("b.json", "/dev/zero")] {
        let said = refused(&["graph", "view", &path, "--out", "none.html"]);
        assert!(said.contains(no_file) && said.contains(&path), "{said}");
    }
    for ending in ["safetensors", "npz", "pt", "bin"] {
        for path in [pipe(folder.path(), &format!("a.{ending}")), device(&format!("b.{ending}"), "/dev/zero").into()] {
            let said = hooklens::error_chain(&WeightFiles::open(&[path]).unwrap_err());
            assert!(said.contains(no_file), "{said}");
        }
    }
    // Prompts may come from a stream, if someone writes to it and it has lines.
    for (option, command) in [("--prompts", "dump"), ("--pairs", "patch")] {
        let out = if command == "dump" { ["--out", "none.safetensors"] } else { ["--out", "none.csv"] };
        let run = |path: &str| refused(&[&[command, "--model", "embedded:induction", option, path], &out[..]].concat());
        let said = run(&fifo(&format!("{command}.jsonl")));
        assert!(said.contains("no program writes to this pipe"), "{said}");
        let said = run("/dev/zero");
        assert!(said.contains("longer than"), "{said}");
        assert!(run("/dev/null").contains(if command == "dump" { "no prompts" } else { "no pair" }));
    }
}

/// A process substitution is a pipe, and can be read once.
#[cfg(unix)]
#[test]
fn streams_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let [prompts, pairs] = ["prompts.txt", "pairs.jsonl"].map(|name| pipe(folder.path(), name));
    let writer = |path: &Path, text: &'static str| {
        let path = path.to_path_buf();
        std::thread::spawn(move || {
            fs::OpenOptions::new().write(true).open(path).unwrap().write_all(text.as_bytes()).unwrap()
        })
    };
    let writing = writer(&prompts, "red fox\nking\n");
    let read: Vec<Prompt> = Corpus::new([&prompts]).prompts().unwrap().collect::<Result<_, _>>().unwrap();
    writing.join().unwrap();
    assert_eq!(read, ["red fox", "king"].map(|text| Prompt::Text(text.into())));
    let pair =
        "{\"clean\": \"red fox red\", \"corrupted\": \"king fox king\", \"answer\": \"fox\", \"wrong\": \"king\"}\n";
    let writing = writer(&pairs, pair);
    let out = folder.path().join("out.csv");
    let mut command = program();
    command.args(["patch", "--model", "embedded:induction", "--pairs"]).arg(&pairs).arg("--out").arg(&out);
    let output = command.output().unwrap();
    writing.join().unwrap();
    assert!(output.status.success() && out.is_file(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A GGUF file with these fields and no tensors.
fn gguf(fields: &[(&str, u32, Vec<u8>)]) -> Vec<u8> {
    let mut bytes =
        [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &(fields.len() as u64).to_le_bytes()].concat();
    for (name, kind, value) in fields {
        bytes.extend((name.len() as u64).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(value);
    }
    bytes
}

#[test]
fn counts_of_a_gguf_file_are_bounded_by_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    let error = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        hooklens::error_chain(&inspect(path.to_str().unwrap()).unwrap_err())
    };
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    for blocks in [u64::from(u32::MAX), u64::MAX, 1 << 62] {
        for architecture in ["llama", "gemma3", "gemma2", "olmo2"] {
            let fields = [
                ("general.architecture", 8, text(architecture)),
                (&*format!("{architecture}.block_count"), 10, blocks.to_le_bytes().to_vec()),
                (&*format!("{architecture}.embedding_length"), 10, 8u64.to_le_bytes().to_vec()),
                (&*format!("{architecture}.attention.head_count"), 10, 2u64.to_le_bytes().to_vec()),
                (&*format!("{architecture}.attention.sliding_window"), 10, 2u64.to_le_bytes().to_vec()),
                (&*format!("{architecture}.context_length"), 10, 8u64.to_le_bytes().to_vec()),
            ];
            let said = error(&gguf(&fields));
            assert!(said.contains("block_count") && said.contains("only 0 tensors"), "{said}");
        }
    }
    // Lists that are longer than the file, or than any vocabulary.
    let list =
        |kind: u32, len: u64, bytes: usize| [&kind.to_le_bytes()[..], &len.to_le_bytes(), &vec![0; bytes]].concat();
    assert!(error(&gguf(&[("a", 9, list(0, u64::MAX, 9))])).contains("at most 1864135"));
    assert!(error(&gguf(&[("a", 9, list(0, 1_800_000, 9))])).contains("does not end within"));
    assert!(error(&gguf(&[("a", 9, list(0, 3_000_000, 3_000_000))])).contains("at most 1864135"));
    let half = list(7, 1_500_000, 1_500_000);
    assert!(error(&gguf(&[("a", 9, half.clone()), ("b", 9, half)])).contains("take more than 128 MiB"));
    let counts = |tensors: u64, fields: u64| {
        [&b"GGUF"[..], &3u32.to_le_bytes(), &tensors.to_le_bytes(), &fields.to_le_bytes(), &[0; 64]].concat()
    };
    assert!(error(&counts(u64::MAX, 0)).contains("18446744073709551615 tensors"));
    assert!(error(&counts(0, 1 << 40)).contains("1099511627776 fields"));
}

#[test]
fn shards_of_a_manifest_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let shard = folder.path().join("a");
    fs::create_dir(&shard).unwrap();
    for (index, of) in [(1u64, 1_000_000_000u64), (1, u64::MAX), (0, 4), (5, 4)] {
        let manifest = serde_json::json!({
            "format": "hooklens-dump", "version": 4, "rows": 4, "input": "", "settings": {}, "shards": [],
            "part": {"index": index, "of": of}, "part_rows": 0, "complete": true,
        });
        fs::write(shard.join("manifest.json"), manifest.to_string()).unwrap();
        assert!(merge(folder.path(), std::slice::from_ref(&shard)).is_err());
        let output = program().args(["merge", "--out"]).arg(folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).to_string();
        assert!(output.status.code() == Some(1) && said.contains("manifest.json"), "{said}");
    }
}

/// A compressed line is rejected as soon as it is too long.
#[cfg(target_os = "linux")]
#[test]
fn long_lines_are_refused_while_they_are_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl.gz");
    let mut packed = flate2::write::GzEncoder::new(fs::File::create(&path).unwrap(), flate2::Compression::fast());
    let block = "king ".repeat(200_000);
    (0..255).for_each(|_| packed.write_all(block.as_bytes()).unwrap());
    packed.finish().unwrap();
    let path = path.display().to_string();
    let said = refused(&["dump", "--model", "embedded:induction", "--prompts", &path, "--out", "none.safetensors"]);
    assert!(said.contains("longer than 16 MiB"), "{said}");
    // A line of tokens takes no more memory than its tokens.
    let path = folder.path().join("b.jsonl");
    fs::write(&path, format!("[{}\"x\"]\n", "0,".repeat(8_000_000))).unwrap();
    let path = path.display().to_string();
    let said = refused(&["dump", "--model", "embedded:induction", "--prompts", &path, "--out", "none.safetensors"]);
    assert!(said.contains("expected a string"), "{said}");
    // A line far longer than the model's context is not tokenized completely.
    let path = folder.path().join("c.txt");
    fs::write(&path, "king fox ".repeat(1_600_000)).unwrap();
    let path = path.display().to_string();
    let said = refused(&["dump", "--model", "embedded:induction", "--prompts", &path, "--out", "none.safetensors"]);
    assert!(said.contains("a text of 14400000 bytes") && said.contains("(72)"), "{said}");
}

/// Invalid graphs and weight files are rejected before parsing takes many times their size in memory.
#[cfg(target_os = "linux")]
#[test]
fn values_that_are_none_take_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.json");
    let file = path.display().to_string();
    let view = |text: &str| {
        fs::write(&path, text).unwrap();
        refused(&["graph", "view", &file, "--out", "none.html"])
    };
    assert!(view(&format!("{{\"x\": [{}0]}}", "0,".repeat(25_000_000))).contains("it has no list `nodes`"));
    let link = r#"{"source": "a", "target": "a", "weight": 1},"#;
    let links = format!(r#"{{"links": [{}{{}}], "nodes": [{{"node_id": "a"}}]}}"#, link.repeat(1_500_000));
    assert!(view(&links).contains("link 1500000 has no `source`"));
    let tensors: Vec<String> = (0..250_000)
        .map(|number| format!(r#""{number}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#))
        .collect();
    let header = format!("{{{}}}", tensors.join(","));
    let path = folder.path().join("model.safetensors");
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
    let said = hooklens::error_chain(&WeightFiles::open(&[path]).unwrap_err());
    assert!(said.contains("its header is"), "{said}");
}

/// Notes and errors that can't be printed cause no data loss.
#[cfg(target_os = "linux")]
#[test]
fn standard_error_may_be_full_or_closed() {
    let folder = tempfile::tempdir().unwrap();
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let closed = || {
        let mut child = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
        let pipe = child.stdin.take().unwrap();
        child.wait().unwrap();
        Stdio::from(pipe)
    };
    for (number, stderr) in [full(), closed()].into_iter().enumerate() {
        let out = folder.path().join(format!("{number}.safetensors"));
        let mut command = program();
        command.args(["dump", "--model", "embedded:induction", "--prompt", "king fox red", "--truncate", "2", "--out"]);
        let output = command.arg(&out).stderr(stderr).output().unwrap();
        assert!(output.status.success() && out.is_file(), "{:?}", output.status);
    }
    for stderr in [full(), closed()] {
        let status = program().args(["info", "--model", "nothing/here.gguf"]).stderr(stderr).status().unwrap();
        assert_eq!(status.code(), Some(1));
    }
}

/// If the system can't start threads, the program reports it at startup.
#[cfg(target_os = "linux")]
#[test]
fn threads_that_cannot_be_started_are_an_error() {
    use std::os::unix::process::CommandExt;
    let mut command = program();
    command.args(["lens", "--model", "embedded:induction", "--prompt", "king"]).env("RAYON_NUM_THREADS", "512");
    // SAFETY: `setrlimit` and `alarm` may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let room = libc::rlimit { rlim_cur: 1_000_000 << 10, rlim_max: 1_000_000 << 10 };
            libc::setrlimit(libc::RLIMIT_AS, &room);
            libc::alarm(60);
            Ok(())
        });
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).to_string();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("RAYON_NUM_THREADS is 512") && !said.contains("panicked"), "{said}");
}
