//! Runs every target over its inputs in `corpus`, without instrumentation.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use hooklens_fuzz::TARGETS;

#[test]
fn every_target_handles_the_inputs_of_its_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, run) in TARGETS {
        let inputs: Vec<_> = fs::read_dir(corpus.join(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!inputs.is_empty(), "{name} has no inputs");
        for input in inputs {
            println!("{}", input.display());
            run(&fs::read(input).unwrap());
        }
        // These inputs need no files in the corpus.
        run(b"");
        run(&[0xff; 64]);
    }
}

#[test]
fn every_folder_of_inputs_has_a_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let folders: BTreeSet<String> =
        fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(folders, TARGETS.iter().map(|(name, _)| name.to_string()).collect());
}
