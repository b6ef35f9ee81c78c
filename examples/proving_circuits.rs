//! Discovers a circuit of indirect object identification, proves it, breaks it, and shows its uncertainty.
//!
//! ```sh
//! cargo run --release --example proving_circuits
//! ```

use hooklens::circuits::{Adversary, Circuit, Discovery, MIB_SHARES, Selection};
use hooklens::experiments::ioi_prompts;
use hooklens::patching::{Ablation, Metric, Patching};
use hooklens::plot::{Line, LinePlot};
use hooklens::prelude::*;
use hooklens::statistics::Statistics;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    let prompts = ioi_prompts(20, 0);
    let (clean, corrupted): (Vec<String>, Vec<String>) =
        prompts.iter().map(|p| (p.text.clone(), p.corrupted.clone())).unzip();
    let (answers, wrong): (Vec<_>, Vec<_>) = prompts.iter().map(|p| (p.answer, p.wrong)).unzip();
    let metric = Metric::logit_diff(&model, answers, wrong)?;
    // Ablated edges carry what the sender wrote on the corrupted prompt.
    let patching = Patching::ablating(&model, clean, Ablation::Resample(corrupted.into()), metric)?;

    // Discover: gradients, averaged over steps that ablate all edges by a growing fraction.
    let scores = patching.discover(&Discovery::MaskGradients(5))?;
    for (sender, receiver, score) in scores.largest(8) {
        println!("{:<6} -> {:<8} {score:+.2}", sender.to_string(), receiver.to_string());
    }

    // Prove: how much of the logit difference do circuits of growing size recover?
    let curve = patching.faithfulness(&scores, Selection::Top, &MIB_SHARES)?;
    println!("CPR {:.3}, CMD {:.3}", curve.cpr()?, curve.cmd()?);
    let intervals = curve.runs.intervals(&Statistics::new().resamples(1000))?;
    let faithfulness = curve.runs.faithfulness()?;
    let points = curve.shares.iter().zip(&faithfulness).zip(&intervals);
    let points = points.map(|((share, value), within)| (share.log10(), *value, within.low, within.high));
    let line = Line::banded("faithfulness", points.collect::<Vec<_>>());
    let plot = LinePlot::new("share of the edges (log 10)", "share of the logit difference", [line])?;
    println!("{} bytes of SVG", plot.to_svg()?.len());

    // Is it the same circuit on other prompts, and does it survive an adversary?
    let circuit = Circuit::top(&scores, 47)?.pruned();
    let stability = scores.stability(&Statistics::new().resamples(500), circuit.len())?;
    let stable = stability.inclusion.iter().filter(|(_, share)| *share >= 0.95).count();
    println!("{circuit}; Jaccard {:.2} over resampled prompts, {stable} edges in 95 % of them", stability.jaccard);
    let found = patching.adversarial_ablation(&circuit, &Adversary::new().steps(10))?;
    println!("faithfulness {:.2}; the worst {} edges ablated: {:.2}", found.all, found.ablated.len(), found.worst);

    // Break: remove one edge at a time, and then a head.
    for (sender, receiver, loss) in patching.minimality(&circuit)?.into_iter().take(5) {
        println!("without {sender} -> {receiver}: {loss:+.2}");
    }
    let without = circuit.edges().filter(|(sender, _)| *sender != hooklens::attribution::Sender::Head(1, 2));
    let broken = Circuit::of_edges(circuit.graph(), without.collect::<Vec<_>>())?;
    println!("without head L1H2: {:.2}", patching.run_circuits(&[broken])?.faithfulness()?[0]);
    Ok(())
}
