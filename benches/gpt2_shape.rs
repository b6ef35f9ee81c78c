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
    time("idle_points_128", rounds, || hooked.forward(short.clone(), ()).map(drop))?;
    // In turns, so that a slow spell of the machine falls on both.
    let (mut plain, mut recorded) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        plain.push(decode(&model, &short, Selection::none())?);
        recorded.push(decode(&model, &short, "blocks.6.hook_resid_post".into())?);
    }
    report("decode_32_behind_128", plain);
    report("decode_32_behind_128_recorded", recorded);
    Ok(())
}

/// Milliseconds to generate 32 tokens behind a prompt, the prompt's own run left out.
fn decode(model: &HookedTransformer, prompt: &[Vec<u32>], record: Selection) -> Result<f64, Error> {
    let options = GenerateOptions::new().max_new_tokens(33).stop_at_eos(false).record(record);
    let mut steps = model.generate_steps(prompt.to_vec(), options)?;
    steps.next().transpose()?;
    let start = Instant::now();
    for step in steps {
        step?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

fn time(work: &str, rounds: usize, mut run: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    run()?;
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    report(work, times);
    Ok(())
}

fn report(work: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let (least, median) = (times[0], times[times.len() / 2]);
    println!("{{\"work\": \"{work}\", \"min_ms\": {least:.2}, \"median_ms\": {median:.2}}}");
}
