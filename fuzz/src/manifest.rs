//! A dump's manifest and log, given as one input, are either rejected, or the dump is resumed and completed.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use hooklens::dump::{Dump, merge};

use super::MODEL;

/// The names and contents of a dump's files. Each input gets a copy, which takes less time than a new dump.
static FILES: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    dump().run(&*MODEL, rows(), folder.path()).expect("a dump");
    let entries = fs::read_dir(folder.path()).expect("a folder").map(|entry| entry.expect("an entry"));
    entries
        .map(|entry| (entry.file_name().into_string().expect("a name"), fs::read(entry.path()).expect("a file")))
        .collect()
});

fn dump() -> Dump {
    Dump::new("resid_pre0").batch_size(1)
}

fn rows() -> Vec<Vec<u32>> {
    vec![vec![0, 1], vec![2, 3]]
}

fn copy(to: &Path) {
    fs::create_dir(to).expect("a folder");
    for (name, content) in FILES.iter() {
        fs::write(to.join(name), content).expect("a file");
    }
}

pub(crate) fn run(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    copy(&out);
    // A byte that does not occur in JSON separates the manifest from the log.
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    fs::write(out.join("manifest.json"), parts.next().unwrap_or_default()).expect("a file");
    fs::write(out.join("shards.jsonl"), parts.next().unwrap_or_default()).expect("a file");
    let _ = merge(folder.path(), std::slice::from_ref(&out));
    if dump().resume(true).run(&*MODEL, rows(), &out).is_ok() {
        assert!(fs::read_to_string(out.join("manifest.json")).expect("text").contains("\"complete\": true"));
    }
    // Only a merge may write outside the dump's folder.
    for entry in fs::read_dir(folder.path()).expect("a folder") {
        let name = entry.expect("an entry").file_name();
        assert!(name == "out" || name == "manifest.json", "{name:?}");
    }
}
