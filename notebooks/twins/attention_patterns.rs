//! `attention_patterns.ipynb`, cell by cell. Written by the test that runs it; edit the notebook.

use crate::notebook_twins::{Displayed, Printed};

pub(super) fn run() -> Result<(), Box<dyn std::error::Error>> {
use hooklens::prelude::*;
use hooklens::plot::{AttentionPatterns, AttentionView, ColoredText, Heatmap, Line, LinePlot, PatternGrid};
use hooklens::{LabeledArray, LabeledAxis};

let model = HookedTransformer::from_pretrained("embedded:induction")?;
let prompt = "king drum sun star moon tea king drum sun star moon tea";
let patterns = AttentionPatterns::run(&model, prompt, &[])?;
(&(AttentionView::of(&patterns)?.title("all heads").start_at(1, 0)?)).displayed();
(&(PatternGrid::of(&patterns)?.title("attention patterns, embedded:induction"))).displayed();
let folder = std::env::temp_dir();
PatternGrid::of(&patterns)?.title("attention patterns").save(folder.join("patterns.svg"))?;
AttentionView::of(&patterns)?.save(folder.join("attention.html"))?;
use hooklens::experiments::head_scores;

let tokens = model.to_tokens(prompt)?;
let cache = model.record(&tokens, "*hook_pattern")?;
let (layers, heads) = (model.config().n_layers(), model.config().n_heads());
let mut scores = Vec::new();
for layer in 0..layers {
    for score in head_scores(cache.activation(("pattern", layer))?, &tokens)? {
        scores.push(f64::from(score.induction));
    }
}
let axes = [LabeledAxis::numbered("layer", layers), LabeledAxis::numbered("head", heads)];
let scores = LabeledArray::from_values(axes, scores)?;
(&(scores)).displayed();
use hooklens::Hooked;

/// Loss at each token; 0 for the first, which is not predicted.
fn losses(model: Hooked<'_, '_, HookedTransformer>, prompt: &str) -> hooklens::Result<Vec<f64>> {
    let output = model.run(prompt, ForwardOptions::new().loss_per_token())?;
    let each = Activation::from(output.loss_per_token.unwrap()).to_ndarray()?;
    Ok(std::iter::once(0.0).chain(each.iter().map(|loss| f64::from(*loss))).collect())
}
let whole = losses(model.hooks([]), prompt)?;
let ablated = losses(model.hooks([hook::z(0).edit(|z, _| z.zeros_like())]), prompt)?;
(&(ColoredText::new(model.to_str_tokens(prompt)?)
    .row("whole", whole.clone())?
    .row("without layer 0's heads", ablated.clone())?
    .title("loss at each token, nats"))).displayed();
fn line(name: &str, losses: &[f64]) -> Line {
    Line::new(name, losses.iter().enumerate().skip(1).map(|(at, loss)| (at as f64, *loss)))
}
(&(LinePlot::new("position", "loss, nats", [line("whole", &whole), line("without layer 0's heads", &ablated)])?)).displayed();
Ok(())
}
