//! The embedded models do their tasks.

use hooklens::encoder::HookedEncoder;
use hooklens::experiments::head_scores;
use hooklens::prelude::*;
use rand::prelude::*;

use crate::support::{fixtures, values};

/// `<bos>`, followed by a repeated sequence of random words.
fn repeated(rng: &mut StdRng, len: usize) -> Vec<u32> {
    let once: Vec<u32> = (0..len).map(|_| rng.random_range(1..63)).collect();
    [vec![0], once.clone(), once].concat()
}

#[test]
fn it_does_induction() {
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let mut rng = StdRng::seed_from_u64(2026);
    for len in [10, 15, 20, 25] {
        let tokens = Tokens::new((0..32).map(|_| repeated(&mut rng, len)).collect()).unwrap();
        let options = ForwardOptions::new().loss_per_token().record("blocks.1.attn.hook_pattern");
        let output = model.run(&tokens, options).unwrap();
        let losses = values(&output.loss_per_token.unwrap());
        let mean = |range: std::ops::Range<usize>| {
            let len = range.len();
            losses.rows().into_iter().map(|row| row.iter().skip(range.start).take(len).sum::<f32>()).sum::<f32>()
                / (32 * len) as f32
        };
        // Entry i predicts token i + 1. The second copy's first token can't be predicted.
        let (first, second) = (mean(0..len), mean(len + 1..2 * len));
        assert!(second < first / 5.0, "of length {len}: {first} then {second}");
        let heads = head_scores(output.cache.activation("pattern1").unwrap(), &tokens).unwrap();
        let best = heads.iter().map(|head| head.induction).fold(0.0, f32::max);
        assert!(best > 0.6, "of length {len}: best induction score {best}");
    }
}

#[test]
fn it_completes_a_repeated_phrase() {
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    for (prompt, next) in [("king drum sun star king drum sun", "star"), ("red fox blue tree gold red fox", "blue")] {
        let last = model.forward_with(prompt, ForwardOptions::new().logits(Logits::Last)).unwrap();
        let id = last.argmax(2).into_scalar::<i32>() as u32;
        assert_eq!(model.to_string(&[id]).unwrap(), next, "after {prompt:?}");
    }
}

#[test]
fn it_tells_who_receives() {
    let model = HookedTransformer::from_pretrained("embedded:ioi").unwrap();
    let prompts = hooklens::experiments::ioi_prompts(200, 2026);
    let texts: Vec<String> = prompts.iter().map(|prompt| prompt.text.clone()).collect();
    let best = model.forward_with(texts, ForwardOptions::new().logits(Logits::Last)).unwrap().argmax(2);
    let best: Vec<i64> = best.into_data().convert::<i64>().try_into_vec().unwrap();
    let right = best
        .iter()
        .zip(&prompts)
        .filter(|(id, prompt)| **id == i64::from(model.to_single_token(prompt.answer).unwrap()));
    assert!(right.count() >= 195);
}

#[test]
fn it_is_small() {
    use hooklens_loading::weight_files::RawTensors;
    let info = hooklens::inspect("embedded:induction").unwrap();
    assert!(info.weights.unwrap().files.stored_bytes() <= 1 << 20);
    let info = hooklens::inspect("embedded:ioi").unwrap();
    assert!(info.weights.unwrap().files.stored_bytes() <= 4 << 20);
    assert!(hooklens::inspect("embedded:nothing").unwrap_err().to_string().contains("induction"));
}

/// `{:?}` of a model or a recording is a line, not all numbers.
#[test]
fn models_and_recordings_are_shown_in_a_line() {
    let model = HookedTransformer::from_pretrained("embedded:induction").unwrap();
    let device = hooklens_hooks::device_label(&model.device());
    let line = format!("{model:?}");
    let start = "HookedTransformer(embedded:induction, transformer_lens, 2 layers, 4 heads, d_model 64, d_mlp ";
    assert!(line.starts_with(start) && line.ends_with(&format!("f32 on {device})")), "{line}");
    let (_, cache) = model.run_with_cache("red fox blue", "*").unwrap();
    let line = format!("{cache:?}");
    let start = format!(
        "ActivationCache({} points, 1 rows, 4 positions, f32 on {device}: hook_embed [1, 4, 64], ",
        cache.len()
    );
    assert!(line.starts_with(&start) && line.ends_with(", ...)") && line.lines().count() == 1, "{line}");
    let encoder = HookedEncoder::from_pretrained(fixtures().join("bert-pretraining").to_str().unwrap()).unwrap();
    let line = format!("{encoder:?}");
    assert!(line.starts_with("HookedEncoder(") && line.len() < 300 && line.contains(", bert, 2 layers"), "{line}");
    let both = HookedEncoderDecoder::from_pretrained(fixtures().join("t5").to_str().unwrap()).unwrap();
    let line = format!("{both:?}");
    assert!(line.contains("encoder: 2 layers, ") && line.contains("decoder: 2 layers, ") && line.len() < 400, "{line}");
}
