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

fn main() {
    let rounds: usize = std::env::var("HOOKLENS_BENCH_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(7);
    let model = HookedTransformer::random(TransformerConfig::gpt2_small(), 0, &Device::flex()).expect("a valid shape");
    let row = |len: u32| -> Vec<u32> { (0..len).map(|i| (i * 7919 + 13) % 50257).collect() };
    let (short, long) = (vec![row(128)], vec![row(512)]);
    let shown = |name: &str, run: &dyn Fn()| {
        run();
        let mut times: Vec<f64> = (0..rounds)
            .map(|_| {
                let start = Instant::now();
                run();
                start.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("{{\"work\": \"{name}\", \"min_ms\": {:.2}, \"median_ms\": {:.2}}}", times[0], times[rounds / 2]);
    };
    let forward = |rows: &Vec<Vec<u32>>| drop(model.forward(rows.clone(), ()).expect("runs"));
    let record = |selection: Selection| drop(model.run_with_cache(short.clone(), selection).expect("runs"));
    shown("forward_128", &|| forward(&short));
    shown("forward_512", &|| forward(&long));
    shown("record_all_128", &|| record(Selection::all()));
    shown("record_resid_post_128", &|| record("blocks.*.hook_resid_post".into()));
    shown("last_logits_128", &|| {
        model.forward(short.clone(), ForwardOptions::new().logits(Logits::Last)).expect("runs");
    });
}
