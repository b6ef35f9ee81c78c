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
    let (mut plain, mut recorded) = (Vec::new(), Vec::new());
    for round in 0..6 {
        let [one, other] = [
            seconds(|| model.forward(vec![row(0, 512)]).map(drop))?,
            seconds(|| model.run_with_cache(vec![row(0, 512)], Record::all()).map(drop))?,
        ];
        // The first round touches memory for the first time.
        if round > 0 {
            plain.push(one);
            recorded.push(other);
        }
    }
    print_ratio("recording all, 512 tokens", [recorded, plain]);
    Ok(())
}

fn batch() -> Result<()> {
    let model = HookedTransformer::random(TransformerConfig::new(12, 768, 12, 50_257, 1024), 0, &Device::flex())?;
    let generate = |rows: u32| {
        let prompts: Vec<_> = (0..rows).map(|seed| row(seed, 32)).collect();
        model.generate_with(prompts, GenerateOptions::new().max_new_tokens(32).stop_at_eos(false)).map(drop)
    };
    let (mut one, mut many) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        one.push(seconds(|| generate(1))?);
        many.push(seconds(|| generate(32))?);
    }
    print_ratio("generating 32 tokens, 32 rows and one", [many, one]);
    Ok(())
}

/// Prints medians and their ratio.
fn print_ratio(what: &str, [mut slow, mut fast]: [Vec<f64>; 2]) {
    let middle = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let (slow, fast) = (middle(&mut slow), middle(&mut fast));
    println!("{what}: {slow:.3} s : {fast:.3} s = {:.2}", slow / fast);
}
