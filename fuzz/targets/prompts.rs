//! A file of prompts is either rejected or read.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["prompts.txt", "prompts.jsonl"] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        let _ = hooklens::dump::read_prompts(&path);
    }
});
