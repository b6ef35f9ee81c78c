//! A `config.json` of any family is either rejected or gives a valid configuration.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("config.json"), bytes).expect("a file");
    let _ = hooklens::inspect(folder.path().to_str().expect("a name"));
});
