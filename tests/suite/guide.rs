//! The guide for people who come from TransformerLens leaves no name out, and names nothing there is not.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

const GUIDE: &str = include_str!("../../docs/transformer_lens.md");
const NAMES: &str = include_str!("../fixtures/transformer_lens_names.txt");

/// Cells of the guide's tables, by column.
fn cells(column: usize) -> impl Iterator<Item = &'static str> {
    GUIDE.lines().filter(|line| line.starts_with("| ")).filter_map(move |row| row.split('|').nth(column + 1))
}

/// What stands between backticks.
fn code(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_name_of_transformer_lens_is_in_the_guide() {
    let dotted = |c: char| !(c.is_alphanumeric() || c == '_' || c == '.');
    let listed: HashSet<&str> = cells(0).flat_map(code).flat_map(|code| code.split(dotted)).collect();
    let missing: Vec<&str> = NAMES.lines().filter(|name| !listed.contains(name)).collect();
    assert!(NAMES.lines().count() > 400 && missing.is_empty(), "missing: {missing:?}");
}

#[test]
fn what_the_guide_writes_in_rust_is_in_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = String::new();
    let mut folders = vec![root.join("src"), root.join("hooks/src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                sources += &fs::read_to_string(path).unwrap();
            }
        }
    }
    let other = |c: char| !(c.is_alphanumeric() || c == '_');
    let words: HashSet<&str> = sources.split(other).collect();
    let unknown = cells(1).flat_map(code).flat_map(|code| code.split(other)).filter(|word| !words.contains(word));
    assert_eq!(unknown.collect::<Vec<_>>(), [""; 0]);
    // What is called is a function, its own or one of a list that a macro reads.
    let first_names = sources.split("fn ").skip(1).filter_map(|rest| rest.split(other).next());
    let listed = sources.lines().filter_map(|line| line.trim().split_once(" \"")).map(|(name, _)| name);
    let functions: HashSet<&str> = first_names.chain(listed).chain(["into"]).collect();
    for code in cells(1).flat_map(code) {
        for (before, _) in code.match_indices('(').map(|(at, _)| code.split_at(at)) {
            let called = before.rsplit(other).next().unwrap_or_default();
            let a_function = called.starts_with(|c: char| c.is_lowercase());
            assert!(!a_function || functions.contains(called), "`{called}` in `{code}` is no function");
        }
    }
}
