//! Object stores, with a real server and in builds without support.

#[cfg(feature = "object-stores")]
#[cfg(feature = "object-stores")]
use std::process::Command;

#[cfg(not(feature = "object-stores"))]
use hooklens::corpus::Corpus;

use crate::support::program;
#[cfg(feature = "object-stores")]
use crate::support::skipped;

/// Corpora read from a real S3 server, dumps written to it, and dictionaries trained on them equal those of local
/// files, in pieces and despite failures.
#[cfg(all(unix, feature = "object-stores"))]
#[test]
fn a_real_server() {
    let Some(rclone) = std::env::var_os("HOOKLENS_OBJECT_STORES") else {
        skipped("HOOKLENS_OBJECT_STORES does not name rclone, an S3 server (tests/object_stores/run)");
        return;
    };
    let script = crate::support::root().join("tests/object_stores/run");
    let mut run = Command::new(script);
    // On the CPU, where results are reproducible to the byte.
    run.arg(program().get_program()).arg(rclone).env("HOOKLENS_DEVICE", "flex");
    match std::env::var_os("HOOKLENS_AZURITE") {
        Some(azurite) => drop(run.arg(azurite)),
        None => skipped("HOOKLENS_AZURITE does not name azurite-blob, a server as Azure's"),
    }
    let output = run.output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).to_string()).concat();
    if output.status.code() == Some(3) {
        skipped("the S3 server does not start on this machine");
        return;
    }
    assert!(output.status.success() && said.contains("object stores: ok"), "{said}");
}

/// A build without support says how to build it in.
#[cfg(not(feature = "object-stores"))]
#[test]
fn urls_say_what_is_missing() {
    let error = Corpus::new(["s3://bucket/a.jsonl"]).prompts().unwrap().next().unwrap().unwrap_err();
    let message = hooklens::error_chain(&error);
    assert!(message.contains("s3://bucket/a.jsonl") && message.contains("--features object-stores"), "{message}");
    let message = hooklens::dump::ActivationStore::new(["s3://bucket/dump"], ["blocks.0.hook_resid_post"]).batches();
    let message = hooklens::error_chain(&message.unwrap_err());
    assert!(message.contains("s3://bucket/dump") && message.contains("--features object-stores"), "{message}");
    let train = ["features", "train", "--model", "embedded:induction", "--at", "blocks.0.hook_resid_pre"];
    let rest = ["--latents", "4", "--k", "2", "--out", "x", "--dump", "s3://bucket/dump"];
    let output = program().args(train).args(rest).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("--features object-stores"), "{said}");
    for arguments in [["--prompt", "red fox"], ["--prompts", "s3://bucket/*.jsonl"]] {
        let rest = ["dump", "--model", "embedded:induction", "--out", "s3://bucket/dump"];
        let output = program().args(rest).args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains("--features object-stores"), "{said}");
    }
}
