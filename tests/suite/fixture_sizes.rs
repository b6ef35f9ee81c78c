//! What a fixture may weigh. Random weights don't compress, and git keeps every version of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::support::fixtures;

/// Largest size of a fixture in bytes, except for those in `sizes.txt`.
const LARGEST: u64 = 100_000;

/// Number of fixtures that store their weights. It only decreases: new fixtures have seeded weights.
const STORED: usize = 535;

/// Folders whose entries are fixtures of their own.
const COLLECTIONS: [&str; 4] = ["features", "gguf", "graph", "quantized"];

const ADVICE: &str = "see \"Weights that are not stored\" in tests/fixtures/README.md";

/// Size of a file, or of all files in a folder.
fn size(path: &Path) -> u64 {
    if path.is_file() {
        return fs::metadata(path).unwrap().len();
    }
    fs::read_dir(path).unwrap().map(|entry| size(&entry.unwrap().path())).sum()
}

/// Names and sizes of all fixtures and scripts.
fn sizes() -> BTreeMap<String, u64> {
    let mut sizes = BTreeMap::new();
    for collection in COLLECTIONS.into_iter().chain([""]) {
        for path in fs::read_dir(fixtures().join(collection)).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.strip_prefix(fixtures()).unwrap().to_str().unwrap().replace('\\', "/");
            if !COLLECTIONS.contains(&name.as_str()) && !name.ends_with("__pycache__") {
                sizes.insert(name, size(&path));
            }
        }
    }
    sizes
}

/// Ceilings of the fixtures that were larger before there was a limit: lines of a name and a number of bytes.
fn ceilings() -> BTreeMap<String, u64> {
    let text = fs::read_to_string(fixtures().join("sizes.txt")).unwrap();
    text.lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, size)| (name.into(), size.parse().unwrap()))
        .collect()
}

#[test]
fn fixtures_are_small() {
    let (sizes, ceilings) = (sizes(), ceilings());
    let ceiling = |name: &String| ceilings.get(name).copied().unwrap_or(LARGEST);
    let large = sizes.iter().filter(|(name, size)| **size > ceiling(name));
    let large: Vec<_> = large.map(|(name, size)| format!("{name}: {size} bytes; at most {}", ceiling(name))).collect();
    assert!(large.is_empty(), "too large, {ADVICE}:\n{}", large.join("\n"));
    let needless = ceilings.keys().filter(|name| sizes.get(*name).is_none_or(|size| *size <= LARGEST));
    let needless: Vec<_> = needless.cloned().collect();
    assert!(needless.is_empty(), "not larger than {LARGEST} bytes, remove from sizes.txt: {}", needless.join(", "));
}

#[test]
fn no_fixture_is_added_with_stored_weights() {
    let stored = sizes().into_keys().filter(|name| fixtures().join(name).join("model.safetensors").is_file()).count();
    assert!(stored <= STORED, "{stored} fixtures store their weights, and {STORED} did before; {ADVICE}");
    assert!(stored == STORED, "fewer fixtures store their weights: set STORED to {stored}");
}
