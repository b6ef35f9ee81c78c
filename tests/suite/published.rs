//! The `config.json` files of the most downloaded text models, as published, and the family of each
//! (`tests/fixtures/published.json`). No weights are needed: this is what `hooklens info` reports before downloading
//! any.

use std::collections::BTreeMap;
use std::fs;

use serde::Deserialize;
use serde_json::Value;

use crate::support::fixtures;

/// A published configuration.
#[derive(Deserialize)]
struct Published {
    /// The family that loads it, if there is one.
    family: Option<String>,
    config: Value,
}

#[test]
fn the_most_downloaded_models_are_known() {
    let text = fs::read_to_string(fixtures().join("published.json")).unwrap();
    let published: BTreeMap<String, Published> = serde_json::from_str(&text).unwrap();
    assert!(published.len() >= 50);
    let mut wrong = Vec::new();
    for (name, Published { family, config }) in &published {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let info = hooklens::inspect(folder.path().to_str().unwrap());
        match (&info, family) {
            (Ok(info), Some(family)) if info.family == family && info.weights.is_none() => {}
            (Err(_), None) => {}
            _ => wrong.push(format!("{name}: {:?}, not {family:?}", info.map(|info| info.family))),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let known = published.values().filter(|one| one.family.is_some()).count();
    assert!(known * 10 >= published.len() * 9, "{known} of {}", published.len());
}
