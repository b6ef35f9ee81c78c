//! A folder of transcoders is either rejected because of its `config.yaml`, or opened.

use std::fs;
use std::path::Path;

pub(crate) fn run(bytes: &[u8]) {
    let set = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/features/circuit-tracer-set");
    let folder = tempfile::tempdir().expect("a folder");
    for entry in fs::read_dir(set).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.extension().is_some_and(|ending| ending == "safetensors") {
            // `fs::copy` fails on in-memory file systems when libFuzzer's timer interrupts it.
            let weights = fs::read(&entry).expect("weights");
            fs::write(folder.path().join(entry.file_name().expect("a name")), weights).expect("weights");
        }
    }
    fs::write(folder.path().join("config.yaml"), bytes).expect("a file");
    let _ = hooklens::features::open(folder.path());
}
