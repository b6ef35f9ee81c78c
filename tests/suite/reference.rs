//! Comparisons of models with references: the report, the command, and invalid references.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use hooklens::prelude::*;
use hooklens_cli::parity_check::compare;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::seeded::fixture;
use crate::support::{fixtures, has};

fn path(case: &str) -> String {
    fixture(case).to_str().unwrap().to_string()
}

/// A fixture's golden file in the format of `scripts/reference_dump.py`.
pub(crate) fn reference(case: &str, out: &Path, rename: impl Fn(&str) -> Option<String>) {
    let file = if fixtures().join(case).join("golden.safetensors").is_file() { "golden" } else { "encoder" };
    let bytes = fs::read(fixtures().join(case).join(format!("{file}.safetensors"))).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let named: BTreeMap<String, TensorView<'_>> =
        stored.tensors().into_iter().filter_map(|(name, view)| Some((rename(&name)?, view))).collect();
    fs::write(out, safetensors::serialize(named, None).unwrap()).unwrap();
}

fn layer_of(name: &str, before: &str) -> Option<usize> {
    name.strip_prefix(before)?.parse().ok()
}

pub(crate) fn decoder(layers: usize) -> impl Fn(&str) -> Option<String> {
    move |name| match name {
        "tokens" | "logits" => Some(name.to_string()),
        _ => match (layer_of(name, "hf.hidden."), layer_of(name, "hf.attn.")) {
            (Some(layer), _) if layer < layers => Some(format!("blocks.{layer}.hook_resid_pre")),
            (_, Some(layer)) => Some(format!("blocks.{layer}.attn.hook_pattern")),
            _ => None,
        },
    }
}

#[test]
fn every_kind_of_model_is_compared() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("reference.safetensors");
    reference("gemma2", &file, decoder(2));
    let report = compare(path("gemma2"), LoadOptions::new(), &file).unwrap();
    assert_eq!(report.compared.len(), 5);
    assert!(report.first_beyond(1e-4).is_none(), "{report}");
    assert!(report.worst().unwrap().relative() > 0.0);

    reference("bert", &file, |name| match name {
        "tokens" | "logits" => Some(name.to_string()),
        "types" => Some("token_types".into()),
        _ => layer_of(name, "attn.").map(|layer| format!("blocks.{layer}.attn.hook_pattern")),
    });
    let report = compare(path("bert"), LoadOptions::new(), &file).unwrap();
    assert_eq!(report.compared.len(), 3);
    assert!(report.first_beyond(1e-4).is_none(), "{report}");

    // Padding is ignored on both sides.
    reference("t5", &file, |name| name.strip_prefix("padded.").map(str::to_string));
    let report = compare(path("t5"), LoadOptions::new(), &file).unwrap();
    assert_eq!(report.compared.len(), 1);
    assert!(report.first_beyond(1e-4).is_none(), "{report}");
}

#[test]
fn another_model_is_found_out_where_it_first_differs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("reference.safetensors");
    // A model of the same size with other weights.
    reference("llama", &file, decoder(2));
    let report = compare(path("baichuan"), LoadOptions::new(), &file).unwrap();
    assert_eq!(report.first_beyond(1e-4).unwrap().name, "blocks.0.hook_resid_pre");
    // In bf16, the same model is close, but not equal.
    if has(DType::BF16) {
        let report = compare(path("llama"), LoadOptions::new().dtype(DType::BF16), &file).unwrap();
        assert!(report.first_beyond(1e-4).is_some() && report.first_beyond(5e-2).is_none(), "{report}");
    }

    let parity = |arguments: &[&str]| crate::support::program().arg("parity").args(arguments).output().unwrap();
    let done = parity(&["--model", &path("llama"), "--reference", file.to_str().unwrap()]);
    assert!(done.status.success());
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(said.contains("blocks.1.attn.hook_pattern") && said.contains("5 tensors compared"), "{said}");
    let output = parity(&["--model", &path("baichuan"), "--reference", file.to_str().unwrap(), "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["agrees"], false);
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(why.contains("`blocks.0.hook_resid_pre` is the first"), "{why}");
}

#[test]
fn what_is_wrong_with_a_reference_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("reference.safetensors");
    let error = |case: &str| compare(path(case), LoadOptions::new(), &file).unwrap_err().to_string();
    assert!(error("gpt2").contains("reference.safetensors"), "{}", error("gpt2"));
    reference("gpt2", &file, |name| (name == "logits").then(|| "logits".into()));
    assert!(error("gpt2").contains("`tokens` is missing"), "{}", error("gpt2"));
    reference("gpt2", &file, |name| (name == "tokens").then(|| "tokens".into()));
    assert!(error("gpt2").contains("neither `logits` nor a hook point"), "{}", error("gpt2"));
    reference("gpt2", &file, |name| {
        (name == "tokens").then(|| "tokens".into()).or((name == "logits").then(|| "blocks.0.hook_resid_pree".into()))
    });
    assert!(error("gpt2").contains("blocks.0.hook_resid_pre"), "{}", error("gpt2"));
    reference("gpt2", &file, |name| {
        (name == "tokens").then(|| "tokens".into()).or((name == "logits").then(|| "blocks.0.hook_resid_pre".into()))
    });
    assert!(error("gpt2").contains("`blocks.0.hook_resid_pre` has shape [2, 7, 50]"), "{}", error("gpt2"));
    reference("gpt2", &file, |name| (name == "logits").then(|| "tokens".into()));
    assert!(error("gpt2").contains("must be a [batch, pos] table"), "{}", error("gpt2"));
    reference("t5", &file, |name| ["tokens", "logits"].contains(&name).then(|| name.into()));
    assert!(error("t5").contains("decoder_tokens"), "{}", error("t5"));
    fs::write(&file, b"nothing of the kind").unwrap();
    assert!(error("gpt2").contains("not a valid weight file"), "{}", error("gpt2"));
}
