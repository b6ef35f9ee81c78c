//! Generated pairs of prompts, and the command that writes them.

use std::fs;
use std::path::Path;

use hooklens::prelude::*;
use hooklens::prompt_sets::PromptSet;
use serde_json::Value;

use crate::support::program;

fn ran(folder: &Path, arguments: &str) -> (i32, String, String) {
    let output = program().current_dir(folder).args(arguments.split(' ')).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// `patch` reads what `prompts` writes, and the model solves the task.
#[test]
fn patch_reads_generated_pairs() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (code, printed, notes) = ran(folder, "prompts ioi --model embedded:ioi --count 20 --seed 0 --out p.jsonl");
    assert_eq!((code, printed.as_str()), (0, "-> p.jsonl\n"), "{notes}");
    assert!(notes.contains("note: not used: 32 of 81 words") && notes.contains("Michael"), "{notes}");
    let pairs = fs::read_to_string(folder.join("p.jsonl")).unwrap();
    assert_eq!(pairs.lines().count(), 20);
    let line: Value = serde_json::from_str(pairs.lines().next().unwrap()).unwrap();
    assert_eq!(line.as_object().unwrap().keys().collect::<Vec<_>>(), ["clean", "corrupted", "answer", "wrong"]);

    let (code, json, error) = ran(folder, "patch --model embedded:ioi --pairs p.jsonl --per none --json");
    assert_eq!(code, 0, "{error}");
    let json: Value = serde_json::from_str(&json).unwrap();
    let solved = |runs: &str, sign: f64| {
        json[runs].as_array().unwrap().iter().filter(|metric| sign * metric.as_f64().unwrap() > 0.0).count()
    };
    assert_eq!((solved("source", 1.0), solved("baseline", -1.0)), (20, 20));
}

/// The same seed gives the same bytes, a file holds what is printed, and `--quiet` leaves only that.
#[test]
fn a_seed_fixes_every_byte() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let of = |seed: u32| ran(folder, &format!("prompts ioi --model embedded:ioi --count 30 --seed {seed} -q"));
    let (code, pairs, notes) = of(3);
    assert_eq!((code, notes.as_str(), pairs.lines().count()), (0, "", 30));
    assert_eq!(of(3).1, pairs);
    assert_ne!(of(4).1, pairs);
    ran(folder, "prompts ioi --model embedded:ioi --count 30 --seed 3 --out new/p.jsonl");
    assert_eq!(fs::read_to_string(folder.join("new/p.jsonl")).unwrap(), pairs);
}

/// The library and the command give the same pairs.
#[test]
fn the_library_gives_the_pairs_of_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let (_, printed, _) = ran(folder.path(), "prompts ioi --model embedded:ioi --count 5 --seed 9");
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let found = PromptSet::Ioi.template().pairs(model.tokenizer().unwrap(), 5, 9).unwrap();
    for (pair, line) in found.pairs.iter().zip(printed.lines()) {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!([&line["clean"], &line["wrong"]], [&pair.clean, &pair.wrong]);
    }
}

/// A model whose tokenizer has no words gives an error for every set, in words about the set.
#[test]
fn models_without_the_words_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for set in PromptSet::ALL {
        let (code, printed, error) = ran(folder.path(), &format!("prompts {set} --model embedded:induction"));
        assert_eq!((code, printed.as_str()), (1, ""), "{set}");
        assert!(error.starts_with("error: too few words for `"), "{set}: {error}");
    }
}
