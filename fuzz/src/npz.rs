//! A NumPy archive is either rejected or read.

use hooklens::WeightFiles;
use hooklens::prelude::DType;

pub(crate) fn run(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("params.npz");
    std::fs::write(&path, bytes).expect("a file");
    let Ok(files) = WeightFiles::open(std::slice::from_ref(&path)) else { return };
    let names: Vec<String> = files.tensors().map(|(name, _)| name.to_string()).collect();
    for name in names {
        let _ = files.read(&name, DType::F32);
    }
    let _ = hooklens::features::open(&path);
}
