//! A LoRA adapter is either rejected because of its configuration, or merged into a model.

use std::fs;
use std::path::Path;

use hooklens::prelude::*;

pub(crate) fn run(bytes: &[u8]) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let folder = tempfile::tempdir().expect("a folder");
    let weights = "adapter_model.safetensors";
    fs::copy(fixtures.join("lora-llama").join(weights), folder.path().join(weights)).expect("weights");
    fs::write(folder.path().join("adapter_config.json"), bytes).expect("a file");
    let options = LoadOptions::new().adapter(folder.path());
    let _ = HookedTransformer::from_pretrained_with(fixtures.join("llama").to_str().expect("a name"), options);
}
