//! Selections of hook points and positions, and device names, are either rejected or resolved.

use hooklens::prelude::*;

use super::MODEL;

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = Selection::from(text).resolve(MODEL.catalog());
    let _ = text.parse::<Positions>();
    let _ = text.parse::<DType>();
    let _ = text.parse::<hooklens::dump::Shard>();
    // Remote devices would open a connection.
    if !text.contains("remote") {
        let _ = hooklens::parse_device(text);
    }
}
