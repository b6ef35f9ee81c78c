//! `proving_circuits.ipynb`, cell by cell. Written by the test that runs it; edit the notebook.

use crate::notebook_twins::{Displayed, Printed};

pub(super) fn run() -> Result<(), Box<dyn std::error::Error>> {
use hooklens::prelude::*;
use hooklens::circuits::{Adversary, Circuit, Discovery, MIB_SHARES, Selection};
use hooklens::experiments::{IoiPrompt, ioi_prompts};
use hooklens::patching::{Ablation, Metric, Patching};
use hooklens::plot::{CircuitDiagram, Line, LinePlot};
use hooklens::statistics::Statistics;

let model = HookedTransformer::from_pretrained("embedded:ioi")?;
let prompts = ioi_prompts(20, 0);

// An ablated edge carries the sender's output in the run on the corrupted prompt.
fn patching<'m>(model: &'m HookedTransformer, prompts: &[IoiPrompt]) -> Result<Patching<'m>, hooklens::Error> {
    let texts = |of: fn(&IoiPrompt) -> &str| prompts.iter().map(of).collect::<Vec<&str>>();
    let metric = Metric::logit_diff(model, texts(|own| own.answer), texts(|own| own.wrong))?;
    Patching::ablating(model, texts(|own| &own.text), Ablation::Resample(texts(|own| &own.corrupted).into()), metric)
}
let scores = patching(&model, &prompts)?.discover(&Discovery::MaskGradients(5))?;
for (sender, receiver, score) in scores.largest(8) {
    println!("{sender} -> {receiver} {score:+.2}");
}
let curve = patching(&model, &prompts)?.faithfulness(&scores, Selection::Top, &MIB_SHARES)?;
println!("CPR {:.3}, CMD {:.3}", curve.cpr()?, curve.cmd()?);
let intervals = curve.runs.intervals(&Statistics::new().resamples(1000))?;
let faithfulness = curve.runs.faithfulness()?;
let points: Vec<(f64, f64, f64, f64)> = curve.shares.iter().zip(&faithfulness).zip(&intervals)
    .map(|((share, value), interval)| (share.log10(), *value, interval.low, interval.high)).collect();
(&(LinePlot::new("share of the edges (log 10)", "share of the logit difference", [Line::banded("faithfulness", points.clone())])?)).displayed();
let circuit = Circuit::top(&scores, 47)?.pruned();
(&(CircuitDiagram::new(&circuit, Some(&scores))?.title("47 of 479 edges"))).displayed();
let stability = scores.stability(&Statistics::new().resamples(500), circuit.len())?;
let stable = stability.inclusion.iter().filter(|(_, share)| *share >= 0.95).count();
println!("{circuit}; Jaccard {:.2} over resampled prompts, {stable} edges in 95 % of them", stability.jaccard);
let found = patching(&model, &prompts)?.adversarial_ablation(&circuit, &Adversary::new().steps(10))?;
println!("faithfulness {:.2}; with the worst {} edges outside ablated {:.2}", found.all, found.ablated.len(), found.worst);
for (sender, receiver, loss) in patching(&model, &prompts)?.minimality(&circuit)?.into_iter().take(5) {
    println!("without {sender} -> {receiver}: {loss:+.2}");
}
let without: Vec<_> = circuit.edges().filter(|(sender, _)| sender.to_string() != "L1H2").collect();
let broken = Circuit::of_edges(circuit.graph(), without)?;
println!("without head L1H2: {:.2}", patching(&model, &prompts)?.run_circuits(&[broken])?.faithfulness()?[0]);
Ok(())
}
