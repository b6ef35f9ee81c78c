//! A SentencePiece model next to a vocabulary is either rejected, or used to encode a text and decode the ids.

use hooklens::Tokenizer;

pub(crate) fn run(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["source.spm", "target.spm"] {
        std::fs::write(folder.path().join(name), bytes).expect("a file");
    }
    let vocabulary = r#"{"</s>": 0, "<unk>": 1, "a": 2, "<pad>": 3}"#;
    std::fs::write(folder.path().join("vocab.json"), vocabulary).expect("a file");
    let Ok(Some(tokenizer)) = Tokenizer::from_folder(folder.path()) else { return };
    if let Ok(ids) = tokenizer.encode(">>x<< The fox's 12 é\u{301} 日本 👍🏽  <s></s>") {
        let _ = tokenizer.decode(&ids, true);
    }
}
