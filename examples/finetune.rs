//! Fine-tunes the embedded model `ioi`, which predicts the name of the receiver, to predict the name of the giver
//! instead.
//!
//! ```sh
//! cargo run --release --example finetune -- FOLDER
//! ```

use burn::optim::{AdamWConfig, GradientsParams};
use hooklens::experiments::{IoiPrompt, ioi_prompts};
use hooklens::prelude::*;

const STEPS: usize = 40;
const BATCH: usize = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: finetune FOLDER")?;
    let mut model = HookedTransformer::from_pretrained_with("embedded:ioi", LoadOptions::new().trainable())?;
    println!("before: {}", measure(&model)?);
    let mut optimizer = AdamWConfig::new().init();
    for step in 0..STEPS {
        let loss = loss(&model, &ioi_prompts(BATCH, step as u64))?;
        let gradients = GradientsParams::from_grads(loss.backward(), model.weights());
        model = model.map_weights(|weights| optimizer.step(1e-3, weights, gradients));
    }
    println!("after:  {}", measure(&model)?);
    model.save_pretrained(&folder)?;
    println!("loaded: {}", measure(&HookedTransformer::from_pretrained(&folder)?)?);
    Ok(())
}

/// Mean cross-entropy of the giver's name after each prompt.
fn loss(model: &HookedTransformer, prompts: &[IoiPrompt]) -> Result<Tensor<1>, Box<dyn std::error::Error>> {
    let texts: Vec<String> = prompts.iter().map(|prompt| format!("{} {}", prompt.text, prompt.wrong)).collect();
    // All prompts have the same length, and the name is the last token.
    let each = model.run(texts, ForwardOptions::new().loss_per_token())?.loss_per_token;
    let each = each.ok_or("no loss")?;
    let last = each.dims()[1] - 1;
    Ok(each.narrow(1, last, 1).mean())
}

/// Loss and accuracy on held-out prompts.
fn measure(model: &HookedTransformer) -> Result<String, Box<dyn std::error::Error>> {
    // Run without autodiff, so that no activations are kept for a backward pass.
    let model = model.clone().to_devices(&[model.device().without_autodiff()]);
    let prompts = ioi_prompts(200, 1_000_000);
    let loss = loss(&model, &prompts)?.into_scalar::<f32>();
    let mut right = 0;
    for prompt in &prompts {
        let logits = model.forward_with(&prompt.text, ForwardOptions::new().logits(Logits::Last))?;
        let best = logits.argmax(2).into_scalar::<i64>();
        right += usize::from(best == i64::from(model.to_single_token(prompt.wrong)?));
    }
    Ok(format!("loss {loss:.3}, {right} of {} givers named", prompts.len()))
}
