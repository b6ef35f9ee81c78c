//! Real trained weights, if `HOOKLENS_TEST_MODELS` names a folder with them.

use std::fs;
use std::path::PathBuf;

use hooklens::prelude::*;
use rand::prelude::*;
use serde_json::json;

use crate::support::{has, log_probs, skipped, values};

/// The model's folder, or `None` after recording that the test did not run.
pub(crate) fn folder(name: &str) -> Option<PathBuf> {
    let found =
        std::env::var_os("HOOKLENS_TEST_MODELS").map(|root| PathBuf::from(root).join(name)).filter(|f| f.is_dir());
    if found.is_none() {
        skipped(&format!("{name} is not at hand (HOOKLENS_TEST_MODELS)"));
    }
    found
}

fn stories() -> Option<HookedTransformer> {
    folder("stories260k").map(|f| HookedTransformer::from_pretrained(f.to_str().unwrap()).unwrap())
}

/// Two layers with one head each, trained to predict the token that followed the last one before.
pub(crate) fn induction_circuit() -> Option<HookedTransformer> {
    let folder = folder("induction-circuit")?;
    let own = tempfile::tempdir().unwrap();
    fs::copy(folder.join("model.safetensors"), own.path().join("model.safetensors")).unwrap();
    let config = json!({"architectures": ["HookedTransformer"], "n_layers": 2, "n_heads": 1, "d_model": 64, "d_head": 64,
        "d_vocab": 26, "n_ctx": 8, "attn_only": true, "normalization_type": null});
    fs::write(own.path().join("config.json"), config.to_string()).unwrap();
    Some(HookedTransformer::from_pretrained(own.path().to_str().unwrap()).unwrap())
}

const PROMPT: &str = "Once upon a time, there was a little girl named Lily.";

#[test]
fn the_loss_is_the_published_one() {
    let Some(model) = stories() else { return };
    let loss: f32 = model.loss(PROMPT).unwrap().into_scalar();
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
        let last = model.forward_with(vec![ids.clone()], ForwardOptions::new().logits(Logits::Last)).unwrap();
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
    let before = log_probs(model.forward(PROMPT).unwrap());
    let folded = model.processed(&Processing::standard()).unwrap();
    let after = log_probs(folded.forward(PROMPT).unwrap());
    let worst: f32 = (after - before).abs().max().into_scalar();
    assert!(worst < 1e-4, "{worst}");
}

#[test]
fn half_precision_stays_near() {
    let Some(folder) = folder("stories260k") else { return };
    for dtype in [DType::BF16, DType::F16].into_iter().filter(|dtype| has(*dtype)) {
        let options = LoadOptions::new().dtype(dtype);
        let model = HookedTransformer::from_pretrained_with(folder.to_str().unwrap(), options).unwrap();
        let loss: f32 = model.loss(PROMPT).unwrap().into_scalar();
        assert!((loss - 0.1001).abs() < 0.03, "{dtype}: {loss}");
    }
}

/// The published circuit: on `AB..A`, layer 0 attends to the previous token, and layer 1 from the second A to the B
/// after the first one.
#[test]
fn the_induction_circuit_does_induction() {
    let Some(model) = induction_circuit() else { return };
    assert!(model.load_report().unused.is_empty());

    let mut rng = StdRng::seed_from_u64(1);
    let (mut previous, mut induction, mut right) = (0.0, 0.0, 0);
    const RUNS: usize = 200;
    for _ in 0..RUNS {
        let mut letters: Vec<u32> = (0..26).collect();
        letters.shuffle(&mut rng);
        // A at `at`, B right after it, and A again at the end.
        let (mut row, at) = (letters[..7].to_vec(), rng.random_range(1..5));
        row.push(row[at]);
        let (logits, cache) = model.run_with_cache(vec![row.clone()], "*hook_pattern").unwrap();
        let pattern = |layer: isize| values(&cache.get(hook::pattern(layer)).unwrap());
        previous += (1..8).map(|query| pattern(0)[[0, 0, query, query - 1]]).sum::<f32>() / 7.0;
        induction += pattern(1)[[0, 0, 7, at + 1]];
        right += usize::from(logits.narrow(1, 7, 1).argmax(2).into_scalar::<i32>() as u32 == row[at + 1]);
    }
    let mean = |sum: f32| sum / RUNS as f32;
    assert!(mean(previous) > 0.6, "to the previous token: {}", mean(previous));
    assert!(mean(induction) > 0.75, "from A to B: {}", mean(induction));
    assert!(right > RUNS * 8 / 10, "right after A: {right} of {RUNS}");
}

/// The program on real weights, as a new user would run it.
#[test]
fn the_program_dumps_it() {
    let Some(folder) = folder("stories260k") else { return };
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("out.safetensors");
    let run = |arguments: &[&str]| {
        let mut command = crate::support::program();
        command.arg(arguments[0]).args(["--model", folder.to_str().unwrap()]).args(&arguments[1..]);
        assert!(command.status().unwrap().success());
    };
    run(&["info"]);
    run(&["hooks"]);
    run(&[
        "dump",
        "--prompt",
        PROMPT,
        "--hooks",
        "blocks.*.hook_resid_post",
        "--logits",
        "all",
        "--process",
        "standard",
        "--out",
        file.to_str().unwrap(),
    ]);
    let bytes = fs::read(&file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tokens = tensors.tensor("tokens").unwrap().shape()[1];
    assert_eq!(tensors.tensor("blocks.4.hook_resid_post").unwrap().shape(), [1, tokens, 64]);
    assert_eq!(tensors.tensor("logits").unwrap().shape(), [1, tokens, 512]);
}
