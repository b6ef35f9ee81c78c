//! A compressed or plain file of prompts is either rejected or read, with the same result every time.
#![no_main]

use hooklens::corpus::Corpus;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, field) in [("a.txt", None), ("a.jsonl", None), ("a.jsonl.gz", Some("meta.text"))] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        let corpus = field.into_iter().fold(Corpus::new([&path]), Corpus::field);
        let read =
            || corpus.prompts().expect("a file").filter_map(Result::ok).map(|prompt| format!("{prompt:?}").len());
        assert_eq!(read().sum::<usize>(), read().sum::<usize>());
    }
});
