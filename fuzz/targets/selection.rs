//! Selections of hook points and positions, and device names, are either rejected or resolved.
#![no_main]

use std::sync::LazyLock;

use hooklens::prelude::*;
use libfuzzer_sys::fuzz_target;

static MODEL: LazyLock<HookedTransformer> =
    LazyLock::new(|| HookedTransformer::from_pretrained("embedded:induction").expect("a model"));

fuzz_target!(|text: &str| {
    let _ = Selection::from(text).resolve(MODEL.catalog());
    let _ = text.parse::<Positions>();
    let _ = text.parse::<DType>();
    let _ = text.parse::<hooklens::dump::Shard>();
    // Remote devices would open a connection.
    if !text.contains("remote") {
        let _ = hooklens::parse_device(text);
    }
});
