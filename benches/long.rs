//! Times for long prompts, for recording everything, and for generating many rows, with GPT-2 small's shape:
//!
//! - `attention N [HEADS]`: one layer over N tokens, optionally with the patterns of some heads read by hooks
//! - `record`: 512 tokens with every hook point recorded, compared with a plain run
//! - `batch`: generating with 32 rows, compared with one row
//!
//! ```sh
//! cargo bench --bench long -- attention 8192
//! cargo bench --bench long -- attention 8192 1
//! cargo bench --bench long -- record
//! cargo bench --bench long -- batch
//! ```
//!
//! `benches/compare_long.py` runs `attention` in turns with Hugging Face.

use std::time::Instant;

use burn::tensor::{Device, Tensor};
use hooklens::hook::At;
use hooklens::prelude::*;
use hooklens::{Logits, Record, Result};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let number = |place: usize| arguments.get(place).and_then(|argument| argument.parse::<usize>().ok());
    match arguments.first().map(String::as_str) {
        Some("attention") => attention(number(1).unwrap_or(8192), number(2).unwrap_or(0)),
        Some("record") => record(),
        Some("batch") => batch(),
        _ => {
            println!("usage: long attention N [HEADS] | record | batch");
            Ok(())
        }
    }
}

fn row(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i.wrapping_mul(7919) + seed * 31 + 13) % 1000).collect()
}

fn seconds(run: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    run()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Peak resident memory in MB.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e3
}

fn attention(tokens: usize, heads: usize) -> Result<()> {
    let model = HookedTransformer::random(TransformerConfig::new(1, 768, 12, 1000, tokens), 0, &Device::flex())?;
    let last = || ForwardOptions::new().logits(Logits::Last);
    model.forward_with(vec![row(1, 64)], last())?;
    let before = peak();
    let mut sum = 0.0;
    let look = hook::pattern(0).heads((0..heads).map(|head| head as i32)).read(|pattern: Tensor<4>, _: &At<'_>| {
        sum += pattern.sum().into_scalar::<f32>();
    });
    let hooks: Vec<_> = (heads > 0).then_some(look).into_iter().collect();
    let took = seconds(|| model.forward_with(vec![row(0, tokens)], last().hooks(hooks)).map(drop))?;
    let rows = heads as f32 * tokens as f32;
    assert!((sum - rows).abs() <= 1e-3 * rows.max(1.0), "patterns add up to {sum}, not {rows}");
    println!("{tokens} tokens, {heads} heads read: {took:.3} s, peak {:.0} MB above the model", peak() - before);
    Ok(())
}

fn record() -> Result<()> {
    // As in the `hooklens` program: otherwise, recordings are written to new pages each time.
    hooklens::retain_freed_memory();
    let model = HookedTransformer::random(TransformerConfig::new(12, 768, 12, 50_257, 1024), 0, &Device::flex())?;
    compare(
        "recording all, 512 tokens",
        || model.run_with_cache(vec![row(0, 512)], Record::all()).map(drop),
        || model.forward(vec![row(0, 512)]).map(drop),
    )
}

fn batch() -> Result<()> {
    let model = HookedTransformer::random(TransformerConfig::new(12, 768, 12, 50_257, 1024), 0, &Device::flex())?;
    let generate = |rows: u32| {
        let prompts: Vec<_> = (0..rows).map(|seed| row(seed, 32)).collect();
        model.generate_with(prompts, GenerateOptions::new().max_new_tokens(32).stop_at_eos(false)).map(drop)
    };
    compare("generating 32 tokens, 32 rows and one", || generate(32), || generate(1))
}

/// Runs both alternately, and prints medians of five times and their ratio.
fn compare(what: &str, slow: impl Fn() -> Result<()>, fast: impl Fn() -> Result<()>) -> Result<()> {
    // The first round touches memory for the first time.
    slow()?;
    fast()?;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..5 {
        times[0].push(seconds(&slow)?);
        times[1].push(seconds(&fast)?);
    }
    let [slow, fast] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    println!("{what}: {slow:.3} s : {fast:.3} s = {:.2}", slow / fast);
    Ok(())
}
