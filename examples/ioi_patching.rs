//! Locates the information about giver and receiver in a model: activation patching, ablation and path patching on
//! indirect object identification.
//!
//! ```sh
//! cargo run --release --example ioi_patching -- resid_pre.svg
//! ```

use hooklens::experiments::ioi_prompts;
use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver};
use hooklens::plot::Heatmap;
use hooklens::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or("resid_pre.svg".into());
    let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    let prompts = ioi_prompts(20, 0);
    println!("{}... {} ({}?)", prompts[0].text, prompts[0].answer, prompts[0].wrong);
    let (answers, wrong): (Vec<_>, Vec<_>) = prompts.iter().map(|p| (p.answer, p.wrong)).unzip();
    let (clean, corrupted): (Vec<String>, Vec<String>) =
        prompts.iter().map(|p| (p.text.clone(), p.corrupted.clone())).unzip();
    let metric = Metric::logit_diff(&model, answers, wrong)?;

    // Where in the residual stream is the information? 1 means that patching this position alone restores the clean
    // answer.
    let patching = Patching::new(&model, &clean, &corrupted, metric.clone())?;
    let stream = patching.resid_pre()?.normalized()?;
    for (at, share) in stream.largest(4) {
        println!("residual stream before layer {} at {:<9} {share:+.2}", at[0], at[1]);
    }
    Heatmap::of(&stream)?.title("resid_pre patching, normalized logit difference").save(&path)?;

    // Which heads move the information there?
    let heads = patching.attn_head_out_all_pos()?.normalized()?;
    for (at, share) in heads.largest(3) {
        println!("head L{}H{} {share:+.2}", at[0], at[1]);
    }

    // Does the model need these heads? Replace their outputs with the mean over prompts.
    let ablating = Patching::ablating(&model, &clean, Ablation::Mean(clean.clone().into()), metric)?;
    let needed = ablating.attn_head_out_all_pos()?.effect();
    for (at, change) in needed.map(|change| -change).largest(3) {
        println!("without L{}H{} the logit difference falls by {change:.2}", at[0], at[1]);
    }

    // What is the best head's direct effect on the logits, without later layers?
    let direct = patching.path_from_heads(&[Receiver::Logits], Freeze::AttentionAndMlps)?.normalized()?;
    let (best, _) = &heads.largest(1)[0];
    let (layer, head): (usize, usize) = (best[0].parse()?, best[1].parse()?);
    println!("L{layer}H{head} directly to the logits {:+.2}", direct.values()[[layer, head]]);
    println!("-> {path}");
    Ok(())
}
