//! When a command is killed, its output is complete or absent, nothing else is left behind, and finished work is not
//! lost.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::support::program;

/// How often each command is killed.
const ROUNDS: u64 = 50;
/// `KILL` gives a process no time to clean up.
const SIGNALS: [&str; 4] = ["KILL", "INT", "TERM", "HUP"];

/// A folder with prompts, on the CPU, since signals to a LibTorch process would test nothing more.
struct Workshop {
    folder: tempfile::TempDir,
}

impl Workshop {
    fn new(prompts: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut random = StdRng::seed_from_u64(7);
        let mut row = |_| format!("{:?}\n", (0..30).map(|_| random.random_range(1..63)).collect::<Vec<u32>>());
        fs::write(folder.path().join("prompts.jsonl"), (0..prompts).map(&mut row).collect::<String>()).unwrap();
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program();
        command.current_dir(self.path()).args(arguments).env("HOOKLENS_DEVICE", "flex");
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Runs to completion.
    fn run(&self, arguments: &[&str]) -> Duration {
        let start = Instant::now();
        let done = self.command(arguments).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        start.elapsed()
    }

    /// Runs, and sends a signal after a while.
    fn interrupted(&self, arguments: &[&str], after: Duration, signal: &str) -> ExitStatus {
        let mut child = self.command(arguments).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(after);
        let process = child.id().to_string();
        Command::new("kill").args([&format!("-{signal}"), &process]).stderr(Stdio::null()).status().unwrap();
        child.wait().unwrap()
    }

    /// Names of leftover files.
    fn strays(&self) -> Vec<String> {
        let names = fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter_map(|name| Some(name.to_str()?.to_string())).filter(|name| name.starts_with('.')).collect()
    }
}

/// Repeatedly kills a command that writes one file.
fn one_file(arguments: &[&str], out: &str, prompts: usize) {
    let workshop = Workshop::new(prompts);
    let arguments = [arguments, &["--out", out]].concat();
    let whole = workshop.run(&arguments);
    let out = workshop.path().join(out);
    let expected = fs::read(&out).unwrap();
    fs::remove_file(&out).unwrap();
    let mut random = StdRng::seed_from_u64(3);
    let mut ended = 0;
    for round in 0..ROUNDS {
        let signal = SIGNALS[round as usize % SIGNALS.len()];
        // Leftovers of a `KILL` in an earlier round may remain until a run writes there.
        let before = workshop.strays();
        let status = workshop.interrupted(&arguments, whole.mul_f64(random.random_range(0.0..1.1)), signal);
        ended += u32::from(!status.success());
        if signal != "KILL" {
            let strays = workshop.strays();
            assert!(strays.iter().all(|name| before.contains(name)), "{arguments:?}: {strays:?} after {signal}");
        }
        if out.exists() {
            assert!(fs::read(&out).unwrap() == expected, "{arguments:?}: another file after {signal}");
            fs::remove_file(&out).unwrap();
        }
    }
    assert!(ended > 0, "{arguments:?}: no signal came in time");
    workshop.run(&arguments);
    assert!(fs::read(&out).unwrap() == expected && workshop.strays().is_empty());
}

const DUMP: [&str; 7] = ["dump", "--model", "embedded:induction", "--prompts", "prompts.jsonl", "--hooks", "*"];

#[test]
fn a_dump_to_a_file() {
    one_file(&DUMP, "out.safetensors", 200);
}

#[test]
fn patching() {
    one_file(&["patch", "--model", "embedded:ioi", "--ioi", "20"], "out.json", 0);
}

#[test]
fn attribution() {
    let edges = ["attribute", "--model", "embedded:ioi", "--to", "edges", "--ioi", "10", "--integrated", "5"];
    one_file(&edges, "out.csv", 0);
}

#[test]
fn pictures_and_pages() {
    let text = "When Mary and John went to the store, John gave a drink to";
    one_file(&["attention", "--model", "embedded:ioi", "--prompt", text], "out.html", 0);
    one_file(&["lens", "--model", "embedded:ioi", "--prompt", text], "out.png", 0);
    one_file(&["heads", "--model", "embedded:ioi"], "out.svg", 0);
}

/// The files in a folder, with their contents.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}

/// A dump that was resumed after every kill equals a dump that was never interrupted. The first run may have been
/// slowed down by other tests, so that later ones end before they are killed; each of these that started from nothing
/// shortens the time after which runs are killed.
#[test]
fn a_dump_to_a_folder() {
    let workshop = Workshop::new(200);
    let run = |out: &'static str, more: &[&'static str]| [&DUMP[..], &["--out", out], more].concat();
    let mut whole = workshop.run(&run("alone", &[]));
    let expected = contents(&workshop.path().join("alone"));
    let mut random = StdRng::seed_from_u64(5);
    let (mut kills, mut continued) = (0, 0);
    while kills < ROUNDS {
        for signal in SIGNALS.into_iter().cycle() {
            let after = whole.mul_f64(random.random_range(0.0..0.9));
            let starts = !workshop.path().join("out/manifest.json").exists();
            continued += u32::from(!starts);
            if workshop.interrupted(&run("out", &["--resume"]), after, signal).success() {
                whole = if starts { whole.min(after) } else { whole };
                break;
            }
            kills += 1;
        }
        assert!(contents(&workshop.path().join("out")) == expected, "after {kills} kills");
        fs::remove_dir_all(workshop.path().join("out")).unwrap();
    }
    assert!(continued > 0, "no run was continued");
}

/// A training run that is killed repeatedly and resumes from its checkpoints gives the same bytes as an uninterrupted
/// one.
#[test]
fn a_training() {
    const KILLS: u32 = 8;
    // The corpus has several pieces.
    let workshop = Workshop::new(1000);
    let train = [
        "features",
        "train",
        "--model",
        "embedded:induction",
        "--prompts",
        "prompts.jsonl",
        "--at",
        "blocks.1.hook_resid_post",
        "--latents",
        "192",
        "--k",
        "6",
        "--tokens",
        "100000",
        "--batch-size",
        "500",
        "--checkpoint-every",
        "5000",
    ];
    let mut whole = workshop.run(&[&train[..], &["--out", "alone"]].concat());
    let expected = contents(&workshop.path().join("alone"));
    assert!(expected.contains_key("sae_weights.safetensors") && expected.contains_key("training.svg"));
    let out = workshop.path().join("out");
    let run = [&train[..], &["--out", "out", "--resume"]].concat();
    let mut random = StdRng::seed_from_u64(5);
    let (mut kills, mut continued) = (0, 0);
    while kills < KILLS {
        for signal in ["KILL", "KILL", "TERM"].into_iter().cycle() {
            let after = whole.mul_f64(random.random_range(0.1..0.8));
            let starts = !out.join("checkpoint.safetensors").exists();
            continued += u32::from(!starts);
            if workshop.interrupted(&run, after, signal).success() {
                whole = if starts { whole.min(after) } else { whole };
                break;
            }
            kills += 1;
            // Killed when it was practically done: there is nothing to resume from.
            if out.join("cfg.json").exists() {
                break;
            }
        }
        // A process killed between its last steps leaves the checkpoint, or its lock.
        let finished = out.join("cfg.json").exists();
        let mut there = contents(&out);
        there.retain(|name, _| name != "checkpoint.safetensors" && !name.starts_with('.'));
        assert!(!finished || there == expected, "after {kills} kills");
        fs::remove_dir_all(&out).unwrap();
    }
    assert!(continued > 0, "no training was continued");
}

/// A merge is complete or absent.
#[test]
fn a_merge() {
    let workshop = Workshop::new(40);
    for shard in ["1/2", "2/2"] {
        workshop.run(&[&DUMP[..], &["--shard", shard, "--out", "all"]].concat());
    }
    let merge = ["merge", "--out", "all", "all/00001-of-00002", "all/00002-of-00002"];
    let whole = workshop.run(&merge);
    let manifest = workshop.path().join("all/manifest.json");
    let expected = fs::read(&manifest).unwrap();
    fs::remove_file(&manifest).unwrap();
    let mut random = StdRng::seed_from_u64(5);
    for round in 0..ROUNDS {
        let signal = SIGNALS[round as usize % SIGNALS.len()];
        workshop.interrupted(&merge, whole.mul_f64(random.random_range(0.0..1.1)), signal);
        if manifest.exists() {
            assert!(fs::read(&manifest).unwrap() == expected);
            fs::remove_file(&manifest).unwrap();
        }
    }
    workshop.run(&merge);
    let names: Vec<_> = contents_names(&workshop.path().join("all"));
    assert_eq!(names, ["00001-of-00002", "00002-of-00002", "manifest.json"]);
}

fn contents_names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Leftovers of a killed run are removed by the next run of any command in the same folder.
#[test]
fn the_next_run_removes_what_is_left() {
    let workshop = Workshop::new(1);
    let left = workshop.path().join(".hooklens-unfinished-XYZ");
    fs::write(&left, "half a file").unwrap();
    workshop.run(&["heads", "--model", "embedded:induction", "--out", "heads.json"]);
    assert!(!left.exists());
}

/// Hitting a file size limit is an error, and leaves nothing behind.
#[test]
fn files_that_may_not_grow() {
    let workshop = Workshop::new(200);
    let limited = |arguments: &str| {
        let script = format!("ulimit -f 100; exec \"$0\" {arguments}");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(program().get_program()).current_dir(workshop.path());
        command.env("HOOKLENS_DEVICE", "flex").output().unwrap()
    };
    for out in ["out.safetensors", "out"] {
        let done = limited(&[&DUMP[..6], &["'*'", "--out", out]].concat().join(" "));
        let said = String::from_utf8_lossy(&done.stderr).to_string();
        assert!(done.status.code() == Some(1) && said.contains("File too large"), "{:?} {said}", done.status);
        assert_eq!(workshop.strays(), [""; 0]);
    }
    assert!(!workshop.path().join("out.safetensors").exists());
    let hidden = contents_names(&workshop.path().join("out"));
    assert!(hidden.iter().all(|name| !name.starts_with('.')), "{hidden:?}");
}
