//! A PyTorch checkpoint, as a zip archive or in the older stream format, is either rejected or read completely. Code in

//! it is never run.

use hooklens::WeightFiles;
use hooklens::prelude::DType;

pub(crate) fn run(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pytorch_model.bin");
    std::fs::write(&path, bytes).expect("a file");
    let Ok(files) = WeightFiles::open(&[path]) else { return };
    let names: Vec<String> = files.tensors().map(|(name, _)| name.to_string()).collect();
    for name in names {
        let _ = files.read(&name, DType::F32);
    }
}
