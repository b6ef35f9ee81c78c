//! Cluster jobs: how tasks find their shard, what signals do, and how `merge` combines shards.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::json;

use super::packed_dumps::packed;
use crate::support::{program, skipped};

const DUMP: [&str; 9] =
    ["dump", "--model", "embedded:induction", "--prompts", "prompts.jsonl", "--hooks", "*", "--batch-size", "2"];

/// A folder with prompts.
fn workshop(prompts: u32) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let row = |row: u32| format!("{:?}\n", (0..30).map(|at| 1 + (row * 7 + at * at) % 60).collect::<Vec<u32>>());
    fs::write(folder.path().join("prompts.jsonl"), (0..prompts).map(row).collect::<String>()).unwrap();
    folder
}

/// A command that runs the program in a folder with only these job variables, on the CPU, where results are
/// reproducible to the byte.
fn command(folder: &Path, arguments: &[&str], job: &[(&str, &str)]) -> Command {
    let mut command = program();
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SLURM_") || name == "JOB_COMPLETION_INDEX") {
        command.env_remove(name);
    }
    command.current_dir(folder).args(arguments).envs(job.iter().copied()).env("HOOKLENS_DEVICE", "flex");
    command
}

fn ran(folder: &Path, arguments: &[&str], job: &[(&str, &str)]) -> (i32, String) {
    let Output { status, stdout, stderr } = command(folder, arguments, job).output().unwrap();
    let said = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (status.code().unwrap_or(-1), said)
}

fn array<'a>(id: &'a str, count: &'a str) -> Vec<(&'a str, &'a str)> {
    let names = ["SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP", "SLURM_ARRAY_TASK_COUNT"];
    names.into_iter().zip([id, "0", "1", count]).collect()
}

fn auto(shard: &'static str, out: &'static str) -> Vec<&'static str> {
    [&DUMP[..], &["--no-share-prefix", "--file-size", "100kB", "--shard", shard, "--out", out]].concat()
}

/// The merged dump of an array's tasks equals the dump of a single run; a task that is run again finds its shard done.
#[test]
fn arrays_share_a_dump() {
    let folder = workshop(12);
    let path = folder.path();
    assert_eq!(ran(path, &[&DUMP[..], &["--no-share-prefix", "--out", "alone"]].concat(), &[]).0, 0);
    for id in ["2", "0", "1"] {
        let (code, said) = ran(path, &auto("auto", "all"), &array(id, "3"));
        assert_eq!(code, 0, "{said}");
    }
    assert!(path.join("all/00003-of-00003/manifest.json").exists());
    let (code, said) = ran(path, &auto("auto", "all"), &array("1", "3"));
    assert!(code == 0 && said.contains("already complete"), "{said}");
    let (code, said) = ran(path, &["merge", "--out", "all"], &[]);
    assert!(code == 0 && said.contains("12 prompts"), "{said}");
    // A merge job may be run again.
    let (code, said) = ran(path, &["merge", "--out", "all", "--wait"], &[]);
    assert!(code == 0 && said.contains("is already merged"), "{said}");
    assert!(packed(&path.join("alone")) == packed(&path.join("all")));
    // A task that is run again finds its shard. An unrelated dump is not mixed with its shards.
    let (code, said) = ran(path, &auto("auto", "all"), &array("1", "3"));
    assert!(code == 0 && said.contains("already complete"), "{said}");
    let (code, said) = ran(path, &auto("auto", "alone"), &array("1", "3"));
    assert!(code == 1 && said.contains("alone already contains a dump"), "{said}");
    // Tasks of `srun`, and an index of a Kubernetes job.
    for (job, shard, out, own) in [
        (vec![("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2")], "auto", "steps", "00002-of-00002"),
        (vec![("JOB_COMPLETION_INDEX", "0")], "auto/4", "pods", "00001-of-00004"),
    ] {
        let (code, said) = ran(path, &auto(shard, out), &job);
        assert!(code == 0 && path.join(out).join(own).join("manifest.json").exists(), "{said}");
    }
}

/// Without a job that defines the shard, `auto` is an error.
#[test]
fn shares_are_not_guessed() {
    let folder = workshop(4);
    for (shard, job, words) in [
        ("auto", vec![], "SLURM_ARRAY_TASK_ID"),
        ("auto", vec![("JOB_COMPLETION_INDEX", "1")], "auto/N"),
        ("auto/8", array("1", "2"), "2 tasks, not 8"),
        ("auto/x", vec![], "auto/8"),
    ] {
        let (code, said) = ran(folder.path(), &auto(shard, "all"), &job);
        assert!(code == 2 && said.contains(words), "{said}");
        assert!(!folder.path().join("all").exists());
    }
}

/// Resubmitting some tasks makes a new job with other shards, which are not mixed with the first job's.
#[test]
fn some_tasks_again_are_told_apart() {
    let folder = workshop(8);
    let path = folder.path();
    assert_eq!(ran(path, &auto("auto", "all"), &array("0", "4")).0, 0);
    for (shard, job) in
        [("auto", array("0", "1")), ("auto", array("1", "2")), ("auto/3", vec![("JOB_COMPLETION_INDEX", "0")])]
    {
        let (code, said) = ran(path, &auto(shard, "all"), &job);
        assert!(
            code == 2 && said.contains("contains shards of a job with 4 tasks") && said.contains("--shard I/4"),
            "{said}"
        );
    }
    let (code, said) = ran(path, &auto("1/5", "all"), &[]);
    assert!(
        code == 2 && said.contains("--shard specifies 5 tasks, but all contains shards of a job with 4 tasks"),
        "{said}"
    );
    assert_eq!(fs::read_dir(path.join("all")).unwrap().count(), 1);
    let by_hand = [&DUMP[..], &["--no-share-prefix", "--shard", "2/4", "--out", "all"]].concat();
    assert_eq!(ran(path, &by_hand, &[]).0, 0);
    let (_, said) = ran(path, &["merge", "--out", "all"], &[]);
    assert!(said.contains("missing: 3/4, 4/4"), "{said}");
}

/// A task that receives SIGTERM or Ctrl+C finishes its batch. It exits with code 75, or as interrupted, so that a shell's
/// loop ends. It resumes to the same result, and says from where.
#[cfg(unix)]
#[test]
fn a_task_that_is_told_to_end_goes_on_later() {
    use std::os::unix::process::ExitStatusExt;
    let folder = workshop(4000);
    let path = folder.path();
    assert_eq!(ran(path, &[&DUMP[..], &["--no-share-prefix", "--out", "alone"]].concat(), &[]).0, 0);
    let mut stopped = 0;
    loop {
        let mut child = command(path, &auto("auto/1", "all"), &[("JOB_COMPLETION_INDEX", "0")])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Once the program has written a batch, it handles signals.
        let log = path.join("all/00001-of-00001/shards.jsonl");
        let before = fs::read(&log).map_or(0, |log| log.len());
        while fs::read(&log).map_or(0, |log| log.len()) <= before && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let signal = if stopped % 2 == 0 { libc::SIGTERM } else { libc::SIGINT };
        let kill = [format!("-{signal}"), child.id().to_string()];
        Command::new("kill").args(kill).stderr(Stdio::null()).status().unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        if output.status.success() {
            break;
        }
        assert!(said.contains("continue with the same command"), "{said}");
        assert_eq!(said.contains("resuming after"), stopped > 0, "{said}");
        match signal {
            libc::SIGTERM => assert_eq!(output.status.code(), Some(75)),
            _ => assert_eq!(output.status.signal(), Some(libc::SIGINT), "{said}"),
        }
        stopped += 1;
        if stopped == 3 {
            let (code, said) = ran(path, &["merge", "--out", "all"], &[]);
            assert!(code == 1 && said.contains("incomplete: 1/1"), "{said}");
            assert_eq!(ran(path, &auto("auto/1", "all"), &[("JOB_COMPLETION_INDEX", "0")]).0, 0);
            break;
        }
    }
    assert!(stopped > 0, "no signal came in time");
    let (code, said) = ran(path, &["merge", "--out", "all"], &[]);
    assert_eq!(code, 0, "{said}");
    assert!(packed(&path.join("alone")) == packed(&path.join("all")));
}

/// `merge` names shards that are missing, incomplete or foreign, and waits for the rest on request.
#[test]
fn merges_say_what_is_missing() {
    let folder = workshop(12);
    let path = folder.path();
    let merge = |more: &[&str]| ran(path, &[&["merge", "--out", "all"], more].concat(), &[]);
    fs::create_dir(path.join("all")).unwrap();
    assert!(merge(&[]).1.contains("no folders of shards found"));
    for id in ["0", "3"] {
        assert_eq!(ran(path, &auto("auto", "all"), &array(id, "4")).0, 0);
    }
    let (code, said) = merge(&[]);
    assert!(code == 1 && said.contains("2 of 4 shards are complete") && said.contains("missing: 2/4, 3/4"), "{said}");
    // A shard of another dump in the same folder.
    let mut other = auto("auto/4", "all");
    other[6] = "*hook_z";
    let index = |index| [("JOB_COMPLETION_INDEX", index)];
    fs::rename(path.join("all/00001-of-00004"), path.join("all/first")).unwrap();
    assert_eq!(ran(path, &other, &index("0")).0, 0);
    let (code, said) = merge(&["--wait"]);
    assert!(code == 1 && said.contains("not part of this dump") && said.contains("00001-of-00004"), "{said}");
    fs::remove_dir_all(path.join("all/00001-of-00004")).unwrap();
    // The same shard twice.
    assert_eq!(ran(path, &auto("auto/4", "all"), &index("0")).0, 0);
    let (code, said) = merge(&[]);
    assert!(code == 1 && said.contains("it is shard 1/4, but so is "), "{said}");
    fs::remove_dir_all(path.join("all/first")).unwrap();
    let waiting = command(path, &["merge", "--out", "all", "--wait"], &[])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    for id in ["1", "2"] {
        assert_eq!(ran(path, &auto("auto", "all"), &array(id, "4")).0, 0);
    }
    let output = waiting.wait_with_output().unwrap();
    assert!(output.status.success() && String::from_utf8(output.stdout).unwrap().contains("12 prompts"));
}

/// Tasks of a real Slurm array, one of them terminated and requeued, give the result of a single run.
#[cfg(target_os = "linux")]
#[test]
fn a_job_array_of_slurm() {
    if std::env::var_os("HOOKLENS_SLURM").is_none() {
        skipped("HOOKLENS_SLURM does not say that Slurm is there for tests (tests/slurm/run)");
        return;
    }
    let script = crate::support::root().join("tests/slurm/run");
    let output = Command::new(script).arg(program().get_program()).output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).to_string()).concat();
    if output.status.code() == Some(3) {
        skipped("Slurm does not start on this machine");
        return;
    }
    assert!(output.status.success() && said.contains("slurm: ok"), "{said}");
}

/// Sharded sweeps and evaluations, merged, equal unsharded ones. Existing shards are not recomputed.
#[test]
fn shares_of_results_are_joined() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let texts = (0..7).map(|at| format!("When Mary and John went to the {}, John gave\n", ["store", "park"][at % 2]));
    fs::write(path.join("prompts.txt"), texts.collect::<String>()).unwrap();
    let patch = ["patch", "--model", "embedded:ioi", "--at", "*hook_z", "--per", "head", "--ioi", "5"];
    let means = [&patch[..], &["--ablate", "mean"]].concat();
    let edges = ["attribute", "--model", "embedded:ioi", "--to", "edges", "--ioi", "5"];
    let pieces = [&edges[..], &["--integrated", "2"]].concat();
    let eval = ["features", "eval", "--model", "embedded:ioi", "--prompts", "prompts.txt", "--batch-size", "1"];
    let one = [&eval[..], &["--dictionary", "embedded:ioi-sae"]].concat();
    let all = [&eval[..], &["--dictionary", "embedded:ioi-transcoders"]].concat();
    // One share consists of a pair whose prompts are the same.
    let pair = |corrupted: &str| {
        let [clean, corrupted] =
            ["John", corrupted].map(|name| format!("When Mary and John went to the park, {name} gave a ball to"));
        format!("{}\n", json!({"clean": clean, "corrupted": corrupted, "answer": "Mary", "wrong": "John"}))
    };
    fs::write(path.join("pairs.jsonl"), ["Mary", "John", "Mary"].map(pair).concat()).unwrap();
    let pairs = ["patch", "--model", "embedded:ioi", "--at", "*hook_z", "--per", "head", "--pairs", "pairs.jsonl"];
    let asked = [
        ("patch", &patch[..]),
        ("pairs", &pairs),
        ("means", &means),
        ("edges", &edges),
        ("pieces", &pieces),
        ("one", &one),
        ("all", &all),
    ];
    for (name, asked) in asked {
        let (whole, merged) = (format!("{name}.csv"), format!("{name}-merged.csv"));
        let (code, message) = ran(path, &[asked, &["--out", &whole]].concat(), &[]);
        assert_eq!(code, 0, "{message}");
        let share = |id: &str| ran(path, &[asked, &["--shard", "auto", "--out", name]].concat(), &array(id, "3"));
        for id in ["2", "0"] {
            assert_eq!(share(id).0, 0, "{}", share(id).1);
        }
        let (code, said) = ran(path, &["merge", "--out", name], &[]);
        assert!(code == 1 && said.contains("2 of 3 shards are complete; missing: 2/3"), "{said}");
        let waiting = command(path, &["merge", "--out", name, "--wait", "--results", &merged], &[])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        assert_eq!(share("1").0, 0);
        let output = waiting.wait_with_output().unwrap();
        let joined = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{joined}{}", String::from_utf8_lossy(&output.stderr));
        let number = |cell: &str| cell.parse::<f64>().ok();
        let cells = |file: &str| -> Vec<String> {
            fs::read_to_string(path.join(file)).unwrap().split([',', '\n']).map(str::to_string).collect()
        };
        let (whole, merged) = (cells(&whole), cells(&merged));
        assert_eq!(whole.len(), merged.len(), "{name}");
        for (one, other) in whole.iter().zip(&merged) {
            let near =
                matches!((number(one), number(other)), (Some(a), Some(b)) if (a - b).abs() <= 1e-4 * a.abs().max(1.0));
            assert!(one == other || near, "{name}: {one} {other}");
        }
        // The printed output, except for notes and the output path.
        let printed = |line: &&str| !line.starts_with("->") && !line.starts_with("note:");
        let lines = |message: &str| message.lines().filter(printed).count();
        assert_eq!(lines(&message), lines(&joined), "{message}{joined}");
        let before = fs::metadata(path.join(name).join("00002-of-00003.json")).unwrap().modified().unwrap();
        let (code, said) = share("1");
        assert!(code == 0 && said.contains("shard 2/3 is already complete"), "{said}");
        // The result, without what says which command computed it.
        let numbers = |file: &str| {
            let mut result: serde_json::Value = serde_json::from_slice(&fs::read(path.join(file)).unwrap()).unwrap();
            let fields = result.as_object_mut().unwrap();
            ["command", "settings", "shards"].iter().for_each(|name| drop(fields.remove(*name)));
            result
        };
        if name == "patch" {
            let (alone, all) = ("patch.json", "patch-merged.json");
            assert_eq!(ran(path, &[asked, &["--out", alone]].concat(), &[]).0, 0);
            assert_eq!(ran(path, &["merge", "--out", name, "--results", all], &[]).0, 0);
            assert!(numbers(alone) == numbers(all), "to the last bit");
        }
        assert_eq!(fs::metadata(path.join(name).join("00002-of-00003.json")).unwrap().modified().unwrap(), before);
    }
    // A shard that is read is not overwritten, and a copy of one is not counted twice.
    let first = path.join("edges/00001-of-00003.json");
    let before = fs::read(&first).unwrap();
    let (code, said) = ran(path, &["merge", "--out", "edges", "--results", "edges/00001-of-00003.json"], &[]);
    assert!(code == 1 && said.contains("is also an input") && fs::read(&first).unwrap() == before, "{said}");
    fs::copy(&first, path.join("edges/00004-of-00003.json")).unwrap();
    let (code, said) = ran(path, &["merge", "--out", "edges"], &[]);
    assert!(code == 1 && said.contains("contains shard 1/3, so its name must be 00001-of-00003.json"), "{said}");
    fs::remove_file(path.join("edges/00004-of-00003.json")).unwrap();
    // Shards of another sweep are detected, and with more shards than prompts some are empty.
    let other = ["patch", "--model", "embedded:ioi", "--at", "*hook_z", "--per", "pos", "--ioi", "5"];
    let (code, said) = ran(path, &[&other[..], &["--shard", "1/3", "--out", "patch"]].concat(), &[]);
    assert!(code == 1 && said.contains("`per` is head, but pos was expected"), "{said}");
    let few = ["patch", "--model", "embedded:ioi", "--at", "*hook_z", "--per", "head", "--ioi", "2", "--out", "few"];
    for share in ["1/4", "2/4", "3/4", "4/4"] {
        assert_eq!(ran(path, &[&few[..], &["--shard", share]].concat(), &[]).0, 0);
    }
    let (code, said) = ran(path, &["merge", "--out", "few"], &[]);
    assert!(code == 0 && said.contains("2 prompts"), "{said}");
    let (code, said) = ran(path, &[&pieces[..], &["--shard", "1/3", "--out", "edges"]].concat(), &[]);
    assert!(code == 1 && said.contains("`integrated` is no, but 2 was expected"), "{said}");
    let (code, said) = ran(path, &[&edges[..], &["--shard", "1/3", "--out", "patch"]].concat(), &[]);
    assert!(code == 1 && said.contains("another command's results"), "{said}");
    let heads = ["attribute", "--model", "embedded:ioi", "--prompt", "When Mary", "--answer", "Mary", "--shard", "1/3"];
    let (code, said) = ran(path, &[&heads[..], &["--out", "heads"]].concat(), &[]);
    assert!(code == 2 && said.contains("--to edges"), "{said}");
    for (wrong, words) in [
        (vec!["--shard", "1/3", "--out", "file.csv"], "requires a folder"),
        (vec!["--shard", "1/3"], "--out"),
        (vec!["--shard", "auto", "--out", "x"], "SLURM_ARRAY_TASK_ID"),
        (vec!["--out", "folder"], "must end in .json"),
    ] {
        let (code, said) = ran(path, &[&patch[..], &wrong].concat(), &[]);
        assert!(code == 2 && said.contains(words), "{said}");
    }
    fs::write(path.join("few/00002-of-00004.json"), "{}").unwrap();
    let (code, said) = ran(path, &["merge", "--out", "few"], &[]);
    assert!(code == 1 && said.contains("00002-of-00004.json: not a shard of results"), "{said}");
}

/// If two processes have the same shard, one writes it and the other reports that, in every command.
#[test]
fn a_share_has_one_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("prompts.txt"), "When Mary and John went to the store\n".repeat(3)).unwrap();
    let patch =
        ["patch", "--model", "embedded:ioi", "--at", "*hook_z", "--per", "head", "--ioi", "3", "--out", "patch"];
    let edges = ["attribute", "--model", "embedded:ioi", "--to", "edges", "--ioi", "3", "--out", "edges"];
    let eval = ["features", "eval", "--model", "embedded:ioi", "--prompts", "prompts.txt", "--out", "eval"];
    let eval = [&eval[..], &["--dictionary", "embedded:ioi-sae"]].concat();
    for (name, asked) in [("patch", &patch[..]), ("edges", &edges), ("eval", &eval)] {
        let run = |shard: &str| ran(path, &[asked, &["--shard", shard]].concat(), &[]);
        fs::create_dir(path.join(name)).unwrap();
        let file = path.join(name).join("00001-of-00002.json");
        let lock = hooklens_hooks::FolderLock::take_for(&file).unwrap();
        let (code, said) = run("1/2");
        let holder = format!("00001-of-00002.json is being written by another run (process {})", std::process::id());
        assert!(code == 1 && said.contains(&holder) && !file.exists(), "{said}");
        // Other shards do not interfere.
        assert_eq!(run("2/2").0, 0);
        drop(lock);
        // Of eight concurrent processes, one writes. The others report that another process is writing, or that the
        // shard is complete.
        let arguments = [asked, &["--shard", "1/2"]].concat();
        let quiet = || command(path, &arguments, &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let at_once: Vec<_> = (0..8).map(|_| quiet()).collect();
        let mut wrote = 0;
        for run in at_once {
            let Output { status, stdout, stderr } = run.wait_with_output().unwrap();
            let said = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
            match status.code() {
                Some(0) if said.contains("shard 1/2 is already complete") => {}
                Some(0) => wrote += 1,
                code => assert!(code == Some(1) && said.contains("is being written by another run"), "{said}"),
            }
        }
        assert_eq!(wrote, 1, "{name}");
        let mut left: Vec<_> = fs::read_dir(path.join(name)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["00001-of-00002.json", "00002-of-00002.json"]);
        assert_eq!(ran(path, &["merge", "--out", name], &[]).0, 0);
    }
}

/// Points are trained in shards. A terminated shard resumes to the same dictionary, and a finished one is skipped.
#[cfg(unix)]
#[test]
fn shares_of_points_are_trained() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("prompts.txt"), "When Mary and John went to the store, John gave a drink to Mary\n".repeat(40))
        .unwrap();
    let train = [
        "features",
        "train",
        "--model",
        "embedded:ioi",
        "--prompts",
        "prompts.txt",
        "--latents",
        "256",
        "--tokens",
        "60000",
        "--batch-size",
        "100",
        "--k",
        "4",
        "--at",
        "blocks.1.hook_resid_post,blocks.2.hook_resid_post,blocks.3.hook_resid_post",
    ];
    let share = |out: &str| -> Vec<String> {
        let own = ["--shard", "auto", "--out", out];
        train.iter().chain(&own).map(|text| text.to_string()).collect()
    };
    let own = |out: &str| path.join(out).join("blocks.3.hook_resid_post/sae_weights.safetensors");
    let asked = share("whole");
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    let (code, said) = ran(path, &asked, &array("1", "2"));
    assert!(code == 0 && own("whole").exists(), "{said}");
    assert!(
        path.join("whole/blocks.2.hook_resid_post").exists() && !path.join("whole/blocks.1.hook_resid_post").exists()
    );
    assert!(!path.join("whole/00002-of-00002").exists(), "what a checkpoint was in");
    let (code, said) = ran(path, &asked, &array("1", "2"));
    assert!(code == 0 && said.contains("shard 2/2 of 3 points is already complete"), "{said}");
    // A dictionary trained with other settings or data is not accepted.
    for (more, words) in [(["--seed", "1"], "other settings"), (["--limit", "20"], "other data")] {
        let (code, said) = ran(path, &[&asked[..], &more].concat(), &array("1", "2"));
        assert!(code == 1 && said.contains(words), "{said}");
    }
    fs::remove_file(path.join("whole/blocks.3.hook_resid_post/training.json")).unwrap();
    let (code, said) = ran(path, &asked, &array("1", "2"));
    assert!(code == 1 && said.contains("without a readable training.json"), "{said}");
    let (code, said) = ran(path, &asked, &array("3", "8"));
    assert!(code == 0 && said.contains("shard 4/8 of 3 points is empty"), "{said}");

    let asked = share("cut");
    let asked: Vec<&str> =
        [&asked.iter().map(String::as_str).collect::<Vec<_>>()[..], &["--checkpoint-every", "1000"]].concat();
    let job = array("1", "2");
    let child = command(path, &asked, &job).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let checkpoint = path.join("cut/00002-of-00002/checkpoint.safetensors");
    for _ in 0..6000 {
        if checkpoint.exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(75) && said.contains("continue with the same command"), "{said}");
    assert!(!own("cut").exists());
    let (code, said) = ran(path, &asked, &job);
    assert!(code == 0 && !checkpoint.exists(), "{said}");
    assert!(fs::read(own("cut")).unwrap() == fs::read(own("whole")).unwrap());
}

/// If a dictionary was replaced by another one under the same name, no dump, sweep or evaluation resumes with it.
#[test]
fn an_exchanged_dictionary_is_another() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("prompts.txt"), "When Mary and John went to the store, John gave a drink to Mary\n".repeat(8))
        .unwrap();
    let at =
        ["--at", "blocks.2.hook_resid_post", "--latents", "32", "--tokens", "400", "--batch-size", "50", "--k", "4"];
    for seed in ["0", "9"] {
        let train = ["features", "train", "--model", "embedded:ioi", "--prompts", "prompts.txt", "--seed", seed];
        let (code, said) = ran(path, &[&train[..], &at, &["--out", seed]].concat(), &[]);
        assert_eq!(code, 0, "{said}");
    }
    let exchange = |seed: &str| {
        let _ = fs::remove_dir_all(path.join("sae"));
        fs::create_dir(path.join("sae")).unwrap();
        for entry in fs::read_dir(path.join(seed)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), path.join("sae").join(entry.file_name())).unwrap();
        }
    };
    let model = ["--model", "embedded:ioi", "--dictionary", "sae"];
    let acts = ["--hooks", "*hook_sae_acts_post", "--prompts", "prompts.txt"];
    let sweep = ["--at", "*hook_sae_acts_post", "--per", "none", "--ioi", "4"];
    for (name, asked, more) in [
        ("dump", vec!["dump"], &acts[..]),
        ("patch", vec!["patch"], &sweep),
        ("attribute", vec!["attribute", "--to", "edges"], &["--ioi", "4"]),
        ("eval", vec!["features", "eval"], &["--prompts", "prompts.txt"]),
    ] {
        let again: &[&str] = if name == "dump" { &["--resume"] } else { &[] };
        let share = |shard: &str, again: &[&str]| {
            ran(path, &[&asked[..], &model, more, &["--shard", shard, "--out", name], again].concat(), &[])
        };
        exchange("0");
        let (code, said) = share("1/2", &[]);
        assert_eq!(code, 0, "{said}");
        exchange("9");
        let (code, said) = share("1/2", again);
        assert!(code == 1 && (said.contains("(parts: ") || said.contains("dictionary` is")), "{name}: {said}");
        let (code, said) = share("2/2", &[]);
        assert_eq!(code, 0, "{said}");
        let (code, said) = ran(path, &["merge", "--out", name], &[]);
        assert!(code == 1 && (said.contains("part") || said.contains("dictionary` is")), "{name}: {said}");
    }
}
