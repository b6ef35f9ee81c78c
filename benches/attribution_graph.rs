//! Time and memory of an attribution graph, compared with circuit-tracer (`benches/circuit_tracer.py make FOLDER`
//! writes the model, its transcoders and the prompts). As in that script, only the graph is timed, after loading the
//! model and computing a first graph of 16 tokens and 16 nodes. Weights stay in their memory-mapped files, so the
//! memory used in addition to the model is what the process allocates: `RssAnon`.
//!
//! ```sh
//! cargo bench --bench attribution_graph -- FOLDER TOKENS [NODES]   # prints one line of JSON
//! ```

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use hooklens::attribution::graph::{AttributionGraph, GraphOptions, Replacement};
use hooklens::features::Transcoders;
use hooklens::prelude::*;
use serde_json::json;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let [folder, tokens, more @ ..] = &arguments[..] else {
        println!("usage: attribution_graph FOLDER TOKENS [NODES]");
        return Ok(());
    };
    let nodes: usize = more.first().map_or(Ok(1024), |nodes| nodes.parse())?;
    let folder = Path::new(folder);
    let row: Vec<u32> = std::fs::read_to_string(folder.join(format!("prompt_{tokens}.txt")))?
        .trim()
        .split(',')
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let model = HookedTransformer::from_pretrained(&*folder.to_string_lossy())?;
    let replacement = Replacement::transcoders(Transcoders::open(folder.join("transcoders"))?);
    let loaded = allocated();
    let small = GraphOptions::new().max_nodes(16).exclude_positions(1);
    AttributionGraph::new(&model, row[..16].to_vec(), &replacement, &small)?;
    let warm = allocated();
    let (stopped, largest) = (AtomicBool::new(false), AtomicU64::new(0));
    let options = GraphOptions::new().max_nodes(nodes).exclude_positions(1);
    let (mut seconds, mut estimate) = (0.0, (0.0, 0));
    let graph = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stopped.load(Relaxed) {
                largest.fetch_max(allocated(), Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let start = Instant::now();
        let graph = AttributionGraph::with_progress(&model, row, &replacement, &options, |progress| {
            if progress.done == 0 {
                estimate = (progress.seconds, progress.bytes / 1_000_000);
            }
        });
        seconds = start.elapsed().as_secs_f64();
        stopped.store(true, Relaxed);
        graph
    })?;
    let [loaded, warm, peak] = [loaded, warm, largest.into_inner()].map(|kilobytes| kilobytes * 1024 / 1_000_000);
    let selected = graph.nodes().iter().filter(|node| node.is_feature()).count();
    let report = json!({
        "program": "hooklens", "tokens": tokens, "seconds": seconds, "active": graph.active(), "selected": selected,
        "nodes": graph.nodes().len(), "loaded_mb": loaded, "warm_mb": warm, "peak_mb": peak,
        "extra_mb": peak - loaded, "max_nodes": nodes, "deviation": graph.deviation(),
        "estimate": { "seconds": estimate.0, "mb": estimate.1 },
    });
    println!("{report}");
    Ok(())
}

/// Memory that the process has allocated and touched, not counting mapped files, in kilobytes.
fn allocated() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("RssAnon"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}
