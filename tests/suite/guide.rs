//! The guide for TransformerLens users covers every public name of TransformerLens, and mentions no name that does not
//! exist.

use std::collections::HashSet;
use std::fs;

use crate::support::root;

pub(crate) fn guide() -> String {
    fs::read_to_string(root().join("docs/transformer_lens.md")).unwrap()
}

/// Names between backticks in one column of the guide's tables.
pub(crate) fn code(guide: &str, column: usize) -> impl Iterator<Item = &str> {
    let cells = guide.lines().filter(|line| line.starts_with("| ")).filter_map(move |row| row.split('|').nth(column));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2))
}

#[test]
fn every_name_of_transformer_lens_is_in_the_guide() {
    let (guide, names) =
        (guide(), fs::read_to_string(root().join("tests/fixtures/transformer_lens_names.txt")).unwrap());
    let other = |c: char| !(c.is_alphanumeric() || c == '_' || c == '.');
    let listed: HashSet<&str> = code(&guide, 1).flat_map(|code| code.split(other)).collect();
    let missing: Vec<&str> = names.lines().filter(|name| !listed.contains(name)).collect();
    assert!(names.lines().count() > 400 && missing.is_empty(), "missing: {missing:?}");
}

#[test]
fn what_the_guide_writes_in_rust_is_in_the_source() {
    let (guide, root) = (guide(), root());
    let mut sources = String::new();
    let mut folders = vec![root.join("src"), root.join("hooks/src"), root.join("crates")];
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
    let unknown = code(&guide, 2).flat_map(|code| code.split(other)).filter(|word| !words.contains(word));
    assert_eq!(unknown.collect::<Vec<_>>(), [""; 0]);
    // Functions that are defined directly or listed in a macro call.
    let first_names = sources.split("fn ").skip(1).filter_map(|rest| rest.split(other).next());
    let listed = sources.lines().filter_map(|line| line.trim().split_once(" \"")).map(|(name, _)| name);
    let functions: HashSet<&str> = first_names.chain(listed).chain(["into"]).collect();
    for code in code(&guide, 2) {
        for (before, _) in code.match_indices('(').map(|(at, _)| code.split_at(at)) {
            let called = before.rsplit(other).next().unwrap_or_default();
            let a_function = called.starts_with(|c: char| c.is_lowercase());
            assert!(!a_function || functions.contains(called), "`{called}` in `{code}` is no function");
        }
    }
}
