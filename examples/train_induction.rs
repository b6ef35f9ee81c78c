//! Trains the embedded model `induction`: a two-layer, attention-only transformer that learns induction.
//!
//! The data consists of random words, with one sequence repeated. In the repetition, the model can predict each word
//! from its first occurrence. This takes two heads that work in sequence: a previous-token head and an induction head
//! (Olsson et al. 2022). Training takes a few minutes on two cores, and the result is determined by the seed.
//!
//! ```sh
//! cargo run --release --example train_induction -- induction
//! cargo run --release --example measure_induction -- induction
//! ```

use burn::optim::{AdamWConfig, GradientsParams};
use hooklens::prelude::*;
use hooklens::{NormKind, Positional};
use rand::prelude::*;

const WORDS: u32 = 62;
const BATCH: usize = 64;
const PEAK: f64 = 3e-3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: train_induction FOLDER [STEPS]")?;
    let steps: usize = arguments.next().map_or(Ok(6000), |text| text.parse())?;
    let config = TransformerConfig::new(2, 64, 4, WORDS as usize + 1, 72)
        .with_attn_only(true)
        .with_positional(Positional::Shortformer)
        .with_norm(NormKind::LayerNorm);
    let device = Device::flex().autodiff();
    let mut model = HookedTransformer::random(config, 0, &device)?;
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.01).init();
    let mut rng = StdRng::seed_from_u64(0);
    for step in 0..steps {
        let len = 24 + 8 * (step % 7);
        let tokens = Tokens::new((0..BATCH).map(|_| sample(&mut rng, len)).collect())?;
        let loss = model.loss(&tokens)?;
        if step % 200 == 0 || step + 1 == steps {
            println!("step {step:5}  loss {:.4}", loss.clone().into_scalar::<f32>());
        }
        let gradients = GradientsParams::from_grads(loss.backward(), model.weights());
        // A short warm-up, then cosine decay to zero.
        let done = step as f64 / steps as f64;
        let rate = PEAK * (step as f64 / 100.0).min(1.0) * 0.5 * (1.0 + (done * std::f64::consts::PI).cos());
        model = model.map_weights(|weights| optimizer.step(rate, weights, gradients));
    }
    model.save_pretrained(&folder)?;
    // The tokenizer takes the id of the BOS token from the configuration.
    let path = std::path::Path::new(&folder).join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    config["bos_token_id"] = 0.into();
    std::fs::write(&path, format!("{config:#}\n"))?;
    Ok(())
}

/// Random words after a BOS token. One sequence of them is repeated, immediately or after some other words, as often as
/// needed to fill the row.
fn sample(rng: &mut StdRng, len: usize) -> Vec<u32> {
    let mut row = vec![0];
    let words = |rng: &mut StdRng, count: usize| (0..count).map(|_| rng.random_range(1..=WORDS)).collect::<Vec<_>>();
    let count = rng.random_range(0..6);
    row.extend(words(rng, count));
    let count = rng.random_range(3..=len / 2);
    let stretch = words(rng, count);
    while row.len() < len {
        row.extend(&stretch);
        if rng.random_bool(0.3) {
            let count = rng.random_range(1..4);
            row.extend(words(rng, count));
        }
    }
    row.truncate(len);
    row
}
