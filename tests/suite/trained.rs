//! Real trained weights, where `HOOKLENS_TEST_MODELS` names a folder that has them.

use std::path::PathBuf;

use hooklens::prelude::*;

use crate::support::log_probs;

/// The model's folder, or `None` after saying that the test did not run.
fn folder(name: &str) -> Option<PathBuf> {
    let found =
        std::env::var_os("HOOKLENS_TEST_MODELS").map(|root| PathBuf::from(root).join(name)).filter(|f| f.is_dir());
    if found.is_none() {
        eprintln!("NOT RUN: {name} is not at hand (HOOKLENS_TEST_MODELS)");
    }
    found
}

fn stories() -> Option<HookedTransformer> {
    folder("stories260k").map(|f| HookedTransformer::from_pretrained(f.to_str().unwrap()).unwrap())
}

const PROMPT: &str = "Once upon a time, there was a little girl named Lily.";

#[test]
fn the_loss_is_the_published_one() {
    let Some(model) = stories() else { return };
    let loss: f32 = model.loss(PROMPT, ()).unwrap().into_scalar();
    assert!((loss - 0.1001).abs() < 1e-3, "{loss}");
    assert!(model.load_report().unused.is_empty(), "{}", model.load_report());
}

#[test]
fn text_comes_back_as_it_was() {
    let Some(model) = stories() else { return };
    for text in [PROMPT, "She said: \"Hi!\"", "naïve café 🙂", "two  spaces"] {
        let tokens = model.to_tokens(text).unwrap();
        assert_eq!(tokens.row(0)[0], 1, "a beginning-of-sequence token");
        assert_eq!(tokens.row(0).iter().filter(|id| **id == 1).count(), 1);
        let ids = &tokens.row(0)[1..];
        assert_eq!(model.to_string(ids).unwrap().trim_start(), text);
    }
}

#[test]
fn greedy_text_is_english() {
    let Some(model) = stories() else { return };
    let mut ids = model.to_tokens(PROMPT).unwrap().row(0).to_vec();
    let start = ids.len();
    for _ in 0..40 {
        let last = model.forward(vec![ids.clone()], ForwardOptions::new().logits(Logits::Last)).unwrap();
        ids.push(last.argmax(2).into_scalar::<i32>() as u32);
    }
    let text = model.to_string(&ids[start..]).unwrap();
    assert!(
        text.trim_start().starts_with("She loved to play outside in the park. One day, she saw a big, red"),
        "{text}"
    );
}

#[test]
fn processing_keeps_its_predictions() {
    let Some(model) = stories() else { return };
    let before = log_probs(model.forward(PROMPT, ()).unwrap());
    let folded = model.processed(&Processing::standard()).unwrap();
    let after = log_probs(folded.forward(PROMPT, ()).unwrap());
    let worst: f32 = (after - before).abs().max().into_scalar();
    assert!(worst < 1e-4, "{worst}");
}

#[test]
fn half_precision_stays_near() {
    let Some(folder) = folder("stories260k") else { return };
    for dtype in [DType::BF16, DType::F16] {
        let options = LoadOptions::new().dtype(dtype);
        let model = HookedTransformer::from_pretrained_with(folder.to_str().unwrap(), options).unwrap();
        let loss: f32 = model.loss(PROMPT, ()).unwrap().into_scalar();
        assert!((loss - 0.1001).abs() < 0.03, "{dtype}: {loss}");
    }
}

/// The published circuit: layer 0 looks one token back, layer 1 from A back to B on AB..A.
#[test]
fn the_induction_circuit_does_induction() {
    let Some(folder) = folder("induction-circuit") else { return };
    let files = hooklens::WeightFiles::open(&[folder.join("model.safetensors")]).unwrap();
    assert_eq!(files.info("embed.W_E").unwrap().shape, [26, 64]);
}
