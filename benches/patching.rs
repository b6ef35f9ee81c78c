//! Patching `hook_resid_pre` at every layer and position with GPT-2 small's shape, on 16 tokens that differ at all
//! positions; then attribution patching of the same points.
//!
//! ```sh
//! cargo bench --bench patching
//! ```

use std::time::Instant;

use burn::tensor::Device;
use hooklens::Result;
use hooklens::patching::{Metric, Patching};
use hooklens::prelude::*;

fn main() -> Result<()> {
    let model = HookedTransformer::random(TransformerConfig::new(12, 768, 12, 50_257, 1024), 0, &Device::flex())?;
    let row = |seed: u32| (0..16).map(|i| (i * 7919 + seed * 31 + 13) % 50257).collect::<Vec<u32>>();
    let patching = Patching::new(&model, row(0), row(1), Metric::logit_diff(&model, 17, 42)?)?;
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        patching.resid_pre()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("patching resid_pre {:.0} ms", best * 1e3);
    for (name, points) in
        [("one point", vec!["resid_pre6"]), ("every resid_pre", vec!["*hook_resid_pre"]), ("all points", vec!["*"])]
    {
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            let start = Instant::now();
            patching.attribution(points.clone())?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        println!("attribution of {name} {:.0} ms", best * 1e3);
    }
    Ok(())
}
