//! Work submitted to a GPU: kernel launches, how many of them are copies, blocking reads, and bytes transferred in both
//! directions.
//!
//! ```sh
//! HOOKLENS_DEVICE=wgpu cargo bench --features wgpu --bench launches [-- --kernels]
//! ```
//!
//! These are counts, not times, so they are the same on a software driver and on a GPU.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use burn::cubecl::logging::{LaunchObservation, LaunchObserver};
use hooklens::generation::Sampling;
use hooklens::prelude::*;
use hooklens::{ActivationFn, CacheKind, NormKind, Result, RopeScaling, Rotary, default_device};
use hooklens_hooks::Transfers;

#[derive(Default)]
struct Launches(Mutex<BTreeMap<String, usize>>);

impl LaunchObserver for Launches {
    fn launched(&self, kernel: &'static str) {
        // The last path segment, without generic parameters.
        let name = kernel.split('<').next().unwrap_or(kernel).rsplit("::").next().unwrap_or(kernel);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(name.to_string()).or_default() += 1;
    }
}

/// Runs `work` and prints what it submitted.
fn count<T>(name: &str, device: &Device, kernels: bool, work: impl FnOnce() -> Result<T>) -> Result<T> {
    device.sync().ok();
    let launches = Arc::new(Launches::default());
    let before = Transfers::so_far();
    let watching = LaunchObservation::new(launches.clone());
    let done = work()?;
    device.flush().ok();
    let moved = Transfers::so_far().since(before);
    device.sync().ok();
    drop(watching);
    let launches = launches.0.lock().unwrap_or_else(PoisonError::into_inner);
    let all: usize = launches.values().sum();
    let of = |part: &str| {
        launches.iter().filter(|(name, _)| name.to_lowercase().contains(part)).map(|(_, count)| count).sum::<usize>()
    };
    println!(
        "| {name} | {all} | {} | {} | {} | {} | {} |",
        of("copy") + of("contiguous"),
        moved.reads,
        moved.read_bytes,
        moved.uploads,
        moved.uploaded_bytes
    );
    if kernels {
        launches.iter().for_each(|(name, count)| println!("    {count:5} {name}"));
    }
    Ok(done)
}

fn main() -> Result<()> {
    let kernels = std::env::args().any(|argument| argument == "--kernels");
    let device = default_device()?;
    let gpt2 = TransformerConfig::new(4, 128, 4, 512, 512).with_activation(ActivationFn::GeluNew);
    let llama = gpt2
        .clone()
        .with_kv_heads(2)
        .with_gated_mlp(true)
        .with_positional(Rotary { dim: 32, base: 10_000.0, adjacent_pairs: false, scaling: RopeScaling::None })
        .with_norm(NormKind::Rms)
        .with_activation(ActivationFn::Silu);
    println!("{device:?}, 4 layers\n\n| | launches | copies | reads | bytes read | uploads | bytes uploaded |");
    println!("|---|---|---|---|---|---|---|");
    let mixture = llama.clone().with_experts(8, 2);
    for (name, config) in [("GPT-2's block", gpt2), ("Llama's block", llama), ("Mixtral's block", mixture)] {
        let model = HookedTransformer::random(config, 0, &device)?;
        let row = |seed: u32, len: u32| (0..len).map(|i| (i * 7919 + seed * 31 + 13) % 512).collect::<Vec<u32>>();
        let forward = || model.forward(vec![row(0, 128)]);
        forward()?;
        count(&format!("{name}: forward 128"), &device, kernels, forward)?;
        let greedy = Sampling::default();
        let drawn = Sampling { temperature: 0.7, top_p: Some(0.9), ..greedy };
        for (how, sampling, kind) in [
            ("", greedy, CacheKind::GROWING),
            (", drawn, top-p", drawn, CacheKind::GROWING),
            (", 8 bits", greedy, CacheKind::EIGHT_BIT),
        ] {
            let options = GenerateOptions::new().max_new_tokens(8).sampling(sampling).cache_kind(kind);
            let mut steps = model.generate_steps(vec![row(1, 128)], options)?;
            // Generate a few tokens first, which allocate the cache and let fusion discover the repeating operations.
            steps.by_ref().take(5).try_for_each(|step| step.map(drop))?;
            count(&format!("{name}: a token after 128{how}"), &device, kernels, || steps.next().transpose())?;
        }
        let mut prefix = model.prefill(vec![row(2, 128)])?;
        prefix.freeze();
        let suffixes: Vec<_> = (0..32).map(|seed| row(seed, 1)).collect();
        let mut behind = || model.forward_with(suffixes.clone(), ForwardOptions::new().kv_cache(&mut prefix));
        for _ in 0..2 {
            behind()?;
        }
        count(&format!("{name}: 32 suffixes after 128"), &device, kernels, behind)?;
    }
    Ok(())
}
