//! `hooklens doctor`.

use std::io::Write;
use std::path::Path;

use clap::Args;
use serde_json::{Value, json};

use super::CliResult;
use super::info::{cached_token, device_json, types};
use super::json_result::print_result;
use super::memory::{free, may_take};
use super::terminal::stdout;
use hooklens_io::numerals::bytes;
use hooklens_loading::loading::{ModelConfig, inspect};
use hooklens_loading::weight_files::RawTensors;
use hooklens_model::device::DeviceInfo;

/// Features of this build that a user may want.
const FEATURES: [(&str, bool); 13] = [
    ("hub", cfg!(feature = "hub")),
    ("chat", cfg!(feature = "chat")),
    ("plot", true),
    ("decompositions", cfg!(feature = "decompositions")),
    ("arrow", cfg!(feature = "arrow")),
    ("object-stores", cfg!(feature = "object-stores")),
    ("libtorch", cfg!(feature = "libtorch")),
    ("cuda", cfg!(feature = "cuda")),
    ("wgpu", cfg!(feature = "wgpu")),
    ("vulkan", cfg!(feature = "vulkan")),
    ("metal", cfg!(feature = "metal")),
    ("autotune", cfg!(feature = "autotune")),
    ("remote", cfg!(feature = "remote")),
];
/// File that exists on Linux if the NVIDIA driver is loaded.
const CARD: &str = "/proc/driver/nvidia/version";
/// Number of tokens that the KV-cache size is reported for.
const TOKENS: usize = 1000;

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Also report what this model needs: a folder, a checkpoint file, a hub id, or embedded:NAME
    #[arg(long, value_name = "MODEL", add = crate::completions::model())]
    model: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Results of the checks.
struct Found {
    processor: String,
    cores: usize,
    threads: usize,
    instructions: &'static str,
    memory: Option<u64>,
    free: Option<u64>,
    devices: Vec<DeviceInfo>,
    /// Problems with environment variables.
    variables: Vec<String>,
    #[cfg(feature = "hub")]
    cache: (std::path::PathBuf, usize),
    needs: Option<Needs>,
    /// The model given with `--model`, if its weights are not on this machine.
    without_weights: Option<String>,
}

/// Memory a model needs on the CPU, in bytes.
struct Needs {
    name: String,
    /// Weights as stored in the files.
    stored: u64,
    /// Weights converted to `f32`.
    wide: u64,
    /// KV cache of [`TOKENS`] tokens; decoders only.
    cache: Option<u64>,
}

pub(super) fn run(args: &DoctorArgs) -> CliResult {
    let needs = args.model.as_deref().map(needs).transpose()?.flatten();
    let found = Found {
        processor: processor().unwrap_or_else(|| std::env::consts::ARCH.into()),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        threads: rayon::current_num_threads(),
        instructions: hooklens_kernels::isa::Isa::current().name(),
        memory: may_take(),
        free: free(),
        devices: hooklens_model::device::devices(),
        variables: variables(|name| std::env::var(name).ok()),
        #[cfg(feature = "hub")]
        cache: cache(),
        without_weights: args.model.clone().filter(|_| needs.is_none()),
        needs,
    };
    let advice = found.advice(Path::new(CARD).exists());
    if args.json {
        return print_result(None, found.json(&advice));
    }
    found.print(&advice)
}

/// Problems with environment variables that affect how models run.
fn variables(of: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    let name = "RAYON_NUM_THREADS";
    if let Some(value) = of(name).filter(|value| value.trim().parse::<usize>().is_err()) {
        wrong.push(format!("{name} is `{value}`, which is not a number; it is ignored"));
    }
    let name = "HOOKLENS_DEVICE";
    if let Some(error) = of(name).and_then(|value| hooklens_model::device::parse_device(&value).err()) {
        wrong.push(format!("{name}: {error}; commands fail unless --device is given"));
    }
    wrong
}

fn built() -> Vec<&'static str> {
    FEATURES.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect()
}

/// The processor's model name.
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// The Hugging Face Hub cache folder, and the number of models in it.
#[cfg(feature = "hub")]
fn cache() -> (std::path::PathBuf, usize) {
    let folder = hooklens_loading::loading::cache_folder();
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let count = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("models--")).count();
    (folder, count)
}

/// Memory a model needs; `None` if its weights are not on this machine.
fn needs(model: &str) -> hooklens_model::error::Result<Option<Needs>> {
    let info = inspect(model)?;
    let cache = match &info.config {
        ModelConfig::Decoder(config) => Some((TOKENS * cached_token(config)) as u64),
        _ => None,
    };
    Ok(info.weights.map(|stored| Needs {
        name: model.to_string(),
        stored: stored.files.stored_bytes() as u64,
        wide: 4 * stored.parameters as u64,
        cache,
    }))
}

impl Found {
    /// Recommendations based on what was found.
    fn advice(&self, card: bool) -> Vec<String> {
        let mut advice = Vec::new();
        if cfg!(debug_assertions) {
            advice.push("this is an unoptimized build, which is many times slower: build with --release".to_string());
        }
        let (threads, cores) = (self.threads, self.cores);
        if threads < cores {
            advice.push(format!("only {threads} of {cores} cores are used, because of RAYON_NUM_THREADS"));
        } else if threads > cores {
            advice.push(format!(
                "RAYON_NUM_THREADS sets {threads} threads for {cores} cores, which is slower than one thread per core"
            ));
        }
        advice.extend(self.variables.iter().cloned());
        if self.instructions == "portable" && cfg!(target_arch = "x86_64") {
            advice.push(
                "the processor has no AVX2 (a virtual machine may hide it): matrix products are several times slower"
                    .into(),
            );
        }
        let cards = self.devices.iter().any(|device| device.name != "flex" && device.name != "libtorch");
        if card && !cards {
            let has = FEATURES.iter().any(|(name, there)| *there && ["libtorch", "cuda", "vulkan"].contains(name));
            advice.push(match has {
                true => {
                    "there is an NVIDIA GPU, but this build cannot open it: check the driver, or LibTorch's CUDA build"
                        .into()
                }
                false => "there is an NVIDIA GPU: build with --features libtorch (or cuda, or vulkan) to use it".into(),
            });
        }
        for device in self.devices.iter().filter(|device| device.dtypes.is_empty()) {
            advice.push(format!("{} cannot be opened: check the driver", device.name));
        }
        if let Some(name) = &self.without_weights {
            advice.push(format!("the weights of {name} are not on this machine, so the memory it needs is unknown"));
        }
        if let (Some(needs), Some(free)) = (&self.needs, self.free.or(self.memory)) {
            let cache = needs.cache.unwrap_or(0);
            let Needs { name, stored, wide, .. } = needs;
            if stored + cache > free {
                let (stored, free) = (bytes(*stored), bytes(free));
                advice.push(format!(
                    "{name} has {stored} of weights, but only {free} are free: it runs slowly, from disk; use a \
                     quantized version (a GGUF file) or a machine with more memory"
                ));
            } else if wide + cache > free {
                let (wide, free) = (bytes(*wide), bytes(free));
                advice.push(format!(
                    "{name} fits into memory as stored, but not in f32 (processing, training, --dtype f32): that takes \
                     {wide}, and {free} are free"
                ));
            } else {
                advice.push(format!("{name} fits into memory"));
            }
        }
        advice
    }

    fn print(&self, advice: &[String]) -> CliResult {
        let mut out = stdout();
        let mut line = |name: &str, value: String| writeln!(out, "{name:13} {value}");
        line("hooklens", format!("{}, with {}", env!("CARGO_PKG_VERSION"), built().join(", ")))?;
        line("processor", format!("{}, {} cores, {} threads", self.processor, self.cores, self.threads))?;
        line("instructions", self.instructions.into())?;
        if let Some(memory) = self.memory {
            let free = self.free.map_or(String::new(), |free| format!(", {} free", bytes(free)));
            line("memory", format!("{}{free}", bytes(memory)))?;
        }
        for (number, device) in self.devices.iter().enumerate() {
            let memory = device.memory.map_or(String::new(), |size| format!(", {}", bytes(size)));
            let types = types(device);
            let name = if number == 0 { "devices" } else { "" };
            line(name, format!("{}: {}{memory} ({})", device.name, device.description, types.join(", ")))?;
        }
        #[cfg(feature = "hub")]
        line("models", format!("{} from the Hugging Face Hub in {}", self.cache.1, self.cache.0.display()))?;
        if let Some(needs) = &self.needs {
            let cache =
                needs.cache.map_or(String::new(), |size| format!(", {} of KV cache for {TOKENS} tokens", bytes(size)));
            let (stored, wide) = (bytes(needs.stored), bytes(needs.wide));
            line("needs", format!("{}: {stored} of weights as stored, {wide} in f32{cache}", needs.name))?;
        }
        for (number, text) in advice.iter().enumerate() {
            line(if number == 0 { "advice" } else { "" }, text.clone())?;
        }
        Ok(())
    }

    fn json(&self, advice: &[String]) -> Value {
        let needs = self.needs.as_ref().map(|needs| {
            json!({ "model": needs.name, "stored": needs.stored, "f32": needs.wide, "cache_of_1000_tokens": needs.cache })
        });
        #[allow(unused_mut, reason = "builds without the hub have no cache")]
        let mut report = json!({
            "version": env!("CARGO_PKG_VERSION"), "features": built(), "processor": self.processor, "cores": self.cores,
            "threads": self.threads, "instructions": self.instructions, "memory": self.memory, "free": self.free,
            "devices": self.devices.iter().map(device_json).collect::<Vec<_>>(), "needs": needs, "advice": advice,
        });
        #[cfg(feature = "hub")]
        {
            report["cache"] = json!({ "folder": self.cache.0, "models": self.cache.1 });
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(threads: usize, needs: Option<[u64; 2]>) -> Found {
        Found {
            processor: "a processor".into(),
            cores: 8,
            threads,
            instructions: "AVX2",
            memory: Some(100),
            free: Some(50),
            devices: Vec::new(),
            variables: Vec::new(),
            #[cfg(feature = "hub")]
            cache: Default::default(),
            without_weights: None,
            needs: needs.map(|[stored, wide]| Needs { name: "m".into(), stored, wide, cache: Some(5) }),
        }
    }

    #[test]
    fn advice_follows_what_was_found() {
        let advice = |found: Found, card: bool| found.advice(card).join("\n");
        assert!(!advice(found(8, None), false).contains("cores"));
        assert!(advice(found(2, None), false).contains("2 of 8 cores"));
        assert!(advice(found(9, None), false).contains("sets 9 threads for 8 cores"));
        let wrong = variables(|name| Some(if name == "HOOKLENS_DEVICE" { "flux" } else { "many" }.into())).join("\n");
        assert!(wrong.contains("`many`") && wrong.contains("flux"), "{wrong}");
        assert!(variables(|name| Some(if name == "HOOKLENS_DEVICE" { "cpu" } else { "2" }.into())).is_empty());
        assert!(advice(found(8, None), true).contains("NVIDIA"));
        assert!(advice(found(8, Some([20, 40])), false).contains("m fits"));
        assert!(advice(found(8, Some([20, 80])), false).contains("in f32"));
        assert!(advice(found(8, Some([46, 80])), false).contains("from disk"));
    }
}
