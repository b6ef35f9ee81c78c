//! `getting_started.ipynb`, cell by cell. Written by the test that runs it; edit the notebook.

use crate::notebook_twins::{Displayed, Printed};

pub(super) fn run() -> Result<(), Box<dyn std::error::Error>> {
use hooklens::prelude::*;
let model = HookedTransformer::from_pretrained("embedded:induction")?;
(&(model)).displayed();
let phrase = "king drum sun star moon tea";
let prompt = format!("{phrase} {phrase}");
let tokens = model.to_tokens(&prompt)?;
(&(model.to_str_tokens(&prompt)?)).displayed();
let (logits, cache) = model.run_with_cache(&tokens, "*hook_pattern")?;
(&(cache)).displayed();
let pattern = cache.get(hook::pattern(1))?;
(&(pattern)).displayed();
use hooklens::experiments::head_scores;

for layer in 0..2 {
    let scores = head_scores(cache.activation(("pattern", layer))?, &tokens)?;
    for (head, score) in scores.iter().enumerate() {
        let (previous, induction) = (score.previous_token, score.induction);
        println!("L{layer}H{head}  previous token {previous:.2}  induction {induction:.2}");
    }
};
let whole: f32 = model.loss(&tokens)?.into_scalar();
let without: f32 = model.hooks([hook::attn_out(0).edit(|x, _| x.zeros_like())])
    .run(&tokens, ForwardOptions::new().loss())?.loss.unwrap().into_scalar();
println!("loss {whole:.2}, without layer 0's attention {without:.2}");
println!("{}", model.record(&tokens, "blocks.1.attn.hook_patern").unwrap_err());
Ok(())
}
