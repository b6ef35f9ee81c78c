//! A GGUF file is either rejected, or its metadata and tensors are read.

use hooklens::WeightFiles;
use hooklens::prelude::DType;

pub(crate) fn run(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).expect("a file");
    let _ = hooklens::inspect(path.to_str().expect("a name"));
    let Ok(files) = WeightFiles::open(&[path]) else { return };
    let names: Vec<String> = files.tensors().map(|(name, _)| name.to_string()).collect();
    for name in names {
        let _ = files.read(&name, DType::F32);
    }
}
