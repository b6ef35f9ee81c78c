//! A dump's manifest and log, given as one input, are either rejected, or the dump is resumed and completed.

use std::fs;

use hooklens::dump::{Dump, merge};

use super::MODEL;

pub(crate) fn run(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let rows = vec![vec![0, 1], vec![2, 3]];
    let dump = Dump::new("resid_pre0").batch_size(1);
    dump.run(&*MODEL, &rows, &out).expect("a dump");
    // A byte that does not occur in JSON separates the manifest from the log.
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    fs::write(out.join("manifest.json"), parts.next().unwrap_or_default()).expect("a file");
    fs::write(out.join("shards.jsonl"), parts.next().unwrap_or_default()).expect("a file");
    let _ = merge(folder.path(), std::slice::from_ref(&out));
    if dump.resume(true).run(&*MODEL, &rows, &out).is_ok() {
        assert!(fs::read_to_string(out.join("manifest.json")).expect("text").contains("\"complete\": true"));
    }
    // Only a merge may write outside the dump's folder.
    for entry in fs::read_dir(folder.path()).expect("a folder") {
        let name = entry.expect("an entry").file_name();
        assert!(name == "out" || name == "manifest.json", "{name:?}");
    }
}
