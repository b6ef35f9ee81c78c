//! Time to run many suffixes after a shared prefix, compared with running each full prompt. The model has GPT-2 small's
//! shape. There are 32 suffixes of 8 tokens after a prefix of 256, and logits are computed at every position.
//!
//! ```sh
//! cargo bench --bench prefix
//! ```

use std::time::Instant;

use burn::tensor::Device;
use hooklens::Result;
use hooklens::prelude::*;

fn main() -> Result<()> {
    let model = HookedTransformer::random(TransformerConfig::new(12, 768, 12, 50_257, 1024), 0, &Device::flex())?;
    let row = |seed: u32, len: u32| (0..len).map(|i| (i * 7919 + seed * 31 + 13) % 50257).collect::<Vec<u32>>();
    let prefix = row(0, 256);
    let suffixes: Vec<_> = (1..=32).map(|seed| row(seed, 8)).collect();

    let start = Instant::now();
    let mut cache = model.prefill(vec![prefix.clone()])?;
    cache.freeze();
    let prefill = start.elapsed().as_secs_f64();
    let mut shared = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        model.forward_with(suffixes.clone(), ForwardOptions::new().kv_cache(&mut cache))?;
        shared = shared.min(start.elapsed().as_secs_f64());
    }
    let start = Instant::now();
    for suffix in &suffixes {
        model.forward(vec![[&prefix[..], suffix].concat()])?;
    }
    let apart = start.elapsed().as_secs_f64();
    println!(
        "prefix once {:.0} ms, 32 suffixes after it {:.0} ms, 32 full rows {:.0} ms",
        prefill * 1e3,
        shared * 1e3,
        apart * 1e3
    );
    println!("shared / full: {:.3}, including the prefix {:.3}", shared / apart, (prefill + shared) / apart);

    // Decode one token at a time. The cache grows in place.
    let mut cache = model.prefill(vec![row(0, 64)])?;
    let start = Instant::now();
    for step in 0..32 {
        model.forward_with([step], ForwardOptions::new().logits(Logits::Last).kv_cache(&mut cache))?;
    }
    println!("decoding after 64 tokens: {:.1} ms per token", start.elapsed().as_secs_f64() * 1e3 / 32.0);
    Ok(())
}
