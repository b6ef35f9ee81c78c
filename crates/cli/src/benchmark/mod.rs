//! Time and peak memory of a model's typical workloads: the measurements of `hooklens bench`.

mod amount;
mod machine;

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use burn::tensor::{Device, Tensor};
use hooklens_hooks::Record;
use hooklens_io::numerals::bytes;
use serde::Serialize;

pub use amount::Amount;
pub use machine::{Bound, Machine};

use hooklens_analysis::patching::points_of;
pub use hooklens_analysis::patching::{Metric, PatchModel, Patchable, Sites};
use hooklens_model::device::synchronize;
use hooklens_model::driver::{ForwardOptions, HookedModel, Input};
use hooklens_model::encoder::{EncoderInput, HookedEncoder};
use hooklens_model::encoder_decoder::{EncoderDecoderInput, HookedEncoderDecoder};
use hooklens_model::error::{InputError, Result};
use hooklens_model::generation::{Generate, GenerateOptions};
use hooklens_model::hook::Axis;
use hooklens_model::model::{DecoderInput, DecoderModel, HookedTransformer};

/// A workload.
///
/// ```
/// use hooklens_cli::benchmark::Work;
/// assert_eq!("decode".parse::<Work>().ok(), Some(Work::Decode));
/// assert_eq!(Work::ALL.len(), 7);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Work {
    /// Forward passes with all logits, on a short text and on a long one.
    Forward,
    /// A forward pass that records every hook point.
    Cache,
    /// Gradients of one logit with respect to the residual stream at every layer.
    Gradients,
    /// Generating one token at a time after a prompt.
    Decode,
    /// Many suffixes after one shared prefix.
    Prefix,
    /// A patching sweep over `hook_resid_pre` at every layer and position.
    Patch,
    /// Generating 64 tokens for each of 256 continuations of one prefix, once with a shared prefix and once with a copy
    /// per row. Meant for GPUs.
    Branches,
}

impl Work {
    /// All workloads, in the order of the table.
    pub const ALL: [Work; 7] =
        [Work::Forward, Work::Cache, Work::Gradients, Work::Decode, Work::Prefix, Work::Patch, Work::Branches];

    /// Workloads that run by default: all except those meant for GPUs.
    const USUAL: [Work; 6] = [Work::Forward, Work::Cache, Work::Gradients, Work::Decode, Work::Prefix, Work::Patch];
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "forward" => Ok(Work::Forward),
            "cache" => Ok(Work::Cache),
            "gradients" => Ok(Work::Gradients),
            "decode" => Ok(Work::Decode),
            "prefix" => Ok(Work::Prefix),
            "patch" => Ok(Work::Patch),
            "branches" => Ok(Work::Branches),
            other => Err(format!(
                "unknown workload `{other}`; expected forward, cache, gradients, decode, prefix, patch or branches"
            )),
        }
    }
}

/// Measured time and memory of one workload.
///
/// ```
/// use hooklens_cli::benchmark::{Work, measure};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// let timing = &measure(&model, Work::Decode, 2)?[0];
/// assert!(timing.min_ms <= timing.median_ms && timing.tokens > 0);
/// # Ok::<(), hooklens::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Timing {
    /// The workload and its sizes.
    pub name: String,
    /// Number of tokens processed. For a sweep, the number that a separate run for each site would process.
    pub tokens: usize,
    /// Minimum over rounds, in milliseconds.
    pub min_ms: f64,
    /// Median over rounds, in milliseconds.
    pub median_ms: f64,
    /// Peak resident memory of the process in bytes, including weights; `None` if the system does not report it.
    pub peak_bytes: Option<u64>,
    /// Bytes reserved by the devices' allocators after the work, if they report it (CubeCL's do).
    pub device_bytes: Option<u64>,
    /// Work done in one round, for workloads of a decoder where it can be computed.
    pub amount: Option<Amount>,
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = self.tokens as f64 / self.median_ms * 1e3;
        let peak = self.peak_bytes.map_or("-".into(), bytes);
        write!(f, "{:38} {:>10.1} {:>10.1} {per_second:>12.0} {peak:>10}", self.name, self.median_ms, self.min_ms)?;
        self.device_bytes.map_or(Ok(()), |held| write!(f, " and {} on the device", bytes(held)))
    }
}

/// A model that can be benchmarked.
pub trait BenchModel: Patchable {
    /// Hook points that [`Work::Patch`] patches at every position.
    #[doc(hidden)]
    const STREAMS: &'static str;

    /// Workloads that this model supports and runs by default.
    #[doc(hidden)]
    const WORK: &'static [Work];

    /// Builds the model's input from a row of tokens.
    #[doc(hidden)]
    fn of_row(row: Vec<u32>) -> Self::Input;

    /// Size of the model's vocabulary.
    #[doc(hidden)]
    fn ids(&self) -> usize;

    /// Returns `wanted` positions, or the model's maximum if that is lower.
    #[doc(hidden)]
    fn room(&self, wanted: usize) -> usize;

    /// The model as a decoder, if it is one.
    #[doc(hidden)]
    fn decoder(&self) -> Option<&HookedTransformer> {
        None
    }
}

impl BenchModel for HookedTransformer {
    const STREAMS: &'static str = "blocks.*.hook_resid_pre";
    const WORK: &'static [Work] = &Work::USUAL;

    fn of_row(row: Vec<u32>) -> Input {
        row.into()
    }

    fn ids(&self) -> usize {
        self.config().d_vocab()
    }

    fn room(&self, wanted: usize) -> usize {
        // A small model's position embeddings may cover fewer positions.
        if self.check_length(wanted).is_ok() { wanted } else { self.config().n_ctx().min(wanted) }
    }

    fn decoder(&self) -> Option<&HookedTransformer> {
        Some(self)
    }
}

impl BenchModel for HookedEncoder {
    const STREAMS: &'static str = "blocks.*.hook_resid_pre";
    const WORK: &'static [Work] = &[Work::Forward, Work::Cache, Work::Patch];

    fn of_row(row: Vec<u32>) -> EncoderInput {
        row.into()
    }

    fn ids(&self) -> usize {
        self.config().d_vocab()
    }

    fn room(&self, wanted: usize) -> usize {
        self.config().n_ctx().min(wanted)
    }
}

impl BenchModel for HookedEncoderDecoder {
    const STREAMS: &'static str = "encoder.*.hook_resid_pre";
    const WORK: &'static [Work] = &[Work::Forward, Work::Cache, Work::Patch];

    fn of_row(row: Vec<u32>) -> EncoderDecoderInput {
        row.into()
    }

    fn ids(&self) -> usize {
        self.encoder_config().d_vocab()
    }

    fn room(&self, wanted: usize) -> usize {
        self.encoder_config().n_ctx().min(wanted)
    }
}

/// Measures a workload over `rounds` rounds on arbitrary tokens, after a warm-up round.
///
/// # Errors
/// Fails if `rounds` is 0, if the model does not support the workload, or if a run fails.
///
/// ```
/// use hooklens_cli::benchmark::{Work, measure};
/// use hooklens::prelude::*;
/// let model = HookedTransformer::from_pretrained("embedded:induction")?;
/// for timing in measure(&model, Work::Forward, 1)? {
///     println!("{timing}");
/// }
/// # Ok::<(), hooklens::Error>(())
/// ```
pub fn measure<M: BenchModel>(model: &M, work: Work, rounds: usize) -> Result<Vec<Timing>> {
    if rounds == 0 {
        let (given, allowed) = ("0".to_string(), "1 or more".to_string());
        return Err(InputError::Setting { name: "rounds", given, allowed }.into());
    }
    let d_vocab = model.ids() as u32;
    let row = |seed: u32, len: usize| -> Vec<u32> {
        (0..len as u32).map(|i| i.wrapping_mul(7919).wrapping_add(seed * 31 + 13) % d_vocab).collect()
    };
    let devices = model.devices();
    let times = Times { rounds, devices: &devices };
    let mut timings = Vec::new();
    let pass = |len| model.decoder().map(|decoder| Amount::of_pass(decoder, len));
    match work {
        Work::Forward => {
            for len in [model.room(128), model.room(512)] {
                let input = M::of_row(row(0, len));
                let run = || M::run(model, input.clone(), ForwardOptions::new()).map(drop);
                timings.push(Timing { amount: pass(len), ..times.of(format!("forward, {len} tokens"), len, run)? });
            }
            timings.dedup_by(|a, b| a.name == b.name);
        }
        Work::Cache => {
            let len = model.room(128);
            let input = M::of_row(row(0, len));
            let run = || model.run(input.clone(), ForwardOptions::new().record(Record::all())).map(drop);
            timings.push(Timing {
                amount: pass(len),
                ..times.of(format!("recording every point, {len} tokens"), len, run)?
            });
        }
        Work::Gradients => {
            let model = decoder(model, "gradients")?;
            for len in [model.room(16), model.room(128), model.room(512)] {
                let input = row(0, len);
                let options = || ForwardOptions::new().record(M::STREAMS);
                let last = |logits: Tensor<3>| logits.narrow(1, len - 1, 1).narrow(2, 0, 1).reshape([1]);
                let run = || model.run_with_gradients(&input, options(), last).map(drop);
                timings.push(times.of(format!("gradients of every resid_pre, {len} tokens"), len, run)?);
            }
            timings.dedup_by(|a, b| a.name == b.name);
        }
        Work::Decode => {
            let model = decoder(model, "decode")?;
            let room = |wanted| model.room(wanted);
            let new = 32.min(room(160) / 4).max(1);
            let len = (room(128 + new) - new).max(1);
            let prompt = vec![row(0, len)];
            let options = || GenerateOptions::new().max_new_tokens(new + 1).stop_at_eos(false);
            let name = format!("decoding {new} tokens after {len}");
            let mut taken = Vec::new();
            reset_peak();
            for _ in 0..rounds {
                // The prompt's forward pass is not part of decoding.
                let mut steps = model.generate_steps(&prompt, options())?;
                steps.next().transpose()?;
                let start = Instant::now();
                steps.try_for_each(|step| step.map(drop))?;
                taken.push(start.elapsed().as_secs_f64() * 1e3);
            }
            let amount = Some(Amount::of_pass(model, 1).times(new as f64));
            timings.push(Timing { amount, ..times.timing(name, new, taken) });
        }
        Work::Prefix => {
            let model = decoder(model, "prefix")?;
            let room = |wanted| model.room(wanted);
            let (rows, suffix) = (32, 8.min(room(264) / 4).max(1));
            let len = (room(256 + suffix) - suffix).max(1);
            let mut cache = model.prefill(vec![row(0, len)])?;
            cache.freeze();
            let suffixes: Vec<_> = (1..=rows as u32).map(|seed| row(seed, suffix)).collect();
            let run = || model.forward_with(&suffixes, ForwardOptions::new().kv_cache(&mut cache)).map(drop);
            let name = format!("{rows} x {suffix} tokens after {len} shared");
            let amount = Some(Amount::of_pass(model, rows * suffix));
            timings.push(Timing { amount, ..times.of(name, rows * suffix, run)? });
        }
        Work::Branches => {
            let model = decoder(model, "branches")?;
            const ROWS: usize = 256;
            let room = |wanted| model.room(wanted);
            let new = 64.min(room(2112) / 4).max(1);
            let len = (room(2048 + 1 + new) - new - 1).max(1);
            let mut prefix = model.prefill(vec![row(0, len)])?;
            prefix.freeze();
            let branches: Vec<_> = (1..=ROWS as u32).map(|seed| row(seed, 1)).collect();
            let options = || GenerateOptions::new().max_new_tokens(new).stop_at_eos(false);
            let name = |how: &str| format!("{ROWS} branches x {new} tokens after {len}, {how}");
            let shared = || model.generate_with(&branches, options().kv_cache(&mut prefix)).map(drop);
            timings.push(times.of(name("shared"), ROWS * new, shared)?);
            let apart = || {
                let mut rows = prefix.clone();
                rows.unfreeze();
                rows.select_rows(&[0; ROWS])?;
                model.generate_with(&branches, options().kv_cache(&mut rows)).map(drop)
            };
            timings.push(times.of(name("a cache each"), ROWS * new, apart)?);
        }
        Work::Patch => {
            let len = model.room(16);
            let metric = Metric::all(|logits, _| logits.narrow(1, 0, 1).narrow(2, 0, 1).reshape([-1]));
            let metric = if model.decoder().is_some() {
                Metric::last(|logits, _| logits.narrow(1, 0, 1).squeeze_dim::<1>(1))
            } else {
                metric
            };
            let patching = model.patching(M::of_row(row(0, len)), M::of_row(row(1, len))).metric(metric)?;
            let sites = Sites::new(M::STREAMS).per([Axis::Pos]);
            let layers = points_of(&sites, model.catalog())?.len();
            let run = || patching.sweep(&sites).map(drop);
            timings.push(times.of(format!("patching {layers} x {len} resid_pre"), layers * len * len, run)?);
        }
    }
    Ok(timings)
}

/// The model as a decoder, for workloads that need one.
fn decoder<'m, M: BenchModel>(model: &'m M, work: &'static str) -> Result<&'m HookedTransformer> {
    let allowed = "forward, cache or patch for a model that is not a decoder".to_string();
    Ok(model.decoder().ok_or(InputError::Setting { name: "work", given: work.into(), allowed })?)
}

/// Settings of a measurement.
struct Times<'d> {
    rounds: usize,
    devices: &'d [Device],
}

impl Times<'_> {
    /// Times each round of `run`, after a warm-up round.
    fn of(&self, name: String, tokens: usize, mut run: impl FnMut() -> Result<()>) -> Result<Timing> {
        let mut round = || {
            run()?;
            // Device work may still be running when the call returns.
            synchronize(self.devices)
        };
        round()?;
        reset_peak();
        let mut times = Vec::new();
        for _ in 0..self.rounds {
            let start = Instant::now();
            round()?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        Ok(self.timing(name, tokens, times))
    }

    fn timing(&self, name: String, tokens: usize, mut taken: Vec<f64>) -> Timing {
        taken.sort_by(f64::total_cmp);
        let reserved = |device: &Device| Some(device.memory_pool_usage()?.bytes_reserved);
        let device_bytes = self.devices.iter().map(reserved).sum();
        Timing {
            name,
            tokens,
            min_ms: taken[0],
            median_ms: taken[taken.len() / 2],
            peak_bytes: peak(),
            device_bytes,
            amount: None,
        }
    }
}

/// Resets the process's peak memory counter, if the system supports it.
fn reset_peak() {
    #[cfg(target_os = "linux")]
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Peak resident memory of the process since the last reset, in bytes.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
