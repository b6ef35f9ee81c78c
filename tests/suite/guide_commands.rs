//! Commands in the documentation run as written: a reader can paste a page from top to bottom into an empty folder.
//!
//! Shell and Python blocks of a page run in order in one folder, and a `text` block after one shows its output. A block
//! that cannot run in a test has a comment with the reason on the line before it, `<!-- not run: needs a GPU -->`; of
//! its `hooklens` commands, only the options are checked.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use hooklens::prelude::*;
use tempfile::TempDir;

use crate::documents::{documents, prose};
use crate::once::shell::{commands, ran};
use crate::support::{program, root, skipped};

/// Why a block may be exempt.
const REASONS: [&str; 14] = [
    "builds or installs software",
    "needs a GPU",
    "needs a downloaded model",
    "needs a second machine",
    "needs an object store",
    "needs circuit-tracer",
    "needs DuckDB",
    "needs Jupyter",
    "needs Ray",
    "needs SAELens",
    "needs scikit-learn",
    "needs Slurm",
    "needs transformers",
    "needs TransformerLens",
];

/// How long the commands of a block may take.
const LONGEST: Duration = Duration::from_secs(300);

/// Languages of blocks that contain no commands.
const NO_COMMANDS: [&str; 6] = ["rust", "rust,ignore", "rust,no_run", "text", "toml", "yaml"];

/// A fenced code block.
struct Block<'a> {
    line: usize,
    language: &'a str,
    code: String,
    not_run: Option<&'a str>,
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let (mut found, mut lines, mut before) = (vec![], text.lines().enumerate(), "");
    while let Some((number, line)) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let code = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
            let code = code.map(|line| format!("{line}\n")).collect();
            let not_run = before.strip_prefix("<!-- not run: ").and_then(|reason| reason.strip_suffix(" -->"));
            found.push(Block { line: number + 1, language, code, not_run });
        }
        before = line;
    }
    found
}

/// A line without what differs between machines: `(0.0 s)` for any number of seconds, `0e-7` for any rounding error
/// of that size.
fn steady(line: &str) -> String {
    let word = |word: &str| {
        let error = word.split_once("e-").filter(|(digits, _)| digits.parse::<f64>().is_ok());
        error.map_or(word.to_string(), |(_, size)| format!("0e-{size}"))
    };
    let line = line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    let mut parts = line.split('(').map(String::from).collect::<Vec<_>>();
    for part in &mut parts[1..] {
        if let Some((seconds, rest)) = part.split_once(" s)")
            && seconds.parse::<f64>().is_ok()
        {
            *part = format!("0.0 s){rest}");
        }
    }
    parts.join("(")
}

/// Whether lines match the shown ones, where a line of `...` stands for any number of lines, and a time or a rounding
/// error for any.
fn shown_as(printed: &[&str], shown: &[&str]) -> bool {
    match (printed, shown) {
        (_, [first, rest @ ..]) if first.trim() == "..." => {
            (0..=printed.len()).any(|more| shown_as(&printed[more..], rest))
        }
        ([line, printed @ ..], [first, shown @ ..]) => steady(line) == steady(first) && shown_as(printed, shown),
        (printed, shown) => printed.is_empty() && shown.is_empty(),
    }
}

/// Runs commands in an empty folder, with `hooklens`, `python`, and `cargo run --release --` as `hooklens`.
struct Reader {
    /// `home`, `page` (the working folder), `bin`, and `options`, whose `hooklens` only checks its options.
    folder: TempDir,
}

impl Reader {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["home", "page", "bin", "options"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let hooklens = program().get_program().to_str().unwrap().to_string();
        let cargo = "[ \"$1 $2 $3\" = 'run --release --' ] || { echo \"no: cargo $*\"; exit 1; } >&2; shift 3";
        for (path, script) in [
            ("bin/hooklens", format!("exec '{hooklens}' \"$@\"")),
            ("bin/cargo", format!("{cargo}; exec '{hooklens}' \"$@\"")),
            ("bin/python", format!("exec '{}' \"$@\"", python())),
            // clap reports unknown arguments and invalid values before it prints the help.
            ("options/hooklens", format!("exec '{hooklens}' \"$@\" --help >/dev/null")),
            ("options/cargo", format!("{cargo}; exec '{hooklens}' \"$@\" --help >/dev/null")),
            ("options/srun", "exec \"$@\"".into()),
        ] {
            let path = folder.path().join(path);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { folder }
    }

    fn bash(&self, options: &[&str], code: &str, working: &str) -> Output {
        let mut bash = Command::new("bash");
        bash.args(options).args(["-c", code]).current_dir(self.folder.path().join(working));
        bash.env("HOME", self.folder.path().join("home")).env("HF_HUB_OFFLINE", "1");
        bash.env("PYTHONPATH", root().join("bindings/python/py_src")).env("PYTHONDONTWRITEBYTECODE", "1");
        bash.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let child = bash.spawn().unwrap();
        let (end, (done, finished)) = (format!("kill -9 -- -{}", child.id()), mpsc::channel::<()>());
        // Ends commands that wait for something, so that the test fails instead of waiting with them.
        let limit = thread::spawn(move || {
            if finished.recv_timeout(LONGEST) == Err(RecvTimeoutError::Timeout) {
                Command::new("bash").args(["-c", &end]).status().unwrap();
            }
        });
        let output = child.wait_with_output().unwrap();
        drop(done);
        limit.join().unwrap();
        output
    }

    /// What commands print, or the message of the one that fails.
    fn run(&self, code: &str) -> Result<String, String> {
        let code = format!("PATH='{}':\"$PATH\"\n{code}", self.folder.path().join("bin").display());
        let output = self.bash(&["-e", "-o", "pipefail"], &code, "page");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(format!("{}: {}", output.status, text(&output.stderr)))
        }
    }

    fn run_python(&self, code: &str) -> Result<String, String> {
        fs::write(self.folder.path().join("snippet.py"), code).unwrap();
        self.run("python ../snippet.py")
    }

    /// Complaints about the arguments of the `hooklens` commands in shell code. Runs no other program.
    fn check_options(&self, code: &str) -> Vec<String> {
        let code = format!("PATH='{}'\n{code}", self.folder.path().join("options").display());
        let output = self.bash(&[], &code, "home");
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        let messages = messages.lines().filter(|line| line.starts_with("error: "));
        // `hooklens serve` only exists with the feature `remote`, and a sentence may name an option without its value.
        let accepted = |line: &str| {
            line.starts_with("error: a value is required") || !cfg!(feature = "remote") && line.ends_with("'serve'")
        };
        messages.filter(|line| !accepted(line)).map(String::from).collect()
    }
}

fn python() -> String {
    std::env::var("HOOKLENS_PYTHON").unwrap_or_else(|_| "python3".into())
}

/// Whether Python has what the documentation's snippets use.
fn has_python() -> bool {
    let output = Command::new(python()).args(["-c", "import numpy, safetensors, torch"]).output();
    let has = output.is_ok_and(|output| output.status.success());
    if !has {
        skipped("Python has no numpy, safetensors or torch (HOOKLENS_PYTHON names another)");
    }
    has
}

/// Files that a page's Rust example writes to a temporary folder, and its Python snippets read.
fn write_like_rust(page: &str, folder: &Path) {
    if page == "docs/recording.md" {
        let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
        let cache = model.record("king drum sun king drum", "*hook_pattern").unwrap();
        cache.save(folder.join("cache.safetensors")).unwrap();
        cache.save(folder.join("cache.npz")).unwrap();
    }
}

/// Commands in a page's sentences, without the `...` that stands for other arguments.
fn commands_in_sentences(text: &str) -> Vec<String> {
    let text = prose(text).replace('\n', " ");
    let code = text.split('`').skip(1).step_by(2).filter(|code| code.starts_with("hooklens "));
    code.map(|code| code.replace(" ...", "")).collect()
}

/// Runs a page's blocks. Returns how many ran, and adds the reasons of the others and what fails.
fn read_page(
    page: &str,
    text: &str,
    has_python: bool,
    exempt: &mut BTreeMap<String, usize>,
    failed: &mut Vec<String>,
) -> usize {
    let reader = Reader::new();
    write_like_rust(page, &reader.folder.path().join("page"));
    let (mut ran, mut printed) = (0, None);
    let blocks = blocks(text);
    let marked = blocks.iter().filter(|block| block.not_run.is_some()).count();
    if marked != text.lines().filter(|line| line.starts_with("<!-- not run")).count() {
        failed.push(format!("{page}: a comment `<!-- not run: REASON -->` is not on the line before a block"));
    }
    for Block { line, language, code, not_run } in blocks {
        let before = std::mem::take(&mut printed);
        let mut fail = |message: &str| failed.push(format!("{page}:{line}: {}", message.trim_end()));
        let result = match (language, not_run) {
            ("text", _) => {
                let before: Option<String> = before;
                if let Some(before) = before {
                    let [given, shown] = [&before, &code].map(|text| text.lines().collect::<Vec<_>>());
                    if !shown_as(&given, &shown) {
                        fail(&format!("this is printed:\n{before}"));
                    }
                }
                continue;
            }
            ("sh" | "bash" | "python", Some(reason)) => {
                if !REASONS.contains(&reason) {
                    fail(&format!("unknown reason `{reason}`; known are {REASONS:?}"));
                }
                *exempt.entry(reason.into()).or_default() += 1;
                if language != "python" {
                    reader.check_options(&code).iter().for_each(|message| fail(message));
                }
                continue;
            }
            ("sh" | "bash", None) => reader.run(&code),
            ("python", None) if has_python => reader.run_python(&code),
            ("python", None) => continue,
            (language, None) if NO_COMMANDS.contains(&language) => continue,
            _ => Err(format!("unknown language, or a reason on a block without commands: `{language}`")),
        };
        ran += 1;
        match result {
            Ok(output) => printed = Some(output),
            Err(message) => fail(&message),
        }
    }
    for command in commands_in_sentences(text) {
        let messages = reader.check_options(&command);
        failed.extend(messages.iter().map(|message| format!("{page}: `{command}`: {message}")));
    }
    ran
}

#[test]
fn every_page_can_be_pasted_from_top_to_bottom() {
    let (mut exempt, mut failed, mut ran) = (BTreeMap::new(), vec![], 0);
    let has_python = has_python();
    for document in documents() {
        let page = document.strip_prefix(root()).unwrap().display().to_string();
        let text = fs::read_to_string(&document).unwrap();
        ran += read_page(&page, &text, has_python, &mut exempt, &mut failed);
    }
    for (reason, count) in &exempt {
        skipped(&format!("blocks of the documentation, {reason}: {count}"));
    }
    assert!(failed.is_empty(), "{} commands fail:\n{}", failed.len(), failed.join("\n"));
    assert!(ran > 20, "{ran} blocks");
}

/// Commands of a help text's examples. A line that ends in `\` continues.
fn examples(help: &str) -> Vec<String> {
    let Some((_, rest)) = help.split_once("\nExample") else { return vec![] };
    let lines = rest.lines().skip(1).take_while(|line| line.starts_with("  "));
    let lines = lines.map(|line| line.strip_prefix("  ").unwrap_or(line)).collect::<Vec<_>>().join("\n");
    lines.replace("\\\n", "").lines().map(String::from).collect()
}

/// Names of all commands, with those of their subcommands.
fn all_commands() -> Vec<Vec<String>> {
    let outer = commands(&[]).into_iter();
    let names = outer.flat_map(|outer| {
        let inner = commands(&[&outer]).into_iter().map(|inner| vec![outer.clone(), inner]).collect::<Vec<_>>();
        [vec![vec![outer]], inner].concat()
    });
    names.collect()
}

/// Examples with the user's own models or other programs are not run, and only their options are checked. Help texts
/// are printed for 80 columns: a longer line of an example would be wrapped, and could not be pasted.
#[test]
fn every_example_of_a_help_text_runs() {
    let (mut failed, mut count) = (vec![], 0);
    for name in all_commands() {
        let name: Vec<&str> = name.iter().map(String::as_str).collect();
        let (_, help, _) = ran(&[&name[..], &["--help"]].concat());
        let examples = examples(&help);
        if examples.is_empty() {
            failed.push(format!("{}: no example", name.join(" ")));
        }
        let reader = Reader::new();
        let prompts = "When Mary and John went to the store, John gave a drink to Mary\n".repeat(3);
        fs::write(reader.folder.path().join("page/prompts.txt"), prompts).unwrap();
        for example in examples {
            let messages = if ["./", "gpt2", "| man"].iter().any(|other| example.contains(other)) {
                reader.check_options(&example)
            } else {
                count += 1;
                reader.run(&example).err().into_iter().collect()
            };
            let starts = ["hooklens ", "for ", "mkdir ", "export ", "python scripts/"];
            let wrapped = !starts.iter().any(|start| example.starts_with(start));
            let wrapped = wrapped.then(|| "not a command: was a line of more than 80 columns wrapped?".to_string());
            let messages = messages.into_iter().chain(wrapped);
            failed.extend(messages.map(|message| format!("{}: {example}: {}", name.join(" "), message.trim_end())));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(count > 25, "{count} examples");
}

#[test]
fn what_differs_is_seen() {
    let printed = ["1 prompts -> a, 4.0 kB (0.3 s)", "  L1H0  0.81", "  L1H2  0.78"];
    assert!(shown_as(&printed, &["1 prompts -> a, 4.0 kB (0.0 s)", "  L1H0  0.81", "  ..."]));
    assert!(shown_as(&printed, &["...", "  L1H2  0.78"]));
    assert!(!shown_as(&printed, &["1 prompts -> a, 8.0 kB (0.0 s)", "  ..."]));
    assert!(!shown_as(&printed, &["1 prompts -> a, 4.0 kB (0.0 s)", "  L1H0  0.76", "  ..."]));
    assert!(!shown_as(&printed, &["...", "  L1H0  0.81"]));
    assert!(shown_as(&["within 8.5e-7; so"], &["within 8.7e-7; so"]));
    assert!(!shown_as(&["within 8.5e-5; so"], &["within 8.5e-7; so"]));
    let page = "Run\n\n<!-- not run: needs luck -->\n```sh\nhooklens dump --modle a | \\\n  hooklens bench\n```\n\n```sh\nfalse\n```\n\
                ```sh\necho a\n```\n\n```text\nb\n```\n\nCall `hooklens generate ... --tokn 1`.\n";
    let (mut exempt, mut failed) = (BTreeMap::new(), vec![]);
    assert_eq!(read_page("page.md", page, false, &mut exempt, &mut failed), 2);
    assert_eq!(exempt, BTreeMap::from([("needs luck".to_string(), 1)]));
    let starts = [
        "page.md:4: unknown reason `needs luck`",
        "page.md:4: error: unexpected argument '--modle'",
        "page.md:9:",
        "page.md:16: this is printed:\na",
        "page.md: `hooklens generate --tokn 1`: error: unexpected argument '--tokn'",
    ];
    assert_eq!(failed.len(), starts.len(), "{failed:#?}");
    for (message, start) in failed.iter().zip(starts) {
        assert!(message.starts_with(start), "{message}");
    }
}
