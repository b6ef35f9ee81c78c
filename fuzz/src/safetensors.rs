//! A safetensors file of weights is either rejected or read completely.

use hooklens::WeightFiles;
use hooklens::prelude::DType;

pub(crate) fn run(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, bytes).expect("a file");
    let Ok(files) = WeightFiles::open(&[path]) else { return };
    let names: Vec<String> = files.tensors().map(|(name, _)| name.to_string()).collect();
    for name in names {
        // Tensors can't be larger than the file.
        if let Ok(data) = files.read(&name, DType::F32) {
            assert!(data.num_elements() <= bytes.len());
        }
    }
}
