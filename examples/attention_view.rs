//! Writes a page for exploring every head's attention pattern in a browser, and a page that colors each token by one
//! coordinate of the residual stream.
//!
//! ```sh
//! cargo run --release --example attention_view -- embedded:induction attention.html stream.html
//! ```

use hooklens::plot::{AttentionPatterns, AttentionView, ColoredText};
use hooklens::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = HookedTransformer::from_pretrained(arguments.next().unwrap_or("embedded:induction".into()))?;
    let view = arguments.next().unwrap_or("attention.html".into());
    let text = arguments.next().unwrap_or("stream.html".into());
    let phrase = "king drum sun star moon tea";
    let prompt = format!("{phrase} {phrase}");

    let tokens = model.to_tokens(&prompt)?;
    let cache = model.record(&tokens, ["*hook_pattern", "*hook_resid_post"])?;
    let patterns = AttentionPatterns::of(&model, &cache, &tokens, 0)?;
    AttentionView::of(&patterns)?.title(&prompt).start_at(1, 0)?.save(&view)?;

    // One row of colors for each layer.
    let mut colors = ColoredText::new(model.to_str_tokens(&prompt)?).title("coordinate 7 of the stream");
    for layer in 0..model.config().n_layers() {
        let stream = cache.get(hook::resid_post(layer))?; // [batch, pos, d_model]
        colors = colors.row(format!("after layer {layer}"), stream.narrow(2, 7, 1).to_vec()?)?;
    }
    colors.save(&text)?;
    println!("wrote {view} with every head, and {text} with one coordinate");
    Ok(())
}
