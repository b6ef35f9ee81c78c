//! Forward and recording on GPT-2 small's shape with random weights: one JSON object of
//! milliseconds (minimum and median) a line of work. `benches/compare.py` runs it beside
//! TransformerLens and prints the ratios.
//!
//! ```sh
//! cargo bench --bench gpt2_shape
//! ```

use std::time::Instant;

use burn::tensor::Device;
use hooklens::prelude::*;
use hooklens::{Error, Result};

fn main() -> Result<(), Error> {
    let rounds: usize = std::env::var("HOOKLENS_BENCH_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(7);
    let model = HookedTransformer::random(TransformerConfig::gpt2_small(), 0, &Device::flex())?;
    let row = |len: u32| -> Vec<u32> { (0..len).map(|i| (i * 7919 + 13) % 50257).collect() };
    let (short, long) = (vec![row(128)], vec![row(512)]);

    let forward = |rows: &Vec<Vec<u32>>| model.forward(rows.clone(), ()).map(drop);
    let record = |selection: Selection| model.run_with_cache(short.clone(), selection).map(drop);
    time("forward_128", rounds, || forward(&short))?;
    time("forward_512", rounds, || forward(&long))?;
    time("record_all_128", rounds, || record(Selection::all()))?;
    time("record_resid_post_128", rounds, || record("blocks.*.hook_resid_post".into()))?;
    time("last_logits_128", rounds, || {
        model.forward(short.clone(), ForwardOptions::new().logits(Logits::Last)).map(drop)
    })?;
    // One hook at the first point makes every other point look its slot up: the price of not
    // being asked for.
    let hooked = model.hooks([hook::embed().read(|_, _| ())]);
    time("idle_points_128", rounds, || hooked.forward(short.clone(), ()).map(drop))
}

fn time(work: &str, rounds: usize, mut run: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    run()?;
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    println!("{{\"work\": \"{work}\", \"min_ms\": {:.2}, \"median_ms\": {:.2}}}", times[0], times[rounds / 2]);
    Ok(())
}
