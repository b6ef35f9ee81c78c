//! Compares attribution patching with activation patching, to show how well gradients predict the effects of patches.
//! Then lists the strongest edges of the circuit.
//!
//! ```sh
//! cargo run --release --example attribution_patching
//! ```

use std::time::Instant;

use hooklens::attribution::Gradient;
use hooklens::experiments::ioi_prompts;
use hooklens::patching::{Metric, Patching};
use hooklens::prelude::*;

fn main() -> hooklens::Result<()> {
    let model = HookedTransformer::from_pretrained("embedded:ioi")?;
    let prompts = ioi_prompts(20, 0);
    let (answers, wrong): (Vec<_>, Vec<_>) = prompts.iter().map(|p| (p.answer, p.wrong)).unzip();
    let clean: Vec<String> = prompts.iter().map(|p| p.text.clone()).collect();
    let corrupted: Vec<String> = prompts.iter().map(|p| p.corrupted.clone()).collect();
    let patching = Patching::new(&model, &clean, &corrupted, Metric::logit_diff(&model, answers, wrong)?)?;

    let start = Instant::now();
    let real = patching.attn_head_out_by_pos()?.effect();
    let patched = start.elapsed().as_secs_f64();
    let start = Instant::now();
    // Two forward passes and one backward pass per prompt, for any number of points.
    let estimated = patching.attribution("*hook_z")?.attn_head_out_by_pos()?.effect();
    let attributed = start.elapsed().as_secs_f64();

    println!("{:<26} {:>9} {:>9}", "head", "patched", "estimated");
    for (at, _) in real.map(|effect| effect.abs()).largest(5) {
        let place = |axis: usize| real.axes()[axis].labels.iter().position(|label| label == at[axis]).unwrap_or(0);
        let at_place = [place(0), place(1), place(2)];
        let name = format!("L{}H{} at {}", at[0], at[2], at[1]);
        println!("{name:<26} {:>+9.2} {:>+9.2}", real.values()[at_place], estimated.values()[at_place]);
    }
    let pairs: Vec<(f64, f64)> = real.values().iter().copied().zip(estimated.values().iter().copied()).collect();
    let mean = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / pairs.len() as f64;
    let (x, y) = (mean(|pair| pair.0), mean(|pair| pair.1));
    let sum = |of: &dyn Fn(f64, f64) -> f64| pairs.iter().map(|pair| of(pair.0 - x, pair.1 - y)).sum::<f64>();
    let correlation = sum(&|a, b| a * b) / (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt();
    println!(
        "correlation {correlation:.2} over {} patches; patching {:.0} ms, estimating {:.0} ms",
        pairs.len(),
        patched * 1e3,
        attributed * 1e3
    );

    for (name, gradient) in [("EAP", Gradient::AtBase), ("EAP-IG", Gradient::Integrated(10))] {
        println!("{name}, strongest edges:");
        for (sender, receiver, score) in patching.edges(gradient)?.largest(5) {
            println!("  {sender} -> {receiver}  {score:+.2}");
        }
    }
    Ok(())
}
