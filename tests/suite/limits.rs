//! Commands with little memory, few files, few threads or little disk space give a result or an error, never a panic,
//! an abort or a hang.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;

use crate::support::{program, skipped};

const PROMPT: &str = "When Mary and John went to the store, John gave a drink to";

/// A command line for each command that runs without other input.
fn commands() -> Vec<Vec<&'static str>> {
    let ioi = ["--model", "embedded:ioi"];
    let with = |words: &[&'static str], rest: &[&'static str]| [words, &ioi, rest].concat();
    vec![
        with(&["hooks"], &[]),
        with(&["info"], &[]),
        with(&["vocabulary"], &[]),
        with(&["prompts", "ioi"], &["--count", "50", "--out", "o.jsonl"]),
        with(&["dump"], &["--prompt", PROMPT, "--hooks", "*", "--out", "o.safetensors"]),
        with(&["dump"], &["--prompts", "prompts.txt", "--hooks", "*", "--batch-size", "2", "--out", "folder"]),
        with(&["dump"], &["--prompts", "prompts.txt.gz", "--hooks", "blocks.0.hook_resid_post", "--out", "folder"]),
        with(&["generate"], &["--prompt", PROMPT, "--max-new-tokens", "3"]),
        with(&["patch"], &["--ioi", "2", "--at", "*hook_z", "--per", "head", "--out", "o.csv"]),
        with(&["attribute"], &["--prompt", PROMPT, "--answer", "Mary", "--out", "o.csv"]),
        with(&["attribute"], &["--to", "edges", "--ioi", "1", "--out", "o.json"]),
        with(&["circuit"], &["--ioi", "2", "--adversary-steps", "1", "--subsets", "1", "--out", "o.svg"]),
        with(&["lens"], &["--prompt", PROMPT, "--out", "o.svg"]),
        with(&["lens"], &["--prompt", PROMPT, "--out", "o.png"]),
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
        "ulimit -d 10000",
        "ulimit -d 13000",
        "ulimit -d 20000",
        "ulimit -d 25000",
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
            let folder = folder();
            check(limit, &arguments, limited(limit, &arguments, folder.path()).env_remove("RUST_BACKTRACE"));
        }
    }
}

/// Memory that runs out anywhere, even while a backtrace is printed.
#[test]
fn every_amount_of_memory() {
    let dump = ["dump", "--model", "embedded:ioi", "--prompts", "prompts.txt.gz", "--hooks", "*", "--out", "folder"];
    let lens = ["lens", "--model", "embedded:ioi", "--prompt", PROMPT, "--out", "o.png"];
    for kilobytes in (4_000..40_000).step_by(1_500) {
        let limit = format!("ulimit -d {kilobytes}");
        for arguments in [&dump[..], &lens] {
            for backtrace in ["0", "1"] {
                let folder = folder();
                check(&limit, arguments, limited(&limit, arguments, folder.path()).env("RUST_BACKTRACE", backtrace));
            }
        }
    }
}

/// Few processes and threads. The limit does not apply to root.
#[test]
fn few_threads() {
    // A user that runs nothing else.
    const USER: u32 = 54_321;
    // SAFETY: `geteuid` only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        return skipped("only root can run commands as a user that has no other processes");
    }
    let may_run = program().arg("--version").uid(USER).gid(USER).output();
    if !may_run.is_ok_and(|output| output.status.success()) {
        return skipped("the folder of the program cannot be read by other users");
    }
    // `timeout` is a process as well.
    for limit in ["ulimit -u 2", "ulimit -u 3", "ulimit -u 4", "ulimit -u 6"] {
        for arguments in commands() {
            let folder = folder();
            fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
            let mut command = limited(limit, &arguments, folder.path());
            check(limit, &arguments, command.uid(USER).gid(USER).env_remove("RUST_BACKTRACE"));
        }
    }
}

/// A folder with prompts.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let prompts = format!("{PROMPT}\n").repeat(8);
    fs::write(folder.path().join("prompts.txt"), &prompts).unwrap();
    let mut packed =
        GzEncoder::new(fs::File::create(folder.path().join("prompts.txt.gz")).unwrap(), Compression::fast());
    packed.write_all(prompts.as_bytes()).unwrap();
    packed.finish().unwrap();
    folder
}

/// A command that a shell runs with a limit, for at most a minute.
fn limited(limit: &str, arguments: &[&str], folder: &Path) -> Command {
    // A process that hangs may also not end on a signal that it handles.
    let script = format!("{limit}; exec \"$0\" \"$@\"");
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "60", "sh", "-c", &script]).arg(program().get_program()).args(arguments);
    command.current_dir(folder);
    command.env("HOOKLENS_DEVICE", "flex").env("RAYON_NUM_THREADS", "2").stdin(Stdio::null());
    command
}

/// Checks that a command succeeds, or fails with a message.
#[track_caller]
fn check(limit: &str, arguments: &[&str], command: &mut Command) {
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = String::from_utf8_lossy(&stderr);
    let code = status.code();
    assert!(matches!(code, Some(0..=2)), "{limit}: {arguments:?}: {status}, {said}");
    assert!(!said.contains("panicked"), "{limit}: {arguments:?}: {said}");
    let shown = limit.contains("exec 2>") || limit.contains("-f") || !said.trim().is_empty();
    assert!(code == Some(0) || shown, "{limit}: {arguments:?} says nothing");
}
