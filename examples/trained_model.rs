//! A real trained model, end to end: its loss, what it attends to, and what one head is worth.
//!
//! ```sh
//! cargo run --release --example trained_model -- path/to/stories260k
//! ```

use hooklens::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: trained_model MODEL_FOLDER")?;
    let model = HookedTransformer::from_pretrained(&folder)?;
    let prompt = "Once upon a time, there was a little girl named Lily.";
    let tokens = model.to_tokens(prompt)?;
    let loss: f32 = model.loss(&tokens, ())?.into_scalar();
    println!("loss on the prompt: {loss:.4}");
    Ok(())
}
