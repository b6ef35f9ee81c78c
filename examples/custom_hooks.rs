//! Hooks that borrow local variables, hooks that persist, and hooks that are rejected.
//!
//! ```sh
//! cargo run --release --example custom_hooks
//! ```

use hooklens::prelude::*;

fn main() -> Result<(), hooklens::Error> {
    let model = HookedTransformer::from_pretrained("embedded:induction")?;
    let tokens = model.to_tokens("red fox blue tree gold red fox blue tree")?;
    let next = |logits: Tensor<3>| model.to_string(&logits.argmax_tokens()?);
    let last = || ForwardOptions::new().logits(Logits::Last);
    println!("predicts {:?}", next(model.forward_with(&tokens, last())?)?);

    // A hook may borrow local variables. This one collects the norm of the residual stream, layer by layer.
    let mut sizes = vec![];
    model.run_with_hooks(
        &tokens,
        [at("blocks.*.hook_resid_post").read(|x: Tensor<3>, at| {
            sizes.push((at.layer(), x.square().mean().sqrt().into_scalar::<f32>()));
        })],
    )?;
    println!("root mean square of the residual stream after each layer: {sizes:?}");

    // A hook created in a loop outlives the iteration, so `move` gives it ownership of the variables it uses.
    let mut fading = vec![];
    for layer in 0..model.config().n_layers() {
        let scale = 1.0 / (layer + 1) as f64;
        fading.push(hook::attn_out(layer).edit(move |out, _| out * scale));
    }
    let last_logits = last().hooks(fading);
    println!("with attention scaled down by layer it predicts {:?}", next(model.forward_with(&tokens, last_logits)?)?);

    // A scope keeps hooks for several runs, and removes them when it is dropped.
    let without_first_layer = model.hooks([hook::attn_out(0).edit(|x, _| x.zeros_like())]);
    println!("without layer 0's attention it predicts {:?}", next(without_first_layer.forward_with(&tokens, last())?)?);
    let cache = without_first_layer.record(&tokens, hook::pattern(1))?;
    println!("and its layer 1 pattern has shape {:?}", cache.get(hook::pattern(1))?.dims());

    // Invalid requests are rejected before anything runs.
    for request in ["blocks.1.attn.hook_patern", "blocks.7.attn.hook_z", "*hook_mlp_out"] {
        if let Err(error) = model.record(&tokens, request) {
            println!("{request}: {error}");
        }
    }
    Ok(())
}
