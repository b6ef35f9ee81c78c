//! A compressed or plain file of prompts is either rejected or read, with the same result every time.

use hooklens::corpus::Corpus;

pub(crate) fn run(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, field) in [("a.txt", None), ("a.jsonl", None), ("a.jsonl.gz", Some("meta.text"))] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        let corpus = field.into_iter().fold(Corpus::new([&path]), Corpus::field);
        let read =
            || corpus.prompts().expect("a file").filter_map(Result::ok).map(|prompt| format!("{prompt:?}").len());
        assert_eq!(read().sum::<usize>(), read().sum::<usize>());
    }
}
