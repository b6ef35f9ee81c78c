//! Commands with little memory, few files or little disk space give a result or an error, never a panic, an abort or a
//! hang.
#![cfg(target_os = "linux")]

use std::fs;
use std::process::{Command, Output, Stdio};

use crate::support::program;

const PROMPT: &str = "When Mary and John went to the store, John gave a drink to";

/// A command line for each command that runs without other input.
fn commands() -> Vec<Vec<&'static str>> {
    let ioi = ["--model", "embedded:ioi"];
    let with = |words: &[&'static str], rest: &[&'static str]| [words, &ioi, rest].concat();
    vec![
        with(&["hooks"], &[]),
        with(&["info"], &[]),
        with(&["vocabulary"], &[]),
        with(&["dump"], &["--prompt", PROMPT, "--hooks", "*", "--out", "o.safetensors"]),
        with(&["dump"], &["--prompts", "prompts.txt", "--hooks", "*", "--batch-size", "2", "--out", "folder"]),
        with(&["generate"], &["--prompt", PROMPT, "--max-new-tokens", "3"]),
        with(&["patch"], &["--ioi", "2", "--at", "*hook_z", "--per", "head", "--out", "o.csv"]),
        with(&["attribute"], &["--prompt", PROMPT, "--answer", "Mary", "--out", "o.csv"]),
        with(&["attribute"], &["--to", "edges", "--ioi", "1", "--out", "o.json"]),
        with(&["lens"], &["--prompt", PROMPT, "--out", "o.svg"]),
        with(&["heads"], &["--out", "o.csv"]),
        with(&["attention"], &["--prompt", PROMPT, "--out", "o.html"]),
        with(&["features", "eval"], &["--dictionary", "embedded:ioi-sae", "--prompts", "prompts.txt"]),
        with(
            &["features", "train"],
            &[
                "--prompts",
                "prompts.txt",
                "--at",
                "blocks.0.hook_resid_post",
                "--latents",
                "8",
                "--k",
                "2",
                "--tokens",
                "64",
                "--batch-size",
                "32",
                "--out",
                "sae",
            ],
        ),
        with(&["graph"], &["--prompt", PROMPT, "--out", "o.html"]),
        vec!["features", "info", "embedded:ioi-sae"],
        vec!["notebook", "n.ipynb"],
        vec!["merge", "--out", "folder"],
        vec!["doctor"],
        vec!["completions", "bash"],
        vec!["man", "--out", "man"],
    ]
}

#[test]
fn little_memory_files_and_room() {
    let limits = [
        "ulimit -d 8000",
        "ulimit -d 20000",
        "ulimit -d 50000",
        "ulimit -v 600000",
        "ulimit -n 5",
        "ulimit -n 9",
        "ulimit -f 1",
        "exec >/dev/full",
        "exec 2>/dev/full",
        "exec >&-",
        "exec 2>&-",
        "exec <&-",
    ];
    for limit in limits {
        for arguments in commands() {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("prompts.txt"), format!("{PROMPT}\n").repeat(8)).unwrap();
            let script = format!("{limit}; exec timeout 60 \"$0\" \"$@\"");
            let mut command = Command::new("sh");
            command.args(["-c", &script]).arg(program().get_program()).args(&arguments);
            command
                .current_dir(folder.path())
                .env("HOOKLENS_DEVICE", "flex")
                .env("RAYON_NUM_THREADS", "2")
                .env_remove("RUST_BACKTRACE");
            let Output { status, stderr, .. } = command.stdin(Stdio::null()).output().unwrap();
            let said = String::from_utf8_lossy(&stderr);
            let code = status.code();
            assert!(matches!(code, Some(0..=2)), "{limit}: {arguments:?}: {status}, {said}");
            assert!(!said.contains("panicked"), "{limit}: {arguments:?}: {said}");
            let shown = limit.contains("exec 2>") || limit.contains("-f") || !said.trim().is_empty();
            assert!(code == Some(0) || shown, "{limit}: {arguments:?} says nothing");
        }
    }
}
