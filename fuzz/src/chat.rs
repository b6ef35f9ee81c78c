//! A chat template is either rejected or rendered.

use std::sync::LazyLock;

use hooklens::{Message, Tokenizer};
use tempfile::TempDir;

/// A folder with a tokenizer.
static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let tokenizer = include_bytes!("../../crates/loading/src/embedded/induction/tokenizer.json");
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer).expect("a file");
    folder
});

pub(crate) fn run(bytes: &[u8]) {
    let Ok(template) = std::str::from_utf8(bytes) else { return };
    let folder = FOLDER.path();
    let described = serde_json::json!({"chat_template": template}).to_string();
    std::fs::write(folder.join("tokenizer_config.json"), described).expect("a file");
    let Ok(Some(tokenizer)) = Tokenizer::from_folder(folder) else { return };
    let messages =
        [Message::new("system", "Be brief."), Message::new("user", "<b>é \"x\"</b>"), Message::new("assistant", "")];
    let _ = tokenizer.chat(&messages, true);
    let _ = tokenizer.chat(&messages[..1], false);
}
