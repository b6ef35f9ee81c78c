//! Peak memory of a process that loads GPT-2 small's shape and runs a few tokens, as a share of
//! the weights in the element type it computes in; a process of its own for each way of loading.
//!
//! ```sh
//! cargo bench --bench load_memory
//! ```

use std::process::Command;

use burn::tensor::Device;
use hooklens::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|a| a == "--load") {
        return load(&arguments[at + 1..]);
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().to_string_lossy().to_string();
    HookedTransformer::random(TransformerConfig::gpt2_small(), 0, &Device::flex())?.save_pretrained(&path)?;
    for [dtype, process] in [["f32", "none"], ["bf16", "none"], ["f32", "standard"]] {
        Command::new(std::env::current_exe()?).args(["--load", &path, dtype, process]).status()?;
    }
    Ok(())
}

fn load(arguments: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let [path, dtype, process] = arguments else { return Err("--load FOLDER DTYPE none|standard".into()) };
    let dtype: DType = dtype.parse()?;
    let before = peak();
    let processing = if process == "standard" { Processing::standard() } else { Processing::none() };
    let model = HookedTransformer::from_pretrained_with(path, LoadOptions::new().dtype(dtype).process(processing))?;
    let loaded = peak() - before;
    model.forward([1, 2, 3], ForwardOptions::new().logits(Logits::Last))?;
    let weights = (model.weights.count() * dtype.size()) as f64 / 1e6;
    let run = peak() - before;
    println!(
        "{dtype}, processing {process}: weights {weights:.0} MB; peak after loading {loaded:.0} MB ({:.2}), after a run {run:.0} MB ({:.2})",
        loaded / weights,
        run / weights
    );
    Ok(())
}

/// Most memory the process has held, in megabytes.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse::<f64>().ok()).map_or(0.0, |kb| kb / 1e3)
}
