//! First steps with a real trained model: its hook points, its attention patterns, and the effect of ablating heads.
//!
//! Takes a model folder, such as stories260K in Hugging Face's format. Without a folder, the embedded model `induction`
//! is used.
//!
//! ```sh
//! cargo run --release --example trained_model -- path/to/stories260k
//! ```

use hooklens::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given = std::env::args().nth(1);
    let (name, prompt) = match &given {
        Some(folder) => (folder.as_str(), "Once upon a time, there was a little girl named Lily."),
        None => ("embedded:induction", "king drum sun star moon king drum sun star"),
    };
    let model = HookedTransformer::from_pretrained(name)?;
    println!("{} layers, {} hook points", model.config().n_layers(), model.catalog().points().len());

    // Read: run the model once and look at a pattern.
    let tokens = model.to_tokens(prompt)?;
    let words = model.to_str_tokens(prompt)?;
    let (_, cache) = model.run_with_cache(&tokens, "blocks.*.attn.hook_pattern")?;
    let pattern = cache.activation(hook::pattern(-1))?.to_ndarray()?;
    let last = words.len() - 1;
    for head in 0..model.config().n_heads() {
        let (key, paid) = (0..=last)
            .map(|key| (key, pattern[[0, head, last, key]]))
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap_or_default();
        println!("last layer, head {head}: {:?} attends most to {:?} ({paid:.2})", words[last], words[key]);
    }

    // Edit: ablate each head and measure the effect on the loss.
    let loss: f32 = model.loss(&tokens)?.into_scalar();
    println!("loss {loss:.4}; with one head of the first layer ablated:");
    for head in 0..model.config().n_heads() {
        let without = hook::z(0).edit(|z, _| {
            let [batch, pos, _, width] = z.dims();
            z.slice_fill([0..batch, 0..pos, head..head + 1, 0..width], 0.0)
        });
        let loss: f32 =
            model.hooks([without]).run(&tokens, ForwardOptions::new().loss())?.loss.ok_or("no loss")?.into_scalar();
        println!("  head {head}: {loss:.4}");
    }

    // Save: write a file that Python can read, too.
    let path = std::env::temp_dir().join("patterns.safetensors");
    cache.save(&path)?;
    println!("{} patterns saved to {}", cache.len(), path.display());
    Ok(())
}
