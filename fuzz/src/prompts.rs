//! A file of prompts is either rejected or read.

use hooklens::corpus::Corpus;

pub(crate) fn run(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["prompts.txt", "prompts.jsonl"] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        let prompts = Corpus::new([&path]).prompts().expect("a file");
        let _ = prompts.collect::<Result<Vec<_>, _>>();
    }
}
