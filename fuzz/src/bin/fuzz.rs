//! Fuzzes the target that `FUZZ_TARGET` names. Arguments are passed to libFuzzer.
#![no_main]
#![allow(clippy::expect_used, clippy::panic)]

use std::sync::LazyLock;

use hooklens_fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;

static RUN: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET must name a target");
    let found = TARGETS.iter().find(|(target, _)| *target == name);
    found.unwrap_or_else(|| panic!("no target is named {name}")).1
});

fuzz_target!(
    init: {
        LazyLock::force(&RUN);
        // Panics of the tokenizers library become errors. Other panics still end the run.
        if ["gguf", "sentence-piece", "tokenizer"].contains(&std::env::var("FUZZ_TARGET").unwrap_or_default().as_str()) {
            std::panic::set_hook(Box::new(|_| {}));
        }
    },
    |bytes: &[u8]| RUN(bytes)
);
