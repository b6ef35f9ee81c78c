//! Tokens per second of a long dump and of interleaved forward passes that write nothing, and the memory of the process
//! after every tenth of the work. The model has GPT-2 small's shape, but only four layers.
//!
//! ```sh
//! cargo bench --bench dump_throughput -- 100000
//! ```

use std::time::Instant;

use burn::tensor::Device;
use hooklens::dump::Dump;
use hooklens::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const LEN: usize = 128;
    const BATCH: usize = 8;
    let tokens: usize = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(20_000);
    let config = TransformerConfig::new(4, 768, 12, 50_257, 1024);
    let model = HookedTransformer::random(config, 0, &Device::flex())?;
    let rows: Vec<Vec<u32>> =
        (0..tokens.div_ceil(LEN)).map(|r| (0..LEN).map(|i| ((r * 31 + i * 7919) % 50257) as u32).collect()).collect();
    let points = "blocks.*.hook_resid_post";
    let folder = tempfile::tempdir()?;
    // Interleaved over tenths of the rows, so that a slow spell of the machine affects both.
    let (mut silent, mut writing, mut done) = (0.0, 0.0, 0);
    for (part, rows) in rows.chunks(rows.len().div_ceil(10)).enumerate() {
        let start = Instant::now();
        for batch in rows.chunks(BATCH) {
            model.record(batch.to_vec(), points)?;
        }
        silent += start.elapsed().as_secs_f64();
        let out = folder.path().join(format!("part-{part}"));
        let start = Instant::now();
        Dump::new(points).batch_size(BATCH).run(&model, rows, &out)?;
        writing += start.elapsed().as_secs_f64();
        std::fs::remove_dir_all(out)?;
        done += rows.len() * LEN;
        println!("{done:6} tokens, {:.0} MB resident, peak {:.0} MB", resident("VmRSS"), resident("VmHWM"));
    }
    let total = (rows.len() * LEN) as f64;
    println!(
        "without writing {:.0} tokens/s, dumping {:.0} tokens/s, ratio {:.2}",
        total / silent,
        total / writing,
        silent / writing
    );
    Ok(())
}

/// A value of the process's status in megabytes, or 0 if it can't be read.
fn resident(field: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse::<f64>().ok()).map_or(0.0, |kb| kb / 1e3)
}
