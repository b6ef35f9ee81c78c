//! The program's built-in documentation: completions, man pages, and examples in the help of every command.

use std::fs;

use crate::support::program;

/// Returns exit code, standard output and standard error.
pub(crate) fn ran(arguments: &[&str]) -> (i32, String, String) {
    // As in a terminal of 80 columns, where long lines are wrapped.
    let output = program().args(arguments).env("COLUMNS", "80").output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// The commands of the program, or the subcommands of a command, as listed by its help.
pub(crate) fn commands(of: &[&str]) -> Vec<String> {
    let (_, help, _) = ran(&[of, &["--help"]].concat());
    let listed = help.split_once("Commands:\n").map_or("", |(_, rest)| rest.split("\n\n").next().unwrap());
    let named = listed.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = named.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    names.map(String::from).collect()
}

/// What bash offers for the last word. Words are given as bash splits them.
fn offered(words: &[&str]) -> Vec<String> {
    let script = r#"
        set -eu
        source <("$HOOKLENS" completions bash | sed "s|\"hooklens\"|$HOOKLENS|")
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) last="${@: -1}"
        [[ "$last" == [:=] ]] && last=""
        _hooklens hooklens "$last" before
        printf '%s\n' "${COMPREPLY[@]+${COMPREPLY[@]}}""#;
    let mut bash = std::process::Command::new("bash");
    bash.env("HOOKLENS", env!("CARGO_BIN_EXE_hooklens")).env_remove("HOOKLENS_MODEL");
    let output = bash.args(["-c", script, "bash", "hooklens"]).args(words).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().filter(|line| !line.is_empty()).map(String::from).collect()
}

#[test]
fn every_shell_gets_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, script, err) = ran(&["completions", shell]);
        assert_eq!((code, err.as_str()), (0, ""), "{shell}");
        assert!(script.contains("HOOKLENS_COMPLETE"), "{shell}: {script}");
        let mut asked = program();
        asked.env("HOOKLENS_COMPLETE", shell).env("HOOKLENS_COMPLETE_INDEX", "1").env("_CLAP_COMPLETE_INDEX", "1");
        let said = asked.args(["--", "hooklens", "vocab"]).output().unwrap();
        assert!(String::from_utf8_lossy(&said.stdout).contains("vocabulary"), "{shell}: {said:?}");
    }
    let (code, _, err) = ran(&["completions", "tcsh"]);
    assert!(code == 2 && err.contains("powershell"), "{err}");
}

#[test]
fn completions_know_models_and_their_points() {
    assert_eq!(offered(&["vocab"]), ["vocabulary"]);
    assert_eq!(offered(&["features", "tra"]), ["train"]);
    assert_eq!(offered(&["patch", "--per", "hea"]), ["head"]);
    assert_eq!(offered(&["prompts", "g"]), ["greater-than", "gender-bias"]);
    assert_eq!(offered(&["hooks", "--model", "embedded", ":"]), ["induction", "ioi"]);
    assert_eq!(offered(&["hooks", "--model", "=", "embedded", ":", "ind"]), ["induction"]);
    assert_eq!(offered(&["features", "eval", "--dictionary", "embedded", ":", "ioi-s"]), ["ioi-sae"]);
    let ioi = ["--model", "embedded", ":", "ioi"];
    let of = |command: &[&str], rest: &[&str]| offered(&[command, &ioi, rest].concat());
    assert_eq!(of(&["attention"], &["--layers", "0,"]), ["0,0", "0,1", "0,2", "0,3"]);
    let points = ["blocks.1.hook_resid_pre", "blocks.1.hook_resid_mid", "blocks.1.hook_resid_post"];
    assert_eq!(of(&["features", "train"], &["--at", "blocks.1.hook_resid_"]), points);
    let globs = of(&["dump"], &["--hooks", "*hook_z,blocks.*.attn.hook_p"]);
    assert_eq!(globs, ["*hook_z,blocks.*.attn.hook_pattern"]);
    // Nothing is fetched for a completion.
    assert!(offered(&["hooks", "--model", "nowhere/nothing", "--hooks", "b"]).is_empty());
}

#[test]
fn man_has_a_page_for_the_program_and_for_each_command() {
    let (code, page, _) = ran(&["man"]);
    assert_eq!(code, 0);
    assert!(page.contains(".TH hooklens 1") && page.contains("hooklens\\-dump(1)"), "{page}");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("share/man1");
    let (code, said, err) = ran(&["man", "--out", out.to_str().unwrap()]);
    assert_eq!((code, err.as_str()), (0, ""));
    let pages = fs::read_dir(&out).unwrap().count();
    assert!(pages > commands(&[]).len() + 1 && said.contains(&format!("{pages} pages")), "{said}");
    assert!(out.join("hooklens-features-train.1").is_file());
    assert_eq!(fs::read_to_string(out.join("hooklens.1")).unwrap(), page);
    for command in commands(&[]) {
        let page = fs::read_to_string(out.join(format!("hooklens-{command}.1"))).unwrap();
        assert!(page.contains(&format!(".TH hooklens-{command} 1")) && page.contains("Example"), "{page}");
    }
    let file = out.join("hooklens.1");
    let (code, _, err) = ran(&["man", "--out", file.to_str().unwrap()]);
    assert!(code == 1 && err.contains("hooklens.1"), "{err}");
}

#[test]
fn every_help_has_an_example() {
    let commands = commands(&[]);
    assert!(commands.len() >= 15, "{commands:?}");
    for command in commands {
        let (code, help, _) = ran(&[&command, "--help"]);
        assert!(code == 0 && help.contains("Example") && help.contains(&format!("hooklens {command}")), "{help}");
    }
}
