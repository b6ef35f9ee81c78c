//! A selection of hook points, positions, and names of devices: refused, or resolved.
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
    // Others would connect to what is named.
    if !text.contains("remote") {
        let _ = hooklens::parse_device(text);
    }
});
