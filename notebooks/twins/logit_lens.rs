//! `logit_lens.ipynb`, cell by cell. Written by the test that runs it; edit the notebook.

use crate::notebook_twins::{Displayed, Printed};

pub(super) fn run() -> Result<(), Box<dyn std::error::Error>> {
use hooklens::prelude::*;
use hooklens::plot::{LensShade, LensTable, LinePlot};
use hooklens::{LabeledArray, LabeledAxis};

let model = HookedTransformer::from_pretrained("embedded:ioi")?;
let prompt = "When Mary and John went to the store, John gave a drink to";
(&(LensTable::run(&model, prompt, LensShade::Probability)?.title("logit lens"))).displayed();
let mary = model.to_single_token("Mary")?;
(&(LensTable::run(&model, prompt, LensShade::ProbabilityOf(mary))?.positions(-6..)?)).displayed();
LensTable::run(&model, prompt, LensShade::Entropy)?.title("logit lens").save(std::env::temp_dir().join("lens.svg"))?;
let cache = model.record(prompt, Record::all())?;
let lens = model.analyze(&cache)?.positions(-1)?.logit_lens(Per::Layer)?;
let john = model.to_single_token("John")?;
let both: Vec<f32> = [lens.prob(mary)?, lens.prob(john)?].into_iter().flatten().collect();
let axes = [LabeledAxis::new("token", ["Mary", "John"]), LabeledAxis::new("stage", &lens.labels)];
let both = LabeledArray::from_values(axes, both)?;
(&(LinePlot::of(&both)?.value("probability behind the prompt"))).displayed();
use hooklens::activations::Stage;

{
    let analysis = model.analyze(&cache)?.positions(-1)?;
    let parts = analysis.stack_head_results(Stage::Final)?;
    let shares = Activation::from(analysis.logit_attrs(&parts, Direction::token("Mary").minus("John"))?).to_ndarray()?;
    let mut order: Vec<(&String, f32)> = parts.labels().iter().zip(shares.iter().copied()).collect();
    order.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    for (label, share) in &order[..5] {
        println!("{label:<8} {share:+.2}");
    }
    let total: f32 = order.iter().map(|(_, share)| share).sum();
    println!("all      {total:+.2}");
};
Ok(())
}
