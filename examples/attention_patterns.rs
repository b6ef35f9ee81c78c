//! Classifies a model's heads by their attention patterns alone, and draws one pattern.
//!
//! ```sh
//! cargo run --release --example attention_patterns -- embedded:induction pattern.svg
//! ```

use hooklens::experiments::head_scores;
use hooklens::plot::Heatmap;
use hooklens::prelude::*;
use hooklens::{LabeledArray, LabeledAxis};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = HookedTransformer::from_pretrained(arguments.next().unwrap_or("embedded:induction".into()))?;
    let path = arguments.next().unwrap_or("pattern.svg".into());
    let phrase = "king drum sun star moon tea";
    let prompt = format!("{phrase} {phrase}");
    let tokens = model.to_tokens(&prompt)?;
    let cache = model.record(&tokens, "*hook_pattern")?;

    let mut best = (0, 0, 0.0);
    for layer in 0..model.config().n_layers() {
        let scores = head_scores(cache.activation(("pattern", layer))?, &tokens)?;
        for (head, score) in scores.iter().enumerate() {
            println!(
                "L{layer}H{head}  previous token {:.2}  duplicate token {:.2}  induction {:.2}",
                score.previous_token, score.duplicate_token, score.induction
            );
            if score.induction > best.2 {
                best = (layer, head, score.induction);
            }
        }
    }
    let (layer, head, score) = best;
    println!("best induction head: L{layer}H{head} ({score:.2}); its pattern is in {path}");

    let pattern = cache.get(hook::pattern(layer))?.narrow(1, head, 1);
    let values = Activation::from(pattern).to_ndarray()?.mapv(f64::from);
    let words = model.to_str_tokens(&prompt)?;
    let shape = ndarray::IxDyn(&[words.len(), words.len()]);
    let axes = [LabeledAxis::new("query", &words), LabeledAxis::new("key", &words)];
    let pattern = LabeledArray::new(axes, values.into_shape_with_order(shape)?)?;
    Heatmap::of(&pattern)?.title(format!("L{layer}H{head}")).save(path)?;
    Ok(())
}
