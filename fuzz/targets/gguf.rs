//! A GGUF file is either rejected, or described and its tensors read.
#![no_main]

use hooklens::WeightFiles;
use hooklens::prelude::DType;
use libfuzzer_sys::fuzz_target;

fuzz_target!(
    init: {
        // Panics of the tokenizers library become errors. Other panics still end the run.
        std::panic::set_hook(Box::new(|_| {}));
    },
    |bytes: &[u8]| {
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
);
