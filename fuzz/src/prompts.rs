//! A file of prompts is either rejected or read.

pub(crate) fn run(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["prompts.txt", "prompts.jsonl"] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        let _ = hooklens::dump::read_prompts(&path);
    }
}
