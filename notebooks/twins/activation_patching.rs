//! `activation_patching.ipynb`, cell by cell. Written by the test that runs it; edit the notebook.

use crate::notebook_twins::{Displayed, Printed};

pub(super) fn run() -> Result<(), Box<dyn std::error::Error>> {
use hooklens::prelude::*;
use hooklens::patching::{Ablation, Freeze, Metric, Patching, Receiver};
use hooklens::plot::{Heatmap, LinePlot};

let model = HookedTransformer::from_pretrained("embedded:ioi")?;
let clean = "When Mary and John went to the store, John gave a drink to";
let corrupted = "When Mary and John went to the store, Mary gave a drink to";
(&(model.test_prompt(clean, "Mary", 3)?)).displayed();
let metric = Metric::logit_diff(&model, "Mary", "John")?;
let stream = Patching::new(&model, clean, corrupted, metric)?.resid_pre()?.normalized()?;
(&(Heatmap::of(&stream)?.title("resid_pre patching, share of the clean answer"))).displayed();
use hooklens::experiments::ioi_prompts;

let prompts = ioi_prompts(20, 0);
let (answers, wrong): (Vec<_>, Vec<_>) = prompts.iter().map(|p| (p.answer, p.wrong)).unzip();
let (many_clean, many_corrupted): (Vec<String>, Vec<String>) =
    prompts.iter().map(|p| (p.text.clone(), p.corrupted.clone())).unzip();
let metric = Metric::logit_diff(&model, answers, wrong)?;
let heads = Patching::new(&model, &many_clean, &many_corrupted, metric.clone())?.attn_head_out_all_pos()?;
for (at, share) in heads.normalized()?.largest(3) {
    println!("L{}H{} {share:+.2}", at[0], at[1]);
}
(&(heads)).displayed();
let direct = Patching::new(&model, &many_clean, &many_corrupted, metric.clone())?
    .path_from_heads(&[Receiver::Logits], Freeze::AttentionAndMlps)?.normalized()?;
(&(Heatmap::of(&direct)?.title("head straight to logits"))).displayed();
let means = Ablation::Mean(many_clean.clone().into());
let ablated = Patching::ablating(&model, &many_clean, means, metric.clone())?.attn_head_out_all_pos()?.effect();
(&(Heatmap::of(&ablated)?.title("change of the logit difference without the head"))).displayed();
{
    let patching = Patching::new(&model, &many_clean, &many_corrupted, metric)?;
    let estimated = patching.attribution("*hook_z")?.attn_head_out_all_pos()?.normalized()?;
    let real = heads.normalized()?;
    for (at, share) in real.largest(5) {
        let place = [at[0].parse::<usize>()?, at[1].parse::<usize>()?];
        println!("L{}H{}  patched {share:+.2}  estimated {:+.2}", at[0], at[1], estimated.values()[place]);
    }
};
Ok(())
}
