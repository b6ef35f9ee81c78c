//! A `tokenizer.json` is either rejected, or used to encode a text and decode the ids.

use hooklens::Tokenizer;

pub(crate) fn run(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("tokenizer.json"), bytes).expect("a file");
    let Ok(Some(tokenizer)) = Tokenizer::from_folder(folder.path()) else { return };
    if let Ok(ids) = tokenizer.encode("The fox's 12 é\u{301} 日本 👍🏽  <s>") {
        let _ = tokenizer.decode(&ids, true);
    }
    let _ = tokenizer.decode(&[0, 1, 2, u32::MAX], false);
}
