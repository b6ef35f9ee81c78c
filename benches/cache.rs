//! Cost of a KV cache with GPT-2 small's shape: appending compared with copying, decoding as the cache grows, quantized
//! storage, and memory of a shared prefix.
//!
//! ```sh
//! cargo bench --bench cache
//! ```

use std::process::Command;
use std::time::Instant;

use burn::tensor::{Device, Distribution, Tensor};
use hooklens::CacheKind;
use hooklens::prelude::*;
use hooklens::{CacheShape, Positional, Result, RopeScaling, Rotary};

const PREFIX: usize = 256;
const BRANCHES: usize = 32;

fn main() -> Result<()> {
    if let Some(how) = std::env::args().skip(1).find(|a| !a.starts_with("--")) {
        return branches(&how);
    }
    appending()?;
    for positional in ["learned", "rotary"] {
        decoding(positional)?;
    }
    few_bits()?;
    println!("\n{BRANCHES} branches of 8 tokens after a prefix of {PREFIX}: memory in addition to the weights");
    for how in ["forked", "repeated"] {
        if let Ok(program) = std::env::current_exe() {
            let _ = Command::new(program).arg(how).status();
        }
    }
    Ok(())
}

fn row(seed: usize, len: usize) -> Vec<u32> {
    (0..len).map(|i| ((i * 7919 + seed * 31 + 13) % 50257) as u32).collect()
}

/// Minimum time over several runs, in microseconds.
fn best(runs: usize, mut work: impl FnMut()) -> f64 {
    let timed = (0..runs).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64() * 1e6
    });
    timed.fold(f64::INFINITY, f64::min)
}

fn appending() -> Result<()> {
    let device = Device::flex();
    let draw = |len: usize| Tensor::<4>::random([1, len, 12, 64], Distribution::Default, &device);
    let mut cache = KeyValueCache::of_shape(CacheShape::new(1, 1, 12, 64)?, CacheKind::GROWING)?;
    cache.append(draw(1024), draw(1024), 0)?;
    let (keys, values) = (draw(1024), draw(1024));
    let copy = best(50, || {
        let _ = (keys.clone() + 0.0, values.clone() + 0.0);
    });
    let (k, v) = (draw(1), draw(1));
    // The first update allocates 1.5 times the memory that it needs, so it is not timed.
    cache.append(k.clone(), v.clone(), 0)?;
    let append = best(50, || {
        let _ = cache.append(k.clone(), v.clone(), 0);
    });
    println!("appending one token to 1,024: {append:.1} us, copying them: {copy:.0} us, ratio {:.4}", append / copy);
    Ok(())
}

fn decoding(positional: &str) -> Result<()> {
    let rotary = Rotary { dim: 64, base: 1e4, adjacent_pairs: false, scaling: RopeScaling::None };
    let positional_kind = if positional == "rotary" { Positional::Rotary(rotary) } else { Positional::Learned };
    let config = TransformerConfig::new(12, 768, 12, 50_257, 1024).with_positional(positional_kind);
    let model = HookedTransformer::random(config, 0, &Device::flex())?;
    let mut cache = model.prefill(vec![row(0, 16)])?;
    let mut times = Vec::new();
    for step in 0..512 {
        let start = Instant::now();
        model.forward_with([step], ForwardOptions::new().logits(Logits::Last).kv_cache(&mut cache))?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let median = |times: &[f64]| {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    let (first, last) = (median(&times[..64]), median(&times[448..]));
    // Cost of attention alone when the cache is full: one query over all keys, in every layer.
    let device = Device::flex();
    let draw = |len: usize| Tensor::<4>::random([1, len, 12, 64], Distribution::Default, &device);
    let attention = |keys: usize| {
        let (q, k, v) = (draw(1), draw(keys), draw(keys));
        let heads = |x: &Tensor<4>| x.clone().permute([0, 2, 1, 3]);
        best(20, || {
            let scores = heads(&q).matmul(heads(&k).transpose());
            let _ = burn::tensor::activation::softmax(scores, 3).matmul(heads(&v));
        }) * 12.0
            / 1e3
    };
    println!(
        "decoding 512 tokens ({positional}): {first:.1} ms per token at first, {last:.1} ms at the end; attention with Burn's operations {:.1} and {:.1} ms",
        attention(48),
        attention(496)
    );
    Ok(())
}

fn few_bits() -> Result<()> {
    let model = HookedTransformer::random(TransformerConfig::new(12, 768, 12, 50_257, 1024), 0, &Device::flex())?;
    let (prefix, next) = (row(0, PREFIX), row(1, 8));
    let run = |kind| -> Result<(Tensor<3>, usize)> {
        let mut cache = KeyValueCache::of_kind(model.config(), 1, kind)?;
        model.run(vec![prefix.clone()], ForwardOptions::new().logits(Logits::None).kv_cache(&mut cache))?;
        let bytes = cache.memory().iter().sum();
        Ok((model.forward_with(vec![next.clone()], ForwardOptions::new().kv_cache(&mut cache))?, bytes))
    };
    let (whole, whole_bytes) = run(CacheKind::GROWING)?;
    let largest = whole.clone().abs().max().into_scalar::<f32>();
    for (name, kind) in [("8", CacheKind::EIGHT_BIT), ("4", CacheKind::FOUR_BIT)] {
        let (given, bytes) = run(kind)?;
        let worst = (given - whole.clone()).abs().max().into_scalar::<f32>() / largest;
        println!(
            "{name} bits: {:.3} of the memory, logits within {:.3} %",
            bytes as f64 / whole_bytes as f64,
            worst * 100.0
        );
    }
    Ok(())
}

/// Peak memory in addition to the loaded model, measured in a separate process.
fn branches(how: &str) -> Result<()> {
    let model = HookedTransformer::random(TransformerConfig::new(12, 768, 12, 50_257, 1024), 0, &Device::flex())?;
    model.forward_with([1, 2, 3], ForwardOptions::new().logits(Logits::Last))?;
    let suffixes: Vec<_> = (1..=BRANCHES).map(|seed| row(seed, 8)).collect();
    let start = Instant::now();
    let before = resident();
    let mut prefix = model.prefill(vec![row(0, PREFIX)])?;
    let mut cache = match how {
        "forked" => prefix.fork(BRANCHES)?,
        // One cache row per batch row, as TransformerLens requires.
        _ => model.prefill(vec![row(0, PREFIX); BRANCHES])?,
    };
    model.forward_with(suffixes.clone(), ForwardOptions::new().kv_cache(&mut cache))?;
    let (bytes, all) = (cache.memory().iter().sum::<usize>(), start.elapsed().as_secs_f64());
    let peak = peak() - before;
    let again = best(3, || {
        let _ = model.forward_with(suffixes.clone(), ForwardOptions::new().kv_cache(&mut cache.scoped()));
    });
    println!(
        "{how}: cache {:.1} MB, peak {peak:.0} MB above the model, {all:.2} s including the prefix; suffixes {:.0} ms",
        bytes as f64 / 1e6,
        again / 1e3
    );
    Ok(())
}

fn status(field: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse::<f64>().ok()).map_or(0.0, |kb| kb / 1e3)
}

fn resident() -> f64 {
    status("VmRSS")
}

fn peak() -> f64 {
    status("VmHWM")
}
