//! A `config.json` of any family is either rejected or yields a valid configuration.

pub(crate) fn run(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("config.json"), bytes).expect("a file");
    let _ = hooklens::inspect(folder.path().to_str().expect("a name"));
}
