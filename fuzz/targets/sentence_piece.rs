//! A SentencePiece model next to a vocabulary is either rejected, or used to encode a text and decode the ids.
#![no_main]

use hooklens::Tokenizer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(
    init: {
        // Panics of the tokenizers library become errors. Other panics still end the run.
        std::panic::set_hook(Box::new(|_| {}));
    },
    |bytes: &[u8]| {
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
);
