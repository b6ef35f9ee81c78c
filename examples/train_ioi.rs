//! Trains the embedded model `ioi`, a four-layer transformer that solves indirect object identification.
//!
//! The sentences come from a small grammar (`hooklens::experiments::ioi_text`): two people meet, and one of them gives
//! something to the other. To predict who receives it, a model must notice which name occurred twice and name the other
//! one (Wang et al. 2022). Training takes a few minutes on two cores, and the result is determined by the seed.
//!
//! ```sh
//! cargo run --release --example train_ioi -- src/embedded/ioi
//! cargo run --release --example train_ioi -- --check embedded:ioi
//! ```

use std::path::Path;

use burn::optim::{AdamWConfig, GradientsParams};
use hooklens::PaddingSide;
use hooklens::experiments::{ioi_prompts, ioi_text};
use hooklens::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const BATCH: usize = 64;
const STEPS: usize = 3000;
const PEAK: f64 = 2e-3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--check", model] => measure(&HookedTransformer::from_pretrained(model)?),
        [folder] => train(folder),
        _ => Err("usage: train_ioi FOLDER | --check MODEL".into()),
    }
}

/// Trains a model. `folder` must contain the tokenizer, and the weights are saved there.
fn train(folder: &str) -> Result<(), Box<dyn std::error::Error>> {
    let tokenizer = hooklens::Tokenizer::from_folder(Path::new(folder))?.ok_or("no tokenizer.json in the folder")?;
    let config = TransformerConfig::new(4, 64, 4, tokenizer.vocab_size(), 48);
    let device = Device::flex().autodiff();
    let mut model = HookedTransformer::random(config, 0, &device)?;
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.05).init();
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    for step in 0..STEPS {
        let rows = (0..BATCH).map(|_| Ok([vec![0], tokenizer.encode(&ioi_text(&mut rng))?].concat()));
        let tokens = Tokens::padded(&rows.collect::<hooklens::Result<Vec<_>>>()?, 0, PaddingSide::Right)?;
        let loss = model.loss(&tokens)?;
        if step % 200 == 0 || step + 1 == STEPS {
            println!("step {step:5}  loss {:.4}", loss.clone().into_scalar::<f32>());
        }
        let gradients = GradientsParams::from_grads(loss.backward(), model.weights());
        // A short warm-up, then cosine decay to zero.
        let done = step as f64 / STEPS as f64;
        let rate = PEAK * (step as f64 / 100.0).min(1.0) * 0.5 * (1.0 + (done * std::f64::consts::PI).cos());
        model = model.map_weights(|weights| optimizer.step(rate, weights, gradients));
    }
    model.save_pretrained(folder)?;
    // The tokenizer takes the id of the BOS token from the configuration.
    let path = Path::new(folder).join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    config["bos_token_id"] = 0.into();
    std::fs::write(&path, format!("{config:#}\n"))?;
    measure(&HookedTransformer::from_pretrained(folder)?)
}

/// Prints how often the model ranks the receiver's name first on held-out sentences.
fn measure(model: &HookedTransformer) -> Result<(), Box<dyn std::error::Error>> {
    let prompts = ioi_prompts(200, 1_000_000);
    let mut right = 0;
    for prompt in &prompts {
        let logits = model.forward_with(&prompt.text, ForwardOptions::new().logits(Logits::Last))?;
        let best = logits.argmax(2).into_scalar::<i64>();
        right += usize::from(best == i64::from(model.to_single_token(prompt.answer)?));
    }
    println!("{right} of {} answers correct", prompts.len());
    Ok(())
}
